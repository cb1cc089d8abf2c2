/* Softmax attention: the reference's gradients against differences; the CPU backend against the reference; and what must be the
 * same bits: packed and separate sequences, a prompt at once, in chunks and token by token with memory that is a ring, and any
 * of them where the future holds NaN. */
#include "allocation.h"
#include "cpu_calls.h"
#include "operation_gradients.h"

enum { GRADIENT_DRAWS = 30 };

static dr_attention attention_drawn(int64_t most_tokens, int64_t most_size) {
    dr_attention a = {.layout = layout_drawn(most_tokens), .key_heads = number_between(1, 3)};
    a.heads = a.key_heads * number_between(1, 4);
    a.key_size = number_between(1, most_size);
    a.value_size = number_between(1, most_size);
    a.scale = 1 / sqrt((double)a.key_size);
    if (number_flip()) a.window = number_between(1, most_tokens);
    return a;
}

static int64_t q_count(const dr_attention *a) {
    return a->layout.rows * a->heads * a->key_size;
}
static int64_t k_count(const dr_attention *a) {
    return a->layout.rows * a->key_heads * a->key_size;
}
static int64_t v_count(const dr_attention *a) {
    return a->layout.rows * a->key_heads * a->value_size;
}
static int64_t o_count(const dr_attention *a) {
    return a->layout.rows * a->heads * a->value_size;
}

/* ---- the reference --------------------------------------------------------------------------------------------------- */

static dr_status reference_forward(const operation *o) {
    return reference->ops->attention_forward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at,
                                             NULL, o->y, NULL);
}

static dr_status reference_backward(const operation *o, double *const d[]) {
    const dr_attention *a = o->descriptor;
    double *out = numbers_filled(o->count, NAN), *log_sums = numbers_filled(a->layout.rows * a->heads, NAN);
    assert_int_equal(reference->ops->attention_forward(reference, a, o->operands[0].at, o->operands[1].at, o->operands[2].at,
                                                       NULL, out, log_sums),
                     DR_OK);
    return reference->ops->attention_backward(reference, a, o->operands[0].at, o->operands[1].at, o->operands[2].at, out,
                                              log_sums, o->d_y, d[0], d[1], d[2]);
}

static void test_gradients(void **state) {
    (void)state;
    for (int draw = 0; draw < GRADIENT_DRAWS; draw++, numbers_release()) {
        const dr_attention a = attention_drawn(6, 4);
        operation o = {.descriptor = &a,
                       .operands = {{"q", numbers_normal(q_count(&a), 1), q_count(&a), false},
                                    {"k", numbers_normal(k_count(&a), 1), k_count(&a), false},
                                    {"v", numbers_normal(v_count(&a), 1), v_count(&a), false}},
                       .count = o_count(&a),
                       .forward = reference_forward,
                       .backward = reference_backward};
        check_operation(&o);
    }
}

static void assert_close(double x, double wanted) {
    if (!(fabs(x - wanted) <= 1e-14)) fail_msg("%.17g, not %.17g", x, wanted);
}

/* Three tokens, two query heads over one key head, worked out by hand: head 0 has q = 0 and takes means, head 1 asks for keys
 * with scores ln 2 and ln 6 beside 0. */
static void test_values(void **state) {
    (void)state;
    const dr_attention a = {.layout = {.sequences = 1, .rows = 3},
                            .heads = 2,
                            .key_heads = 1,
                            .key_size = 1,
                            .value_size = 2,
                            .scale = 0.5,
                            .window = 0};
    const double q[] = {0, 2, 0, 2, 0, 2}, k[] = {0, log(2), log(6)}, v[] = {1, 0, 4, 3, 10, 9};
    const double mean[] = {1, 0, 1, 0, 2.5, 1.5, 3, 2, 5, 4, 23. / 3, 20. / 3};
    const double last_two[] = {1, 0, 1, 0, 2.5, 1.5, 3, 2, 7, 6, 8.5, 7.5};
    double o[12], sums[6];
    assert_int_equal(reference->ops->attention_forward(reference, &a, q, k, v, NULL, o, sums), DR_OK);
    for (int i = 0; i < 12; i++) assert_close(o[i], mean[i]);
    assert_close(sums[4], log(3));
    assert_close(sums[5], log(9));
    dr_attention windowed = a;
    windowed.window = 2;
    assert_int_equal(reference->ops->attention_forward(reference, &windowed, q, k, v, NULL, o, NULL), DR_OK);
    for (int i = 0; i < 12; i++) assert_close(o[i], last_two[i]);
}

/* ---- the CPU against the reference ----------------------------------------------------------------------------------- */

static dr_status cpu_forward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->attention_forward(b, c->descriptor, at[0], at[1], at[2], NULL, at[3], at[4]);
}

static dr_status cpu_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->attention_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]);
}

/* The output and the logarithms of the sums, as the reference makes them and single precision holds them. */
static void attend_on_reference(const dr_attention *a, const tensor x[3], double *o, double *sums) {
    assert_int_equal(reference->ops->attention_forward(reference, a, x[0].values, x[1].values, x[2].values, NULL, o, sums),
                     DR_OK);
    for (int64_t i = 0; i < o_count(a); i++) o[i] = (double)(float)o[i];
    for (int64_t i = 0; i < a->layout.rows * a->heads; i++) sums[i] = (double)(float)sums[i];
}

static void check_attention(const dr_attention *a) {
    const int64_t sums = a->layout.rows * a->heads;
    const tensor x[3] = {input("q", q_count(a)), input("k", k_count(a)), input("v", v_count(a))};
    check(&(call){"attention_forward",
                  a,
                  NULL,
                  tolerance_forward,
                  {x[0], x[1], x[2], overwritten("o", o_count(a)), maybe(overwritten("log_sums", sums))},
                  cpu_forward});
    tensor o = overwritten("o", o_count(a)), log_sums = overwritten("log_sums", sums);
    o.role = log_sums.role = INPUT;
    attend_on_reference(a, x, o.values, log_sums.values);
    check(&(call){"attention_backward",
                  a,
                  NULL,
                  tolerance_backward,
                  {x[0], x[1], x[2], o, log_sums, input("d_o", o_count(a)), maybe(overwritten("d_q", q_count(a))),
                   maybe(overwritten("d_k", k_count(a))), maybe(overwritten("d_v", v_count(a)))},
                  cpu_backward});
    numbers_release();
}

static void test_cpu(void **state) {
    (void)state;
    for (int draw = 0; draw < 2 * DRAWS; draw++) {
        const dr_attention a = attention_drawn(draw % 4 == 0 ? 300 : 40, 40);
        check_attention(&a);
    }
    static const struct {
        int64_t rows, sequences, heads, key_heads, key, value, window;
    } sizes[] = {{700, 1, 2, 2, 64, 64, 0},   {530, 1, 4, 1, 128, 128, 0},  {600, 2, 3, 1, 256, 256, 100},
                 {300, 1, 2, 2, 192, 128, 0}, {520, 1, 1, 1, 120, 64, 257}, {70, 1, 130, 1, 16, 16, 0},
                 {0, 1, 2, 1, 8, 8, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const dr_attention a = {.layout = {.sequences = sizes[i].sequences, .rows = sizes[i].rows},
                                .heads = sizes[i].heads,
                                .key_heads = sizes[i].key_heads,
                                .key_size = sizes[i].key,
                                .value_size = sizes[i].value,
                                .scale = 1 / sqrt((double)sizes[i].key),
                                .window = sizes[i].window};
        check_attention(&a);
    }
}

/* ---- the same bits --------------------------------------------------------------------------------------------------- */

/* A call's tensors on the CPU. */
typedef struct {
    float *q, *k, *v, *o, *sums, *d_o, *d_q, *d_k, *d_v;
} tensors;

static float *floats_drawn(int64_t count, double deviation) {
    float *x = numbers_block(count, sizeof(float));
    for (int64_t i = 0; i < count; i++) x[i] = (float)(deviation * dr_random_normal(&numbers_random));
    return x;
}

static tensors tensors_drawn(const dr_attention *a) {
    return (tensors){floats_drawn(q_count(a), 1),
                     floats_drawn(k_count(a), 1),
                     floats_drawn(v_count(a), 1),
                     floats_drawn(o_count(a), 1),
                     floats_drawn(a->layout.rows * a->heads, 1),
                     floats_drawn(o_count(a), 1),
                     floats_drawn(q_count(a), 1),
                     floats_drawn(k_count(a), 1),
                     floats_drawn(v_count(a), 1)};
}

/* The same from row `from` on. */
static tensors tensors_at(const dr_attention *a, const tensors *t, int64_t from) {
    const int64_t q = from * a->heads * a->key_size, k = from * a->key_heads * a->key_size;
    const int64_t v = from * a->key_heads * a->value_size, o = from * a->heads * a->value_size;
    return (tensors){t->q + q,   t->k + k,   t->v + v,   t->o + o,  t->sums + from * a->heads,
                     t->d_o + o, t->d_q + q, t->d_k + k, t->d_v + v};
}

static void run_both(dr_backend *b, const dr_attention *a, const tensors *t) {
    assert_int_equal(b->ops->attention_forward(b, a, t->q, t->k, t->v, NULL, t->o, t->sums), DR_OK);
    assert_int_equal(b->ops->attention_backward(b, a, t->q, t->k, t->v, t->o, t->sums, t->d_o, t->d_q, t->d_k, t->d_v), DR_OK);
}

static float *copied(const float *x, int64_t count) {
    float *copy = numbers_block(count, sizeof *x);
    memcpy(copy, x, (size_t)count * sizeof *x);
    return copy;
}

static void assert_floats(const char *what, const float *x, const float *wanted, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&x[i], &wanted[i], sizeof *x) != 0)
            fail_msg("%s[%lld] is %.9g, not %.9g", what, (long long)i, (double)x[i], (double)wanted[i]);
}

static void test_packed(void **state) {
    (void)state;
    for (int draw = 0; draw < 12; draw++, numbers_release()) {
        const dr_attention a = attention_drawn(300, 40);
        dr_backend *b = cpu[draw % isas][draw % THREADS];
        const tensors t = tensors_drawn(&a);
        run_both(b, &a, &t);
        const float *o = copied(t.o, o_count(&a)), *d_q = copied(t.d_q, q_count(&a)), *d_k = copied(t.d_k, k_count(&a));
        const float *d_v = copied(t.d_v, v_count(&a));
        for (int64_t s = 0; s < a.layout.sequences; s++) {
            const int64_t begin = dr_layout_begin(&a.layout, s);
            dr_attention one = a;
            one.layout = (dr_layout){.sequences = 1, .rows = dr_layout_begin(&a.layout, s + 1) - begin};
            const tensors part = tensors_at(&a, &t, begin);
            run_both(b, &one, &part);
        }
        assert_floats("o", t.o, o, o_count(&a));
        assert_floats("d_q", t.d_q, d_q, q_count(&a));
        assert_floats("d_k", t.d_k, d_k, k_count(&a));
        assert_floats("d_v", t.d_v, d_v, v_count(&a));
    }
}

/* A gradient asked for alone is the bits that it is beside the others: the passes differ. */
static void test_alone(void **state) {
    (void)state;
    for (int draw = 0; draw < 8; draw++, numbers_release()) {
        const dr_attention a = attention_drawn(400, 30);
        dr_backend *b = cpu[draw % isas][draw % THREADS];
        const tensors t = tensors_drawn(&a);
        run_both(b, &a, &t);
        float *d_q = floats_drawn(q_count(&a), 1), *d_k = floats_drawn(k_count(&a), 1);
        float *d_v = floats_drawn(v_count(&a), 1);
        for (int i = 0; i < 3; i++)
            assert_int_equal(b->ops->attention_backward(b, &a, t.q, t.k, t.v, t.o, t.sums, t.d_o, i == 0 ? d_q : NULL,
                                                        i == 1 ? d_k : NULL, i == 2 ? d_v : NULL),
                             DR_OK);
        assert_floats("d_q", d_q, t.d_q, q_count(&a));
        assert_floats("d_k", d_k, t.d_k, k_count(&a));
        assert_floats("d_v", d_v, t.d_v, v_count(&a));
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

/* Sequences of equal lengths in chunks of random lengths through memory in slots of a random order, in elements of the
 * backend's type; o gets all outputs as [sequences, length, heads, value_size]. */
static void in_chunks(dr_backend *b, const dr_attention *whole, int64_t capacity, int64_t longest, const void *q, const void *k,
                      const void *v, void *o) {
    const dr_operations *ops = b->ops;
    const int64_t sequences = whole->layout.sequences, length = whole->layout.rows / sequences;
    const size_t size = dr_dtype_size(ops->dtype);
    const int64_t widths[4] = {whole->heads * whole->key_size, whole->key_heads * whole->key_size,
                               whole->key_heads * whole->value_size, whole->heads * whole->value_size};
    int64_t *past = numbers_block(sequences, sizeof *past), *slot = numbers_block(sequences, sizeof *slot);
    for (int64_t s = 0; s < sequences; s++) past[s] = 0, slot[s] = sequences - s; /* slot 0 stays empty */
    dr_attention_memory memory = {.capacity = capacity, .past = past, .slot = slot};
    assert_int_equal(ops->allocate(b, (size_t)((sequences + 1) * capacity * widths[1]) * size, &memory.keys), DR_OK);
    assert_int_equal(ops->allocate(b, (size_t)((sequences + 1) * capacity * widths[2]) * size, &memory.values), DR_OK);
    memset(memory.keys, 0xff, (size_t)((sequences + 1) * capacity * widths[1]) * size); /* NaN where nothing was written */
    memset(memory.values, 0xff, (size_t)((sequences + 1) * capacity * widths[2]) * size);
    char *part[4];
    for (int i = 0; i < 4; i++) part[i] = numbers_block(sequences * longest * widths[i], size);
    for (int64_t from = 0; from < length;) {
        const int64_t left = length - from, most = left < longest ? left : longest, tokens = number_between(1, most);
        dr_attention chunk = *whole;
        chunk.layout = (dr_layout){.sequences = sequences, .rows = sequences * tokens};
        const void *all[3] = {q, k, v};
        for (int64_t s = 0; s < sequences; s++)
            for (int i = 0; i < 3; i++)
                memcpy(part[i] + (size_t)(s * tokens * widths[i]) * size,
                       (const char *)all[i] + (size_t)((s * length + from) * widths[i]) * size,
                       (size_t)(tokens * widths[i]) * size);
        assert_int_equal(ops->attention_forward(b, &chunk, part[0], part[1], part[2], &memory, part[3], NULL), DR_OK);
        assert_int_equal(ops->attention_append(b, &chunk, part[1], part[2], &memory), DR_OK);
        for (int64_t s = 0; s < sequences; s++) {
            memcpy((char *)o + (size_t)((s * length + from) * widths[3]) * size,
                   part[3] + (size_t)(s * tokens * widths[3]) * size, (size_t)(tokens * widths[3]) * size);
            past[s] += tokens;
        }
        from += tokens;
    }
    ops->free(b, memory.keys);
    ops->free(b, memory.values);
}

static void test_memory(void **state) {
    (void)state;
    for (int draw = 0; draw < 24; draw++, numbers_release()) {
        dr_attention a = attention_drawn(20, 24);
        const bool far = draw % 12 == 9; /* a window over several blocks of keys, which are the same for every chunk */
        const int64_t length = far ? number_between(560, 600) : number_between(1, draw % 3 == 0 ? 600 : 80);
        a.layout = (dr_layout){.sequences = number_between(1, 3)};
        a.layout.rows = a.layout.sequences * length;
        if (draw % 4 == 1) a.window = far ? number_between(260, 400) : number_between(1, length);
        if (draw % 6 == 2) a.value_size = 1; /* where rows of values and columns of them lie alike */
        /* a ring where there is a window, as small as it may be or larger */
        const int64_t least = a.window > 1 ? a.window - 1 : 1;
        const int64_t capacity = a.window > 0 ? number_between(least, least + 40) : length;
        const int64_t longest = draw % 2 ? 1 : number_between(1, length);
        const tensors t = tensors_drawn(&a);
        for (int isa = 0; isa < isas; isa++) {
            dr_backend *b = cpu[isa][draw % THREADS];
            float *o = floats_drawn(o_count(&a), 1);
            assert_int_equal(b->ops->attention_forward(b, &a, t.q, t.k, t.v, NULL, t.o, NULL), DR_OK);
            in_chunks(b, &a, capacity, longest, t.q, t.k, t.v, o);
            assert_floats("o in chunks", o, t.o, o_count(&a));
        }
        const double *q = numbers_normal(q_count(&a), 1), *k = numbers_normal(k_count(&a), 1);
        const double *v = numbers_normal(v_count(&a), 1);
        double *whole = numbers_filled(o_count(&a), NAN), *parts = numbers_filled(o_count(&a), NAN);
        assert_int_equal(reference->ops->attention_forward(reference, &a, q, k, v, NULL, whole, NULL), DR_OK);
        in_chunks(reference, &a, capacity, longest, q, k, v, parts);
        assert_same_bits(parts, whole, o_count(&a));
    }
}

/* What stands behind a token, or before its window, does not reach it, not even NaN. */
static void test_causality(void **state) {
    (void)state;
    for (int draw = 0; draw < 16; draw++, numbers_release()) {
        dr_attention a = attention_drawn(20, 24);
        const int64_t length = number_between(2, 500), at = number_between(0, length - 1);
        a.layout = (dr_layout){.sequences = 1, .rows = length};
        if (a.window > 0) a.window = number_between(1, length);
        dr_backend *b = cpu[draw % isas][draw % THREADS];
        const tensors t = tensors_drawn(&a);
        assert_int_equal(b->ops->attention_forward(b, &a, t.q, t.k, t.v, NULL, t.o, t.sums), DR_OK);
        float *o = copied(t.o, o_count(&a)), *wrong = draw % 2 ? t.v : t.k;
        const int64_t size = draw % 2 ? a.value_size : a.key_size, out = a.heads * a.value_size;
        for (int64_t h = 0; h < a.key_heads; h++) wrong[(at * a.key_heads + h) * size] = draw % 4 < 2 ? NAN : INFINITY;
        assert_int_equal(b->ops->attention_forward(b, &a, t.q, t.k, t.v, NULL, t.o, t.sums), DR_OK);
        assert_floats("o before", t.o, o, at * out);
        if (draw % 4 < 2) assert_true(isnan(t.o[at * out])); /* an infinite score may be a weight of 0 */
        const int64_t behind = a.window > 0 && at + a.window < length ? at + a.window : length;
        assert_floats("o behind the window", t.o + behind * out, o + behind * out, (length - behind) * out);
    }
}

static void test_allocations(void **state) {
    (void)state;
    dr_backend *b;
    const dr_attention a = {.layout = {.sequences = 1, .rows = 4}, .heads = 1, .key_heads = 1, .key_size = 4, .value_size = 4};
    for (int backward = 0; backward < 2; backward++, numbers_release()) {
        assert_int_equal(dr_cpu_open(NULL, &b), DR_OK);
        const tensors t = tensors_drawn(&a);
        const long alive = allocation_alive;
        allocation_fail_at(1);
        const dr_status status = backward
                                     ? b->ops->attention_backward(b, &a, t.q, t.k, t.v, t.o, t.sums, t.d_o, t.d_q, t.d_k, t.d_v)
                                     : b->ops->attention_forward(b, &a, t.q, t.k, t.v, NULL, t.o, t.sums);
        allocation_fail_at(0);
        assert_int_equal(status, DR_ERROR_MEMORY);
        assert_int_equal(allocation_alive, alive);
        run_both(b, &a, &t);
        b->ops->close(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_values),      cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_packed),    cmocka_unit_test(test_alone),       cmocka_unit_test(test_memory),
        cmocka_unit_test(test_causality), cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
