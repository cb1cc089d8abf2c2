/* Conversations that are not read twice: a pool of slots, and a store of the states behind what was read.
 *
 * Two people talk to one model at once. Each turn the whole conversation so far is what the model is asked to go on from, as
 * chat programs send it; the store finds the longest beginning of it that was read before, and only the rest is computed. The
 * snapshots also lie in a folder, so that a second run of this program begins where the first one ended.
 *
 * Usage: kept_state [FOLDER]      where snapshots are kept; kept_state.prefixes in the current folder */
#include <deltarule/pool.h>
#include <deltarule/prefix.h>
#include <stdio.h>
#include <stdlib.h>

enum { PEOPLE = 2, TURNS = 4, QUESTION = 70, ANSWER = 30, VOCABULARY = 256, MOST = TURNS * (QUESTION + ANSWER) };

static void require(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "kept_state: %s\n", dr_last_error());
    exit(1);
}

static int32_t likeliest(const float *logits) {
    int32_t best = 0;
    for (int32_t i = 1; i < VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* A model with random weights; dr_model_load takes a folder. */
static dr_model *make_model(dr_backend *backend) {
    dr_model *model;
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = VOCABULARY;
    config.hidden = 64;
    config.heads = 2;
    config.layer_list = "gdn attention";
    require(dr_model_create(backend, &config, 1, &model));
    return model;
}

/* Keeps the state of a slot that has read ids [count], or up to the last boundary. */
static void keep(dr_prefixes *prefixes, dr_pool *pool, int64_t slot, const int32_t *ids) {
    dr_model_state *snapshot;
    dr_position position;
    require(dr_pool_snapshot(pool, slot, &snapshot));
    require(dr_model_state_about(snapshot, 0, &position));
    if (position.tokens > 0)
        require(dr_prefixes_add(prefixes, ids, position.tokens, snapshot)); /* the store's from now on */
    else
        dr_model_state_destroy(snapshot);
}

/* All conversations get ids [count] each to go on from, and ANSWER tokens more. Returns how many tokens were computed. */
static int64_t take_turn(dr_prefixes *prefixes, dr_pool *pool, int32_t (*ids)[MOST], int64_t count) {
    static float logits[PEOPLE * VOCABULARY];
    const dr_pool_results results = {.logits = logits};
    dr_pool_item items[PEOPLE];
    int64_t computed = 0;
    for (int64_t i = 0; i < PEOPLE; i++) {
        int64_t known;
        require(dr_prefixes_restore(prefixes, pool, i, ids[i], count, true, &known));
        items[i] = (dr_pool_item){.slot = i, .ids = ids[i] + known, .count = count - known, .wanted = 1};
        computed += count - known;
    }
    require(dr_pool_step(pool, items, PEOPLE, &results)); /* both questions at once */
    for (int64_t i = 0; i < PEOPLE; i++) keep(prefixes, pool, i, ids[i]);
    for (int64_t t = 0; t < ANSWER; t++) {
        for (int64_t i = 0; i < PEOPLE; i++) {
            ids[i][count + t] = likeliest(logits + i * VOCABULARY);
            items[i] = (dr_pool_item){.slot = i, .ids = ids[i] + count + t, .count = 1, .decode = true, .wanted = 1};
        }
        require(dr_pool_step(pool, items, PEOPLE, &results)); /* a token of each answer */
    }
    for (int64_t i = 0; i < PEOPLE; i++) keep(prefixes, pool, i, ids[i]);
    return computed;
}

int main(int argc, char **argv) {
    static int32_t ids[PEOPLE][MOST];
    const dr_pool_options options = {.slots = PEOPLE, .rows = 256, .tokens = MOST};
    dr_prefix_options of_store = dr_prefix_defaults();
    dr_prefix_counts counts;
    dr_backend *backend;
    dr_prefixes *prefixes;
    dr_pool *pool;
    of_store.folder = argc > 1 ? argv[1] : "kept_state.prefixes";
    require(dr_backend_open("cpu", NULL, &backend));
    dr_model *model = make_model(backend);
    require(dr_pool_create(model, &options, &pool));
    require(dr_prefixes_create(model, &of_store, &prefixes));
    for (int64_t turn = 0; turn < TURNS; turn++) {
        const int64_t begin = turn * (QUESTION + ANSWER), count = begin + QUESTION;
        for (int64_t i = 0; i < PEOPLE; i++)
            for (int64_t t = begin; t < count; t++) ids[i][t] = (int32_t)(i * 97 + t * t + 5) % VOCABULARY;
        const int64_t computed = take_turn(prefixes, pool, ids, count);
        printf("turn %d: %d tokens to go on from, %d of them computed\n", (int)turn + 1, (int)(PEOPLE * count), (int)computed);
    }
    require(dr_prefixes_count(prefixes, &counts));
    printf("%d look-ups found a beginning, %d did not; %d of %d tokens were known; %d files\n", (int)counts.hits,
           (int)(counts.empty + counts.unknown + counts.gone + counts.inexact), (int)counts.tokens_found,
           (int)counts.tokens_asked, (int)counts.files);
    const bool kept = counts.hits >= PEOPLE * (TURNS - 1);
    dr_prefixes_destroy(prefixes);
    dr_pool_destroy(pool);
    dr_model_destroy(model);
    dr_backend_close(backend);
    return !kept;
}
