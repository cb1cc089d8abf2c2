/* Holding a build against recorded results: files in order of names, each on every backend and every engine that applies.
 *
 * A file is read and checked whole before anything runs. A case passes if every run of it stays within the tolerances: 1e-10 on
 * the reference, which is double, the file's own elsewhere, and where a backend stores vectors in 16 bits, twice the error of
 * the reference with inputs and results rounded to that type, or twice what rounding alone does to a tensor: one of few numbers
 * may be lucky. It is skipped if this build does not know what it records, or if
 * nothing that was asked for applies to it. The reference has no chunkwise engine, being the specification; a backend that does
 * not have another engine for a rule says so with DR_ERROR_UNSUPPORTED, which only `strict` counts as a failure. */
#include <deltarule/verify.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "check/verify/activation_case.h"
#include "check/verify/model_folder.h"
#include "check/verify/recurrence_case.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const backend_names[] = {"reference", "cpu", "cuda"};
enum { BACKENDS = sizeof backend_names / sizeof backend_names[0], REFERENCE = 0, LINE_BYTES = 512, NAME_BYTES = 80 };

static const double REFERENCE_TOLERANCE = 1e-10;

typedef enum { ENGINE_RECURRENT, ENGINE_CHUNKWISE, ENGINE_DECODE, ENGINES } engine;
static const char *const engine_names[ENGINES] = {"recurrent", "chunkwise", "decode"};

typedef struct {
    const dr_verify_options *options;
    void (*line)(void *context, const char *text);
    void *context;
    dr_verify_counts *counts;
    dr_backend *backend[BACKENDS]; /* NULL: not asked for */
    dr_backend *plain;             /* the reference, where a backend rounds to 16 bits; may be one of the above */
} session;

/* What has happened to one file. */
typedef struct {
    char name[NAME_BYTES]; /* "gdn__T100" */
    double rtol_forward, rtol_backward;
    int runs, failures;
} progress;

static void say(const session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const session *s, const char *format, ...) {
    char text[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    dr_format_list(text, sizeof text, format, arguments);
    va_end(arguments);
    s->line(s->context, text);
}

static bool is_reference(const dr_backend *backend) {
    return dr_backend_dtype(backend) == DR_F64;
}

static bool within(const dr_worst *worst) {
    return worst->error >= 0 && worst->excess <= 1;
}

static bool rounds(const dr_backend *backend) {
    return dr_recurrence_output_dtype(backend) != dr_backend_dtype(backend);
}

static void start(const progress *p, const dr_backend *backend, dr_measurement *result) {
    if (is_reference(backend))
        dr_measurement_start(result, REFERENCE_TOLERANCE, REFERENCE_TOLERANCE);
    else
        dr_measurement_start(result, p->rtol_forward, p->rtol_backward);
}

/* "forward 2.1e-07 out.o", or blanks of that width; where the allowance is a tensor's own, "forward 2.1e-03 out.o x0.6". */
static void format_worst(const char *label, const dr_worst *worst, char *text, size_t size) {
    if (worst->error < 0)
        snprintf(text, size, "%-30s", "");
    else if (!worst->plain)
        dr_format(text, size, "%s %7.1e %-13s", label, worst->error, worst->tensor);
    else
        dr_format(text, size, "%s %7.1e %-13s x%.2f", label, worst->error, worst->tensor, worst->excess);
}

/* Judges one run by its status and its errors, and says a line about it. engine: its name, or "-". Only a lack of memory is an
 * error of the whole. */
static dr_status judge(session *s, progress *p, const dr_backend *backend, const char *engine_name, dr_status status,
                       const dr_measurement *result, bool backward) {
    const char *where = dr_backend_name(backend);
    if (status == DR_ERROR_MEMORY) return status;
    if (status == DR_ERROR_UNSUPPORTED) {
        p->failures += s->options->strict;
        say(s, "%-24s %-9s %-9s %s: %s", p->name, where, engine_name, s->options->strict ? "FAIL, not run" : "not run",
            dr_last_error());
        return DR_OK;
    }
    p->runs++;
    if (status != DR_OK) {
        p->failures++;
        say(s, "%-24s %-9s %-9s FAIL: %s", p->name, where, engine_name, dr_last_error());
        return DR_OK;
    }
    bool passed = within(&result->forward) && (!backward || within(&result->backward));
    char forward_text[64], backward_text[64];
    format_worst("forward", &result->forward, forward_text, sizeof forward_text);
    format_worst("backward", &result->backward, backward_text, sizeof backward_text);
    p->failures += !passed;
    say(s, "%-24s %-9s %-9s %s %s %s  %s", p->name, where, engine_name, forward_text, backward_text, passed ? "pass" : "FAIL",
        result->kernel);
    return DR_OK;
}

static bool wanted(const session *s, const dr_backend *backend, engine which) {
    if (which == ENGINE_CHUNKWISE && is_reference(backend)) return false;
    return !s->options->path || strcmp(s->options->path, engine_names[which]) == 0;
}

/* The errors of the plain loop in double whose inputs and results are rounded as the backend's are. */
static dr_status measure_plain(const session *s, const dr_recurrence_case *read, const dr_backend *types, dr_errors *forward,
                               dr_errors *backward) {
    dr_measurement result;
    dr_measurement_start(&result, 1, 1);
    result.forward.kept = forward;
    result.backward.kept = backward;
    return dr_recurrence_case_run(read, s->plain, types, DR_PATH_RECURRENT, &result);
}

static dr_status run_engine(session *s, progress *p, const dr_recurrence_case *read, dr_backend *backend, engine which) {
    dr_errors forward = {0}, backward = {0};
    dr_measurement result;
    start(p, backend, &result);
    if (rounds(backend)) {
        DR_TRY(measure_plain(s, read, backend, &forward, &backward));
        result.forward.plain = &forward;
        result.backward.plain = &backward;
        result.forward.least = result.backward.least = dr_rounding_error(dr_recurrence_output_dtype(backend));
    }
    dr_path path = which == ENGINE_CHUNKWISE ? DR_PATH_CHUNKWISE : DR_PATH_RECURRENT;
    dr_status status = which == ENGINE_DECODE ? dr_recurrence_case_decode(read, backend, &result)
                                              : dr_recurrence_case_run(read, backend, backend, path, &result);
    return judge(s, p, backend, engine_names[which], status, &result, read->backward && which != ENGINE_DECODE);
}

static dr_status run_recurrence(session *s, progress *p, const dr_recurrence_case *read) {
    for (int b = 0; b < BACKENDS; b++)
        for (int e = 0; e < ENGINES; e++)
            if (s->backend[b] && wanted(s, s->backend[b], (engine)e)) DR_TRY(run_engine(s, p, read, s->backend[b], (engine)e));
    return DR_OK;
}

/* An activation has no engines: it runs once a backend. */
static dr_status run_activation_on(session *s, progress *p, const dr_activation_case *read, dr_backend *backend) {
    dr_errors forward = {0}, backward = {0};
    dr_measurement result;
    if (rounds(backend)) {
        dr_measurement_start(&result, 1, 1);
        result.forward.kept = &forward;
        result.backward.kept = &backward;
        DR_TRY(dr_activation_case_run(read, s->plain, backend, &result));
    }
    start(p, backend, &result);
    if (rounds(backend)) {
        result.forward.plain = &forward;
        result.backward.plain = &backward;
        result.forward.least = result.backward.least = dr_rounding_error(dr_activation_case_dtype(read, backend));
    }
    const dr_status status = dr_activation_case_run(read, backend, backend, &result);
    return judge(s, p, backend, "-", status, &result, read->backward);
}

static dr_status run_activation(session *s, progress *p, const dr_activation_case *read) {
    for (int b = 0; b < BACKENDS; b++)
        if (s->backend[b]) DR_TRY(run_activation_on(s, p, read, s->backend[b]));
    return DR_OK;
}

static dr_status run_file(session *s, progress *p, dr_vector_file *file) {
    if (strncmp(file->rule, "act_", 4) == 0 && strcmp(file->rule, "act_squash") != 0) {
        dr_activation_case activation;
        DR_TRY(dr_activation_case_read(file, &activation));
        return run_activation(s, p, &activation);
    }
    dr_recurrence_case recurrence;
    DR_TRY(strcmp(file->rule, "act_squash") == 0 ? dr_squash_case_read(file, &recurrence)
                                                 : dr_recurrence_case_read(file, &recurrence));
    dr_status status = run_recurrence(s, p, &recurrence);
    dr_recurrence_case_close(&recurrence);
    return status;
}

/* The file's name without folder and ending. */
static void name_of(const char *path, char name[NAME_BYTES]) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *end = strrchr(base, '.');
    snprintf(name, NAME_BYTES, "%.*s", end && end > base ? (int)(end - base) : (int)strlen(base), base);
}

static dr_status verify_file(session *s, const char *path) {
    dr_vector_file file;
    progress p = {0};
    name_of(path, p.name);
    DR_TRY(dr_vector_file_open(path, &file));
    p.rtol_forward = file.rtol_forward;
    p.rtol_backward = file.rtol_backward;
    dr_status status = run_file(s, &p, &file);
    dr_vector_file_close(&file);
    if (status == DR_ERROR_UNSUPPORTED) {
        p.failures += s->options->strict;
        say(s, "%-24s %s: %s", p.name, s->options->strict ? "FAIL, unknown" : "skipped", dr_last_error());
    } else if (status != DR_OK) {
        return dr_fail_in(status, "%s", path);
    } else if (p.runs == 0 && p.failures == 0) {
        say(s, "%-24s skipped: no backend and path that was asked for applies", p.name);
    }
    if (p.failures > 0)
        s->counts->failed++;
    else if (p.runs > 0)
        s->counts->passed++;
    else
        s->counts->skipped++;
    return DR_OK;
}

/* ---- folders of models -------------------------------------------------------------------------------------------------- */

static void say_model(const session *s, const char *name, const dr_backend *backend, const dr_model_result *result) {
    char text[LINE_BYTES] = "";
    size_t used = 0;
    for (int way = 0; way < DR_WAYS; way++)
        used += (size_t)dr_format(text + used, sizeof text - used, "%s %7.1e  ", dr_way_names[way], result->logits[way]);
    used += (size_t)dr_format(text + used, sizeof text - used, "loss %7.1e", result->loss);
    if (result->greedy > 0)
        dr_format(text + used, sizeof text - used, "  greedy %lld of %lld", (long long)result->matched,
                  (long long)result->greedy);
    say(s, "%-28s %-9s %s  %s", name, dr_backend_name(backend), text, result->passed ? "pass" : "FAIL");
}

/* A model that needs what is not built is skipped, and says what; one that cannot be read has failed. */
static dr_status verify_model(session *s, const char *folder) {
    const char *slash = strrchr(folder, '/'), *name = slash && slash[1] ? slash + 1 : folder;
    int runs = 0, failures = 0;
    for (int b = 0; b < BACKENDS; b++) {
        dr_model_result result;
        if (!s->backend[b]) continue;
        const dr_status status = dr_model_folder_check(s->backend[b], folder, &result);
        if (status == DR_ERROR_MEMORY) return status;
        if (status == DR_ERROR_UNSUPPORTED) {
            failures += s->options->strict;
            say(s, "%-28s %-9s %s: %s", name, dr_backend_name(s->backend[b]), s->options->strict ? "FAIL, not run" : "not run",
                dr_last_error());
            continue;
        }
        runs++;
        failures += status != DR_OK || !result.passed;
        if (status == DR_OK)
            say_model(s, name, s->backend[b], &result);
        else
            say(s, "%-28s %-9s FAIL: %s", name, dr_backend_name(s->backend[b]), dr_last_error());
    }
    ++*(failures > 0 ? &s->counts->failed : runs > 0 ? &s->counts->passed : &s->counts->skipped);
    return DR_OK;
}

static int by_name(const struct dirent **left, const struct dirent **right) {
    return strcmp((*left)->d_name, (*right)->d_name);
}

static int is_seen(const struct dirent *item) {
    return item->d_name[0] != '.';
}

/* The path of what lies in a folder; free with dr_release. */
static dr_status path_in(const char *folder, const char *name, char **path) {
    const size_t size = strlen(folder) + strlen(name) + 2;
    void *memory;
    DR_TRY(dr_allocate(size, "the path of a file", &memory));
    snprintf(memory, size, "%s/%s", folder, name);
    *path = memory;
    return DR_OK;
}

/* Every folder of models that lies in a folder; *found says how many. */
static dr_status verify_models(session *s, const char *path, int *found) {
    struct dirent **items = NULL;
    const int count = scandir(path, &items, is_seen, by_name);
    dr_status status = count < 0 ? dr_fail(DR_ERROR_IO, "%s: cannot list the folder: %s", path, dr_system_text(errno)) : DR_OK;
    *found = 0;
    for (int i = 0; i < count && status == DR_OK; i++) {
        char *folder = NULL;
        status = path_in(path, items[i]->d_name, &folder);
        if (status != DR_OK) break;
        const bool model = dr_is_model_folder(folder);
        *found += model;
        if (model) status = verify_model(s, folder);
        dr_release(folder);
    }
    for (int i = 0; i < count; i++) free(items[i]);
    free(items);
    return status;
}

/* ---- files of recorded results ------------------------------------------------------------------------------------------- */

static int is_vector_file(const struct dirent *item) {
    static const char ending[] = ".safetensors";
    size_t length = strlen(item->d_name), tail = sizeof ending - 1;
    return length > tail && strcmp(item->d_name + length - tail, ending) == 0;
}

static dr_status verify_folder(session *s, const char *path) {
    struct dirent **items = NULL;
    int models = 0;
    if (dr_is_model_folder(path)) return verify_model(s, path);
    DR_TRY(verify_models(s, path, &models));
    if (models > 0) return DR_OK;
    int count = scandir(path, &items, is_vector_file, by_name);
    if (count < 0) return dr_fail(DR_ERROR_IO, "%s: cannot list the folder: %s", path, dr_system_text(errno));
    dr_status status =
        count == 0 ? dr_fail(DR_ERROR_FORMAT, "%s holds no .safetensors file, and no model with expected.safetensors", path)
                   : DR_OK;
    for (int i = 0; i < count && status == DR_OK; i++) {
        char *file = NULL;
        status = path_in(path, items[i]->d_name, &file);
        if (status == DR_OK) status = verify_file(s, file);
        dr_release(file);
    }
    for (int i = 0; i < count; i++) free(items[i]);
    free(items);
    return status;
}

/* NULL, or one of the names. */
static dr_status check_choice(const char *what, const char *value, const char *const choices[3]) {
    for (int i = 0; i < 3; i++)
        if (!value || strcmp(value, choices[i]) == 0) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the %s '%s' does not exist; there are %s, %s and %s", what, value, choices[0],
                   choices[1], choices[2]);
}

static bool is_listed(const char *name) {
    for (int i = 0; dr_backend_listed(i); i++)
        if (strcmp(dr_backend_listed(i), name) == 0) return true;
    return false;
}

/* The backend asked for, or all of the build; one that this machine cannot run is told of, unless it was asked for by name. */
static dr_status open_backends(session *s) {
    for (int b = 0; b < BACKENDS; b++) {
        const char *name = backend_names[b], *only = s->options->backend;
        if (only ? strcmp(only, name) != 0 : !is_listed(name)) continue;
        const bool gpu = strcmp(name, "cuda") == 0;
        const dr_backend_options options = {.threads = s->options->threads,
                                            .isa = strcmp(name, "cpu") == 0 ? s->options->isa : NULL,
                                            .dtype = gpu ? s->options->dtype : DR_F32,
                                            .device = gpu ? s->options->device : 0};
        dr_status status = dr_backend_open(name, &options, &s->backend[b]);
        if (status == DR_ERROR_UNSUPPORTED && gpu && !only)
            say(s, "%-24s %-9s %-9s not run: %s", "", name, "-", dr_last_error());
        else
            DR_TRY(status);
        if (!s->backend[b] || !rounds(s->backend[b])) continue;
        s->plain = s->backend[REFERENCE];
        if (!s->plain) DR_TRY(dr_backend_open("reference", NULL, &s->plain));
    }
    return DR_OK;
}

dr_status dr_verify(const char *path, const dr_verify_options *options, void (*line)(void *context, const char *text),
                    void *context, dr_verify_counts *counts) {
    DR_NEED(path);
    DR_NEED(options);
    DR_NEED(line);
    DR_NEED(counts);
    DR_TRY(check_choice("backend", options->backend, backend_names));
    DR_TRY(check_choice("path", options->path, engine_names));
    struct stat about;
    if (stat(path, &about) != 0) return dr_fail(DR_ERROR_IO, "%s: cannot open: %s", path, dr_system_text(errno));
    session s = {.options = options, .line = line, .context = context, .counts = counts};
    dr_status status = open_backends(&s);
    if (status == DR_OK) status = S_ISDIR(about.st_mode) ? verify_folder(&s, path) : verify_file(&s, path);
    if (s.plain != s.backend[REFERENCE]) dr_backend_close(s.plain);
    for (int b = 0; b < BACKENDS; b++) dr_backend_close(s.backend[b]);
    return status;
}
