/* Slots, snapshots and what stands beside them: the bits of an answer. Models of every kind of layer, with random pieces. */
#include "allocation.h"
#include "base/random.h"
#include "statuses.h"

#include <deltarule/deltarule.h>
#include <stdio.h>
#include <stdlib.h>

enum { IDS = 96, VOCABULARY = 132, LONGEST = 420 }; /* ids that every model has; logits at most */

/* Rows of a rule's table and lists of layers, or checkpoints: every kind of layer. */
static const struct {
    const char *checkpoint, *rule, *layers;
    int64_t hidden, heads, value_heads;
} models[] = {
    {NULL, "gdn", NULL, 32, 2, 4},
    {NULL, "kda", "(kda attention)*2", 32, 2, 0},
    {NULL, "eda", "[{\"mixer\": \"eda\"}, {\"mixer\": \"attention\", \"window\": 48}]", 64, 1, 0},
    {NULL, "mamba2", NULL, 64, 1, 0},
    {NULL, "mesanet", NULL, 32, 2, 0},
    {NULL, "delta_product", NULL, 32, 2, 0}, /* two rows a token: chunks of half as many */
    {"mamba2_hf", NULL, NULL, 0, 0, 0},
    {"rwkv7", NULL, NULL, 0, 0, 0},
    {"mistral_swa", NULL, NULL, 0, 0, 0},
    {"lara_mini", NULL, NULL, 0, 0, 0},        /* windows */
    {"falcon_h1", NULL, NULL, 0, 0, 0},        /* mamba2 beside attention */
    {"qwen3_next_mixed", NULL, NULL, 0, 0, 0}, /* experts */
    {"kimi_linear_remote", NULL, NULL, 0, 0, 0},
    {"precond_kda", NULL, NULL, 0, 0, 0},
};
enum { MODELS = sizeof models / sizeof *models };

static dr_backend *backends[2]; /* of one thread, of three */

static const char *name_of(int index) {
    return models[index].checkpoint ? models[index].checkpoint : models[index].rule;
}

static dr_model *make_model(int index, dr_backend *backend) {
    dr_model *model = NULL;
    if (models[index].checkpoint) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s/checkpoints/%s", DR_TESTS_FOLDER, models[index].checkpoint);
        must(dr_model_load(backend, folder, &model));
        return model;
    }
    dr_rule rule = *dr_rule_find(models[index].rule);
    if (rule.repeat > 1) rule.repeat = 3;
    dr_model_config config = dr_model_config_default(&rule);
    config.vocabulary = IDS;
    config.hidden = models[index].hidden;
    config.layers = 2;
    config.heads = models[index].heads;
    config.value_heads = models[index].value_heads;
    config.initializer_range = 0.3; /* so that tokens far back matter */
    config.layer_list = models[index].layers;
    must(dr_model_create(backend, &config, 7, &model));
    return model;
}

static int open_backends(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        if (dr_backend_open("cpu", &(dr_backend_options){.threads = 1 + 2 * i}, &backends[i]) != DR_OK) return 1;
    return 0;
}

static int close_backends(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) dr_backend_close(backends[i]);
    return 0;
}

static dr_pool *make_pool(const dr_model *model, int64_t slots, int64_t rows, int64_t tokens) {
    dr_pool *pool = NULL;
    must(dr_pool_create(model, &(dr_pool_options){slots, rows, tokens}, &pool));
    return pool;
}

static void draw_ids(dr_random *random, int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)dr_random_below(random, IDS);
}

static void step(dr_pool *pool, int64_t slot, const int32_t *ids, int64_t count, bool decode, float *logits) {
    const dr_pool_item item = {.slot = slot, .ids = ids, .count = count, .decode = decode, .wanted = logits ? 1 : 0};
    must(dr_pool_step(pool, &item, 1, &(dr_pool_results){.logits = logits}));
}

static void assert_bits(const char *what, int model, const float *a, const float *b) {
    for (int i = 0; i < IDS; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s, model %s: logit %d is %.9g and %.9g", what, name_of(model), i, (double)a[i], (double)b[i]);
}

/* A prompt in one call of the session, in the pool at once, in pieces, from snapshots at every offset of its end. */
static void test_pieces(void **state) {
    (void)state;
    dr_random random = dr_random_start(11, 0);
    for (int m = 0; m < MODELS; m++) {
        int32_t ids[LONGEST];
        float whole[VOCABULARY], pieces[VOCABULARY];
        dr_model *model = make_model(m, backends[0]);
        dr_session *session = NULL;
        must(dr_session_create(model, &session));
        dr_model_state *sequence = NULL;
        must(dr_model_state_create(model, 1, &sequence));
        dr_pool *pool = make_pool(model, 2, 512, LONGEST + 8), *narrow = make_pool(model, 2, 256, LONGEST + 8);
        for (int round = 0; round < 12; round++) {
            const int64_t count = 1 + (int64_t)dr_random_below(&random, LONGEST), last = count - 1;
            draw_ids(&random, ids, count);
            const dr_batch batch = {.layout = {1, count, NULL}, .ids = ids, .targets = 1, .positions = &last};
            dr_model_state_reset(sequence);
            must(dr_session_logits(session, &batch, sequence, DR_F32, whole));
            for (int64_t from = 0; from < count;) {
                int64_t piece = 1 + (int64_t)dr_random_below(&random, round % 2 ? 9 : 200);
                if (piece > count - from) piece = count - from;
                step(round % 3 ? pool : narrow, 1, ids + from, piece, false, from + piece == count ? pieces : NULL);
                from += piece;
            }
            assert_bits("pieces", m, whole, pieces);
            dr_position about;
            must(dr_pool_about(round % 3 ? pool : narrow, 1, &about));
            assert_int_equal(about.tokens, count);
            assert_int_equal(about.decoded, 0);
            assert_true(about.hash == dr_tokens_hash(ids, count));
            must(dr_pool_reset(pool, 1));
            must(dr_pool_reset(narrow, 1));
        }
        dr_pool_destroy(pool);
        dr_pool_destroy(narrow);
        dr_session_destroy(session);
        dr_model_state_destroy(sequence);
        dr_model_destroy(model);
    }
}

/* Snapshots that a read leaves; every one continues with the bits of the whole. */
static void test_snapshots(void **state) {
    (void)state;
    dr_random random = dr_random_start(12, 0);
    for (int m = 0; m < MODELS; m++) {
        int32_t ids[LONGEST];
        float whole[VOCABULARY], again[VOCABULARY], next[VOCABULARY], other[VOCABULARY];
        dr_model *model = make_model(m, backends[0]);
        dr_pool *pool = make_pool(model, 3, 512, LONGEST + 8);
        const int64_t grain = dr_pool_grain(pool);
        draw_ids(&random, ids, LONGEST);
        for (int64_t count = LONGEST - 7; count <= LONGEST; count++) {
            int64_t positions[LONGEST / 64 + 1], snapshots = 0;
            dr_model_state *made[LONGEST / 64 + 1];
            for (int64_t at = grain; at <= count; at += grain) positions[snapshots++] = at;
            must(dr_pool_reset(pool, 0));
            const dr_pool_item item = {.slot = 0,
                                       .ids = ids,
                                       .count = count,
                                       .wanted = 1,
                                       .snapshots = snapshots,
                                       .positions = positions,
                                       .made = made};
            must(dr_pool_step(pool, &item, 1, &(dr_pool_results){.logits = whole}));
            step(pool, 0, ids, 1, true, next);
            for (int64_t i = 0; i < snapshots; i++) {
                dr_position about;
                must(dr_model_state_about(made[i], 0, &about));
                assert_int_equal(about.tokens, positions[i]);
                assert_true(about.hash == dr_tokens_hash(ids, positions[i]));
                must(dr_pool_restore(pool, 2, made[i]));
                if (positions[i] < count) {
                    step(pool, 2, ids + positions[i], count - positions[i], false, again);
                    assert_bits("from a snapshot", m, whole, again);
                }
                step(pool, 2, ids, 1, true, other);
                assert_bits("decoded behind a snapshot", m, next, other);
                dr_model_state_destroy(made[i]);
            }
        }
        dr_pool_destroy(pool);
        dr_model_destroy(model);
    }
}

/* ---- one slot in another ---- */

static void assert_same_position(const dr_pool *pool, int64_t slot, int64_t tokens, int64_t decoded, uint64_t hash) {
    dr_position about;
    must(dr_pool_about(pool, slot, &about));
    assert_int_equal(about.tokens, tokens);
    assert_int_equal(about.decoded, decoded);
    assert_true(about.hash == hash);
}

/* Slot 2 goes on from a snapshot of slot 0, which has read `count` ids and may have decoded one more, as slot 0 has. */
static void check_snapshot_of_slot(dr_pool *pool, int model, const int32_t *ids, int64_t count, const float *whole) {
    float logits[VOCABULARY];
    int64_t boundary;
    dr_position about;
    dr_model_state *kept = NULL;
    must(dr_pool_about(pool, 0, &about));
    must(dr_pool_boundary(pool, 0, &boundary));
    must(dr_pool_snapshot(pool, 0, &kept));
    must(dr_pool_restore(pool, 2, kept));
    assert_same_position(pool, 2, boundary, about.decoded, dr_tokens_hash(ids, boundary));
    assert_int_equal(boundary, about.decoded > 0 ? about.tokens : count / dr_pool_grain(pool) * dr_pool_grain(pool));
    if (boundary < about.tokens) {
        step(pool, 2, ids + boundary, about.tokens - boundary, false, logits);
        assert_bits("behind a snapshot of a slot", model, whole, logits);
    }
    dr_model_state_destroy(kept);
}

/* A slot that is copied, or goes on from a snapshot, between boundaries: both go on with the same bits. */
static void test_copies(void **state) {
    (void)state;
    dr_random random = dr_random_start(14, 0);
    for (int m = 0; m < MODELS; m++) {
        int32_t ids[LONGEST];
        float whole[VOCABULARY], one[VOCABULARY], two[VOCABULARY];
        dr_model *model = make_model(m, backends[0]);
        dr_pool *pool = make_pool(model, 3, 512, LONGEST + 8);
        const int64_t grain = dr_pool_grain(pool);
        const int64_t counts[] = {grain - 1, grain, grain + 37, 2 * grain + 1};
        draw_ids(&random, ids, LONGEST);
        for (int i = 0; i < 4; i++) {
            const int64_t count = counts[i], more = grain + 5;
            must(dr_pool_reset(pool, 0));
            step(pool, 0, ids, count, false, whole);
            check_snapshot_of_slot(pool, m, ids, count, whole);
            must(dr_pool_reset(pool, 1));
            step(pool, 1, ids + 1, grain + 3, false, NULL); /* what a copy must replace */
            must(dr_pool_copy(pool, 0, 1));
            assert_same_position(pool, 1, count, 0, dr_tokens_hash(ids, count));
            step(pool, 0, ids + count, more, false, one);
            step(pool, 1, ids + count, more, false, two);
            assert_bits("behind a copy", m, one, two);
            must(dr_pool_copy(pool, 1, 0));
            step(pool, 0, ids, 1, true, one);
            step(pool, 1, ids, 1, true, two);
            assert_bits("decoded behind a copy", m, one, two);
            ids[count + more] = ids[0]; /* what was decoded stands behind what was read */
            check_snapshot_of_slot(pool, m, ids, count + more + 1, one);
            step(pool, 0, ids, 1, true, one);
            step(pool, 2, ids, 1, true, two);
            assert_bits("decoded behind a snapshot of a slot", m, one, two);
        }
        dr_pool_destroy(pool);
        dr_model_destroy(model);
    }
}

static void test_a_slot_is_too_short(void **state) {
    (void)state;
    dr_model *model = make_model(0, backends[0]);
    dr_pool *pool = make_pool(model, 1, 512, LONGEST), *small = make_pool(model, 1, 512, 100);
    int32_t ids[128] = {0};
    dr_model_state *kept = NULL;
    step(pool, 0, ids, 128, false, NULL);
    must(dr_pool_snapshot(pool, 0, &kept));
    assert_refused(dr_pool_restore(small, 0, kept), DR_ERROR_ARGUMENT, "128 tokens, but slots of the pool at most 100");
    dr_model_state_destroy(kept);
    dr_pool_destroy(small);
    dr_pool_destroy(pool);
    dr_model_destroy(model);
}

/* ---- neighbours ---- */

enum { ANSWERS = 5, TOKENS = 9 };

/* What a sequence did alone: logits behind its prompt and behind each token. */
typedef struct {
    int32_t ids[200 + TOKENS];
    int64_t prompt;
    float logits[TOKENS + 1][VOCABULARY];
} answer;

static void answer_alone(dr_pool *pool, answer *a) {
    must(dr_pool_reset(pool, 0));
    step(pool, 0, a->ids, a->prompt, false, a->logits[0]);
    for (int t = 0; t < TOKENS; t++) step(pool, 0, a->ids + a->prompt + t, 1, true, a->logits[t + 1]);
}

/* The same answers at once: some still read in pieces while others decode, in other slots and orders. */
static void answer_together(dr_pool *pool, const answer *a, dr_random *random, int model) {
    const int64_t vocabulary = dr_model_get_config(dr_pool_model(pool))->vocabulary;
    int64_t read[ANSWERS] = {0}, decoded[ANSWERS] = {0};
    for (int i = 0; i < ANSWERS; i++) must(dr_pool_reset(pool, i + 1));
    for (;;) {
        dr_pool_item items[ANSWERS];
        float logits[ANSWERS * VOCABULARY];
        int64_t which[ANSWERS], count = 0;
        bool left = false;
        const int first = (int)dr_random_below(random, ANSWERS);
        for (int k = 0; k < ANSWERS; k++) {
            const int i = (first + k) % ANSWERS;
            if (decoded[i] == TOKENS) continue;
            left = true;
            if (dr_random_below(random, 4) == 0) continue;
            int64_t piece = 1 + (int64_t)dr_random_below(random, 120);
            if (piece > a[i].prompt - read[i]) piece = a[i].prompt - read[i];
            which[count] = i;
            if (piece > 0)
                items[count] = (dr_pool_item){.slot = i + 1, .ids = a[i].ids + read[i], .count = piece, .wanted = 1};
            else
                items[count] = (dr_pool_item){
                    .slot = i + 1, .ids = a[i].ids + read[i] + decoded[i], .count = 1, .decode = true, .wanted = 1};
            count++;
        }
        if (!left) return;
        must(dr_pool_step(pool, items, count, &(dr_pool_results){.logits = logits}));
        for (int64_t k = 0; k < count; k++) {
            const int64_t i = which[k];
            if (items[k].decode)
                decoded[i]++;
            else
                read[i] += items[k].count;
            if (read[i] == a[i].prompt) assert_bits("with neighbours", model, a[i].logits[decoded[i]], logits + k * vocabulary);
        }
    }
}

static void test_neighbours(void **state) {
    (void)state;
    static answer answers[ANSWERS];
    dr_random random = dr_random_start(13, 0);
    for (int m = 0; m < MODELS; m++) {
        for (int threads = 0; threads < 2; threads++) {
            dr_model *model = make_model(m, backends[threads]);
            dr_pool *pool = make_pool(model, ANSWERS + 1, 256, 0);
            for (int i = 0; i < ANSWERS && threads == 0; i++) {
                answers[i].prompt = 1 + (int64_t)dr_random_below(&random, 200);
                draw_ids(&random, answers[i].ids, answers[i].prompt + TOKENS);
                answer_alone(pool, &answers[i]);
            }
            for (int round = 0; round < 3; round++) answer_together(pool, answers, &random, m);
            dr_pool_destroy(pool);
            dr_model_destroy(model);
        }
    }
}

/* The pool's decoding is dr_model_step's. */
static void test_same_as_steps(void **state) {
    (void)state;
    dr_random random = dr_random_start(14, 0);
    for (int m = 0; m < MODELS; m++) {
        int32_t ids[80];
        float one[VOCABULARY], two[VOCABULARY];
        dr_model *model = make_model(m, backends[0]);
        dr_pool *pool = make_pool(model, 2, 256, 0);
        dr_model_state *sequence = NULL;
        must(dr_model_state_create(model, 1, &sequence));
        draw_ids(&random, ids, 80);
        for (int t = 0; t < 80; t++) {
            step(pool, 1, ids + t, 1, true, one);
            must(dr_model_step(model, ids + t, sequence, two));
            assert_bits("steps", m, one, two);
        }
        dr_model_state_destroy(sequence);
        dr_pool_destroy(pool);
        dr_model_destroy(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),     cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_copies),     cmocka_unit_test(test_a_slot_is_too_short),
        cmocka_unit_test(test_neighbours), cmocka_unit_test(test_same_as_steps),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
