/* Every pointer of pool.h, prefix.h and of the states of model.h, NULL. */
#include "null.h"

#include <deltarule/deltarule.h>

static dr_backend *backend;
static dr_model *model;
static dr_model_state *state;
static dr_pool *pool;

static int begin(void **unused) {
    (void)unused;
    const dr_backend_options options = {.threads = 1};
    assert_int_equal(dr_backend_open("cpu", &options, &backend), DR_OK);
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 32;
    config.hidden = 16;
    config.layers = 1;
    config.heads = 1;
    assert_int_equal(dr_model_create(backend, &config, 1, &model), DR_OK);
    assert_int_equal(dr_model_state_create(model, 1, &state), DR_OK);
    const dr_pool_options of_pool = dr_pool_defaults();
    assert_int_equal(dr_pool_create(model, &of_pool, &pool), DR_OK);
    return 0;
}

static int end(void **unused) {
    (void)unused;
    dr_pool_destroy(pool);
    dr_model_state_destroy(state);
    dr_model_destroy(model);
    dr_backend_close(backend);
    return 0;
}

static void test_states(void **unused) {
    (void)unused;
    const dr_model_state *const parts[] = {state}, *const none[] = {NULL};
    const int32_t ids[] = {1, 2};
    dr_model_state *other;
    dr_position about;
    dr_model_state_file of_file;
    uint64_t identity;
    REFUSED(dr_model_identity, "model", NULL, &identity);
    REFUSED(dr_model_identity, "identity", model, NULL);
    REFUSED(dr_model_state_about, "state", NULL, 0, &about);
    REFUSED(dr_model_state_about, "about", state, 0, NULL);
    HARMLESS(dr_model_state_sequences, "state", == 0, NULL);
    HARMLESS(dr_model_state_bytes, "state", == 0, NULL);
    HARMLESS(dr_model_state_model, "state", == NULL, NULL);
    HARMLESS(dr_tokens_hash, "ids", == dr_tokens_hash(ids, 0), NULL, 2);
    REFUSED(dr_model_state_clone, "state", NULL, &other);
    REFUSED(dr_model_state_clone, "copy", state, NULL);
    REFUSED(dr_model_state_slice, "state", NULL, 0, 1, &other);
    REFUSED(dr_model_state_slice, "part", state, 0, 1, NULL);
    REFUSED(dr_model_state_concatenate, "parts", NULL, 1, &other);
    REFUSED(dr_model_state_concatenate, "part 0", none, 1, &other);
    REFUSED(dr_model_state_concatenate, "whole", parts, 1, NULL);
    REFUSED(dr_model_state_copy, "from", NULL, 0, 1, state, 0);
    REFUSED(dr_model_state_copy, "to", state, 0, 1, NULL, 0);
    REFUSED(dr_model_state_restore, "state", NULL, state);
    REFUSED(dr_model_state_restore, "snapshot", state, NULL);
    REFUSED(dr_model_state_save, "state", NULL, "/tmp/null");
    REFUSED(dr_model_state_save, "file", state, NULL);
    REFUSED(dr_model_state_load, "model", NULL, "/tmp/null", &other);
    REFUSED(dr_model_state_load, "file", model, NULL, &other);
    REFUSED(dr_model_state_load, "state", model, "/tmp/null", NULL);
    REFUSED(dr_model_state_file_about, "file", NULL, &of_file, NULL, 0);
    REFUSED(dr_model_state_file_about, "about", "/tmp/null", NULL, NULL, 0);
    REFUSED(dr_model_state_file_about, "positions", "/tmp/null", &of_file, NULL, 1);
    null_all_right();
}

static void test_prefixes(void **unused) {
    (void)unused;
    const dr_prefix_options options = dr_prefix_defaults();
    const int32_t ids[] = {1, 2};
    dr_prefixes *prefixes, *other;
    const dr_model_state *found;
    dr_prefix_counts counts;
    int64_t tokens;
    assert_int_equal(dr_prefixes_create(model, &options, &prefixes), DR_OK);
    REFUSED(dr_prefixes_create, "model", NULL, &options, &other);
    REFUSED(dr_prefixes_create, "options", model, NULL, &other);
    REFUSED(dr_prefixes_create, "prefixes", model, &options, NULL);
    NOTHING(dr_prefixes_destroy, "prefixes", NULL);
    REFUSED(dr_prefixes_add, "prefixes", NULL, ids, 1, state);
    REFUSED(dr_prefixes_add, "ids", prefixes, NULL, 1, state);
    REFUSED(dr_prefixes_add, "snapshot", prefixes, ids, 1, NULL);
    REFUSED(dr_prefixes_find, "prefixes", NULL, ids, 2, true, &found);
    REFUSED(dr_prefixes_find, "ids", prefixes, NULL, 2, true, &found);
    REFUSED(dr_prefixes_find, "snapshot", prefixes, ids, 2, true, NULL);
    REFUSED(dr_prefixes_restore, "prefixes", NULL, pool, 0, ids, 2, true, &tokens);
    REFUSED(dr_prefixes_restore, "pool", prefixes, NULL, 0, ids, 2, true, &tokens);
    REFUSED(dr_prefixes_restore, "ids", prefixes, pool, 0, NULL, 2, true, &tokens);
    REFUSED(dr_prefixes_restore, "tokens", prefixes, pool, 0, ids, 2, true, NULL);
    REFUSED(dr_prefixes_count, "prefixes", NULL, &counts);
    REFUSED(dr_prefixes_count, "counts", prefixes, NULL);
    dr_prefixes_destroy(prefixes);
    null_all_right();
}

static void test_pool(void **unused) {
    (void)unused;
    const dr_pool_options options = dr_pool_defaults();
    const int32_t ids[] = {1, 2};
    const dr_pool_item item = {.ids = ids, .count = 2}, without = {.count = 2};
    dr_pool *other;
    dr_model_state *snapshot;
    dr_position about;
    int64_t tokens;
    REFUSED(dr_pool_create, "model", NULL, &options, &other);
    REFUSED(dr_pool_create, "options", model, NULL, &other);
    REFUSED(dr_pool_create, "pool", model, &options, NULL);
    NOTHING(dr_pool_destroy, "pool", NULL);
    REFUSED(dr_pool_step, "pool", NULL, &item, 1, NULL);
    REFUSED(dr_pool_step, "items", pool, NULL, 1, NULL);
    REFUSED(dr_pool_step, "ids", pool, &without, 1, NULL);
    ALLOWED(dr_pool_step, "results", pool, &item, 1, NULL);
    HARMLESS(dr_pool_model, "pool", == NULL, NULL);
    HARMLESS(dr_pool_slots, "pool", == 0, NULL);
    HARMLESS(dr_pool_grain, "pool", == 0, NULL);
    HARMLESS(dr_pool_tokens, "pool", == 0, NULL);
    HARMLESS(dr_pool_bytes, "pool", == 0, NULL);
    REFUSED(dr_model_grain, "model", NULL, &tokens);
    REFUSED(dr_model_grain, "tokens", model, NULL);
    REFUSED(dr_pool_about, "pool", NULL, 0, &about);
    REFUSED(dr_pool_about, "about", pool, 0, NULL);
    REFUSED(dr_pool_boundary, "pool", NULL, 0, &tokens);
    REFUSED(dr_pool_boundary, "tokens", pool, 0, NULL);
    REFUSED(dr_pool_reset, "pool", NULL, 0);
    REFUSED(dr_pool_snapshot, "pool", NULL, 0, &snapshot);
    REFUSED(dr_pool_snapshot, "snapshot", pool, 0, NULL);
    REFUSED(dr_pool_restore, "pool", NULL, 0, state);
    REFUSED(dr_pool_restore, "state", pool, 0, NULL);
    REFUSED(dr_pool_copy, "pool", NULL, 0, 0);
    null_all_right();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states), cmocka_unit_test(test_pool),
                                       cmocka_unit_test(test_prefixes)};
    return cmocka_run_group_tests(tests, begin, end);
}
