/* The least size that an error is measured by, in `verify`: results that are small as a whole are held as closely as large
 * ones. Recorded cases are scaled: results are linear in the values and the first state taken together, gradients in the
 * weights (cotangents) of the results. By a power of two, so that every number stays exact. */
#include "check/verify/measure.h"
#include "formats/safetensors.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/verify.h>
#include <math.h>

enum { MAX_TENSORS = 32 };

static const double SMALL = 0x1p-16; /* results of some 1e-5, ten times the least size */

typedef struct {
    int count;
    const char *names[MAX_TENSORS];
    dr_tensor tensors[MAX_TENSORS];
    void *values[MAX_TENSORS]; /* a copy, in the tensor's type */
    const char *metadata[40];
    dr_safetensors *file;
} recorded;

static recorded open_case(const char *name) {
    static const char *const keys[] = {
        "rule",     "B",      "T",     "H",       "HV",        "dk",           "dv",           "N",
        "substeps", "packed", "scale", "options", "gradients", "rtol_forward", "rtol_backward"};
    recorded read = {0};
    char path[600];
    snprintf(path, sizeof path, "%s/vectors/%s.safetensors", DR_TESTS_FOLDER, name);
    must(dr_safetensors_open(path, &read.file));
    read.count = (int)dr_safetensors_count(read.file);
    assert_true(read.count <= MAX_TENSORS);
    for (int i = 0; i < read.count; i++) {
        dr_tensor tensor = dr_safetensors_tensor(read.file, i);
        size_t bytes = (size_t)dr_tensor_count(&tensor) * dr_dtype_size(tensor.dtype);
        read.values[i] = malloc(bytes);
        assert_non_null(read.values[i]);
        memcpy(read.values[i], tensor.data, bytes);
        read.names[i] = dr_safetensors_name(read.file, i);
        tensor.data = read.values[i];
        read.tensors[i] = tensor;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        read.metadata[2 * i] = keys[i];
        read.metadata[2 * i + 1] = dr_safetensors_metadata(read.file, keys[i]);
        assert_non_null(read.metadata[2 * i + 1]);
    }
    return read;
}

static void close_case(recorded *read) {
    for (int i = 0; i < read->count; i++) free(read->values[i]);
    dr_safetensors_close(read->file);
}

static void scale(recorded *read, const char *name, double factor) {
    for (int i = 0; i < read->count; i++) {
        if (strcmp(read->names[i], name) != 0) continue;
        for (int64_t k = 0; k < dr_tensor_count(&read->tensors[i]); k++)
            if (read->tensors[i].dtype == DR_F32)
                ((float *)read->values[i])[k] *= (float)factor;
            else
                ((double *)read->values[i])[k] *= factor;
    }
}

static void keep_line(void *context, const char *text) {
    if (strstr(text, "FAIL")) snprintf(context, 512, "%s", text);
}

/* Whether the case passes; last: a line that says why not. */
static bool passes(const recorded *read, const char *backend, char last[512]) {
    const char *path = scratch_path("scaled.safetensors");
    dr_verify_counts counts = {0};
    last[0] = '\0';
    must(dr_safetensors_write(path, read->count, read->names, read->tensors, read->metadata));
    must(dr_verify(path, &(dr_verify_options){.backend = backend, .threads = 1, .strict = true}, keep_line, last, &counts));
    assert_int_equal(counts.passed + counts.failed, 1);
    return counts.passed == 1;
}

static void test_small_results_are_held(void **state) {
    (void)state;
    static const char *const cases[] = {"gdn__qk_l2norm", "kda__alpha0"}, *const backends[] = {"reference", "cpu"};
    static const struct {
        const char *scaled[9]; /* what becomes small */
        const char *wrong[7];  /* what is wrong by a thousandth, one after another */
    } trials[] = {
        {{"in.v", "in.S0", "out.o", "out.S", "grad.q", "grad.k", "grad.g", "grad.beta"}, {"out.o", "out.S"}},
        {{"cot.o", "cot.S", "grad.q", "grad.k", "grad.v", "grad.g", "grad.beta", "grad.S0"},
         {"grad.q", "grad.k", "grad.v", "grad.g", "grad.beta", "grad.S0"}},
    };
    char last[512];
    for (int c = 0; c < 2; c++)
        for (int t = 0; t < 2; t++)
            for (int b = 0; b < 2; b++) {
                recorded read = open_case(cases[c]);
                for (int i = 0; trials[t].scaled[i]; i++) scale(&read, trials[t].scaled[i], SMALL);
                if (!passes(&read, backends[b], last)) fail_msg("small, and right: %s", last);
                for (int i = 0; trials[t].wrong[i]; i++) {
                    scale(&read, trials[t].wrong[i], 1.001);
                    if (passes(&read, backends[b], last))
                        fail_msg("%s on %s: a small %s that is wrong passes", cases[c], backends[b], trials[t].wrong[i]);
                    assert_non_null(strstr(last, trials[t].wrong[i]));
                    scale(&read, trials[t].wrong[i], 1 / 1.001);
                }
                close_case(&read);
            }
}

/* One number that is 1, and is found to be so much more. */
static void measure(const char *name, double more, dr_worst *worst) {
    double right = 1, actual = 1 + more;
    dr_measure(&actual, &(dr_tensor){.dtype = DR_F64, .rank = 1, .shape = {1}, .data = &right}, "out.", name, worst);
}

/* Where a backend rounds, a tensor may be wrong by twice what the plain loop is with the same roundings, no more; and the
 * tensor that is told is the one that is farthest beyond what it may be, not the one with the largest error. */
static void test_what_rounding_excuses(void **state) {
    (void)state;
    const dr_errors plain = {.count = 2, .of = {{"out.o", 0x1p-8}, {"out.S", 0}}};
    const dr_worst fresh = {.error = -1, .tolerance = 0x1p-16, .plain = &plain, .least = 0x1p-12};
    static const struct {
        const char *name;
        double allowed;
    } tensors[] = {{"o", 0x1p-7}, {"S", 0x1p-11}, {"other", 0x1p-16}};
    for (int i = 0; i < 3; i++) {
        dr_worst just = fresh, beyond = fresh;
        measure(tensors[i].name, tensors[i].allowed, &just);
        measure(tensors[i].name, 1.25 * tensors[i].allowed, &beyond);
        assert_true(just.error == tensors[i].allowed && just.excess == 1);
        assert_true(beyond.error == 1.25 * tensors[i].allowed && beyond.excess == 1.25);
    }
    for (int order = 0; order < 2; order++) {
        dr_worst worst = fresh;
        measure(order ? "S" : "o", order ? 0x1p-9 : 0x1p-8, &worst);
        measure(order ? "o" : "S", order ? 0x1p-8 : 0x1p-9, &worst);
        assert_string_equal(worst.tensor, "out.S");
        assert_true(worst.error == 0x1p-9 && worst.excess == 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small_results_are_held),
                                       cmocka_unit_test(test_what_rounding_excuses)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
