/* Value heads that share key heads: value head j uses key head j / (HV / H). So H key heads for HV value heads give what HV key
 * heads give that are written out, each for the value heads of its group; and the gradient of what a group shares is the sum
 * over the group. Held for every rule of the table, forward and backward, token by token and in chunks, on both backends. */
#include "base/random.h"
#include "ops/shapes.h"
#include "statuses.h"

#include <deltarule/recurrence.h>
#include <math.h>
#include <stdlib.h>

enum { SHARED = 2, GROUP = 3, HEADS = SHARED * GROUP, ROWS = 37, KEY = 8, VALUE = 12, MOST = ROWS * 8 * HEADS * 16 };

static const int64_t begins[] = {0, 21, 21, 37};

/* One recurrence with all that it reads and gives, as doubles. */
typedef struct {
    dr_recurrence recurrence;
    double *in[DR_INPUTS], *d_in[DR_INPUTS], *final[DR_STATES], o[ROWS * HEADS * VALUE];
} problem;

static void describe(problem *p, const dr_rule *rule, int64_t key_heads, dr_path path) {
    p->recurrence = (dr_recurrence){.rule = rule,
                                    .layout = {.sequences = 3, .rows = ROWS, .cu_seqlens = begins},
                                    .key_heads = key_heads,
                                    .value_heads = HEADS,
                                    .key_size = KEY,
                                    .value_size = VALUE,
                                    .path = path};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(rule, (dr_input)i)) continue;
        p->in[i] = calloc((size_t)dr_recurrence_input_count(&p->recurrence, (dr_input)i), sizeof(double));
        p->d_in[i] = calloc((size_t)dr_recurrence_input_count(&p->recurrence, (dr_input)i), sizeof(double));
        assert_true(p->in[i] && p->d_in[i]);
    }
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(rule, (dr_state_kind)i))
            p->final[i] = calloc((size_t)dr_recurrence_state_count(&p->recurrence, (dr_state_kind)i), sizeof(double));
}

static void release(problem *p) {
    for (int i = 0; i < DR_INPUTS; i++) free(p->in[i]), free(p->d_in[i]);
    for (int i = 0; i < DR_STATES; i++) free(p->final[i]);
}

static double draw(dr_input input, dr_random *random) {
    switch (input) {
    case DR_INPUT_LOG_DECAY:
    case DR_INPUT_SCAN_LOG_DECAY:
        return -0.5 * dr_random_uniform(random);
    case DR_INPUT_BETA:
    case DR_INPUT_ERASE_GAIN:
    case DR_INPUT_LAMBDA:
    case DR_INPUT_ERASE_GATE:
    case DR_INPUT_WRITE_GATE:
    case DR_INPUT_RATE:
    case DR_INPUT_SCAN_GAIN:
        return dr_random_uniform(random);
    case DR_INPUT_RIDGE:
        return 0.5 + dr_random_uniform(random);
    default:
        return 0.3 * dr_random_normal(random);
    }
}

/* Elements before, and after, the axis of a tensor that counts key heads; false if it has none. */
static bool axis_of(const int64_t *few, const int64_t *many, int rank, int64_t *outer, int64_t *inner) {
    int axis = 0;
    while (axis < rank && few[axis] == many[axis]) axis++;
    *outer = *inner = 1;
    for (int i = 0; i < rank; i++)
        if (i < axis)
            *outer *= few[i];
        else if (i > axis)
            *inner *= few[i];
    return axis < rank;
}

static bool shared_axis(const problem *few, const problem *many, dr_input input, int64_t *outer, int64_t *inner) {
    int64_t one[DR_MAX_RANK], other[DR_MAX_RANK];
    int rank = dr_recurrence_input_shape(&few->recurrence, input, one);
    dr_recurrence_input_shape(&many->recurrence, input, other);
    return axis_of(one, other, rank, outer, inner);
}

/* The inputs of `few` are drawn; `many` has each key head GROUP times. */
static void fill(problem *few, problem *many) {
    dr_random random = dr_random_start(8, 0);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!few->in[i]) continue;
        int64_t outer, inner, count = dr_recurrence_input_count(&few->recurrence, (dr_input)i);
        for (int64_t k = 0; k < count; k++) few->in[i][k] = draw((dr_input)i, &random);
        if (!shared_axis(few, many, (dr_input)i, &outer, &inner)) {
            memcpy(many->in[i], few->in[i], (size_t)count * sizeof(double));
            continue;
        }
        for (int64_t x = 0; x < outer; x++)
            for (int64_t head = 0; head < HEADS; head++)
                memcpy(many->in[i] + (x * HEADS + head) * inner, few->in[i] + (x * SHARED + head / GROUP) * inner,
                       (size_t)inner * sizeof(double));
    }
}

static void *place(dr_backend *backend, const double *values, int64_t count) {
    void *memory;
    must(dr_backend_allocate(backend, (size_t)count * sizeof(double), &memory));
    if (values) must(dr_backend_upload(backend, memory, values, DR_F64, count));
    return memory;
}

/* Forward and backward of L = sum of o cos(index). */
static void run(dr_backend *backend, problem *p) {
    const dr_recurrence *r = &p->recurrence;
    static double weights[ROWS * HEADS * VALUE];
    const int64_t outputs = ROWS * HEADS * VALUE;
    dr_recurrence_memory bytes;
    dr_inputs inputs = {{NULL}};
    dr_input_gradients gradients = {{NULL}};
    dr_mutable_states final = {{NULL}};
    must(dr_recurrence_plan(backend, r, &bytes));
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->in[i]) continue;
        int64_t count = dr_recurrence_input_count(r, (dr_input)i);
        inputs.at[i] = place(backend, p->in[i], count);
        gradients.at[i] = place(backend, NULL, count);
    }
    for (int i = 0; i < DR_STATES; i++)
        if (p->final[i]) final.at[i] = place(backend, NULL, dr_recurrence_state_count(r, (dr_state_kind)i));
    for (int64_t i = 0; i < outputs; i++) weights[i] = cos((double)i);
    void *o = place(backend, NULL, outputs), *d_o = place(backend, weights, outputs), *saved, *forward, *backward;
    must(dr_backend_allocate(backend, bytes.saved, &saved));
    must(dr_backend_allocate(backend, bytes.forward, &forward));
    must(dr_backend_allocate(backend, bytes.backward, &backward));
    must(dr_recurrence_forward(backend, r, &inputs, NULL, o, &final, saved, forward));
    must(dr_recurrence_backward(backend, r, &inputs, NULL, saved, d_o, NULL, &gradients, NULL, backward));
    must(dr_backend_download(backend, p->o, DR_F64, o, outputs));
    for (int i = 0; i < DR_STATES; i++) {
        if (!final.at[i]) continue;
        must(dr_backend_download(backend, p->final[i], DR_F64, final.at[i], dr_recurrence_state_count(r, (dr_state_kind)i)));
        dr_backend_free(backend, final.at[i]);
    }
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->in[i]) continue;
        must(dr_backend_download(backend, p->d_in[i], DR_F64, gradients.at[i], dr_recurrence_input_count(r, (dr_input)i)));
        dr_backend_free(backend, (void *)inputs.at[i]);
        dr_backend_free(backend, gradients.at[i]);
    }
    void *const rest[] = {o, d_o, saved, forward, backward};
    for (int i = 0; i < 5; i++) dr_backend_free(backend, rest[i]);
}

static void assert_close(const char *rule, const char *what, const double *one, const double *other, int64_t count,
                         double tolerance) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(other[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(one[i] - other[i]) <= tolerance * largest))
            fail_msg("%s, %s %lld: %.9g with shared key heads, %.9g with their own", rule, what, (long long)i, one[i],
                     other[i]);
}

static void compare(dr_backend *backend, const dr_rule *rule, dr_path path, double tolerance) {
    static double sum[MOST];
    static problem few, many;
    memset(&few, 0, sizeof few);
    memset(&many, 0, sizeof many);
    describe(&few, rule, SHARED, path);
    describe(&many, rule, HEADS, path);
    fill(&few, &many);
    run(backend, &few);
    run(backend, &many);
    assert_close(rule->name, "o", few.o, many.o, ROWS * HEADS * VALUE, tolerance);
    assert_close(rule->name, "S", few.final[DR_STATE_S], many.final[DR_STATE_S],
                 dr_recurrence_state_count(&few.recurrence, DR_STATE_S), tolerance);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!few.in[i]) continue;
        int64_t outer, inner, count = dr_recurrence_input_count(&few.recurrence, (dr_input)i);
        assert_true(count <= MOST);
        if (shared_axis(&few, &many, (dr_input)i, &outer, &inner)) {
            memset(sum, 0, (size_t)count * sizeof *sum);
            for (int64_t x = 0; x < outer; x++)
                for (int64_t head = 0; head < HEADS; head++)
                    for (int64_t k = 0; k < inner; k++)
                        sum[(x * SHARED + head / GROUP) * inner + k] += many.d_in[i][(x * HEADS + head) * inner + k];
        } else {
            memcpy(sum, many.d_in[i], (size_t)count * sizeof *sum);
        }
        assert_close(rule->name, dr_input_name((dr_input)i), few.d_in[i], sum, count, 5 * tolerance);
    }
    release(&few);
    release(&many);
}

static void test_shared_key_heads(void **state) {
    (void)state;
    dr_backend *reference = open_backend("reference", NULL, 0), *cpu = open_backend("cpu", NULL, 0);
    int held = 0;
    for (int i = 0; i < dr_rule_count(); i++) {
        const dr_rule *rule = dr_rule_at(i);
        if (rule->tied_scan) continue; /* as many value heads as key heads */
        compare(reference, rule, DR_PATH_RECURRENT, 1e-11);
        compare(cpu, rule, DR_PATH_RECURRENT, 2e-5);
        compare(cpu, rule, DR_PATH_BEST, 2e-5);
        held++;
    }
    assert_true(held > 25);
    dr_backend_close(reference);
    dr_backend_close(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_key_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
