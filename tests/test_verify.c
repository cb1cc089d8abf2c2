/* Verifying: all recorded cases pass on every backend, engine and instruction set of this machine; a changed number, a hostile
 * file, an unknown rule and a lack of memory show as what they are. */
#include "allocation.h"
#include "base/cpu.h"
#include "formats/safetensors.h"
#include "scratch.h"

#include <deltarule/rule.h>
#include <deltarule/verify.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>

static const char vectors[] = DR_TESTS_FOLDER "/vectors";

/* What dr_verify said. */
typedef struct {
    bool show_failures;
    int lines, passes, decodes, chunkwise, of_isa;
    const char *isa; /* counted in of_isa */
    char last[512];
} transcript;

/* Lines of a GPU's backend are passed over: whether there are any follows from the build and the machine, and tests/cuda counts
 * them. */
static void take_line(void *context, const char *text) {
    transcript *t = context;
    if (strstr(text, " cuda ")) return;
    t->lines++;
    t->passes += strstr(text, " pass ") != NULL;
    t->decodes += strstr(text, " decode ") != NULL;
    t->chunkwise += strstr(text, " chunkwise ") != NULL;
    t->of_isa += t->isa && strstr(text, t->isa) != NULL;
    if (t->show_failures && strstr(text, "FAIL")) print_message("%s\n", text);
    snprintf(t->last, sizeof t->last, "%s", text);
}

static void assert_says(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("\"%s\" lacks \"%s\"", text, words);
}

static int count_files(const char *folder, const char *prefix) {
    int count = 0;
    DIR *stream = opendir(folder);
    assert_non_null(stream);
    for (struct dirent *item; (item = readdir(stream));)
        count += strstr(item->d_name, ".safetensors") && strncmp(item->d_name, prefix, strlen(prefix)) == 0;
    closedir(stream);
    return count;
}

/* Everything passes, and the number of lines shows that nothing was left out. */
static void verify_all(const char *backend, const char *isa, int engines) {
    dr_verify_options options = {.backend = backend, .isa = isa, .strict = true};
    dr_verify_counts counts = {0};
    transcript t = {.show_failures = true, .isa = isa};
    int files = count_files(vectors, ""), rules = files - count_files(vectors, "act_") + count_files(vectors, "act_squash");
    int lines = rules * engines + (files - rules);
    if (dr_verify(vectors, &options, take_line, &t, &counts) != DR_OK) fail_msg("%s", dr_last_error());
    assert_int_equal(counts.passed, files);
    assert_int_equal(counts.failed, 0);
    assert_int_equal(counts.skipped, 0);
    assert_int_equal(t.lines, lines);
    assert_int_equal(t.passes, lines);
    assert_int_equal(t.decodes, rules);
    if (isa) assert_int_equal(t.of_isa, lines);
}

static void test_vectors_are_there(void **state) {
    (void)state;
    static const char *const kinds[] = {"compose__",           "act_gate_gdn__", "act_gate_kda_safe__",
                                        "act_gate_eda_safe__", "act_squash__",   "act_l2norm__"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (count_files(vectors, kinds[i]) == 0) fail_msg("no case of %s", kinds[i]);
    for (int i = 0; i < dr_rule_count(); i++) {
        char kind[64];
        snprintf(kind, sizeof kind, "%s__", dr_rule_at(i)->name);
        if (count_files(vectors, kind) == 0) fail_msg("no case of %s", kind);
    }
}

static void test_reference(void **state) {
    (void)state;
    verify_all("reference", NULL, 2);
}

static void test_cpu(void **state) {
    (void)state;
    dr_cpu_features has = dr_cpu_detect();
    verify_all("cpu", "portable", 3);
    if (has.avx2) verify_all("cpu", "avx2", 3);
    if (has.avx512) verify_all("cpu", "avx512", 3);
    print_message("[ ran on  ] portable%s%s\n", has.avx2 ? " avx2" : "", has.avx512 ? " avx512" : "");
}

/* A folder of further recorded files. Rules that this build does not know are skipped there. */
static void test_more_vectors(void **state) {
    (void)state;
    const char *folder = getenv("DELTARULE_VECTORS");
    if (!folder) {
        print_message("[ note    ] DELTARULE_VECTORS is not set: only tests/vectors is used\n");
        return;
    }
    dr_verify_options options = {0};
    dr_verify_counts counts = {0};
    transcript t = {.show_failures = true};
    if (dr_verify(folder, &options, take_line, &t, &counts) != DR_OK) fail_msg("%s", dr_last_error());
    print_message("[ note    ] DELTARULE_VECTORS: %" PRId64 " cases of %s passed, %" PRId64 " failed, %" PRId64 " skipped\n",
                  counts.passed, folder, counts.failed, counts.skipped);
    assert_int_equal(counts.failed, 0);
    assert_true(counts.passed > 0);
}

/* choices */

static dr_verify_counts verify_one(const char *path, const dr_verify_options *options, transcript *t) {
    dr_verify_counts counts = {0};
    *t = (transcript){0};
    if (dr_verify(path, options, take_line, t, &counts) != DR_OK) fail_msg("%s", dr_last_error());
    assert_int_equal(counts.passed + counts.failed + counts.skipped, 1);
    return counts;
}

static void vector_path(const char *name, char path[600]) {
    snprintf(path, 600, "%s/%s.safetensors", vectors, name);
}

static void test_choices(void **state) {
    (void)state;
    char path[600];
    transcript t;
    vector_path("gdn__T1", path);
    verify_one(path, &(dr_verify_options){0}, &t);
    assert_int_equal(t.lines, 5);
    assert_int_equal(t.chunkwise, 1);
    verify_one(path, &(dr_verify_options){.backend = "cpu", .threads = 2}, &t);
    assert_int_equal(t.lines, 3);
    verify_one(path, &(dr_verify_options){.path = "decode"}, &t);
    assert_int_equal(t.lines, 2);
    assert_int_equal(t.decodes, 2);
    assert_null(strstr(t.last, "backward"));
    dr_verify_counts counts = verify_one(path, &(dr_verify_options){.backend = "reference", .path = "chunkwise"}, &t);
    assert_int_equal(counts.skipped, 1);
    assert_says(t.last, "no backend and path that was asked for applies");

    dr_verify_counts none = {0};
    assert_int_equal(dr_verify(path, &(dr_verify_options){.backend = "gpu"}, take_line, &t, &none), DR_ERROR_ARGUMENT);
    assert_says(dr_last_error(), "'gpu' does not exist; there are reference, cpu and cuda");
    assert_int_equal(dr_verify(path, &(dr_verify_options){.path = "fast"}, take_line, &t, &none), DR_ERROR_ARGUMENT);
    assert_int_not_equal(dr_verify(path, &(dr_verify_options){.isa = "mmx"}, take_line, &t, &none), DR_OK);
    assert_says(dr_last_error(), "mmx");
    assert_int_equal(none.passed + none.failed + none.skipped, 0);
}

/* files changed on purpose */

enum { MAX_TENSORS = 40 };

/* A recorded file taken apart: names, tensors with data of their own, metadata. */
typedef struct {
    int count;
    char *names[MAX_TENSORS];
    dr_tensor tensors[MAX_TENSORS];
    const char *metadata[64];
    dr_safetensors *file; /* keeps the metadata */
} parts;

static parts take_apart(const char *name) {
    static const char *const keys[] = {"rule",
                                       "B",
                                       "T",
                                       "H",
                                       "HV",
                                       "dk",
                                       "dv",
                                       "N",
                                       "substeps",
                                       "packed",
                                       "scale",
                                       "options",
                                       "gradients",
                                       "rtol_forward",
                                       "rtol_backward",
                                       NULL};
    parts p = {0};
    char path[600];
    vector_path(name, path);
    assert_int_equal(dr_safetensors_open(path, &p.file), DR_OK);
    p.count = (int)dr_safetensors_count(p.file);
    assert_true(p.count < MAX_TENSORS);
    for (int i = 0; i < p.count; i++) {
        p.names[i] = strdup(dr_safetensors_name(p.file, i));
        p.tensors[i] = dr_safetensors_tensor(p.file, i);
        size_t bytes = (size_t)dr_tensor_count(&p.tensors[i]) * dr_dtype_size(p.tensors[i].dtype);
        p.tensors[i].data = memcpy(malloc(bytes), p.tensors[i].data, bytes);
    }
    for (int i = 0, at = 0; keys[i]; i++) {
        const char *value = dr_safetensors_metadata(p.file, keys[i]);
        if (value) p.metadata[at++] = keys[i], p.metadata[at++] = value;
    }
    return p;
}

static int find(const parts *p, const char *name) {
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->names[i], name) == 0) return i;
    fail_msg("the case has no tensor %s", name);
    return -1;
}

static void add_to_element(const parts *p, const char *name, int64_t index, double difference) {
    dr_tensor *tensor = (dr_tensor *)&p->tensors[find(p, name)];
    assert_true(index < dr_tensor_count(tensor));
    if (tensor->dtype == DR_F32)
        ((float *)tensor->data)[index] += (float)difference;
    else
        ((double *)tensor->data)[index] += difference;
}

static const char *put_together(parts *p) {
    const char *path = scratch_path("changed.safetensors");
    if (dr_safetensors_write(path, p->count, (const char *const *)p->names, p->tensors, p->metadata) != DR_OK)
        fail_msg("%s", dr_last_error());
    return path;
}

static void drop(parts *p) {
    for (int i = 0; i < p->count; i++) {
        free(p->names[i]);
        free(p->tensors[i].data);
    }
    dr_safetensors_close(p->file);
}

static void test_one_changed_number(void **state) {
    (void)state;
    static const struct {
        const char *file, *tensor;
        int64_t index;
        const char *shown; /* the tensor that a line must name */
    } cases[] = {{"delta_net__beta0", "out.o", 3, "out.o"},
                 {"delta_net__beta0", "out.S", 63, "out.S"},
                 {"pgdn__zero_keys", "out.A", 0, "out.A"},
                 {"pgdn__gva_packed", "grad.A0", 7, "grad.A0"},
                 {"pgdn__gva_packed", "grad.S0", 5, "grad.S0"},
                 {"gdn__qk_l2norm", "grad.q", 100, "grad.q"},
                 {"kda__alpha0", "grad.g", 20, "grad.g"},
                 {"retnet__T70", "grad.g", 2, "grad.g"},
                 {"eda__T1", "grad.gamma", 1, "grad.gamma"},
                 {"qdelta__gva_packed", "grad.lam", 9, "grad.lam"},
                 {"act_squash__T9", "grad.mu", 1, "grad.mu"},
                 {"act_squash__T9", "out.y", 30, "out.y"},
                 {"act_gate_eda_safe__T9", "grad.A_log", 4, "grad.A_log"},
                 {"act_l2norm__T9", "out.y", 0, "out.y"},
                 {"mamba2__packed", "in.v", 0, "out."},
                 {"gla__T65", "in.k", 64, "out."}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const struct {
            const char *backend;
            double difference;
        } changes[] = {{"reference", 1e-6}, {"reference", NAN}, {"cpu", 0.5}, {"cpu", NAN}};
        for (int c = 0; c < 4; c++) {
            parts p = take_apart(cases[i].file);
            transcript t;
            add_to_element(&p, cases[i].tensor, cases[i].index, changes[c].difference);
            dr_verify_options options = {.backend = changes[c].backend, .path = "recurrent"};
            dr_verify_counts counts = verify_one(put_together(&p), &options, &t);
            assert_int_equal(counts.failed, 1);
            assert_says(t.last, "FAIL");
            assert_says(t.last, cases[i].shown);
            drop(&p);
        }
    }
}

/* What stands in a file's metadata under a key. */
static void set_metadata(parts *p, const char *key, const char *value) {
    for (int i = 0; p->metadata[i]; i += 2)
        if (strcmp(p->metadata[i], key) == 0) p->metadata[value ? i + 1 : i] = value ? value : "other";
}

static void test_hostile_metadata(void **state) {
    (void)state;
    static const struct {
        const char *file, *key, *value; /* NULL: the key is not there */
        const char *says;
    } cases[] = {
        {"eda__T1", "rule", NULL, "metadata lacks 'rule'"},
        {"eda__T1", "options", NULL, "metadata lacks 'options'"},
        {"eda__T1", "gradients", NULL, "metadata lacks 'gradients'"},
        {"eda__T1", "options", "[", "its metadata 'options', line 1"},
        {"eda__T1", "options", "{\"qk_l2norm\": \"yes\"}", "\"qk_l2norm\" must be a number"},
        {"eda__T1", "options", "{\"qk_l2norm\": -1}", "\"qk_l2norm\" is -1"},
        {"pgdn__zero_keys", "options", "{\"x\": 50}", "\"x\" is 50"},
        {"pgdn__zero_keys", "options", "{\"eps\": 0}", "its options do not fit the rule"},
        {"eda__T1", "rtol_forward", "loose", "'rtol_forward' is 'loose': it must be a number"},
        {"eda__T1", "rtol_forward", "1e300", "a tolerance is above 0"},
        {"eda__T1", "rtol_backward", "-1", "a tolerance is above 0"},
        {"eda__T1", "B", "two", "'B' is 'two': it must be a number"},
        {"eda__T1", "B", "1.5", "'B' must be an integer"},
        {"eda__T1", "T", "0", "'T' must be an integer from 1"},
        {"eda__T1", "T", "1073741824", "it must be 1073741824"},
        {"eda__T1", "T", "99999999999999999999", "'T' is '99999999999999999999': it must be a number"},
        {"eda__T1", "H", "-2", "'H' must be an integer from 1"},
        {"eda__T1", "H", "4", "2 value heads are no multiple of its 4 key heads"},
        {"eda__T1", "HV", "4", "it must be 4"},
        {"eda__T1", "dk", "17", "it must be 17"},
        {"eda__T1", "dv", "1000000000", "it must be 1000000000"},
        {"eda__T1", "N", "3", "'N' must be 'B'"},
        {"eda__T1", "scale", "0", "'scale' is 0"},
        {"eda__T1", "scale", "Infinity", "must be a number"},
        {"eda__T1", "substeps", "2", "do not fit the rule"},
        {"eda__T1", "packed", "1", "'N' must be 'B'"},
        {"gdn__qk_l2norm", "packed", "1", "the tensor 'cu_seqlens' is missing"},
        {"mamba2__packed", "packed", "0", "'N' must be 'B'"},
        {"compose__rate_read_pre", "options", "{}", "\"rule\" is missing"},
        {"compose__rate_read_pre", "options", "{\"rule\": 1}", "its option 'rule': a rule must be"},
        {"compose__rate_read_pre", "options", "{\"rule\": {\"base\": \"gdn\", \"scan\": \"gram\"}}", "scan gram is not used"},
        {"compose__rate_read_pre", "options", "{\"rule\": {\"base\": \"gdn\", \"gait\": 1}}", "unknown key \"gait\""},
        {"compose__rate_read_pre", "options", "{\"rule\": {\"base\": \"gdn\"}}", "it must have 3"},
        {"compose__rate_read_pre", "options", "{\"rule\": \"kda\"}", "has no place in a case of 'compose'"},
        {"compose__repeat3_channel", "substeps", "2", "'substeps' is 2, but its rule repeats 3 times"},
        {"compose__conjugate_gradient", "options", "{\"rule\": \"mesanet\", \"cg_iters\": 2, \"x0\": \"one\"}",
         "'x0' is 'one'"},
        {"act_gate_kda_safe__T9", "options", "{}", "'lo' must be below 0"},
        {"act_gate_kda_safe__T9", "options", "{\"lo\": 1}", "\"lo\" is 1"},
        {"act_l2norm__T9", "options", "{}", "\"eps\" is missing"},
        {"act_squash__T9", "options", "{\"x\": 0}", "\"x\" is 0"},
        {"act_squash__T9", "options", "{\"y\": 0}", "unknown key"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parts p = take_apart(cases[i].file);
        transcript t = {0};
        dr_verify_counts counts = {0};
        set_metadata(&p, cases[i].key, cases[i].value);
        const char *path = put_together(&p);
        if (dr_verify(path, &(dr_verify_options){.backend = "reference"}, take_line, &t, &counts) != DR_ERROR_FORMAT)
            fail_msg("%s with %s %s is not refused", cases[i].file, cases[i].key, cases[i].value ? cases[i].value : "away");
        assert_says(dr_last_error(), "changed.safetensors: ");
        assert_says(dr_last_error(), cases[i].says);
        assert_int_equal(t.lines + counts.passed + counts.failed + counts.skipped, 0);
        drop(&p);
    }
}

static void test_hostile_tensors(void **state) {
    (void)state;
    typedef enum { AWAY, RENAME, HALF_SHAPE, AS_INTEGERS, LESS_RANK } change;
    static const struct {
        const char *file, *tensor;
        change how;
        const char *says;
    } cases[] = {{"eda__T1", "in.e", AWAY, "the tensor 'in.e' is missing"},
                 {"eda__T1", "grad.e", AWAY, "the tensor 'grad.e' is missing"},
                 {"eda__T1", "out.o", AWAY, "the tensor 'out.o' is missing"},
                 {"eda__T1", "out.S", AWAY, "the tensor 'out.S' is missing"},
                 {"eda__T1", "cot.o", AWAY, "the tensor 'cot.o' is missing"},
                 {"eda__T1", "in.S0", AWAY, "the tensor 'grad.S0' has no place"},
                 {"eda__T1", "in.e", RENAME, "the tensor 'in.e' is missing"},
                 {"eda__T1", "in.S0", RENAME, "has no place in a case of 'eda'"},
                 {"eda__T1", "in.q", HALF_SHAPE, "tensor 'in.q': dimension 0 is 1, it must be 2"},
                 {"eda__T1", "in.q", AS_INTEGERS, "tensor 'in.q' is I32: it must be F32"},
                 {"eda__T1", "in.q", LESS_RANK, "tensor 'in.q' has 3 dimensions: it must have 4"},
                 {"eda__T1", "out.S", HALF_SHAPE, "tensor 'out.S': dimension 0 is 1"},
                 {"eda__T1", "grad.gamma", HALF_SHAPE, "tensor 'grad.gamma': dimension 0 is 1"},
                 {"mamba2__packed", "cu_seqlens", AWAY, "the tensor 'cu_seqlens' is missing"},
                 {"mamba2__packed", "cu_seqlens", RENAME, "the tensor 'cu_seqlens' is missing"},
                 {"act_l2norm__T9", "in.x", AWAY, "the tensor 'in.x' is missing"},
                 {"act_l2norm__T9", "in.x", LESS_RANK, "tensor 'in.x' has 3 dimensions"},
                 {"act_squash__T9", "in.mu", HALF_SHAPE, "tensor 'in.mu': dimension 0 is 1"},
                 {"act_gate_gdn__T9", "in.dt_bias", RENAME, "the tensor 'in.dt_bias' is missing"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parts p = take_apart(cases[i].file);
        transcript t = {0};
        dr_verify_counts counts = {0};
        int at = find(&p, cases[i].tensor);
        dr_tensor *tensor = &p.tensors[at];
        if (cases[i].how == RENAME) p.names[at][0] = 'z';
        if (cases[i].how == HALF_SHAPE) tensor->shape[0] /= 2;
        if (cases[i].how == AS_INTEGERS) tensor->dtype = DR_I32;
        if (cases[i].how == LESS_RANK) tensor->rank--;
        if (cases[i].how == AWAY) {
            free(p.names[at]);
            free(tensor->data);
            p.count--;
            memmove(&p.names[at], &p.names[at + 1], (size_t)(p.count - at) * sizeof p.names[0]);
            memmove(&p.tensors[at], &p.tensors[at + 1], (size_t)(p.count - at) * sizeof p.tensors[0]);
        }
        const char *path = put_together(&p);
        if (dr_verify(path, &(dr_verify_options){.backend = "reference"}, take_line, &t, &counts) != DR_ERROR_FORMAT)
            fail_msg("%s is not refused: %s", cases[i].file, cases[i].says);
        assert_says(dr_last_error(), cases[i].says);
        drop(&p);
    }
}

static void test_hostile_cu_seqlens(void **state) {
    (void)state;
    static const int64_t changes[][2] = {{0, 1}, {1, -1}, {2, INT64_MAX}, {1, INT64_MIN}, {3, 3}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        parts p = take_apart("pgdn__gva_packed");
        transcript t = {0};
        dr_verify_counts counts = {0};
        ((int64_t *)p.tensors[find(&p, "cu_seqlens")].data)[changes[i][0]] = changes[i][1];
        assert_int_equal(dr_verify(put_together(&p), &(dr_verify_options){.backend = "reference"}, take_line, &t, &counts),
                         DR_ERROR_FORMAT);
        assert_says(dr_last_error(), "cu_seqlens");
        drop(&p);
    }
}

static void test_unknown_rules(void **state) {
    (void)state;
    static const struct {
        const char *file, *key, *value, *says;
    } cases[] = {{"eda__T1", "rule", "hyena", "'hyena' is no rule of this build"},
                 {"eda__T1", "rule", "act_gelu", "'act_gelu' is no activation of this build"},
                 {"eda__T1", "options", "{\"rotary\": 1}", "unknown key \"rotary\""},
                 {"compose__repeat3_channel", "options", "{\"rule\": \"gdn\", \"rotary\": 1}", "unknown key \"rotary\""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parts p = take_apart(cases[i].file);
        transcript t;
        set_metadata(&p, cases[i].key, cases[i].value);
        const char *path = put_together(&p);
        assert_int_equal(verify_one(path, &(dr_verify_options){0}, &t).skipped, 1);
        assert_says(t.last, "skipped: ");
        assert_says(t.last, cases[i].says);
        assert_int_equal(verify_one(path, &(dr_verify_options){.strict = true}, &t).failed, 1);
        assert_says(t.last, cases[i].says);
        drop(&p);
    }
}

static void test_paths_without_vectors(void **state) {
    (void)state;
    transcript t = {0};
    dr_verify_counts counts = {0};
    dr_verify_options options = {.backend = "reference"};
    const char *folder = scratch_path("nothing"), *text = scratch_write("text.safetensors", "hello, world", 12);
    assert_int_equal(dr_verify(folder, &options, take_line, &t, &counts), DR_ERROR_IO);
    assert_says(dr_last_error(), "nothing: cannot open: No such file");
    scratch_write("nothing/readme.md", "", 0);
    assert_int_equal(dr_verify(folder, &options, take_line, &t, &counts), DR_ERROR_FORMAT);
    assert_says(dr_last_error(), "holds no .safetensors file");
    assert_int_equal(dr_verify(text, &options, take_line, &t, &counts), DR_ERROR_FORMAT);
    assert_int_equal(dr_safetensors_write(text, 0, NULL, NULL, NULL), DR_OK);
    assert_int_equal(dr_verify(text, &options, take_line, &t, &counts), DR_ERROR_FORMAT);
    assert_says(dr_last_error(), "not a vector file?");
}

static dr_status verify_with(const char *path, const char *engine) {
    transcript t = {0};
    dr_verify_counts counts = {0};
    dr_verify_options options = {.threads = 1, .path = engine};
    DR_TRY(dr_verify(path, &options, take_line, &t, &counts));
    assert_int_equal(counts.passed, 1);
    return DR_OK;
}

static dr_status verify_small(void *context) {
    return verify_with(context, NULL);
}

static dr_status verify_recurrent(void *context) {
    return verify_with(context, "recurrent");
}

static void test_failed_allocations(void **state) {
    (void)state;
    char path[600];
    vector_path("act_gate_gdn__T9", path);
    assert_survives_failed_allocations(verify_small, path);
    vector_path("gdn__T1", path);
    assert_survives_failed_allocations(verify_small, path);
    vector_path("gdn__qk_l2norm", path);
    assert_survives_failed_allocations(verify_recurrent, path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors_are_there),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_more_vectors),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_one_changed_number),
        cmocka_unit_test(test_hostile_metadata),
        cmocka_unit_test(test_hostile_tensors),
        cmocka_unit_test(test_hostile_cu_seqlens),
        cmocka_unit_test(test_unknown_rules),
        cmocka_unit_test(test_paths_without_vectors),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
