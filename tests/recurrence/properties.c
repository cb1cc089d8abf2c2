/* properties: holds the engines to what must be true of every composition, on random ones.
 *
 *     properties                       2,000 compositions, as in CI, and the table of pairs of options, all of which must come
 * up properties --seeds 1..100000     these; the pairs are counted, not demanded properties --seed 17             one, with
 * what it is properties --seed 17 --shrink half_tokens,decay    the same made smaller by these steps
 *     --pairs                          every pair with its count, behind the table
 *
 * A trial that fails is made as small as it stays failing, and printed with the command that repeats it. Exit status 1. */
#include "checks.h"
#include "pairs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    uint64_t first, last;
    const char *shrink; /* NULL: none */
    bool one, all_pairs, demand_pairs;
} request;

static int usage(const char *wrong) {
    fprintf(stderr, "properties: %s\nUsage: properties [--seeds A..B | --seed N [--shrink STEP,...]] [--pairs]\n", wrong);
    return 2;
}

static bool read_number(const char *text, char **end, uint64_t *number) {
    errno = 0;
    *number = strtoull(text, end, 10);
    return *end != text && errno == 0 && *text != '-';
}

/* 0, or the exit status */
static int read_arguments(int argc, char **argv, request *wanted) {
    *wanted = (request){.first = 1, .last = trial_cycle(), .demand_pairs = true};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        char *end;
        if (strcmp(argv[i], "--pairs") == 0) {
            wanted->all_pairs = true;
            continue;
        } else if (strcmp(argv[i], "--seed") == 0) {
            if (!read_number(value, &end, &wanted->first) || *end) return usage("--seed takes a number");
            wanted->last = wanted->first;
            wanted->one = true;
        } else if (strcmp(argv[i], "--seeds") == 0) {
            if (!read_number(value, &end, &wanted->first) || strncmp(end, "..", 2) != 0 ||
                !read_number(end + 2, &end, &wanted->last) || *end || wanted->last < wanted->first)
                return usage("--seeds takes two numbers A..B, A not above B");
        } else if (strcmp(argv[i], "--shrink") == 0) {
            wanted->shrink = value;
        } else {
            return usage("unknown argument");
        }
        wanted->demand_pairs = false;
        i++;
    }
    return wanted->shrink && !wanted->one ? usage("--shrink goes with --seed") : 0;
}

/* Takes the listed steps; false if there is no such step. */
static bool take_steps(trial *t, const char *steps) {
    char name[64];
    for (const char *at = steps; *at;) {
        const size_t length = strcspn(at, ",");
        if (length >= sizeof name) return false;
        memcpy(name, at, length);
        name[length] = '\0';
        if (!trial_shrink_by(t, name)) return false;
        at += length + (at[length] == ',');
    }
    return true;
}

static bool still_holds(const trial *t, void *context) {
    fault what;
    return trial_holds(t, context, &what);
}

static void report(const char *program, trial t, const char *before, machine *m, const fault *what) {
    char steps[2048];
    printf("seed %llu fails: %s\n", (unsigned long long)t.seed, what->text);
    trial_print(&t, stdout);
    trial_shrink(&t, still_holds, m, steps, sizeof steps);
    if (steps[0]) {
        fault now;
        trial_holds(&t, m, &now);
        printf("  made smaller it fails: %s\n", now.text);
        trial_print(&t, stdout);
    }
    printf("  to repeat: %s --seed %llu", program, (unsigned long long)t.seed);
    if (before || steps[0]) printf(" --shrink %s%s%s", before ? before : "", before && steps[0] ? "," : "", steps);
    printf("\n");
    fflush(stdout);
}

static int check_pairs(pairs *counted, const request *wanted) {
    char missing[160];
    const long missed = pairs_find_refused(counted, missing, sizeof missing);
    pairs_print(counted, wanted->all_pairs, stdout);
    if (missed) printf("%ld possible pairs did not come up, the first: %s\n", missed, missing);
    return missed && wanted->demand_pairs;
}

int main(int argc, char **argv) {
    request wanted;
    int status = read_arguments(argc, argv, &wanted);
    if (status) return status;
    machine m;
    machine_open(&m);
    pairs counted = pairs_create();
    long failed = 0, passed = 0;
    const time_t start = time(NULL);
    for (uint64_t seed = wanted.first; seed <= wanted.last && seed >= wanted.first; seed++) {
        trial t = trial_draw(seed);
        fault what;
        if (wanted.shrink && !take_steps(&t, wanted.shrink)) {
            pairs_free(&counted);
            machine_close(&m);
            return usage("--shrink has a step that does nothing here");
        }
        if (wanted.one) trial_print(&t, stdout);
        pairs_add(&counted, &t);
        if (trial_holds(&t, &m, &what)) {
            passed++;
        } else {
            failed++;
            report(argv[0], t, wanted.shrink, &m, &what);
        }
    }
    if (!wanted.one) status = check_pairs(&counted, &wanted);
    printf("seeds %llu..%llu: %ld compositions hold, %ld fail, in %ld s; worst error %.3f of what is allowed\n",
           (unsigned long long)wanted.first, (unsigned long long)wanted.last, passed, failed, (long)(time(NULL) - start),
           m.worst);
    pairs_free(&counted);
    machine_close(&m);
    return failed || status;
}
