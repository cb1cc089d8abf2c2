/* State handles: making, checking, cutting, putting together, files kept and refused. */
#include "allocation.h"
#include "recurrence/trial.h"
#include "scratch.h"
#include "statuses.h"

#include "formats/safetensors.h"

#include <deltarule/state.h>
#include <math.h>
#include <sys/wait.h>

static const char *const backend_names[] = {"reference", "cpu"};

/* A recurrence of a named rule over so many sequences of three tokens. */
static dr_recurrence recurrence_of(const char *rule, int64_t sequences) {
    const dr_rule *found = dr_rule_find(rule);
    assert_non_null(found);
    return (dr_recurrence){.rule = found,
                           .layout = {.sequences = sequences, .rows = 3 * sequences},
                           .key_heads = 2,
                           .value_heads = found->tied_scan ? 2 : 4,
                           .key_size = 3,
                           .value_size = 5};
}

/* Rules that carry S; S and A; S and K; S and P. */
static const char *const rules[] = {"gdn", "pkda", "mesanet", "pdn_exact"};
enum { RULES = sizeof rules / sizeof rules[0] };

static int64_t elements_of(const dr_state *state, int kind) {
    int64_t shape[DR_MAX_RANK], count = 1;
    if (!dr_rule_carries(dr_state_recurrence(state)->rule, (dr_state_kind)kind)) return 0;
    int rank = dr_recurrence_state_shape(dr_state_recurrence(state), (dr_state_kind)kind, shape);
    for (int i = 0; i < rank; i++) count *= shape[i];
    return count;
}

/* All numbers of a state, S first. */
static double *numbers_of(const dr_state *state, int64_t *count) {
    dr_backend *backend = dr_state_backend(state);
    dr_states at;
    must(dr_state_initial(state, backend, dr_state_recurrence(state), &at));
    *count = 0;
    for (int i = 0; i < DR_STATES; i++) *count += elements_of(state, i);
    double *all = numbers(*count), *to = all;
    for (int i = 0; i < DR_STATES; to += elements_of(state, i), i++) {
        assert_int_equal(at.at[i] != NULL, elements_of(state, i) > 0);
        if (at.at[i]) must(dr_backend_download(backend, to, DR_F64, at.at[i], elements_of(state, i)));
    }
    return all;
}

static void fill(dr_state *state, double start) {
    dr_backend *backend = dr_state_backend(state);
    dr_mutable_states at;
    must(dr_state_final(state, backend, dr_state_recurrence(state), &at));
    for (int i = 0; i < DR_STATES; i++) {
        const int64_t count = elements_of(state, i);
        double *values = numbers(count);
        for (int64_t j = 0; j < count; j++) values[j] = start + (double)j + 1000 * i;
        if (count > 3) values[0] = NAN, values[1] = -INFINITY, values[2] = -0.0;
        if (count) must(dr_backend_upload(backend, at.at[i], values, DR_F64, count));
        free(values);
    }
}

static void assert_same_states(const dr_state *one, const dr_state *other) {
    int64_t count, other_count;
    double *a = numbers_of(one, &count), *b = numbers_of(other, &other_count);
    assert_int_equal(count, other_count);
    assert_memory_equal(a, b, (size_t)count * sizeof *a);
    free(a), free(b);
}

static void assert_zero(const dr_state *state) {
    int64_t count;
    double *all = numbers_of(state, &count);
    for (int64_t i = 0; i < count; i++) assert_true(all[i] == 0);
    free(all);
}

static dr_state *create(dr_backend *backend, const char *rule, int64_t sequences, double start) {
    dr_state *state;
    dr_recurrence recurrence = recurrence_of(rule, sequences);
    must(dr_state_create(backend, &recurrence, &state));
    assert_zero(state);
    fill(state, start);
    return state;
}

static void for_each_state(void (*test)(dr_backend *backend, const char *rule)) {
    for (int b = 0; b < 2; b++) {
        dr_backend *backend = open_backend(backend_names[b], NULL, 2);
        for (int i = 0; i < RULES; i++) test(backend, rules[i]);
        dr_backend_close(backend);
    }
}

/* ---- making and checking -------------------------------------------------------------------------------------------- */

static void check_life(dr_backend *backend, const char *rule) {
    dr_state *state = create(backend, rule, 3, 1), *copy;
    assert_ptr_equal(dr_state_backend(state), backend);
    assert_int_equal(dr_state_recurrence(state)->layout.sequences, 3);
    must(dr_state_clone(state, &copy));
    assert_same_states(state, copy);
    dr_state_reset(state);
    assert_zero(state);
    int64_t count;
    double *kept = numbers_of(copy, &count);
    assert_true(isnan(kept[0]) && kept[count - 1] > 0);
    free(kept);
    dr_state_destroy(state);
    dr_state_destroy(copy);
}

static void test_life(void **state) {
    (void)state;
    for_each_state(check_life);
    dr_state_destroy(NULL);
}

/* A rule may be gone once the state is made. */
static void test_rule_is_copied(void **unused) {
    (void)unused;
    dr_backend *backend = open_backend("cpu", NULL, 2);
    dr_rule *rule = block(sizeof *rule);
    *rule = *dr_rule_find("kda");
    dr_recurrence recurrence = recurrence_of("kda", 1);
    recurrence.rule = rule;
    dr_state *state;
    must(dr_state_create(backend, &recurrence, &state));
    memset(rule, 0xff, sizeof *rule);
    free(rule);
    recurrence.rule = dr_rule_find("kda");
    must(dr_state_check(state, backend, &recurrence));
    assert_null(dr_state_recurrence(state)->rule->name);
    dr_state_destroy(state);
    dr_backend_close(backend);
}

static void test_mismatches(void **unused) {
    (void)unused;
    dr_backend *cpu = open_backend("cpu", NULL, 2), *other_cpu = open_backend("cpu", NULL, 2),
               *reference = open_backend("reference", NULL, 2);
    dr_state *state = create(cpu, "pkda", 2, 1);
    const dr_recurrence right = recurrence_of("pkda", 2);
    dr_states at;
    dr_recurrence wrong = right;
    must(dr_state_check(state, cpu, &right));
    must(dr_state_check(state, other_cpu, &right)); /* the same memory and type */
    assert_refused(dr_state_check(state, reference, &right), DR_ERROR_ARGUMENT, "backend cpu as F32");
    wrong.rule = dr_rule_find("pgdn");
    assert_refused(dr_state_initial(state, cpu, &wrong, &at), DR_ERROR_ARGUMENT, "D = diag(a) S;");
    dr_rule changed = *right.rule;
    changed.cg_iters = 7; /* it plays no part in the equation */
    wrong.rule = &changed;
    assert_refused(dr_state_initial(state, cpu, &wrong, &at), DR_ERROR_ARGUMENT, "differ in a setting");
    wrong = right;
    wrong.key_heads = 1;
    assert_refused(dr_state_initial(state, cpu, &wrong, &at), DR_ERROR_ARGUMENT, "2 key heads, but the recurrence has 1");
    wrong = right;
    wrong.value_heads = 2;
    assert_refused(dr_state_initial(state, cpu, &wrong, &at), DR_ERROR_ARGUMENT, "4 value heads, but the recurrence has 2");
    wrong = right;
    wrong.key_size = 4;
    assert_refused(dr_state_initial(state, cpu, &wrong, &at), DR_ERROR_ARGUMENT, "3 as key size, but the recurrence has 4");
    wrong = right;
    wrong.value_size = 4;
    assert_refused(dr_state_initial(state, cpu, &wrong, &at), DR_ERROR_ARGUMENT, "5 as value size, but the recurrence has 4");
    wrong = right;
    wrong.layout = (dr_layout){.sequences = 3, .rows = 3};
    assert_refused(dr_state_initial(state, cpu, &wrong, &at), DR_ERROR_ARGUMENT, "2 sequences, but the recurrence has 3");
    wrong = right;
    wrong.scale = 3;
    wrong.chunk = 5;
    wrong.layout.rows = 8;
    must(dr_state_check(state, cpu, &wrong)); /* these play no part */
    dr_state_destroy(state);
    dr_backend_close(cpu), dr_backend_close(other_cpu), dr_backend_close(reference);
}

static void test_missing_arguments(void **unused) {
    (void)unused;
    dr_backend *backend = open_backend("cpu", NULL, 2);
    dr_recurrence recurrence = recurrence_of("gdn", 1), broken = recurrence;
    dr_state *state = create(backend, "gdn", 1, 1), *none = NULL;
    dr_states initial;
    assert_refused(dr_state_create(NULL, &recurrence, &none), DR_ERROR_ARGUMENT, "backend is missing");
    assert_refused(dr_state_create(backend, NULL, &none), DR_ERROR_ARGUMENT, "recurrence is missing");
    assert_refused(dr_state_create(backend, &recurrence, NULL), DR_ERROR_ARGUMENT, "state is missing");
    broken.key_size = 0;
    assert_refused(dr_state_create(backend, &broken, &none), DR_ERROR_ARGUMENT, "key size 0");
    assert_refused(dr_state_clone(NULL, &none), DR_ERROR_ARGUMENT, "state is missing");
    assert_refused(dr_state_clone(state, NULL), DR_ERROR_ARGUMENT, "copy is missing");
    assert_refused(dr_state_check(NULL, backend, &recurrence), DR_ERROR_ARGUMENT, "state is missing");
    assert_refused(dr_state_check(state, NULL, &recurrence), DR_ERROR_ARGUMENT, "backend is missing");
    assert_refused(dr_state_check(state, backend, &broken), DR_ERROR_ARGUMENT, "key size 0");
    assert_refused(dr_state_initial(state, backend, &recurrence, NULL), DR_ERROR_ARGUMENT, "initial is missing");
    assert_refused(dr_state_final(state, backend, &recurrence, NULL), DR_ERROR_ARGUMENT, "final is missing");
    assert_refused(dr_state_final(NULL, backend, &recurrence, NULL), DR_ERROR_ARGUMENT, "state is missing");
    assert_refused(dr_state_save(NULL, "x"), DR_ERROR_ARGUMENT, "state is missing");
    assert_refused(dr_state_save(state, NULL), DR_ERROR_ARGUMENT, "file is missing");
    assert_refused(dr_state_load(NULL, NULL, "x", &none), DR_ERROR_ARGUMENT, "backend is missing");
    assert_refused(dr_state_load(backend, NULL, NULL, &none), DR_ERROR_ARGUMENT, "file is missing");
    assert_refused(dr_state_load(backend, NULL, "x", NULL), DR_ERROR_ARGUMENT, "state is missing");
    assert_refused(dr_state_load(backend, &broken, "x", &none), DR_ERROR_ARGUMENT, "key size 0");
    assert_null(none);
    must(dr_state_initial(state, backend, &recurrence, &initial));
    dr_state_destroy(state);
    dr_backend_close(backend);
}

/* ---- sequences ------------------------------------------------------------------------------------------------------ */

static void check_sequences(dr_backend *backend, const char *rule) {
    dr_state *whole = create(backend, rule, 5, 1), *part[3], *again;
    must(dr_state_slice(whole, 0, 1, &part[0]));
    must(dr_state_slice(whole, 1, 3, &part[1]));
    must(dr_state_slice(whole, 4, 1, &part[2]));
    assert_int_equal(dr_state_recurrence(part[1])->layout.sequences, 3);
    must(dr_state_concatenate((const dr_state *const *)part, 3, &again));
    assert_same_states(whole, again);
    dr_state_destroy(again);
    dr_state *turned[] = {part[2], part[0], part[1], part[0]};
    must(dr_state_concatenate((const dr_state *const *)turned, 4, &again));
    assert_int_equal(dr_state_recurrence(again)->layout.sequences, 6);
    dr_state *piece;
    must(dr_state_slice(again, 2, 3, &piece));
    assert_same_states(piece, part[1]);
    dr_state_destroy(piece), dr_state_destroy(again), dr_state_destroy(whole);
    for (int i = 0; i < 3; i++) dr_state_destroy(part[i]);
}

static void test_sequences(void **unused) {
    (void)unused;
    for_each_state(check_sequences);
}

static void test_refused_sequences(void **unused) {
    (void)unused;
    dr_backend *cpu = open_backend("cpu", NULL, 2), *reference = open_backend("reference", NULL, 2);
    dr_state *state = create(cpu, "gdn", 3, 1), *other = create(cpu, "kda", 3, 1), *far = create(reference, "gdn", 3, 1);
    dr_state *none = NULL;
    assert_refused(dr_state_slice(state, 0, 0, &none), DR_ERROR_ARGUMENT, "not among the 3");
    assert_refused(dr_state_slice(state, -1, 1, &none), DR_ERROR_ARGUMENT, "not among the 3");
    assert_refused(dr_state_slice(state, 2, 2, &none), DR_ERROR_ARGUMENT, "2 sequences from 2 on are not among the 3");
    assert_refused(dr_state_slice(state, 1, INT64_MAX, &none), DR_ERROR_ARGUMENT, "not among the 3");
    assert_refused(dr_state_slice(NULL, 0, 1, &none), DR_ERROR_ARGUMENT, "state is missing");
    assert_refused(dr_state_concatenate(NULL, 1, &none), DR_ERROR_ARGUMENT, "parts is missing");
    assert_refused(dr_state_concatenate((const dr_state *[]){state}, 0, &none), DR_ERROR_ARGUMENT, "at least one");
    assert_refused(dr_state_concatenate((const dr_state *[]){state}, 1, NULL), DR_ERROR_ARGUMENT, "whole is missing");
    assert_refused(dr_state_concatenate((const dr_state *[]){state, NULL}, 2, &none), DR_ERROR_ARGUMENT, "part 1 is missing");
    assert_refused(dr_state_concatenate((const dr_state *[]){state, other}, 2, &none), DR_ERROR_ARGUMENT,
                   "part 1 is of the rule");
    assert_refused(dr_state_concatenate((const dr_state *[]){state, state, far}, 3, &none), DR_ERROR_ARGUMENT,
                   "part 2 lies in");
    assert_null(none);
    dr_state_destroy(state), dr_state_destroy(other), dr_state_destroy(far);
    dr_backend_close(cpu), dr_backend_close(reference);
}

/* ---- in calls ------------------------------------------------------------------------------------------------------- */

/* Token by token through decode, in place, gives what the forward leaves in another state. */
static void check_calls(dr_backend *backend, const char *rule) {
    dr_random random = dr_random_start(7, 0);
    dr_recurrence recurrence = recurrence_of(rule, 2);
    problem *p = problem_create(recurrence.rule, &recurrence, false, &random);
    for (int i = 0; i < DR_STATES; i++) /* from nothing */
        if (p->initial[i]) memset(p->initial[i], 0, (size_t)p->state_count[i] * sizeof(double));
    result want, stepped;
    fault what;
    if (!problem_run(backend, p, DR_PATH_BEST, 0, false, &want, &what) || !problem_decode(backend, p, &stepped, &what))
        fail_msg("%s", what.text);

    dr_state *state;
    must(dr_state_create(backend, &p->recurrence, &state));
    dr_recurrence_memory memory;
    must(dr_recurrence_plan(backend, &p->recurrence, &memory));
    dr_states initial;
    dr_mutable_states final;
    must(dr_state_initial(state, backend, &p->recurrence, &initial));
    must(dr_state_final(state, backend, &p->recurrence, &final));
    dr_inputs inputs;
    for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = tensor_in(backend, p->input[i], p->input_count[i]);
    void *workspace = block(memory.forward), *o = poisoned(backend, p->d_o, p->o_count);
    must(dr_recurrence_forward(backend, &p->recurrence, &inputs, &initial, o, &final, NULL, workspace));
    int64_t count, done = 0;
    double *got = numbers_of(state, &count);
    for (int i = 0; i < DR_STATES; done += p->state_count[i], i++) {
        if (!p->initial[i]) continue;
        assert_memory_equal(got + done, want.final[i], (size_t)p->state_count[i] * sizeof(double));
        assert_true(error_of(stepped.final[i], want.final[i], p->state_count[i], least_size) < tolerance_forward);
    }
    assert_int_equal(done, count);
    for (int i = 0; i < DR_INPUTS; i++) free((void *)inputs.at[i]);
    free(got), free(workspace), free(o);
    result_free(&want), result_free(&stepped);
    problem_free(p);
    dr_state_destroy(state);
}

static void test_calls(void **unused) {
    (void)unused;
    for_each_state(check_calls);
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static void check_files(dr_backend *backend, const char *rule) {
    dr_state *state = create(backend, rule, 2, 1), *loaded;
    dr_recurrence recurrence = recurrence_of(rule, 2);
    const char *file = scratch_path("state.safetensors");
    must(dr_state_save(state, file));
    must(dr_state_load(backend, &recurrence, file, &loaded));
    assert_same_states(state, loaded);
    dr_state_destroy(loaded);
    must(dr_state_load(backend, NULL, file, &loaded));
    must(dr_state_check(loaded, backend, &recurrence));
    assert_same_states(state, loaded);
    fill(loaded, 100);
    must(dr_state_save(loaded, file)); /* over the old one */
    dr_state_destroy(state);
    must(dr_state_load(backend, NULL, file, &state));
    assert_same_states(state, loaded);
    assert_int_not_equal(access(scratch_path("state.safetensors.new"), F_OK), 0);
    dr_state_destroy(loaded), dr_state_destroy(state);
}

static void test_files(void **unused) {
    (void)unused;
    for_each_state(check_files);
}

static void test_files_that_do_not_fit(void **unused) {
    (void)unused;
    dr_backend *cpu = open_backend("cpu", NULL, 2), *reference = open_backend("reference", NULL, 2);
    dr_state *state = create(cpu, "gdn", 2, 1), *none = NULL;
    dr_recurrence wrong = recurrence_of("kda", 2);
    const char *file = scratch_path("other.safetensors");
    must(dr_state_save(state, file));
    assert_refused(dr_state_load(cpu, &wrong, file, &none), DR_ERROR_ARGUMENT, "the file is of the rule D = a S;");
    wrong = recurrence_of("gdn", 3);
    assert_refused(dr_state_load(cpu, &wrong, file, &none), DR_ERROR_ARGUMENT, "2 sequences, but the recurrence has 3");
    wrong = recurrence_of("gdn", 2);
    wrong.value_size = 6;
    assert_refused(dr_state_load(cpu, &wrong, file, &none), DR_ERROR_ARGUMENT, "5 as value size");
    assert_refused(dr_state_load(reference, NULL, file, &none), DR_ERROR_ARGUMENT,
                   "F32, but backend reference computes in F64");
    assert_refused(dr_state_load(cpu, NULL, scratch_path("missing"), &none), DR_ERROR_IO, "missing");
    assert_refused(dr_state_save(state, scratch_path("no/such/folder")), DR_ERROR_IO, "no/such/folder");
    char *endless = block(10000);
    memset(endless, 'x', 9999);
    endless[9999] = '\0';
    assert_refused(dr_state_save(state, endless), DR_ERROR_ARGUMENT, "longer than");
    free(endless);
    assert_refused(dr_state_save(state, scratch_folder), DR_ERROR_IO, "Is a directory");
    assert_null(none);
    dr_state_destroy(state);
    dr_backend_close(cpu), dr_backend_close(reference);
}

/* A file of a state of gdn with H 1, HV 1, K 2, V 2 and one sequence, of which parts are replaced. */
typedef struct {
    const char *key, *value; /* of the metadata; value NULL: left out */
    const char *tensor;      /* its name: "S" */
    int64_t shape[4];
    int rank;
    const char *second; /* another tensor */
    dr_dtype dtype;
} forgery;

static const char *forge(forgery with) {
    static const char *const right[] = {"format",      "deltarule.state",
                                        "layout",      "sequences first, dense",
                                        "rule",        "{\"base\": \"gdn\"}",
                                        "key_heads",   "1",
                                        "value_heads", "1",
                                        "key_size",    "2",
                                        "value_size",  "2",
                                        "sequences",   "1"};
    enum { PAIRS = sizeof right / sizeof right[0] / 2 };
    const char *metadata[2 * PAIRS + 1], *names[2] = {with.tensor ? with.tensor : "S", with.second};
    int used = 0;
    for (int i = 0; i < PAIRS; i++) {
        bool changed = with.key && strcmp(with.key, right[2 * i]) == 0;
        if (changed && !with.value) continue;
        metadata[used++] = right[2 * i];
        metadata[used++] = changed ? with.value : right[2 * i + 1];
    }
    metadata[used] = NULL;
    float data[16] = {1, 2, 3, 4};
    dr_tensor tensors[2] = {{.dtype = with.dtype, .rank = 4, .shape = {1, 1, 2, 2}, .data = data},
                            {.dtype = DR_F32, .rank = 1, .shape = {2}, .data = data}};
    if (with.rank) {
        tensors[0].rank = with.rank;
        memcpy(tensors[0].shape, with.shape, sizeof with.shape);
    }
    const char *file = scratch_path("forged.safetensors");
    must(dr_safetensors_write(file, with.second ? 2 : 1, names, tensors, metadata));
    return file;
}

static void test_hostile_files(void **unused) {
    (void)unused;
    static const struct {
        forgery with;
        const char *words;
    } cases[] = {
        {{.key = "format"}, "no 'format' in its metadata"},
        {{.key = "format", .value = "pt"}, "its format is \"pt\""},
        {{.key = "layout"}, "no 'layout'"},
        {{.key = "layout", .value = "transposed"}, "its layout is \"transposed\""},
        {{.key = "rule"}, "no 'rule'"},
        {{.key = "rule", .value = ""}, "its rule"},
        {{.key = "rule", .value = "{\"base\": \"gdm\"}"}, "gdn"},
        {{.key = "rule", .value = "{\"base\": \"gdn\", \"rows\": []}"}, "its rule"},
        {{.key = "rule", .value = "{\"base\": \"gdn\", \"scan\": \"diagonal\"}"}, "its rule"},
        {{.key = "key_heads"}, "no 'key_heads'"},
        {{.key = "key_heads", .value = "0"}, "its key_heads is \"0\""},
        {{.key = "key_heads", .value = "-1"}, "its key_heads is \"-1\""},
        {{.key = "key_heads", .value = "1 "}, "not a number from 1"},
        {{.key = "key_heads", .value = "01"}, "not a number from 1"},
        {{.key = "value_heads", .value = "1e3"}, "not a number from 1"},
        {{.key = "value_heads", .value = ""}, "not a number from 1"},
        {{.key = "key_size", .value = "9223372036854775808"}, "not a number from 1"},
        {{.key = "key_size", .value = "9223372036854775807"}, "can be addressed"},
        {{.key = "sequences", .value = "4611686018427387904"}, "can be addressed"},
        {{.key = "value_size", .value = "3"}, "has not the shape"},
        {{.key = "sequences", .value = "1000000000000"}, "has not the shape"},
        {{.key = "value_heads", .value = "2"}, "has not the shape"},
        {{.key = "key_heads", .value = "3"}, "not a multiple of 3"},
        {{.key = "rule", .value = "{\"base\": \"pgdn\"}"}, "no tensor A"},
        {{.tensor = "T"}, "no tensor S"},
        {{.tensor = "s"}, "no tensor S"},
        {{.rank = 3, .shape = {1, 2, 2}}, "has not the shape"},
        {{.rank = 4, .shape = {1, 2, 1, 2}}, "has not the shape"},
        {{.second = "A"}, "2 tensors, but its rule carries 1"},
    };
    dr_backend *backend = open_backend("cpu", NULL, 2);
    dr_state *state = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *file = forge(cases[i].with);
        assert_refused(dr_state_load(backend, NULL, file, &state), DR_ERROR_FORMAT, cases[i].words);
        assert_non_null(strstr(dr_last_error(), file));
        assert_null(state);
    }
    const dr_dtype others[] = {DR_F64, DR_F16, DR_I32};
    for (int i = 0; i < 3; i++)
        assert_refused(dr_state_load(backend, NULL, forge((forgery){.dtype = others[i]}), &state), DR_ERROR_ARGUMENT,
                       dr_dtype_name(others[i]));
    must(dr_state_load(backend, NULL, forge((forgery){0}), &state)); /* nothing replaced */
    dr_state_destroy(state);
    dr_backend_close(backend);
}

/* Cut anywhere, a file is refused; and so that its tensors are not aligned, it is read all the same. */
static void test_cut_and_shifted_files(void **unused) {
    (void)unused;
    dr_backend *backend = open_backend("cpu", NULL, 2);
    dr_state *state = create(backend, "pkda", 1, 1), *loaded = NULL;
    must(dr_state_save(state, scratch_path("whole")));
    size_t bytes = 0;
    char *text = scratch_read_at(scratch_path("whole"), &bytes);
    for (size_t length = 0; length < bytes; length += length < 64 ? 1 : 37) {
        const char *file = scratch_write("cut", text, length);
        assert_refused(dr_state_load(backend, NULL, file, &loaded), DR_ERROR_FORMAT, file);
    }
    char *shifted = block(bytes + 1);
    memcpy(shifted, text, bytes);
    const size_t header = (unsigned char)text[0] | (size_t)(unsigned char)text[1] << 8;
    shifted[0]++; /* one blank more, which carries into no other byte unless the header's length ends so */
    assert_int_not_equal((unsigned char)text[0], 255);
    shifted[8 + header] = ' ';
    memcpy(shifted + 9 + header, text + 8 + header, bytes - 8 - header);
    must(dr_state_load(backend, NULL, scratch_write("shifted", shifted, bytes + 1), &loaded));
    assert_same_states(state, loaded);
    free(text), free(shifted);
    dr_state_destroy(state), dr_state_destroy(loaded);
    dr_backend_close(backend);
}

/* ---- several processes ---------------------------------------------------------------------------------------------- */

/* Ends with 0 if every load gives a state of one writer alone: element i of S is the writer's number plus i. */
static void load_again_and_again(dr_backend *backend, const char *file, int rounds) {
    for (int round = 0; round < rounds; round++) {
        dr_state *loaded;
        dr_mutable_states at;
        if (dr_state_load(backend, NULL, file, &loaded) != DR_OK) {
            fprintf(stderr, "a load was refused: %s\n", dr_last_error());
            _exit(1);
        }
        const int64_t count = elements_of(loaded, DR_STATE_S);
        double *values = calloc((size_t)count, sizeof *values);
        if (!values || dr_state_final(loaded, backend, dr_state_recurrence(loaded), &at) != DR_OK ||
            dr_backend_download(backend, values, DR_F64, at.at[DR_STATE_S], count) != DR_OK)
            _exit(2);
        for (int64_t i = 4; i < count; i++)
            if (values[i] - (double)i != values[3] - 3) _exit(3);
        free(values);
        dr_state_destroy(loaded);
    }
    _exit(0);
}

/* Several processes save under one name while others load: no load is refused, none dies of a file that was cut under it, none
 * has values of two writers; nothing lies beside the file afterwards. */
static void test_many_writers_of_one_file(void **unused) {
    (void)unused;
    enum { WRITERS = 4, READERS = 2, ROUNDS = 60 };
    dr_backend *backend = open_backend("reference", NULL, 1);
    const char *file = scratch_write("shared/state", "", 0);
    dr_state *state = create(backend, "gdn", 400, 0);
    must(dr_state_save(state, file));
    pid_t children[WRITERS + READERS];
    for (int i = 0; i < WRITERS + READERS; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] != 0) continue;
        if (i >= WRITERS) load_again_and_again(backend, file, 4 * ROUNDS);
        fill(state, 1e6 * (i + 1));
        for (int round = 0; round < ROUNDS; round++)
            if (dr_state_save(state, file) != DR_OK) _exit(4);
        _exit(0);
    }
    for (int i = 0; i < WRITERS + READERS; i++) {
        int ended;
        assert_int_equal(waitpid(children[i], &ended, 0), children[i]);
        if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0)
            fail_msg("%s %d ended with %s %d", i < WRITERS ? "writer" : "reader", i, WIFEXITED(ended) ? "status" : "signal",
                     WIFEXITED(ended) ? WEXITSTATUS(ended) : WTERMSIG(ended));
    }
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(scratch_path("shared")), 0);
    dr_state_destroy(state);
    dr_backend_close(backend);
}

/* ---- failed allocations --------------------------------------------------------------------------------------------- */

static dr_status live_through(void *context) {
    dr_backend *backend = context;
    dr_recurrence recurrence = recurrence_of("mesanet", 2);
    dr_state *state = NULL, *copy = NULL, *part = NULL, *whole = NULL, *loaded = NULL;
    dr_status status = dr_state_create(backend, &recurrence, &state);
    if (status == DR_OK) status = dr_state_clone(state, &copy);
    if (status == DR_OK) status = dr_state_slice(state, 1, 1, &part);
    if (status == DR_OK) status = dr_state_concatenate((const dr_state *[]){state, part, copy}, 3, &whole);
    if (status == DR_OK) status = dr_state_save(whole, scratch_path("allocations"));
    if (status == DR_OK) status = dr_state_load(backend, NULL, scratch_path("allocations"), &loaded);
    dr_state_destroy(state), dr_state_destroy(copy), dr_state_destroy(part), dr_state_destroy(whole), dr_state_destroy(loaded);
    return status;
}

static void test_failed_allocations(void **unused) {
    (void)unused;
    dr_backend *backend = open_backend("cpu", NULL, 2);
    assert_true(assert_survives_failed_allocations(live_through, backend) >= 12);
    dr_backend_close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_rule_is_copied),
        cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_missing_arguments),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_refused_sequences),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_files_that_do_not_fit),
        cmocka_unit_test(test_hostile_files),
        cmocka_unit_test(test_cut_and_shifted_files),
        cmocka_unit_test(test_many_writers_of_one_file),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
