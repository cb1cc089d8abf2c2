/* A model's state in a safetensors file:
 *
 *     sequences  I64 [sequences, 3]    tokens, decoded tokens, and the hash, of each
 *     state.I    [sequences, words]    tensor I of fixed size of all layers, in order, as the backend's numbers
 *     memory.I   [tokens, columns]     tensor I that grows, as vectors: of each sequence the tokens that the next query
 *                                      may see, in order of their positions
 *     ids        I32 [tokens]          in a store of prefixes: what the only sequence has read
 *
 * and metadata: format, layout, rule, model (its identity), checksum (of all tensors, the rule and the model), the last two as
 * sixteen hexadecimal digits. Nothing in a file is believed before it was compared with what the model says. */
#include "nn/state_file.h"

#include "base/error.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char FORMAT[] = "deltarule.model_state", LAYOUT[] = "sequences first, dense; memory by position";

enum { COLUMNS = 3, NAME = 32, DIGITS = 17, LARGEST_RULE = 4096 };

/* ---- what is in a file ---------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t count;      /* of tensors */
    char (*name)[NAME]; /* [count] */
    const char **names; /* [count] the same */
    dr_tensor *tensors; /* [count] shapes and types */
} contents;

static void release_contents(contents *c) {
    dr_release(c->name);
    dr_release(c->names);
    dr_release(c->tensors);
}

static int64_t kept_of(const dr_grown *grown, int64_t tokens) {
    return tokens < grown->most ? tokens : grown->most;
}

/* table [sequences, COLUMNS]. What grows is asked of a state without room too. */
static dr_status describe(const dr_model_state *state, const int64_t *table, int64_t ids, contents *c) {
    const dr_backend *backend = state->backend;
    const dr_dtype number = dr_kind_dtype(backend, DR_NUMBER), vector = dr_kind_dtype(backend, DR_VECTOR);
    void *memory = NULL;
    c->count = 1 + state->part_count + state->grown_count + (ids > 0);
    DR_TRY(dr_allocate_zero((size_t)c->count * NAME, "a list of tensors", &memory));
    c->name = memory;
    DR_TRY(dr_allocate_zero((size_t)c->count * sizeof *c->names, "a list of tensors", &memory));
    c->names = memory;
    DR_TRY(dr_allocate_zero((size_t)c->count * sizeof *c->tensors, "a list of tensors", &memory));
    c->tensors = memory;
    for (int64_t i = 0; i < c->count; i++) c->names[i] = c->name[i];
    snprintf(c->name[0], NAME, "sequences");
    c->tensors[0] = (dr_tensor){.dtype = DR_I64, .rank = 2, .shape = {state->sequences, COLUMNS}};
    for (int64_t i = 0; i < state->part_count; i++) {
        snprintf(c->name[1 + i], NAME, "state.%" PRId64, i);
        c->tensors[1 + i] = (dr_tensor){
            .dtype = number, .rank = 2, .shape = {state->sequences, (int64_t)(state->parts[i].bytes / dr_dtype_size(number))}};
    }
    for (int64_t i = 0; i < state->grown_count; i++) {
        int64_t tokens = 0;
        for (int64_t s = 0; s < state->sequences; s++) tokens += kept_of(&state->grown[i], table[s * COLUMNS]);
        snprintf(c->name[1 + state->part_count + i], NAME, "memory.%" PRId64, i);
        c->tensors[1 + state->part_count + i] =
            (dr_tensor){.dtype = vector, .rank = 2, .shape = {tokens, state->grown[i].columns}};
    }
    if (ids > 0) {
        snprintf(c->name[c->count - 1], NAME, "ids");
        c->tensors[c->count - 1] = (dr_tensor){.dtype = DR_I32, .rank = 1, .shape = {ids}};
    }
    return DR_OK;
}

static size_t bytes_of(const dr_tensor *tensor) {
    size_t bytes = dr_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->rank; i++) bytes *= (size_t)tensor->shape[i];
    return bytes;
}

static void write_digits(uint64_t number, char digits[DIGITS]) {
    snprintf(digits, DIGITS, "%016" PRIx64, number);
}

/* ---- moving --------------------------------------------------------------------------------------------------------- */

/* What grows of one tensor, all sequences after one another, from or to host memory. */
static dr_status move_grown(const dr_model_state *state, const dr_grown *grown, const int64_t *table, char *host, bool out) {
    dr_backend *backend = state->backend;
    const size_t row = dr_kind_bytes(backend, DR_VECTOR, grown->columns);
    for (int64_t s = 0; s < state->sequences; s++) {
        const int64_t end = table[s * COLUMNS];
        for (int64_t p = end - kept_of(grown, end); p < end;) {
            const int64_t at = p % grown->capacity, left = end - p, to_end = grown->capacity - at;
            const int64_t count = left < to_end ? left : to_end;
            char *place = (char *)grown->at + (size_t)(s * grown->capacity + at) * row;
            DR_TRY(out ? backend->ops->get(backend, host, place, (size_t)count * row)
                       : backend->ops->put(backend, place, host, (size_t)count * row));
            host += (size_t)count * row;
            p += count;
        }
    }
    return DR_OK;
}

static uint64_t checksum_of(const contents *c, uint64_t identity, const char *rule) {
    uint64_t hash = dr_hash_bytes(dr_hash_word(DR_HASH_START, identity), rule, strlen(rule));
    for (int64_t i = 0; i < c->count; i++) {
        hash = dr_hash_bytes(hash, c->name[i], strlen(c->name[i]));
        hash = dr_hash_bytes(hash, c->tensors[i].data, bytes_of(&c->tensors[i]));
    }
    return hash;
}

/* ---- saving --------------------------------------------------------------------------------------------------------- */

/* Copies all tensors to host memory of the caller's. */
static dr_status copy_out(const dr_model_state *state, const int64_t *table, const int32_t *ids, contents *c, char *host) {
    for (int64_t i = 0; i < c->count; i++) {
        c->tensors[i].data = host;
        host += bytes_of(&c->tensors[i]);
        host += -(uintptr_t)host & 63;
    }
    memcpy((void *)c->tensors[0].data, table, bytes_of(&c->tensors[0]));
    for (int64_t i = 0; i < state->part_count; i++) {
        const dr_tensor *tensor = &c->tensors[1 + i];
        DR_TRY(state->backend->ops->get(state->backend, (void *)tensor->data, state->parts[i].at, bytes_of(tensor)));
    }
    for (int64_t i = 0; i < state->grown_count; i++)
        DR_TRY(move_grown(state, &state->grown[i], table, (void *)c->tensors[1 + state->part_count + i].data, true));
    if (ids) memcpy((void *)c->tensors[c->count - 1].data, ids, bytes_of(&c->tensors[c->count - 1]));
    return DR_OK;
}

static dr_status write_rule(const dr_model *model, char *text, int size) {
    const dr_rule *rule = &model->config.rule;
    text[0] = '\0';
    if (!rule->name && rule->rows == 0) return DR_OK; /* attention alone */
    const int length = dr_rule_write_text(rule, NULL, text, (size_t)size);
    if (length < 0 || length >= size) return dr_fail(DR_ERROR_MEMORY, "there is no memory for the rule's JSON");
    return DR_OK;
}

dr_status dr_state_file_write(const dr_model_state *state, uint64_t identity, const int32_t *ids, int64_t count,
                              const char *file) {
    char rule[LARGEST_RULE], model[DIGITS], checksum[DIGITS];
    const char *metadata[] = {"format", FORMAT, "layout", LAYOUT, "rule", rule, "model", model, "checksum", checksum, NULL};
    contents c = {0};
    void *table = NULL, *host = NULL;
    size_t bytes = 0;
    dr_status status;
    DR_TRY(write_rule(state->model, rule, sizeof rule));
    DR_TRY(dr_allocate((size_t)state->sequences * COLUMNS * sizeof(int64_t), "a copy of a state", &table));
    for (int64_t s = 0; s < state->sequences; s++) {
        int64_t *row = (int64_t *)table + s * COLUMNS;
        row[0] = state->seen[s], row[1] = state->decoded[s];
        memcpy(&row[2], &state->hash[s], sizeof row[2]);
    }
    DR_GO(describe(state, table, ids ? count : 0, &c));
    for (int64_t i = 0; i < c.count; i++) bytes += bytes_of(&c.tensors[i]) + 64;
    DR_GO(dr_allocate(bytes, "a copy of a state", &host));
    DR_GO(copy_out(state, table, ids, &c, host));
    write_digits(identity, model);
    write_digits(checksum_of(&c, identity, rule), checksum);
    DR_GO(dr_safetensors_write(file, c.count, c.names, c.tensors, metadata));
done:
    release_contents(&c);
    dr_release(table);
    dr_release(host);
    return status;
}

dr_status dr_model_state_save(const dr_model_state *state, const char *file) {
    uint64_t identity;
    DR_NEED(state);
    DR_NEED(file);
    DR_TRY(dr_model_identity(state->model, &identity));
    return dr_state_file_write(state, identity, NULL, 0, file);
}

/* ---- loading -------------------------------------------------------------------------------------------------------- */

static dr_status check_text(const dr_safetensors *file, const char *key, const char *wanted, const char **value) {
    *value = dr_safetensors_metadata(file, key);
    if (!*value) return dr_fail(DR_ERROR_FORMAT, "there is no '%s' in its metadata: not a model's state", key);
    if (wanted && strcmp(*value, wanted) != 0)
        return dr_fail(DR_ERROR_FORMAT, "its %s is \"%.60s\", not \"%s\"", key, *value, wanted);
    return DR_OK;
}

static dr_status check_model(const dr_safetensors *file, uint64_t identity) {
    const char *text;
    char wanted[DIGITS];
    write_digits(identity, wanted);
    DR_TRY(check_text(file, "model", NULL, &text));
    if (strcmp(text, wanted) == 0) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT,
                   "it is a state of the model %.16s, but is wanted by the model %s: another configuration, or other weights",
                   text, wanted);
}

/* The rows of `sequences`, copied: *table is the caller's. */
static dr_status read_table(const dr_safetensors *file, int64_t **table, int64_t *sequences) {
    enum { MOST_SEQUENCES = 1 << 20 };
    dr_tensor tensor;
    void *memory = NULL;
    if (!dr_safetensors_find(file, "sequences", &tensor) || tensor.dtype != DR_I64 || tensor.rank != 2 ||
        tensor.shape[1] != COLUMNS || tensor.shape[0] < 1 || tensor.shape[0] > MOST_SEQUENCES)
        return dr_fail(DR_ERROR_FORMAT, "there is no tensor 'sequences' of I64 [sequences, %d] in it", COLUMNS);
    DR_TRY(dr_allocate(bytes_of(&tensor), "a copy of a state", &memory));
    memcpy(memory, tensor.data, bytes_of(&tensor));
    const int64_t *row = memory;
    for (int64_t s = 0; s < tensor.shape[0]; s++, row += COLUMNS)
        if (row[0] < 0 || row[0] > INT64_C(1) << 40 || row[1] < 0 || row[1] > row[0]) {
            const dr_status status =
                dr_fail(DR_ERROR_FORMAT, "its sequence %" PRId64 " has %" PRId64 " tokens, of them %" PRId64 " decoded", s,
                        row[0], row[1]);
            dr_release(memory);
            return status;
        }
    *sequences = tensor.shape[0];
    *table = memory;
    return DR_OK;
}

/* The file's tensors are those that are described, and no others. */
static dr_status find_tensors(const dr_safetensors *file, contents *c) {
    for (int64_t i = 0; i < c->count; i++) {
        dr_tensor *wanted = &c->tensors[i], tensor;
        if (!dr_safetensors_find(file, c->name[i], &tensor))
            return dr_fail(DR_ERROR_FORMAT, "there is no tensor %s in it", c->name[i]);
        if (tensor.dtype != wanted->dtype)
            return dr_fail(DR_ERROR_ARGUMENT, "its tensor %s is %s, but the backend computes in %s", c->name[i],
                           dr_dtype_name(tensor.dtype), dr_dtype_name(wanted->dtype));
        if (tensor.rank != wanted->rank || memcmp(tensor.shape, wanted->shape, (size_t)tensor.rank * sizeof(int64_t)) != 0)
            return dr_fail(DR_ERROR_FORMAT, "its tensor %s has not the shape that the model and its sequences tell",
                           c->name[i]);
        wanted->data = tensor.data;
    }
    if (dr_safetensors_count(file) != c->count)
        return dr_fail(DR_ERROR_FORMAT, "it has %" PRId64 " tensors, but such a state %" PRId64, dr_safetensors_count(file),
                       c->count);
    return DR_OK;
}

static dr_status check_sum(const dr_safetensors *file, const contents *c, uint64_t identity) {
    const char *text;
    char wanted[DIGITS];
    DR_TRY(check_text(file, "rule", NULL, &text));
    write_digits(checksum_of(c, identity, text), wanted);
    return check_text(file, "checksum", wanted, &text);
}

/* Through aligned memory: views of a file may be unaligned. */
static dr_status copy_in(dr_model_state *state, const int64_t *table, const contents *c) {
    dr_status status = DR_OK;
    size_t most = 0;
    void *host = NULL;
    for (int64_t i = 0; i < c->count; i++)
        if (bytes_of(&c->tensors[i]) > most) most = bytes_of(&c->tensors[i]);
    DR_TRY(dr_allocate(most, "a copy of a state", &host));
    for (int64_t i = 0; i < state->part_count && status == DR_OK; i++) {
        const dr_tensor *tensor = &c->tensors[1 + i];
        memcpy(host, tensor->data, bytes_of(tensor));
        status = state->backend->ops->put(state->backend, state->parts[i].at, host, bytes_of(tensor));
    }
    for (int64_t i = 0; i < state->grown_count && status == DR_OK; i++) {
        const dr_tensor *tensor = &c->tensors[1 + state->part_count + i];
        memcpy(host, tensor->data, bytes_of(tensor));
        status = move_grown(state, &state->grown[i], table, host, false);
    }
    dr_release(host);
    for (int64_t s = 0; s < state->sequences; s++) {
        const int64_t *row = table + s * COLUMNS;
        state->seen[s] = row[0], state->decoded[s] = row[1];
        memcpy(&state->hash[s], &row[2], sizeof row[2]);
    }
    return status;
}

static int64_t ids_in(const dr_safetensors *file) {
    dr_tensor ids;
    return dr_safetensors_find(file, "ids", &ids) && ids.rank == 1 && ids.dtype == DR_I32 ? ids.shape[0] : 0;
}

static dr_status load(const dr_model *model, uint64_t identity, const dr_safetensors *file, dr_model_state **state) {
    const char *text;
    int64_t *table = NULL, sequences, most = 0;
    contents c = {0};
    dr_model_state *made = NULL;
    dr_status status;
    DR_TRY(check_text(file, "format", FORMAT, &text));
    DR_TRY(check_text(file, "layout", LAYOUT, &text));
    DR_TRY(check_model(file, identity));
    DR_TRY(read_table(file, &table, &sequences));
    /* as many sequences as there are in the table, whose tensors take no less than the state will */
    DR_GO(dr_model_state_make(model, sequences, &made));
    DR_GO(describe(made, table, ids_in(file), &c));
    DR_GO(find_tensors(file, &c));
    DR_GO(check_sum(file, &c, identity));
    for (int64_t s = 0; s < sequences; s++)
        if (table[s * COLUMNS] > most) most = table[s * COLUMNS];
    DR_GO(dr_model_state_room(made, most));
    DR_GO(copy_in(made, table, &c));
    *state = made;
    made = NULL;
done:
    dr_model_state_destroy(made);
    release_contents(&c);
    dr_release(table);
    return status;
}

dr_status dr_state_file_peek(const dr_safetensors *file, uint64_t identity, int32_t **ids, dr_position *sequence) {
    const char *text;
    int64_t *table = NULL, sequences;
    dr_tensor tensor;
    void *memory = NULL;
    *ids = NULL;
    DR_TRY(check_text(file, "format", FORMAT, &text));
    DR_TRY(check_text(file, "layout", LAYOUT, &text));
    DR_TRY(check_model(file, identity));
    DR_TRY(read_table(file, &table, &sequences));
    *sequence = (dr_position){.tokens = table[0], .decoded = table[1]};
    memcpy(&sequence->hash, &table[2], sizeof sequence->hash);
    dr_release(table);
    if (ids_in(file) == 0 || !dr_safetensors_find(file, "ids", &tensor)) return DR_OK;
    if (sequences != 1 || tensor.shape[0] != sequence->tokens)
        return dr_fail(DR_ERROR_FORMAT, "it has %" PRId64 " ids, but its sequence %" PRId64 " tokens", tensor.shape[0],
                       sequence->tokens);
    DR_TRY(dr_allocate(bytes_of(&tensor), "the ids of a prefix", &memory));
    memcpy(memory, tensor.data, bytes_of(&tensor));
    if (dr_tokens_hash(memory, tensor.shape[0]) != sequence->hash) {
        dr_release(memory);
        return dr_fail(DR_ERROR_FORMAT, "its ids have not the hash that its sequence has");
    }
    *ids = memory;
    return DR_OK;
}

dr_status dr_state_file_read(const dr_model *model, uint64_t identity, const char *file, dr_model_state **state) {
    dr_safetensors *opened = NULL;
    DR_TRY(dr_safetensors_open(file, &opened));
    const dr_status status = load(model, identity, opened, state);
    dr_safetensors_close(opened);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", file);
}

dr_status dr_model_state_load(const dr_model *model, const char *file, dr_model_state **state) {
    uint64_t identity;
    DR_NEED(model);
    DR_NEED(file);
    DR_NEED(state);
    DR_TRY(dr_model_identity(model, &identity));
    return dr_state_file_read(model, identity, file, state);
}

/* ---- without the model ---------------------------------------------------------------------------------------------- */

/* A number as write_digits writes it. */
static dr_status read_digits(const dr_safetensors *file, const char *key, uint64_t *number) {
    static const char digits[] = "0123456789abcdef";
    const char *text;
    DR_TRY(check_text(file, key, NULL, &text));
    *number = 0;
    for (int i = 0; i < DIGITS - 1; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit) return dr_fail(DR_ERROR_FORMAT, "its %s is \"%.60s\", not %d hexadecimal digits", key, text, DIGITS - 1);
        *number = *number << 4 | (uint64_t)(digit - digits);
    }
    if (!text[DIGITS - 1]) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "its %s is \"%.60s\", not %d hexadecimal digits", key, text, DIGITS - 1);
}

/* Tensors NAME.0, NAME.1, ... up to the first that is missing go to the end of the contents. */
static void take_numbered(const dr_safetensors *file, const char *name, contents *c, int *count, int64_t *bytes,
                          dr_dtype *dtype) {
    *count = 0, *bytes = 0, *dtype = DR_F32;
    for (; c->count < dr_safetensors_count(file); c->count++, (*count)++) {
        dr_tensor *tensor = &c->tensors[c->count];
        snprintf(c->name[c->count], NAME, "%s.%d", name, *count);
        if (!dr_safetensors_find(file, c->name[c->count], tensor)) return;
        *bytes += (int64_t)bytes_of(tensor);
        *dtype = tensor->dtype;
    }
}

/* The file's tensors in the order of the checksum. */
static dr_status take_tensors(const dr_safetensors *file, contents *c, dr_model_state_file *about) {
    void *memory;
    const size_t count = (size_t)dr_safetensors_count(file);
    DR_TRY(dr_allocate_zero(count * NAME, "a list of tensors", &memory));
    c->name = memory;
    DR_TRY(dr_allocate_zero(count * sizeof *c->tensors, "a list of tensors", &memory));
    c->tensors = memory;
    snprintf(c->name[0], NAME, "sequences"); /* read_table has found it */
    c->count = dr_safetensors_find(file, "sequences", &c->tensors[0]);
    take_numbered(file, "state", c, &about->fixed_tensors, &about->fixed_bytes, &about->fixed_dtype);
    take_numbered(file, "memory", c, &about->grown_tensors, &about->grown_bytes, &about->grown_dtype);
    about->ids = ids_in(file);
    if (about->ids > 0 && c->count < (int64_t)count) {
        snprintf(c->name[c->count], NAME, "ids");
        dr_safetensors_find(file, "ids", &c->tensors[c->count++]);
    }
    if (c->count == (int64_t)count) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "of its %" PRId64 " tensors only %" PRId64 " are those of a model's state",
                   dr_safetensors_count(file), c->count);
}

static dr_status read_about(const dr_safetensors *file, dr_model_state_file *about, dr_position *positions, int64_t most) {
    const char *text;
    int64_t *table = NULL;
    contents c = {0};
    dr_rule rule;
    dr_status status;
    DR_TRY(check_text(file, "format", FORMAT, &text));
    DR_TRY(check_text(file, "layout", LAYOUT, &text));
    DR_TRY(read_digits(file, "model", &about->model));
    DR_TRY(read_digits(file, "checksum", &about->checksum));
    DR_TRY(check_text(file, "rule", NULL, &text));
    if (strlen(text) >= sizeof about->rule)
        return dr_fail(DR_ERROR_FORMAT, "its rule has %zu bytes: at most %zu", strlen(text), sizeof about->rule - 1);
    if (text[0] && (status = dr_rule_read_text(text, &rule, NULL)) != DR_OK) return dr_fail_in(status, "its rule");
    memcpy(about->rule, text, strlen(text) + 1);
    DR_TRY(read_table(file, &table, &about->sequences));
    DR_GO(take_tensors(file, &c, about));
    DR_GO(check_sum(file, &c, about->model));
    for (int64_t s = 0; s < about->sequences && s < most; s++) {
        const int64_t *row = table + s * COLUMNS;
        positions[s] = (dr_position){.tokens = row[0], .decoded = row[1]};
        memcpy(&positions[s].hash, &row[2], sizeof positions[s].hash);
    }
done:
    release_contents(&c);
    dr_release(table);
    return status;
}

dr_status dr_model_state_file_about(const char *file, dr_model_state_file *about, dr_position *positions, int64_t most) {
    dr_safetensors *opened = NULL;
    DR_NEED(file);
    DR_NEED(about);
    if (most > 0) DR_NEED(positions);
    DR_TRY(dr_safetensors_open(file, &opened));
    memset(about, 0, sizeof *about);
    about->file_bytes = dr_safetensors_bytes(opened);
    const dr_status status = read_about(opened, about, positions, most);
    dr_safetensors_close(opened);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", file);
}
