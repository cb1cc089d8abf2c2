/* States of models that are kept: copied, in files, in a store of prefixes with a bound and a folder. */
#include "allocation.h"
#include "base/random.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/deltarule.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { IDS = 96, LONGEST = 300 };

static dr_backend *backend;
static char folder[64];

static dr_model *make_model(const char *rule, const char *layers, uint64_t seed) {
    dr_model *model = NULL;
    dr_model_config config = dr_model_config_default(dr_rule_find(rule));
    config.vocabulary = IDS;
    config.hidden = 32;
    config.layers = 2;
    config.heads = 2;
    config.initializer_range = 0.3;
    config.layer_list = layers;
    must(dr_model_create(backend, &config, seed, &model));
    return model;
}

/* With keys and values of all tokens, and of a window. */
static dr_model *make_hybrid(uint64_t seed) {
    return make_model("kda", "[{\"mixer\": \"kda\"}, {\"mixer\": \"attention\"}, {\"mixer\": \"attention\", \"window\": 20}]",
                      seed);
}

static int open_all(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/prefix_XXXXXX");
    return !mkdtemp(folder) || dr_backend_open("cpu", &(dr_backend_options){.threads = 1}, &backend) != DR_OK;
}

/* Names in the folder that end so; they are removed too if that is asked. */
static int files_in(const char *path, const char *ending, bool removed) {
    DIR *listing = opendir(path);
    int count = 0;
    if (!listing) return 0;
    for (const struct dirent *item = readdir(listing); item; item = readdir(listing)) {
        char name[512];
        const size_t length = strlen(item->d_name);
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        if (length < strlen(ending) || strcmp(item->d_name + length - strlen(ending), ending) != 0) continue;
        snprintf(name, sizeof name, "%s/%s", path, item->d_name);
        if (removed) unlink(name);
        count++;
    }
    closedir(listing);
    return count;
}

static int close_all(void **state) {
    (void)state;
    files_in(folder, "", true);
    rmdir(folder);
    dr_backend_close(backend);
    return 0;
}

static void draw(dr_random *random, int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)dr_random_below(random, IDS);
}

static dr_model_state *read_state(dr_session *session, const int32_t *ids, int64_t count) {
    dr_model_state *state = NULL;
    float logits[IDS];
    const int64_t last = count - 1;
    must(dr_model_state_create(dr_session_model(session), 1, &state));
    const dr_batch batch = {.layout = {1, count, NULL}, .ids = ids, .targets = 1, .positions = &last};
    must(dr_session_logits(session, &batch, state, DR_F32, logits));
    return state;
}

static void assert_same_steps(const dr_model *model, dr_model_state *a, dr_model_state *b, int64_t sequences) {
    int32_t ids[8];
    static float one[8 * IDS], two[8 * IDS];
    for (int t = 0; t < 40; t++) {
        for (int64_t i = 0; i < sequences; i++) ids[i] = (int32_t)(t * 7 + i) % IDS;
        must(dr_model_step(model, ids, a, one));
        must(dr_model_step(model, ids, b, two));
        assert_memory_equal(one, two, (size_t)sequences * IDS * sizeof *one);
    }
}

/* ---- states ---- */

static void test_sequences(void **unused) {
    (void)unused;
    dr_random random = dr_random_start(3, 0);
    dr_model *model = make_hybrid(1), *other = make_hybrid(2);
    dr_session *session = NULL;
    dr_model_state *parts[3], *whole = NULL, *part = NULL, *clone = NULL, *foreign = NULL;
    dr_position about;
    int32_t ids[LONGEST];
    must(dr_session_create(model, &session));
    draw(&random, ids, LONGEST);
    const int64_t lengths[] = {7, 130, 64};
    for (int i = 0; i < 3; i++) parts[i] = read_state(session, ids + i, lengths[i]);
    must(dr_model_state_concatenate((const dr_model_state *const *)parts, 3, &whole));
    assert_int_equal(dr_model_state_sequences(whole), 3);
    for (int i = 0; i < 3; i++) {
        must(dr_model_state_about(whole, i, &about));
        assert_int_equal(about.tokens, lengths[i]);
        assert_int_equal(about.decoded, 0);
        assert_true(about.hash == dr_tokens_hash(ids + i, lengths[i]));
    }
    must(dr_model_state_clone(whole, &clone));
    assert_same_steps(model, whole, clone, 3);
    /* back to a snapshot, and again from there */
    must(dr_model_state_slice(whole, 1, 1, &part));
    must(dr_model_state_about(part, 0, &about));
    assert_int_equal(about.tokens, 170);
    assert_int_equal(about.decoded, 40);
    dr_model_state_destroy(clone);
    must(dr_model_state_clone(part, &clone));
    float logits[IDS];
    for (int t = 0; t < 300; t++) must(dr_model_step(model, ids + t % 5, part, logits));
    must(dr_model_state_restore(part, clone));
    assert_same_steps(model, part, clone, 1);

    must(dr_model_state_create(other, 1, &foreign));
    assert_refused(dr_model_state_restore(part, foreign), DR_ERROR_ARGUMENT, "two models");
    assert_refused(dr_model_state_restore(whole, part), DR_ERROR_ARGUMENT, "3 sequences");
    assert_refused(dr_model_state_copy(whole, 0, 2, whole, 1), DR_ERROR_ARGUMENT, "over themselves");
    assert_refused(dr_model_state_slice(whole, 2, 2, &clone), DR_ERROR_ARGUMENT, "not among the 3");
    assert_refused(dr_model_state_slice(whole, INT64_MAX, 1, &clone), DR_ERROR_ARGUMENT, "not among");
    parts[1] = (dr_model_state_destroy(parts[1]), foreign);
    dr_model_state *none = NULL;
    assert_refused(dr_model_state_concatenate((const dr_model_state *const *)parts, 3, &none), DR_ERROR_ARGUMENT, "part 1");
    for (int i = 0; i < 3; i++) dr_model_state_destroy(parts[i]);
    dr_model_state_destroy(whole);
    dr_model_state_destroy(part);
    dr_model_state_destroy(clone);
    dr_session_destroy(session);
    dr_model_destroy(model);
    dr_model_destroy(other);
}

static void test_files(void **unused) {
    (void)unused;
    dr_random random = dr_random_start(4, 0);
    dr_model *model = make_hybrid(1), *other = make_hybrid(2), *gdn = make_model("gdn", NULL, 1), *again = NULL;
    dr_session *session = NULL;
    dr_model_state *state, *loaded = NULL;
    int32_t ids[LONGEST];
    char file[128], saved[128];
    uint64_t one, two;
    snprintf(file, sizeof file, "%s/state", folder);
    snprintf(saved, sizeof saved, "%s/model", folder);
    must(dr_session_create(model, &session));
    draw(&random, ids, LONGEST);
    state = read_state(session, ids, LONGEST);
    must(dr_model_state_save(state, file));
    must(dr_model_state_load(model, file, &loaded));
    assert_same_steps(model, state, loaded, 1);
    /* the model as another process has it */
    must(dr_model_save(model, saved));
    must(dr_model_load(backend, saved, &again));
    must(dr_model_identity(model, &one));
    must(dr_model_identity(again, &two));
    assert_true(one == two);
    dr_model_state *refused = NULL;
    assert_refused(dr_model_state_load(other, file, &refused), DR_ERROR_ARGUMENT, "other weights");
    assert_refused(dr_model_state_load(gdn, file, &refused), DR_ERROR_ARGUMENT, "another configuration");
    assert_refused(dr_model_state_load(model, saved, &refused), DR_ERROR_IO, saved);
    /* any byte that is another one is seen */
    FILE *stream = fopen(file, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, 0, SEEK_END), 0);
    const long size = ftell(stream);
    for (int i = 0; i < 60; i++) {
        const long at = i < 20 ? size - 1 - i * 37 : (long)dr_random_below(&random, (uint64_t)size);
        assert_int_equal(fseek(stream, at, SEEK_SET), 0);
        const int was = fgetc(stream);
        assert_int_equal(fseek(stream, at, SEEK_SET), 0);
        fputc(was ^ (1 << i % 8), stream);
        fflush(stream);
        const dr_status status = dr_model_state_load(model, file, &refused);
        if (status == DR_OK) fail_msg("byte %ld of %ld is another one, and the state loads", at, size);
        assert_int_equal(fseek(stream, at, SEEK_SET), 0);
        fputc(was, stream);
        fflush(stream);
    }
    fclose(stream);
    must(dr_model_state_load(model, file, &refused));
    dr_model_state_destroy(refused);
    unlink(file);
    files_in(saved, "", true);
    rmdir(saved);
    dr_model_state_destroy(state);
    dr_model_state_destroy(loaded);
    dr_session_destroy(session);
    dr_model_destroy(model);
    dr_model_destroy(other);
    dr_model_destroy(gdn);
    dr_model_destroy(again);
}

/* ---- the store ---- */

static dr_prefixes *make_store(const dr_model *model, size_t bytes, const char *where, size_t folder_bytes) {
    dr_prefixes *prefixes = NULL;
    must(dr_prefixes_create(model, &(dr_prefix_options){bytes, where, folder_bytes}, &prefixes));
    return prefixes;
}

static dr_pool *make_pool(const dr_model *model) {
    dr_pool *pool = NULL;
    must(dr_pool_create(model, &(dr_pool_options){2, 128, 0}, &pool));
    return pool;
}

/* Reads ids [count] into a slot from where it is, and adds a snapshot at every boundary. Returns the tokens read. */
static int64_t read_on(dr_prefixes *prefixes, dr_pool *pool, int64_t slot, const int32_t *ids, int64_t count, float *logits) {
    int64_t tokens, boundary, positions[16], snapshots = 0;
    dr_model_state *made[16];
    must(dr_prefixes_restore(prefixes, pool, slot, ids, count, true, &tokens));
    must(dr_pool_boundary(pool, slot, &boundary));
    assert_int_equal(tokens, boundary);
    for (int64_t at = boundary + dr_pool_grain(pool); at <= count; at += dr_pool_grain(pool)) positions[snapshots++] = at;
    const dr_pool_item item = {.slot = slot,
                               .ids = ids + tokens,
                               .count = count - tokens,
                               .wanted = 1,
                               .snapshots = snapshots,
                               .positions = positions,
                               .made = made};
    must(dr_pool_step(pool, &item, 1, &(dr_pool_results){.logits = logits}));
    for (int64_t i = 0; i < snapshots; i++) must(dr_prefixes_add(prefixes, ids, positions[i], made[i]));
    return count - tokens;
}

static void read_alone(dr_pool *pool, const int32_t *ids, int64_t count, float *logits) {
    must(dr_pool_reset(pool, 1));
    const dr_pool_item item = {.slot = 1, .ids = ids, .count = count, .wanted = 1};
    must(dr_pool_step(pool, &item, 1, &(dr_pool_results){.logits = logits}));
}

/* Texts that begin alike, of every length: from the store they have the bits of being read in one. */
static void test_every_offset(void **unused) {
    (void)unused;
    dr_random random = dr_random_start(5, 0);
    dr_model *model = make_hybrid(1);
    dr_pool *pool = make_pool(model);
    dr_prefixes *prefixes = make_store(model, 1 << 26, NULL, 0);
    dr_prefix_counts counts;
    int32_t ids[LONGEST];
    float one[IDS], two[IDS];
    draw(&random, ids, LONGEST);
    read_on(prefixes, pool, 0, ids, LONGEST, one);
    for (int64_t count = 1; count <= LONGEST; count++) {
        const int64_t shared = (int64_t)dr_random_below(&random, (uint64_t)count + 1);
        int32_t text[LONGEST];
        memcpy(text, ids, sizeof text);
        draw(&random, text + shared, count - shared);
        const int64_t tokens = read_on(prefixes, pool, 0, text, count, one);
        assert_true(tokens <= count - (shared < count ? shared : count - 1) / 64 * 64);
        read_alone(pool, text, count, two);
        assert_memory_equal(one, two, sizeof one);
    }
    must(dr_prefixes_count(prefixes, &counts));
    assert_true(counts.hits > 100 && counts.unknown > 10 && counts.empty == 1 && counts.evicted == 0);
    dr_prefixes_destroy(prefixes);
    dr_pool_destroy(pool);
    dr_model_destroy(model);
}

/* A chat of ten turns reads in each turn what is new, and no more. */
static void test_chat(void **unused) {
    (void)unused;
    enum { TURNS = 10, ASKED = 23, ANSWERED = 17 };
    dr_random random = dr_random_start(6, 0);
    dr_model *model = make_hybrid(1);
    dr_pool *pool = make_pool(model);
    dr_prefixes *prefixes = make_store(model, 1 << 26, NULL, 0);
    int32_t ids[TURNS * (ASKED + ANSWERED)];
    float one[IDS], two[IDS];
    int64_t count = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        draw(&random, ids + count, ASKED);
        count += ASKED;
        const int64_t read = read_on(prefixes, pool, 0, ids, count, one);
        /* the last token of an answer is made and not yet read */
        assert_int_equal(read, turn == 0 ? ASKED : ASKED + 1);
        for (int t = 0; t < ANSWERED; t++) {
            int32_t best = 0;
            for (int32_t i = 1; i < IDS; i++)
                if (one[i] > one[best]) best = i;
            ids[count++] = best;
            if (t == ANSWERED - 1) break;
            const dr_pool_item item = {.slot = 0, .ids = &best, .count = 1, .decode = true, .wanted = 1};
            must(dr_pool_step(pool, &item, 1, &(dr_pool_results){.logits = one}));
        }
        dr_model_state *kept = NULL;
        must(dr_pool_snapshot(pool, 0, &kept));
        must(dr_prefixes_add(prefixes, ids, count - 1, kept));
    }
    /* to rounding the text read anew */
    read_on(prefixes, pool, 0, ids, count, one);
    read_alone(pool, ids, count, two);
    for (int i = 0; i < IDS; i++) assert_float_equal(one[i], two[i], 1e-3f);
    const dr_model_state *found = NULL;
    must(dr_prefixes_find(prefixes, ids, count, false, &found));
    assert_null(found);
    dr_prefix_counts counts;
    must(dr_prefixes_count(prefixes, &counts));
    assert_int_equal(counts.inexact, 1);
    dr_prefixes_destroy(prefixes);
    dr_pool_destroy(pool);
    dr_model_destroy(model);
}

/* Two models alike but for their weights, and texts of one grain each. */
typedef struct {
    dr_model *model, *other;
    dr_pool *pool;
    int32_t ids[8][64];
    size_t each; /* bytes of one snapshot */
} small;

static dr_model_state *state_of(dr_model *model, const int32_t *ids, int64_t count) {
    dr_session *session = NULL;
    must(dr_session_create(model, &session));
    dr_model_state *state = read_state(session, ids, count);
    dr_session_destroy(session);
    return state;
}

static small open_small(void) {
    dr_random random = dr_random_start(7, 0);
    small s = {.model = make_model("gdn", NULL, 1), .other = make_model("gdn", NULL, 2)};
    s.pool = make_pool(s.model);
    for (int i = 0; i < 8; i++) {
        draw(&random, s.ids[i], 64);
        s.ids[i][0] = i;
    }
    dr_model_state *one = state_of(s.model, s.ids[0], 64);
    s.each = dr_model_state_bytes(one) + 64 * sizeof(int32_t);
    dr_model_state_destroy(one);
    return s;
}

static void close_small(small *s) {
    dr_pool_destroy(s->pool);
    dr_model_destroy(s->model);
    dr_model_destroy(s->other);
}

static int found_of(dr_prefixes *prefixes, const small *s) {
    int count = 0;
    for (int i = 0; i < 8; i++) {
        const dr_model_state *found = NULL;
        must(dr_prefixes_find(prefixes, s->ids[i], 64, false, &found));
        count += found != NULL;
    }
    return count;
}

static void test_folder(void **unused) {
    (void)unused;
    small s = open_small();
    float logits[IDS];
    dr_prefix_counts counts;
    dr_prefixes *prefixes = make_store(s.model, 3 * s.each, folder, 100 * s.each);
    for (int i = 0; i < 8; i++) {
        read_on(prefixes, s.pool, 0, s.ids[i], 64, logits);
        must(dr_prefixes_count(prefixes, &counts));
        assert_true(counts.bytes <= 3 * s.each);
    }
    assert_int_equal(counts.snapshots, 3);
    assert_int_equal(counts.files, 8);
    assert_int_equal(counts.evicted, 5);
    assert_int_equal(found_of(prefixes, &s), 8); /* those that went come from their files */
    dr_prefixes_destroy(prefixes);

    /* other processes: of another model, of this one, of one with less room */
    prefixes = make_store(s.other, 3 * s.each, folder, 1 << 30);
    must(dr_prefixes_count(prefixes, &counts));
    assert_int_equal(counts.files, 0);
    assert_int_equal(counts.files_of_others, 8);
    dr_prefixes_destroy(prefixes);
    prefixes = make_store(s.model, 3 * s.each, folder, 1 << 30);
    must(dr_prefixes_count(prefixes, &counts));
    assert_int_equal(counts.files, 8);
    const size_t bytes = counts.file_bytes / 8;
    dr_prefixes_destroy(prefixes);
    prefixes = make_store(s.model, 3 * s.each, folder, 4 * bytes + bytes / 2);
    assert_int_equal(files_in(folder, ".prefix", false), 4);
    /* files that somebody removed */
    assert_int_equal(files_in(folder, ".prefix", true), 4);
    assert_int_equal(found_of(prefixes, &s), 0);
    must(dr_prefixes_count(prefixes, &counts));
    assert_int_equal(counts.files, 0);
    assert_int_equal(counts.files_damaged, 0);
    assert_int_equal(counts.gone + counts.unknown + counts.empty, 8);
    dr_prefixes_destroy(prefixes);
    close_small(&s);
}

/* Files of the folder that are none of the store's: what a writer is at work on stays, what one left an hour ago goes, and a
 * state under another name than its own is not taken for a second one. */
static void test_other_files(void **unused) {
    (void)unused;
    small s = open_small();
    float logits[IDS];
    dr_prefix_counts counts;
    char path[4][600];
    static const char *const names[] = {".a.prefix.new-1", ".b.prefix.new-2"};
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
        scratch_write_at(path[i], "part", 4);
    }
    const struct timespec old[] = {{time(NULL) - 7200, 0}, {time(NULL) - 7200, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path[1], old, 0), 0);
    dr_prefixes *prefixes = make_store(s.model, 3 * s.each, folder, 100 * s.each);
    assert_int_equal(access(path[0], F_OK), 0);
    assert_int_not_equal(access(path[1], F_OK), 0);
    read_on(prefixes, s.pool, 0, s.ids[0], 64, logits);
    dr_prefixes_destroy(prefixes);

    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (const struct dirent *item = readdir(listing); item; item = readdir(listing))
        if (item->d_name[0] != '.') {
            snprintf(path[2], sizeof path[2], "%s/%s", folder, item->d_name);
            snprintf(path[3], sizeof path[3], "%s/%.17scopy.prefix", folder, item->d_name);
        }
    closedir(listing);
    assert_int_equal(link(path[2], path[3]), 0);
    prefixes = make_store(s.model, 3 * s.each, folder, 100 * s.each);
    must(dr_prefixes_count(prefixes, &counts));
    assert_int_equal(counts.files, 1);
    assert_int_equal(counts.files_damaged, 0);
    dr_prefixes_destroy(prefixes);
    files_in(folder, "", true);
    close_small(&s);
}

/* What was decoded is not what a prompt read in one has, at a boundary too. */
static void test_decoded(void **unused) {
    (void)unused;
    small s = open_small();
    dr_prefixes *prefixes = make_store(s.model, 1 << 26, NULL, 0);
    const dr_pool_item items[] = {{.slot = 0, .ids = s.ids[0], .count = 63},
                                  {.slot = 0, .ids = s.ids[0] + 63, .count = 1, .decode = true}};
    dr_model_state *kept = NULL;
    const dr_model_state *found = NULL;
    for (int i = 0; i < 2; i++) must(dr_pool_step(s.pool, &items[i], 1, &(dr_pool_results){.logits = NULL}));
    must(dr_pool_snapshot(s.pool, 0, &kept));
    must(dr_prefixes_add(prefixes, s.ids[0], 64, kept));
    must(dr_prefixes_find(prefixes, s.ids[0], 64, false, &found));
    assert_null(found);
    must(dr_prefixes_find(prefixes, s.ids[0], 64, true, &found));
    assert_non_null(found);
    dr_prefixes_destroy(prefixes);
    close_small(&s);
}

/* In memory alone: what went is said to be gone. */
static void test_bounds(void **unused) {
    (void)unused;
    small s = open_small();
    float logits[IDS];
    dr_prefix_counts counts;
    const dr_model_state *found;
    dr_prefixes *prefixes = make_store(s.model, 2 * s.each, NULL, 0);
    for (int i = 0; i < 4; i++) read_on(prefixes, s.pool, 0, s.ids[i], 64, logits);
    must(dr_prefixes_find(prefixes, s.ids[0], 64, false, &found));
    assert_null(found);
    must(dr_prefixes_count(prefixes, &counts));
    assert_int_equal(counts.gone, 1);
    assert_int_equal(counts.empty, 1);
    assert_int_equal(counts.unknown, 3);
    assert_refused(dr_prefixes_add(prefixes, s.ids[0], 64, state_of(s.other, s.ids[0], 64)), DR_ERROR_ARGUMENT,
                   "another model");
    assert_refused(dr_prefixes_add(prefixes, s.ids[1], 64, state_of(s.model, s.ids[0], 64)), DR_ERROR_ARGUMENT,
                   "other ones than these ids");
    assert_refused(dr_prefixes_add(prefixes, s.ids[0], 63, state_of(s.model, s.ids[0], 64)), DR_ERROR_ARGUMENT, "63 ids");
    dr_prefixes_destroy(prefixes);
    prefixes = make_store(s.model, 10, NULL, 0);
    must(dr_prefixes_add(prefixes, s.ids[0], 64, state_of(s.model, s.ids[0], 64)));
    must(dr_prefixes_count(prefixes, &counts));
    assert_int_equal(counts.too_large, 1);
    dr_prefixes_destroy(prefixes);
    close_small(&s);
}

/* A writer that is killed again and again leaves a folder that loads, with the states that were read. */
static void test_kill(void **unused) {
    (void)unused;
    dr_random random = dr_random_start(8, 0);
    dr_model *model = make_hybrid(1);
    char where[128];
    snprintf(where, sizeof where, "%s/killed", folder);
    int64_t files = 0;
    for (int round = 0; round < 12; round++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            dr_session *session = NULL;
            dr_prefixes *prefixes = make_store(model, 1 << 26, where, 1 << 26);
            must(dr_session_create(model, &session));
            for (int32_t i = 0;; i++) {
                int32_t ids[64];
                for (int t = 0; t < 64; t++) ids[t] = (i * 31 + round * 7 + t) % IDS;
                ids[0] = i % IDS, ids[1] = i / IDS % IDS, ids[2] = round;
                must(dr_prefixes_add(prefixes, ids, 64, read_state(session, ids, 64)));
            }
        }
        for (int wait = 0; files_in(where, ".prefix", false) <= files && wait < 10000; wait++) usleep(1000);
        usleep((useconds_t)dr_random_below(&random, 40000));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        dr_prefixes *prefixes = make_store(model, 1 << 26, where, 1 << 26);
        dr_prefix_counts counts;
        must(dr_prefixes_count(prefixes, &counts));
        assert_int_equal(counts.files_damaged, 0);
        assert_true(counts.files > files);
        files = counts.files;
        if (round == 11) {
            const dr_model_state *found = NULL;
            int32_t ids[64];
            for (int t = 0; t < 64; t++) ids[t] = (11 * 7 + t) % IDS;
            ids[0] = 0, ids[1] = 0, ids[2] = 11;
            must(dr_prefixes_find(prefixes, ids, 64, false, &found));
            assert_non_null(found);
        }
        dr_prefixes_destroy(prefixes);
    }
    files_in(where, "", true);
    rmdir(where);
    dr_model_destroy(model);
}

/* ---- memory ---- */

static dr_status use_all(void *context) {
    dr_model *model = context;
    dr_pool *pool = NULL;
    dr_prefixes *prefixes = NULL;
    dr_model_state *made[1] = {NULL}, *loaded = NULL;
    const dr_model_state *found = NULL;
    int32_t ids[100] = {0};
    float logits[IDS];
    char file[128];
    int64_t tokens;
    snprintf(file, sizeof file, "%s/one", folder);
    dr_status status = dr_pool_create(model, &(dr_pool_options){2, 128, 0}, &pool);
    if (status == DR_OK) status = dr_prefixes_create(model, &(dr_prefix_options){1 << 20, folder, 1 << 20}, &prefixes);
    const int64_t position = 64;
    const dr_pool_item item = {
        .slot = 1, .ids = ids, .count = 100, .wanted = 1, .snapshots = 1, .positions = &position, .made = made};
    if (status == DR_OK) status = dr_pool_step(pool, &item, 1, &(dr_pool_results){.logits = logits});
    if (status == DR_OK) status = dr_model_state_save(made[0], file);
    if (status == DR_OK) status = dr_model_state_load(model, file, &loaded);
    dr_model_state_destroy(loaded);
    if (status == DR_OK) {
        status = dr_prefixes_add(prefixes, ids, 64, made[0]);
        made[0] = NULL;
    }
    dr_model_state_destroy(made[0]);
    if (status == DR_OK) status = dr_prefixes_find(prefixes, ids, 100, false, &found);
    if (status == DR_OK) status = dr_prefixes_restore(prefixes, pool, 0, ids, 100, true, &tokens);
    if (status == DR_OK) status = dr_pool_copy(pool, 0, 1);
    dr_prefixes_destroy(prefixes);
    dr_pool_destroy(pool);
    return status;
}

static void test_allocations(void **unused) {
    (void)unused;
    dr_model *model = make_hybrid(1);
    assert_int_equal(use_all(model), DR_OK); /* whatever is made once */
    assert_true(assert_survives_failed_allocations(use_all, model) > 50);
    files_in(folder, "", true);
    dr_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sequences),    cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_every_offset), cmocka_unit_test(test_chat),
                                       cmocka_unit_test(test_folder),       cmocka_unit_test(test_bounds),
                                       cmocka_unit_test(test_other_files),  cmocka_unit_test(test_decoded),
                                       cmocka_unit_test(test_kill),         cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
