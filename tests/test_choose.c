/* Tokens that a backend chooses: those that dr_sampler_choose chooses from the same logits and random numbers, and texts that
 * are made by many are those that are made one by one. On the reference, which computes both in the same order, bit for bit. */
#include "allocation.h"
#include "base/random.h"
#include "data/corpus.h"
#include "generate/sampling.h"

#include <deltarule/generate.h>
#include <math.h>

enum { MOST = 400, ROWS = 3, TEXTS = 6, TOKENS = 30 };

static dr_random stream;

static int64_t between(int64_t least, int64_t most) {
    return least + (int64_t)(dr_random_uniform(&stream) * (double)(most - least + 1));
}

static double one_of(const double *values, int64_t count) {
    return values[between(0, count - 1)];
}

static dr_sampling draw_options(int64_t vocabulary) {
    static const double temperatures[] = {0, 0.3, 1, 7}, shares[] = {1, 0.99, 0.5, 1e-6}, floors[] = {0, 0, 0.02, 1};
    dr_sampling options = dr_sampling_defaults();
    options.temperature = one_of(temperatures, 4), options.top_p = one_of(shares, 4), options.min_p = one_of(floors, 4);
    options.top_k = between(0, 1) * between(1, vocabulary + 2);
    options.seed = (uint64_t)between(0, 1 << 30);
    return options;
}

/* The backend's choices from logits [ROWS, vocabulary] that single floats hold. */
static void choose(dr_backend *backend, int64_t vocabulary, int64_t allowed, const float *logits, const dr_draw *draws,
                   int32_t *ids) {
    void *stored;
    const size_t bytes = (size_t)(ROWS * vocabulary) * dr_dtype_size(backend->storage);
    assert_int_equal(backend->ops->allocate(backend, bytes, &stored), DR_OK);
    assert_int_equal(dr_backend_upload_as(backend, stored, backend->storage, logits, DR_F32, ROWS * vocabulary), DR_OK);
    assert_int_equal(backend->ops->choose(backend, ROWS, vocabulary, allowed, stored, draws, ids), DR_OK);
    backend->ops->free(backend, stored);
}

/* Some logits are equal, some are -infinity, which no draw takes. */
static void check_choices(dr_backend *backend, int64_t vocabulary, int64_t allowed) {
    static float logits[ROWS * MOST];
    dr_draw draws[ROWS];
    int32_t ids[ROWS], wanted[ROWS];
    for (int64_t i = 0; i < ROWS * vocabulary; i++) {
        const double drawn = 3 * dr_random_normal(&stream);
        logits[i] = between(0, 9) == 0 ? -INFINITY : (float)(round(drawn * 4) / 4); /* bf16 holds them */
    }
    for (int64_t r = 0; r < ROWS; r++) {
        logits[r * vocabulary + between(0, allowed - 1)] = 5;
        const dr_sampling options = draw_options(allowed);
        dr_sampler *sampler;
        dr_choice choice;
        assert_int_equal(dr_sampler_create(allowed, &options, &sampler), DR_OK);
        assert_int_equal(dr_sampler_choose(sampler, logits + r * vocabulary, &choice), DR_OK);
        wanted[r] = choice.id;
        assert_int_equal(dr_sampler_restart(sampler, &options), DR_OK);
        draws[r] = dr_sampler_draw(sampler);
        dr_sampler_destroy(sampler);
    }
    choose(backend, vocabulary, allowed, logits, draws, ids);
    for (int64_t r = 0; r < ROWS; r++)
        if (ids[r] != wanted[r])
            fail_msg("token %d instead of %d of %lld: temperature %g, top_k %lld, top_p %g, min_p %g, point %.17g", ids[r],
                     wanted[r], (long long)allowed, draws[r].temperature, (long long)draws[r].top_k, draws[r].top_p,
                     draws[r].min_p, draws[r].point);
}

static void test_choices_are_the_samplers(void **state) {
    (void)state;
    static const dr_dtype types[] = {DR_F64, DR_BF16};
    stream = dr_random_start(5, 1);
    for (int t = 0; t < 2; t++) {
        dr_backend *backend;
        assert_int_equal(dr_backend_open("reference", &(dr_backend_options){.dtype = types[t]}, &backend), DR_OK);
        for (int i = 0; i < 3000; i++) {
            const int64_t vocabulary = between(1, i % 10 ? 40 : MOST);
            check_choices(backend, vocabulary, between(0, 1) ? vocabulary : between(1, vocabulary));
        }
        dr_backend_close(backend);
    }
}

static void test_logits_that_are_no_numbers(void **state) {
    (void)state;
    const float logits[ROWS * 2] = {1, NAN, -INFINITY, -INFINITY, 2, INFINITY};
    const dr_draw draws[ROWS] = {{0}, {.temperature = 1, .top_p = 1}, {.temperature = 1, .top_p = 0.5}};
    int32_t ids[ROWS];
    dr_backend *backend;
    assert_int_equal(dr_backend_open("reference", NULL, &backend), DR_OK);
    choose(backend, 2, 2, logits, draws, ids);
    for (int r = 0; r < ROWS; r++) assert_int_equal(ids[r], -1);
    dr_backend_close(backend);
}

/* ---- texts ---- */

typedef struct {
    int32_t ids[TEXTS][TOKENS];
    int64_t tokens[TEXTS];
} output;

static bool collect(void *context, const dr_piece *piece) {
    output *out = context;
    if (piece->choice) out->ids[piece->sample][out->tokens[piece->sample]++] = piece->choice->id;
    return true;
}

static dr_status make_texts(const dr_model *model, dr_generate_options options, int64_t at_once, output *out) {
    const dr_prompt prompt = {.text = "it was", .bytes = 6};
    options.at_once = at_once;
    *out = (output){.tokens = {0}};
    return dr_generate_texts(model, &prompt, 1, TEXTS, &options, collect, out, NULL);
}

static dr_model *make_model(dr_backend *backend) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    dr_model *model;
    config.vocabulary = DR_BYTE_VOCABULARY, config.hidden = 16, config.layers = 2, config.heads = 2;
    config.intermediate = 24, config.initializer_range = 0.5;
    assert_int_equal(dr_model_create(backend, &config, 3, &model), DR_OK);
    return model;
}

/* Texts end at different times. */
static void test_many_texts_are_the_same(void **state) {
    (void)state;
    dr_backend *backend;
    assert_int_equal(dr_backend_open("reference", NULL, &backend), DR_OK);
    dr_model *model = make_model(backend);
    const char *const stops[] = {"e", "q", "a"};
    dr_generate_options options = dr_generate_defaults();
    options.tokens = TOKENS, options.stop = stops, options.stop_count = 3;
    for (int i = 0; i < 4; i++) {
        static output alone, together, penalized;
        options.sampling = dr_sampling_defaults();
        options.sampling.temperature = i == 0 ? 0 : 0.8, options.sampling.top_p = i == 2 ? 0.9 : 1;
        options.sampling.top_k = i == 3 ? 20 : 0;
        assert_int_equal(make_texts(model, options, 1, &alone), DR_OK);
        assert_int_equal(make_texts(model, options, TEXTS, &together), DR_OK);
        assert_memory_equal(&together, &alone, sizeof alone);
        options.sampling.presence_penalty = 2; /* which the host has to know of */
        assert_int_equal(make_texts(model, options, 1, &alone), DR_OK);
        assert_int_equal(make_texts(model, options, TEXTS, &penalized), DR_OK);
        assert_memory_equal(&penalized, &alone, sizeof alone);
        assert_memory_not_equal(&penalized, &together, sizeof together);
    }
    dr_model_destroy(model);
    dr_backend_close(backend);
}

/* ---- a backend that works beside the host ---- */

typedef struct {
    size_t bytes;
    char at[];
} copy;

static int under_way, most_under_way;

static dr_status fetch(dr_backend *of, const void *from, size_t bytes, void **transfer) {
    copy *made = malloc(sizeof *made + bytes);
    (void)of;
    assert_non_null(made);
    made->bytes = bytes;
    memcpy(made->at, from, bytes);
    *transfer = made;
    if (++under_way > most_under_way) most_under_way = under_way;
    return DR_OK;
}

static dr_status fetched(dr_backend *of, void *transfer, void *to) {
    copy *made = transfer;
    (void)of;
    if (to) memcpy(to, made->at, made->bytes);
    under_way--;
    free(made);
    return DR_OK;
}

/* Steps begin before the host knows what the last one chose; the texts are the same. */
static void test_steps_ahead_of_the_host(void **state) {
    (void)state;
    dr_backend *backend;
    assert_int_equal(dr_backend_open("reference", NULL, &backend), DR_OK);
    dr_model *model = make_model(backend);
    const dr_operations *const plain = backend->ops;
    dr_operations late = *plain;
    late.fetch = fetch, late.fetched = fetched;
    const char *const stops[] = {"e", "q", "a"};
    dr_generate_options options = dr_generate_defaults();
    options.stop = stops, options.stop_count = 3;
    options.sampling.top_p = 1;
    for (int64_t tokens = 1; tokens <= TOKENS; tokens = tokens < 4 ? tokens + 1 : tokens + 13) {
        static output alone, ahead;
        options.tokens = tokens;
        assert_int_equal(make_texts(model, options, 1, &alone), DR_OK);
        backend->ops = &late;
        most_under_way = 0;
        assert_int_equal(make_texts(model, options, TEXTS, &ahead), DR_OK);
        backend->ops = plain;
        assert_memory_equal(&ahead, &alone, sizeof alone);
        assert_int_equal(under_way, 0);
        assert_int_equal(most_under_way, tokens > 2 ? 2 : tokens - 1);
    }
    dr_model_destroy(model);
    dr_backend_close(backend);
}

static bool collect_one(void *context, const dr_piece *piece) {
    return collect(context, piece) && ((output *)context)->tokens[0] < 3;
}

/* Steps that are under way when a text is broken off are ended. */
static void test_steps_are_broken_off(void **state) {
    (void)state;
    dr_backend *backend;
    assert_int_equal(dr_backend_open("reference", NULL, &backend), DR_OK);
    dr_model *model = make_model(backend);
    dr_operations late = *backend->ops;
    const dr_prompt prompt = {.text = "it was", .bytes = 6};
    dr_generate_options options = dr_generate_defaults();
    static output out;
    late.fetch = fetch, late.fetched = fetched;
    backend->ops = &late;
    options.tokens = TOKENS;
    assert_int_equal(dr_generate_texts(model, &prompt, 1, TEXTS, &options, collect_one, &out, NULL), DR_ERROR_INTERRUPTED);
    assert_int_equal(under_way, 0);
    dr_model_destroy(model);
    dr_backend_close(backend);
}

/* ---- memory ---- */

static void test_allocations_fail(void **state) {
    (void)state;
    dr_backend *backend;
    assert_int_equal(dr_backend_open("reference", NULL, &backend), DR_OK);
    dr_model *model = make_model(backend);
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 2;
    output out;
    dr_status status = DR_ERROR_MEMORY;
    for (long n = 1; status != DR_OK; n++) {
        const long alive = atomic_load(&allocation_alive);
        allocation_fail_at(n);
        status = make_texts(model, options, TEXTS, &out);
        if (status != DR_OK) {
            assert_int_equal(status, DR_ERROR_MEMORY);
            assert_int_equal(atomic_load(&allocation_alive), alive);
        }
    }
    allocation_fail_at(0);
    dr_model_destroy(model);
    dr_backend_close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_are_the_samplers), cmocka_unit_test(test_logits_that_are_no_numbers),
        cmocka_unit_test(test_many_texts_are_the_same),  cmocka_unit_test(test_steps_ahead_of_the_host),
        cmocka_unit_test(test_steps_are_broken_off),     cmocka_unit_test(test_allocations_fail),
    };
    return cmocka_run_group_tests_name("choose", tests, NULL, NULL);
}
