/* cuda_tests: what must hold of backend cuda, on the GPU of this machine; tools/test-cuda runs it.
 *
 *     cuda_tests                       every suite, 240 random compositions; some four minutes on an H200
 *     cuda_tests --short               every suite but the large ones, fewer compositions
 *     cuda_tests --suite NAME          one of them
 *     cuda_tests --seeds A..B          random compositions only, these
 *     cuda_tests --pipeline NAME       one of the small calls of suite pipelines, for compute-sanitizer
 *     cuda_tests --list-pipelines      their names
 *     cuda_tests --operation NAME      the cases of an operation of networks, for compute-sanitizer
 *     cuda_tests --list-operations     their names
 *     cuda_tests --device N            another GPU
 *     cuda_tests --threads N           so many cases at once (one a processor, up to 32)
 *
 * Prints which instances of the kernels ran; where every suite ran, one that was compiled and never launched is a failure. Exit
 * status 1 with a sentence if something does not hold; 77 with the reason if there is no GPU. */
#include "instances.h"
#include "network/calls.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int usage(const char *wrong) {
    fprintf(stderr,
            "cuda_tests: %s\nUsage: cuda_tests [--short | --suite NAME | --seeds A..B | --pipeline NAME | --list-pipelines | "
            "--operation NAME | --list-operations] [--device N] [--threads N]\n",
            wrong);
    return 2;
}

static bool read_number(const char *text, char **end, uint64_t *number) {
    errno = 0;
    *number = strtoull(text, end, 10);
    return *end != text && errno == 0 && *text != '-';
}

static dr_backend *opened(const char *name, const dr_backend_options *options) {
    dr_backend *backend;
    if (dr_backend_open(name, options, &backend) == DR_OK) return backend;
    printf("cuda_tests: skipped: %s\n", dr_last_error());
    exit(77);
}

static const struct {
    const char *name;
    bool (*run)(gpu *g, fault *what);
} suites[] = {{"refusals", suite_refusals},   {"graphs", suite_graphs}, {"busy", suite_busy},
              {"chains", suite_chains},       {"slots", suite_slots},   {"many", suite_many},
              {"pipelines", suite_pipelines}, {"shapes", suite_shapes}, {"layers", suite_layers},
              {"early", suite_early},         {"decays", suite_decays}, {"plans", suite_plans},
              {"forms", suite_forms},         {"large", suite_large},   {"rounding", suite_rounding},
              {"networks", suite_networks},   {"models", suite_models}, {"trials", suite_trials}};
enum { SUITES = sizeof suites / sizeof *suites };

/* Fills g and what is run: a suite's name, or NULL for all. 0, or the exit status. */
static int read_arguments(int argc, char **argv, gpu *g, const char **only) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t device = 0, threads = processors < 1 ? 1 : processors < 32 ? (uint64_t)processors : 32;
    *g = (gpu){.first = 1, .last = 240};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--short") == 0) {
            g->brief = true;
            g->last = 96;
            i--;
            continue;
        }
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        char *end;
        if (strcmp(argv[i], "--device") == 0) {
            if (!read_number(value, &end, &device) || *end || device > 1023) return usage("--device takes a number");
        } else if (strcmp(argv[i], "--threads") == 0) {
            if (!read_number(value, &end, &threads) || *end || threads < 1 || threads > MOST_WORKERS)
                return usage("--threads takes a number from 1 to 64");
        } else if (strcmp(argv[i], "--seeds") == 0) {
            if (!read_number(value, &end, &g->first) || strncmp(end, "..", 2) != 0 || !read_number(end + 2, &end, &g->last) ||
                *end || g->last < g->first)
                return usage("--seeds takes two numbers A..B, A not above B");
            *only = "trials";
        } else if (strcmp(argv[i], "--suite") == 0) {
            *only = value;
        } else if (strcmp(argv[i], "--pipeline") == 0) {
            *only = "pipelines";
            g->pipeline = value;
        } else if (strcmp(argv[i], "--operation") == 0) {
            *only = "networks";
            g->operation = value;
        } else {
            return usage("unknown argument");
        }
    }
    g->device = (int)device;
    g->threads = (int)threads;
    return 0;
}

/* Whether it holds; a line says so. */
static bool run_suite(gpu *g, int i) {
    fault what = {""};
    const double start = dr_clock_now();
    const long before = g->checks;
    const bool holds = suites[i].run(g, &what) && dr_backend_wait(g->cuda[0]) == DR_OK;
    printf("%-10s %6ld checks %6.1f s  %s%s\n", suites[i].name, g->checks - before, dr_clock_now() - start,
           holds ? "all right" : "FAIL: ", holds ? "" : (what.text[0] ? what.text : dr_last_error()));
    fflush(stdout);
    return holds;
}

int main(int argc, char **argv) {
    static const dr_dtype types[3] = {DR_F32, DR_BF16, DR_F16};
    const char *only = NULL;
    fault what = {""};
    bool ran = false, holds = true;
    gpu g;
    if (argc == 2 && strcmp(argv[1], "--list-pipelines") == 0) return pipelines_list(), 0;
    if (argc == 2 && strcmp(argv[1], "--list-operations") == 0) return network_cases_list(), 0;
    const int wrong = read_arguments(argc, argv, &g, &only);
    if (wrong) return wrong;
    for (int i = 0; i < 3; i++) g.cuda[i] = opened("cuda", &(dr_backend_options){.dtype = types[i], .device = g.device});
    g.reference = opened("reference", NULL);
    g.cpu = opened("cpu", NULL);
    for (int i = 0; i < SUITES; i++) {
        if (only ? strcmp(only, suites[i].name) != 0 : g.brief && suites[i].run == suite_large) continue;
        ran = true;
        holds = run_suite(&g, i) && holds;
    }
    if (!ran) return usage("there is no such suite");
    printf("largest error over what is allowed: float32 %.2f, bf16 %.2f, fp16 %.2f; %ld compositions refused\n", g.worst[0],
           g.worst[1], g.worst[2], g.refused);
    for (int i = 0; i < 3; i++) instances_note(g.cuda[i]);
    if (!instances_report(!only && !g.brief, &what)) {
        printf("FAIL: %s\n", what.text);
        holds = false;
    }
    for (int i = 0; i < 3; i++) dr_backend_close(g.cuda[i]);
    dr_backend_close(g.reference);
    dr_backend_close(g.cpu);
    return !holds;
}
