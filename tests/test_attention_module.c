/* The attention mixers: their hand-written backward against differences for every option, the CPU backend against the
 * reference, and what must be the same bits on one backend: 1, 2 and 4 threads, packed and separate sequences, and a text at
 * once, in parts and token by token with a state that grows or is a ring. And states that find no memory to grow. */
#include "attention_variants.h"
#include "nn/build.h"
#include "nn/mixers/attend.h"

static module_run open_run(dr_backend *backend, const variant *v) {
    module_run run = {.backend = backend};
    if (create(backend, v, &run.list, &run.module) != DR_OK) fail_msg("%s: %s", v->name, dr_last_error());
    run_begin(&run);
    return run;
}

/* ---- differences ----------------------------------------------------------------------------------------------------- */

static void test_gradients(void **state) {
    (void)state;
    variant list[VARIANTS];
    const int count = variants(2, 7, list);
    for (int i = 0; i < count; i++) {
        module_problem of = {.backend = reference};
        if (create(reference, &list[i], &of.list, &of.module) != DR_OK) fail_msg("%s: %s", list[i].name, dr_last_error());
        module_begin(&of);
        module_check(list[i].name, &of, 1e-6);
        module_end(&of);
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------------- */

static const double *named(const module_run *run, const char *name) {
    for (int i = 0; i < run->list.count; i++)
        if (strcmp(run->list.at[i].name, name) == 0) return (const double *)run->parameters + run->list.at[i].offset;
    return NULL;
}

/* y = weight x + bias, for one token */
static void project(int64_t in, int64_t out, const double *weight, const double *bias, const double *x, double *y) {
    assert_non_null(weight);
    for (int64_t o = 0; o < out; o++) {
        y[o] = bias ? bias[o] : 0;
        for (int64_t i = 0; i < in; i++) y[o] += weight[o * in + i] * x[i];
    }
}

static void norm(const dr_norm_description *of, int64_t dim, int64_t count, const double *weight, double *x) {
    for (int64_t at = 0; of->kind == DR_NORM_RMS && at < count; at += dim) {
        double squares = 0;
        for (int64_t i = 0; i < dim; i++) squares += x[at + i] * x[at + i] / (double)dim;
        for (int64_t i = 0; i < dim; i++) x[at + i] *= (weight[i] + of->offset) / sqrt(squares + of->eps);
    }
}

/* One head of a token at a position. */
static void turn(const dr_rotary_spectrum *spectrum, bool interleaved, double position, double *x) {
    const int64_t half = spectrum->dim / 2;
    double frequencies[128], factor;
    dr_rotary_table(spectrum, frequencies, &factor);
    for (int64_t i = 0; i < half; i++) {
        double *one = x + (interleaved ? 2 * i : i), *other = x + (interleaved ? 2 * i + 1 : i + half), first = *one;
        const double c = factor * cos(position * frequencies[i]), s = factor * sin(position * frequencies[i]);
        *one = c * first - s * *other;
        *other = c * *other + s * first;
    }
}

/* o [value_size] of one head of token t: q of the head, k and v of its key head, `row` apart */
static void attend(const dr_attention_description *a, double scale, int64_t t, const double *q, const double *k, int64_t k_row,
                   const double *v, int64_t v_row, double *o) {
    double sum = 0;
    for (int64_t i = 0; i < a->value_size; i++) o[i] = 0;
    for (int64_t j = a->window > 0 && t >= a->window ? t - a->window + 1 : 0; j <= t; j++) {
        double score = 0;
        for (int64_t i = 0; i < a->key_size; i++) score += q[i] * k[j * k_row + i];
        sum += exp(scale * score);
        for (int64_t i = 0; i < a->value_size; i++) o[i] += exp(scale * score) * v[j * v_row + i];
    }
    for (int64_t i = 0; i < a->value_size; i++) o[i] /= sum;
}

/* o times the sigmoid of its gate */
static void gate(const dr_attention_description *a, int64_t hidden, const module_run *run, const double *x, double *o) {
    const int64_t values = a->heads * a->value_size, by = a->gate == DR_GATED_BY_HEAD ? a->value_size : 1;
    double g[1024];
    if (a->gate == DR_GATED_NOT) return;
    project(hidden, values / by, named(run, "g_proj.weight"), named(run, "g_proj.bias"), x, g);
    for (int64_t i = 0; i < values; i++) o[i] /= 1 + exp(-g[i / by]);
}

static void attention_by_hand(const variant *of, const module_run *run, int64_t rows, const double *x, double *y) {
    const dr_attention_description *a = &of->attention;
    const int64_t nq = a->heads * a->key_size, nk = a->key_heads * a->key_size, nv = a->key_heads * a->value_size;
    double *k = numbers_filled(rows * nk, 0), *v = numbers_filled(rows * nv, 0), q[1024], o[1024];
    for (int64_t t = 0; t < rows; t++, x += of->hidden) {
        project(of->hidden, nq, named(run, "q_proj.weight"), named(run, "q_proj.bias"), x, q);
        project(of->hidden, nk, named(run, "k_proj.weight"), named(run, "k_proj.bias"), x, k + t * nk);
        project(of->hidden, nv, named(run, "v_proj.weight"), named(run, "v_proj.bias"), x, v + t * nv);
        norm(&a->query_norm, a->norm_whole ? nq : a->key_size, nq, named(run, "q_norm.weight"), q);
        norm(&a->key_norm, a->norm_whole ? nk : a->key_size, nk, named(run, "k_norm.weight"), k + t * nk);
        for (int64_t i = 0; i < nk; i++) k[t * nk + i] *= a->key_factor;
        for (int64_t h = 0; a->rotary && h < a->heads; h++) turn(&a->spectrum, a->interleaved, (double)t, q + h * a->key_size);
        for (int64_t h = 0; a->rotary && h < a->key_heads; h++)
            turn(&a->spectrum, a->interleaved, (double)t, k + t * nk + h * a->key_size);
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t from = h / (a->heads / a->key_heads);
            attend(a, a->scale, t, q + h * a->key_size, k + from * a->key_size, nk, v + from * a->value_size, nv,
                   o + h * a->value_size);
        }
        gate(a, of->hidden, run, x, o);
        project(a->heads * a->value_size, of->hidden, named(run, "o_proj.weight"), named(run, "o_proj.bias"), o,
                y + t * of->hidden);
    }
}

static void latent_by_hand(const variant *of, const module_run *run, int64_t rows, const double *x, double *y) {
    const dr_latent_attention_description *d = &of->latent;
    const dr_attention_description a = {
        .heads = d->heads, .key_size = d->plain + d->turned, .value_size = d->value_size, .gate = d->gate};
    const int64_t nk = a.heads * a.key_size, nv = a.heads * a.value_size, up = d->plain + a.value_size;
    double *k = numbers_filled(rows * nk, 0), *v = numbers_filled(rows * nv, 0), q[1024], o[1024], low[1024], kv[1024];
    for (int64_t t = 0; t < rows; t++, x += of->hidden) {
        if (d->query_rank > 0) {
            project(of->hidden, d->query_rank, named(run, "q_a_proj.weight"), NULL, x, low);
            norm(&d->query_norm, d->query_rank, d->query_rank, named(run, "q_a_norm.weight"), low);
            project(d->query_rank, nk, named(run, "q_b_proj.weight"), NULL, low, q);
        } else {
            project(of->hidden, nk, named(run, "q_proj.weight"), NULL, x, q);
        }
        project(of->hidden, d->rank + d->turned, named(run, "kv_a_proj.weight"), NULL, x, low);
        norm(&d->norm, d->rank, d->rank, named(run, "kv_a_norm.weight"), low);
        project(d->rank, a.heads * up, named(run, "kv_b_proj.weight"), NULL, low, kv);
        if (d->rotary) turn(&d->spectrum, d->interleaved, (double)t, low + d->rank);
        for (int64_t h = 0; h < a.heads; h++) {
            double *key = k + t * nk + h * a.key_size;
            memcpy(key, kv + h * up, (size_t)d->plain * sizeof *key);
            memcpy(key + d->plain, low + d->rank, (size_t)d->turned * sizeof *key);
            memcpy(v + t * nv + h * a.value_size, kv + h * up + d->plain, (size_t)a.value_size * sizeof *v);
            if (d->rotary) turn(&d->spectrum, d->interleaved, (double)t, q + h * a.key_size + d->plain);
        }
        for (int64_t h = 0; h < a.heads; h++)
            attend(&a, d->scale, t, q + h * a.key_size, k + h * a.key_size, nk, v + h * a.value_size, nv, o + h * a.value_size);
        gate(&a, of->hidden, run, x, o);
        project(nv, of->hidden, named(run, "o_proj.weight"), NULL, o, y + t * of->hidden);
    }
}

static void test_values(void **state) {
    (void)state;
    enum { ROWS = 9, HIDDEN = 10 };
    variant list[VARIANTS];
    const int count = variants(4, HIDDEN, list);
    const dr_layout layout = {.sequences = 1, .rows = ROWS};
    for (int i = 0; i < count; i++) {
        module_run run = open_run(reference, &list[i]);
        const double *x = floats(ROWS * HIDDEN, 1);
        double wanted[ROWS * HIDDEN];
        (list[i].kind == DR_MIXER_ATTENTION ? attention_by_hand : latent_by_hand)(&list[i], &run, ROWS, x, wanted);
        assert_near(list[i].name, run_call(&run, &layout, x, NULL).y, wanted, ROWS * HIDDEN, 1e-12);
        run_end(&run);
        numbers_release();
    }
}

/* ---- backends -------------------------------------------------------------------------------------------------------- */

/* Outputs and gradients of one call on a backend. */
static module_made run_once(dr_backend *backend, const variant *v, const dr_layout *layout, const double *x, const double *d_y,
                            int64_t *elements) {
    module_run run = open_run(backend, v);
    const module_made made = run_call(&run, layout, x, d_y);
    if (elements) *elements = run.list.elements;
    run_end(&run);
    return made;
}

static void check_cpu(const variant *v, int64_t most) {
    const dr_layout layout = layout_drawn(most);
    const int64_t count = layout.rows * v->hidden;
    const double *x = floats(count, 1), *d_y = floats(count, 1);
    int64_t elements;
    if (layout.rows == 0) return;
    const module_made wanted = run_once(reference, v, &layout, x, d_y, &elements);
    for (int isa = 0; isa < isas; isa++) {
        const module_made one = run_once(cpu[isa][0], v, &layout, x, d_y, NULL);
        assert_near(v->name, one.y, wanted.y, count, 1e-5);
        assert_near(v->name, one.d_x, wanted.d_x, count, 1e-5);
        assert_near(v->name, one.gradients, wanted.gradients, elements, 1e-5);
        for (int threads = 1; isa == isas - 1 && threads < THREADS; threads++) {
            const module_made other = run_once(cpu[isa][threads], v, &layout, x, d_y, NULL);
            assert_same_bits(other.y, one.y, count);
            assert_same_bits(other.d_x, one.d_x, count);
            assert_same_bits(other.gradients, one.gradients, elements);
        }
    }
    numbers_release();
}

static void test_cpu(void **state) {
    (void)state;
    variant list[VARIANTS];
    int count = variants(number_between(2, 9), number_between(5, 40), list);
    for (int i = 0; i < count; i++) check_cpu(&list[i], 70);
    count = real_variants(list);
    for (int i = 0; i < count; i++) check_cpu(&list[i], 150);
}

/* Vectors in 16 bits lie elsewhere than numbers do; what comes out differs by their rounding only. */
static void test_stored(void **state) {
    (void)state;
    variant list[VARIANTS];
    const int count = variants(4, 12, list);
    dr_backend *stored;
    ASSERT_OK(dr_reference_open(&(dr_backend_options){.dtype = DR_BF16}, &stored));
    for (int i = 0; i < count; i++, numbers_release()) {
        const dr_layout layout = {.sequences = 2, .rows = 10};
        const double *x = floats(10 * 12, 1), *d_y = floats(10 * 12, 1);
        int64_t elements;
        const module_made exact = run_once(reference, &list[i], &layout, x, d_y, &elements);
        const module_made rounded = run_once(stored, &list[i], &layout, x, d_y, NULL);
        assert_near(list[i].name, rounded.y, exact.y, 10 * 12, 0.03);
        assert_near(list[i].name, rounded.d_x, exact.d_x, 10 * 12, 0.05);
        assert_near(list[i].name, rounded.gradients, exact.gradients, elements, 0.05);
        module_run run = open_run(stored, &list[i]);
        run_state(&run, 2);
        assert_near(list[i].name, run_call(&run, &layout, x, NULL).y, exact.y, 10 * 12, 0.03);
        run_end(&run);
    }
    stored->ops->close(stored);
}

/* ---- sequences ------------------------------------------------------------------------------------------------------- */

static void check_packed(dr_backend *backend, const variant *v, int64_t most) {
    const dr_layout layout = layout_drawn(most);
    const double *x = floats(layout.rows * v->hidden, 1), *d_y = floats(layout.rows * v->hidden, 1);
    if (layout.rows == 0) return;
    const module_made packed = run_once(backend, v, &layout, x, d_y, NULL);
    for (int64_t i = 0; i < layout.sequences; i++) {
        const int64_t begin = dr_layout_begin(&layout, i), rows = dr_layout_begin(&layout, i + 1) - begin,
                      at = begin * v->hidden;
        const dr_layout own = {.sequences = 1, .rows = rows};
        if (rows == 0) continue;
        const module_made separate = run_once(backend, v, &own, x + at, d_y + at, NULL);
        assert_same_bits(packed.y + at, separate.y, rows * v->hidden);
        assert_same_bits(packed.d_x + at, separate.d_x, rows * v->hidden);
    }
    numbers_release();
}

static void test_packed(void **state) {
    (void)state;
    variant list[VARIANTS];
    int count = variants(4, 24, list);
    for (int i = 0; i < count; i++) {
        check_packed(reference, &list[i], 12);
        check_packed(cpu[isas - 1][0], &list[i], 90);
    }
    count = real_variants(list);
    for (int i = 0; i < count; i++) check_packed(cpu[isas - 1][0], &list[i], 90);
}

/* A text at once with a state: the same bits as without one, but where latents are remembered instead of keys and values. */
static double *whole_text(dr_backend *backend, const variant *v, const dr_layout *layout, const double *x) {
    module_run run = open_run(backend, v);
    const int64_t count = layout->rows * v->hidden;
    const double *without = run_call(&run, layout, x, NULL).y;
    run_state(&run, 1);
    double *y = run_call(&run, layout, x, NULL).y;
    if (v->kind == DR_MIXER_ATTENTION) assert_same_bits(y, without, count);
    assert_near(v->name, y, without, count, backend == reference ? 1e-13 : 1e-5);
    run_end(&run);
    return y;
}

/* Texts of some lengths, packed into calls that each bring up to `most` tokens of each (1: token by token), against each text
 * at once. */
static void check_parts(dr_backend *backend, const variant *v, int64_t longest, int64_t most) {
    enum { TEXTS = 3 };
    int64_t length[TEXTS], done[TEXTS] = {0}, left = 0;
    double *x[TEXTS], *wanted[TEXTS];
    const int64_t hidden = v->hidden;
    module_run run = open_run(backend, v);
    run_state(&run, TEXTS);
    for (int i = 0; i < TEXTS; i++) {
        length[i] = i == 0 ? longest : number_between(1, longest);
        x[i] = floats(length[i] * hidden, 1);
        const dr_layout own = {.sequences = 1, .rows = length[i]};
        wanted[i] = whole_text(backend, v, &own, x[i]);
        left += length[i];
    }
    while (left > 0) {
        int64_t begins[TEXTS + 1] = {0};
        for (int i = 0; i < TEXTS; i++) {
            const int64_t rest = length[i] - done[i], part = most == 1 ? 1 : number_between(0, most);
            begins[i + 1] = begins[i] + (part < rest ? part : rest);
        }
        const dr_layout layout = {.sequences = TEXTS, .rows = begins[TEXTS], .cu_seqlens = begins};
        if (layout.rows == 0) continue;
        double *in = malloc((size_t)(layout.rows * hidden) * sizeof *in);
        assert_non_null(in);
        for (int i = 0; i < TEXTS; i++)
            memcpy(in + begins[i] * hidden, x[i] + done[i] * hidden,
                   (size_t)((begins[i + 1] - begins[i]) * hidden) * sizeof *in);
        const int blocks = numbers_count;
        const module_made made = run_call(&run, &layout, in, NULL);
        for (int i = 0; i < TEXTS; i++) {
            const int64_t part = begins[i + 1] - begins[i];
            if (memcmp(made.y + begins[i] * hidden, wanted[i] + done[i] * hidden, (size_t)(part * hidden) * sizeof(double)) !=
                0)
                fail_msg("%s: tokens %d to %d of text %d, in parts of %d, differ from the text at once", v->name, (int)done[i],
                         (int)(done[i] + part), i, (int)most);
            done[i] += part, left -= part;
        }
        while (numbers_count > blocks) free(numbers_blocks[--numbers_count]);
        free(in);
    }
    run_end(&run);
    numbers_release();
}

static void test_parts(void **state) {
    (void)state;
    variant list[VARIANTS];
    int count = variants(3, 10, list);
    for (int i = 0; i < count; i++) {
        check_parts(reference, &list[i], 9, 1);
        check_parts(reference, &list[i], 20, 6);
        check_parts(cpu[isas - 1][0], &list[i], 150, 1);
        check_parts(cpu[isas - 1][0], &list[i], 300, 40);
        if (list[i].kind != DR_MIXER_ATTENTION || list[i].attention.window == 0) continue;
        /* a ring that grows before it turns, parts shorter and longer than it */
        list[i].attention.window = 100;
        check_parts(cpu[isas - 1][0], &list[i], 350, 1);
        check_parts(cpu[isas - 1][0], &list[i], 900, 230);
    }
    count = real_variants(list);
    for (int i = 0; i < count; i++) check_parts(cpu[isas - 1][0], &list[i], 200, 50);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

/* Room is at least doubled and never more than a window can see and take back; what is there stays, also where there is no
 * memory for more.
 */
static void test_room(void **state) {
    (void)state;
    variant v = attention("room", 6, 2, 1, 4, 3);
    module_run run = open_run(reference, &v);
    const dr_module_operations *operations = run.module->operations;
    run_state(&run, 2);
    dr_attend_state *kept = run.state;
    ASSERT_OK(operations->reserve_state(run.module, reference, 2, 1, kept));
    assert_int_equal(kept->capacity, 64);
    ASSERT_OK(operations->reserve_state(run.module, reference, 2, 65, kept));
    assert_int_equal(kept->capacity, 128);
    ASSERT_OK(operations->reserve_state(run.module, reference, 2, 1000, kept));
    assert_int_equal(kept->capacity, 1000);
    const dr_attend_state before = *kept;
    const long alive = allocation_alive;
    allocation_fail_at(1);
    assert_int_equal(operations->reserve_state(run.module, reference, 2, 1001, kept), DR_ERROR_MEMORY);
    allocation_fail_at(0);
    assert_memory_equal(kept, &before, sizeof before);
    assert_int_equal(allocation_alive, alive);
    assert_int_equal(operations->reserve_state(run.module, reference, 2, INT64_MAX / 4, kept), DR_ERROR_MEMORY);
    assert_non_null(strstr(dr_last_error(), "keys and values"));
    assert_memory_equal(kept, &before, sizeof before);
    run_end(&run);
    v.attention.window = 100;
    run = open_run(reference, &v);
    run_state(&run, 2);
    kept = run.state;
    /* the 99 tokens that the next query sees, and 256 that can be taken back */
    const int64_t tokens[] = {3, 65, 99, 300, 355, 356, 5000}, capacity[] = {64, 128, 128, 300, 355, 355, 355};
    for (int i = 0; i < 7; i++) {
        ASSERT_OK(operations->reserve_state(run.module, reference, 2, tokens[i], kept));
        assert_int_equal(kept->capacity, capacity[i]);
    }
    run_end(&run);
    numbers_release();
}

/* Of latents a token takes rank + turned numbers and, as its value, rank more, whatever the heads. */
static void test_room_of_latents(void **state) {
    (void)state;
    const variant v = latent("latents", 6, 8, 16, 8, 16, 12);
    module_run run = open_run(reference, &v);
    run_state(&run, 1);
    const long before = allocation_bytes;
    ASSERT_OK(run.module->operations->reserve_state(run.module, reference, 1, 1000, run.state));
    const long bytes = allocation_bytes - before, least = 1000 * (12 + 8 + 12) * (long)sizeof(double);
    assert_in_range(bytes, least, least + 1024);
    run_end(&run);
    numbers_release();
}

/* A step of a model that finds no memory for more tokens, in the first or in the second layer that remembers them, changes
 * nothing: tried again it gives what it gives where there is memory at once. */
static void test_failed_step(void **state) {
    (void)state;
    enum { VOCABULARY = 11, FILLED = 64 };
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    dr_model_state *one, *other;
    dr_model *model;
    float wanted[VOCABULARY], logits[VOCABULARY];
    config.vocabulary = VOCABULARY, config.hidden = 8, config.heads = 2, config.key_size = 4, config.intermediate = 6;
    config.layer_list = "gdn attention*2";
    ASSERT_OK(dr_model_create(cpu[0][0], &config, 1, &model));
    ASSERT_OK(dr_model_state_create(model, 1, &one));
    ASSERT_OK(dr_model_state_create(model, 1, &other));
    for (int32_t t = 0; t < FILLED; t++) {
        const int32_t id = t * t % VOCABULARY;
        ASSERT_OK(dr_model_step(model, &id, one, wanted));
        ASSERT_OK(dr_model_step(model, &id, other, logits));
    }
    const int32_t id = 3;
    ASSERT_OK(dr_model_step(model, &id, one, wanted));
    for (long n = 1; n <= 2; n++) {
        allocation_fail_at(n);
        const dr_status status = dr_model_step(model, &id, other, logits);
        allocation_fail_at(0);
        assert_int_equal(status, DR_ERROR_MEMORY);
    }
    ASSERT_OK(dr_model_step(model, &id, other, logits));
    assert_memory_equal(logits, wanted, sizeof wanted);
    dr_model_state_reset(other);
    dr_model_state_reset(one);
    ASSERT_OK(dr_model_step(model, &id, one, wanted));
    ASSERT_OK(dr_model_step(model, &id, other, logits));
    assert_memory_equal(logits, wanted, sizeof wanted);
    dr_model_state_destroy(one);
    dr_model_state_destroy(other);
    dr_model_destroy(model);
}

static dr_status create_and_destroy(void *context) {
    dr_layer_parameters list = {0};
    dr_module *module = NULL;
    const dr_status status = create(reference, context, &list, &module);
    if (status == DR_OK) module->operations->destroy(reference, module);
    dr_layer_parameters_release(&list);
    return status;
}

static void test_allocations(void **state) {
    (void)state;
    variant list[VARIANTS];
    const int count = variants(2, 7, list);
    for (int i = 0; i < count; i++) assert_survives_failed_allocations(create_and_destroy, &list[i]);
}

/* ---- names ----------------------------------------------------------------------------------------------------------- */

/* Both kinds side by side, twice each: no two parameters of the layer have one name. */
static void test_names(void **state) {
    (void)state;
    const variant softmax = attention("softmax", 6, 2, 1, 4, 3), low = latent("low", 6, 2, 3, 4, 3, 5);
    const dr_mixer_description one = {DR_MIXER_ATTENTION, 1, 1, {.attention = softmax.attention}},
                               other = {DR_MIXER_LATENT_ATTENTION, 1, 1, {.latent = low.latent}};
    const dr_layer_description layers[] = {
        {.mixers = 2, .mixer = {one, one}}, {.mixers = 2, .mixer = {other, other}}, {.mixers = 2, .mixer = {one, other}}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        dr_layer layer = {0};
        ASSERT_OK(dr_layer_build(reference, 6, &layers[i], &layer));
        for (int p = 0; p < layer.list.count; p++)
            for (int other_one = 0; other_one < p; other_one++)
                assert_string_not_equal(layer.list.at[p].name, layer.list.at[other_one].name);
        dr_layer_release(reference, &layer);
    }
}

/* ---- refusals -------------------------------------------------------------------------------------------------------- */

static void refuses(const variant *v, dr_status wanted, const char *words) {
    const dr_status status = create_and_destroy((void *)v);
    if (status != wanted || !strstr(dr_last_error(), words))
        fail_msg("%s, not %s: %s", dr_status_name(status), words, dr_last_error());
}

static void test_refused(void **state) {
    (void)state;
    const variant fine = attention("fine", 6, 4, 2, 4, 3);
    variant v = fine;
    v.attention.key_heads = 3, refuses(&v, DR_ERROR_ARGUMENT, "share each key head");
    v = fine, v.attention.heads = 0, refuses(&v, DR_ERROR_ARGUMENT, "number of heads of 0");
    v = fine, v.attention.key_heads = -1, refuses(&v, DR_ERROR_ARGUMENT, "key heads of -1");
    v = fine, v.attention.key_size = INT64_MAX, refuses(&v, DR_ERROR_ARGUMENT, "key size of 9223372036854775807");
    v = fine, v.attention.value_size = 0, refuses(&v, DR_ERROR_ARGUMENT, "value size of 0");
    v = fine, v.attention.window = -2, refuses(&v, DR_ERROR_ARGUMENT, "window of -2");
    v = fine, v.attention.scale = (double)NAN, refuses(&v, DR_ERROR_ARGUMENT, "finite");
    v = fine, v.attention.sight = DR_SIGHT_POOLS, refuses(&v, DR_ERROR_UNSUPPORTED, "pools");
    v = fine, v.attention.sight = DR_SIGHT_BLOCKS, refuses(&v, DR_ERROR_UNSUPPORTED, "blocks");
    v = fine, rotate(&v, plain(6), false), refuses(&v, DR_ERROR_ARGUMENT, "6 channels of heads that have 4");
    v = fine, rotate(&v, plain(3), false), refuses(&v, DR_ERROR_ARGUMENT, "turned in pairs");
    v = fine, v.attention.query_norm = (dr_norm_description){.kind = DR_NORM_LAYER, .eps = 1};
    refuses(&v, DR_ERROR_UNSUPPORTED, "layer norms");
    const variant low = latent("low", 6, 2, 3, 4, 3, 5);
    v = low, v.latent.rank = 0, refuses(&v, DR_ERROR_ARGUMENT, "latent of channels of 0");
    v = low, v.latent.plain = -1, refuses(&v, DR_ERROR_ARGUMENT, "without a position of -1");
    v = low, v.latent.turned = -1, refuses(&v, DR_ERROR_ARGUMENT, "with a position of -1");
    v = low, v.latent.query_rank = INT64_MAX, refuses(&v, DR_ERROR_ARGUMENT, "rank of the queries of 9223372036854775807");
    v = low, v.latent.heads = 1 << 21, refuses(&v, DR_ERROR_ARGUMENT, "number of heads");
    v = low, v.latent.value_size = 0, refuses(&v, DR_ERROR_ARGUMENT, "value size of 0");
    v = low, v.latent.rotary = true, v.latent.spectrum = plain(2);
    refuses(&v, DR_ERROR_ARGUMENT, "2 channels where 4 have a position");
    v = low, v.latent.sight = DR_SIGHT_POOLS, refuses(&v, DR_ERROR_UNSUPPORTED, "pools");
    v = low, v.latent.norm.kind = DR_NORM_LAYER, refuses(&v, DR_ERROR_UNSUPPORTED, "layer norms");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),   cmocka_unit_test(test_values),          cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_stored),      cmocka_unit_test(test_packed),          cmocka_unit_test(test_parts),
        cmocka_unit_test(test_room),        cmocka_unit_test(test_room_of_latents), cmocka_unit_test(test_failed_step),
        cmocka_unit_test(test_allocations), cmocka_unit_test(test_names),           cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
