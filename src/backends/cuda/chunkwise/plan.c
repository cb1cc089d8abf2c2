/* Geometry of a chunkwise call, its workspace, and the choice of the kernels' type. */
#include "backends/cuda/chunkwise/chunkwise.h"
#include "backends/cuda/chunkwise/kernels.h"
#include "backends/cuda/rows/leads.h"
#include "ops/shapes.h"

static int32_t round_up(int64_t size, int32_t unit) {
    return (int32_t)((size + unit - 1) / unit * unit);
}

static int64_t slots_of(const dr_recurrence *recurrence, int64_t chunk) {
    const dr_layout *layout = &recurrence->layout;
    if (layout->cu_seqlens) return layout->rows / chunk + layout->sequences;
    const int64_t length = layout->rows / layout->sequences;
    return layout->sequences * ((length + chunk - 1) / chunk);
}

static bool any_read(const dr_rule *rule) {
    for (int i = 0; i < rule->rows; i++)
        if (rule->row[i].read != DR_READ_NONE) return true;
    return false;
}

/* Whether the rows that read do so by a vector that stands in an input, and scalars can do the rest. */
static bool reads_directly(const dr_rule *rule) {
    const dr_read read = rule->row[0].read;
    return rule->decay != DR_DECAY_CHANNEL && rule->rows == 1 &&
           (read == DR_READ_KEY || read == DR_READ_ERASE_KEY || read == DR_READ_FEEDBACK || read == DR_READ_FREE);
}

/* Whether rows that read do so by the key that they write. */
static bool reads_written(const dr_rule *rule) {
    for (int i = 0; i < rule->rows; i++) {
        const dr_row *row = &rule->row[i];
        const bool same = (row->read == DR_READ_KEY && row->write == DR_WRITE_KEY) ||
                          (row->read == DR_READ_ERASE_KEY && row->write == DR_WRITE_ERASE_KEY);
        if (row->read != DR_READ_NONE && !same) return false;
    }
    return true;
}

/* One row a token, no decay of each channel, and queries as they are. */
static bool is_single(const dr_rule *rule) {
    return rule->decay != DR_DECAY_CHANNEL && rule->rows == 1 && rule->repeat <= 1 && rule->query == DR_QUERY_PLAIN;
}

/* Whether a row's gain is one or an input, and its value there and not gated. */
static bool gains_directly(const dr_row *row) {
    return row->gain == DR_GAIN_ONE || dr_row_gained(row) != DR_INPUTS;
}

static bool values_directly(const dr_row *row) {
    return row->value != DR_VALUE_GATED && row->value != DR_VALUE_NONE;
}

/* Whether whoever wants what they read makes it of the inputs, r = k + lambda q, since queries are at hand there: the stages
 * for values that are no wider and not gated do. */
static bool reads_sum(const dr_rule *rule) {
    const dr_row *row = &rule->row[0];
    return is_single(rule) && row->read == DR_READ_KEY_PLUS_QUERY && row->write == DR_WRITE_KEY && values_directly(row);
}

/* Whether the scan can do without prepare: nothing is read, keys and queries are inputs as they are, and gains one or inputs.
 */
static bool is_linear(const dr_rule *rule) {
    const dr_row *row = &rule->row[0];
    const bool direct = row->write == DR_WRITE_KEY || row->write == DR_WRITE_ERASE_KEY || row->write == DR_WRITE_FREE;
    return is_single(rule) && row->read == DR_READ_NONE && direct && gains_directly(row);
}

static bool queries_directly(const dr_rule *rule) {
    return rule->decay != DR_DECAY_CHANNEL && (rule->query == DR_QUERY_PLAIN || rule->query == DR_QUERY_RIDGE);
}

/* Whether one kernel can make all of a forward: rows that prepare calls plain or for which it makes the diagonal scan, heads of
 * up to 128 by 128, sequences of one length. */
static bool fits_one_pass(const dr_rule *rule, const dr_cuda_chunk_plan *plan) {
    const dr_row *row = &rule->row[0];
    const bool known = (plan->reads && reads_written(rule)) || plan->reader_sum || plan->scan_inside;
    const bool plain = is_single(rule) && known && gains_directly(row) && values_directly(row) && !row->undecayed;
    return plain && plan->warpgroups && plan->chunk == DR_CUDA_CHUNK_ROWS && plan->key_width == 128 &&
           plan->value_width == 128 && plan->length > 0;
}

/* Whether it does. A multiprocessor that has a head to itself then takes 0.6 to 0.8 of the time of both stages, and so three
 * quarters of them have to have one, all the time. Packed sequences may leave it with one long one. */
static bool is_one_pass(const dr_cuda_chunk_plan *plan) {
    const int64_t heads = plan->sequences * plan->value_heads, rounds = (heads + plan->processors - 1) / plan->processors;
    return plan->parts == 1 && 4 * heads >= 3 * rounds * plan->processors;
}

/* Two thread blocks a multiprocessor are wanted, one of warp groups. Parts cost the scan's work once more, so fewer than four
 * do not pay; a third of that, where rows read nothing and a thread block has two groups of columns, and then three do. What is
 * wanted follows from the heads and the device only, so that a sequence is cut alike in any batch. */
static void plan_parts(const dr_layout *layout, dr_decay decay, dr_cuda_chunk_plan *plan) {
    const int64_t columns = plan->value_width / DR_CUDA_COLUMNS, blocks = plan->linear ? (columns + 1) / 2 : columns;
    const int64_t wanted = (plan->warpgroups ? 1 : 2) * (int64_t)plan->processors / (plan->value_heads * blocks);
    plan->parts_wanted = wanted < (plan->linear ? 3 : 4) ? 1 : (int32_t)wanted;
    const int64_t chunks = (dr_layout_longest(layout) + plan->chunk - 1) / plan->chunk;
    plan->parts = dr_cuda_most_parts(plan, chunks);
    plan->sequence_chunks = (int32_t)((plan->length + plan->chunk - 1) / plan->chunk);
    plan->sequence_parts = dr_cuda_parts(plan, plan->sequence_chunks, &plan->part_chunks);
    plan->trims =
        plan->parts > 1 && plan->parts <= DR_CUDA_TRIM_PARTS && plan->warpgroups && !plan->linear && decay != DR_DECAY_NONE;
}

/* The scan's blocks have a multiprocessor each; prepare has what is left if that is worth it. Its rounds on all multiprocessors
 * leave it what it can make on those during the scan; time: of a round, in chunks of the scan (docs/cuda.md). Chunks of packed
 * sequences do not lie in the scan's order, and it would wait for the last. */
static void plan_beside(const dr_rule *rule, dr_cuda_chunk_plan *plan) {
    const bool channel = rule->decay == DR_DECAY_CHANNEL;
    const int64_t scans = plan->sequences * plan->value_heads * (plan->value_width / DR_CUDA_COLUMNS);
    const int64_t left = plan->processors - scans, least = plan->processors / 4;
    const int steps = dr_rule_steps(rule);
    if (!plan->warpgroups || plan->linear || plan->parts > 1 || (channel && steps > 2)) return;
    if (plan->length <= plan->chunk || left < least || plan->blocks > INT32_MAX) return;
    const int64_t groups = !channel ? 4 : steps == 2 || plan->scan_inside ? 3 : 2;
    const int64_t time = !channel ? 10 : groups == 2 ? 16 : plan->scan_inside ? 20 : reads_written(rule) ? 17 : 22;
    const int64_t round = groups * plan->processors;
    const int64_t before = plan->blocks - groups * left * plan->sequence_chunks / time;
    plan->beside = (dr_cuda_beside){
        .processors = (int32_t)left,
        .groups = (int32_t)groups,
        .rounds = before > 0 ? (int32_t)((before + round / 2) / round) : 0,
    };
}

/* Else, with a scalar decay, one kernel takes parts that begin early, if there are as many: what is cut how follows from the
 * batch, too. Of several sequences prepare would not pass some over beside the scan. */
static void plan_early(const dr_rule *rule, dr_cuda_chunk_plan *plan) {
    const int64_t heads = plan->sequences * plan->value_heads, chunks = plan->sequence_chunks;
    const int64_t most = chunks / DR_CUDA_PART_CHUNKS, wanted = plan->processors / heads;
    const int64_t parts = wanted < most ? wanted : most;
    if (rule->decay != DR_DECAY_SCALAR || parts < 2 || (plan->beside.processors && plan->sequences > 1)) return;
    const int64_t each = (chunks + parts - 1) / parts, made = (chunks + each - 1) / each;
    if (4 * heads * made < 3 * plan->processors) return;
    const int64_t pays = plan->parts > 1 ? each : each / 3; /* until it costs what joined or whole ones do */
    plan->early = (dr_cuda_early){
        .parts = (int32_t)made,
        .chunks = (int32_t)each,
        .most = (int32_t)(pays < DR_CUDA_EARLY_MOST ? pays : DR_CUDA_EARLY_MOST),
    };
}

void dr_cuda_chunk_plan_stages(const dr_rule *rule, dr_cuda_chunk_plan *plan) {
    const bool fits = fits_one_pass(rule, plan);
    plan->one_pass = fits && is_one_pass(plan);
    plan_beside(rule, plan);
    if (fits && !plan->one_pass) plan_early(rule, plan);
    if (plan->early.parts) plan->trims = false; /* it would have been one of those */
}

dr_status dr_cuda_chunk_make_plan(const dr_recurrence *recurrence, dr_dtype storage, const dr_cuda *gpu,
                                  dr_cuda_chunk_plan *plan) {
    const dr_rule *rule = recurrence->rule;
    const int steps = dr_rule_steps(rule);
    if (steps > DR_CUDA_CHUNK_ROWS)
        return dr_fail(DR_ERROR_UNSUPPORTED, "the chunkwise kernels take up to %d rows a token, not %d", DR_CUDA_CHUNK_ROWS,
                       steps);
    const int64_t most = DR_CUDA_CHUNK_ROWS / steps;
    if (recurrence->chunk > most)
        return dr_fail(DR_ERROR_UNSUPPORTED, "a chunk of %lld tokens is too long: the kernels take up to %lld here",
                       (long long)recurrence->chunk, (long long)most);
    const dr_layout *layout = &recurrence->layout;
    const int64_t widest = recurrence->key_size > recurrence->value_size ? recurrence->key_size : recurrence->value_size;
    if (layout->rows > INT32_MAX / (steps * recurrence->value_heads) ||
        widest > INT32_MAX / (4 * DR_CUDA_CHUNK_ROWS * recurrence->value_heads))
        return dr_fail(
            DR_ERROR_UNSUPPORTED,
            "%lld tokens of %lld heads are too many: the chunkwise kernels count gains, and the bytes of a chunk, in 31 bits",
            (long long)layout->rows, (long long)recurrence->value_heads);
    *plan = (dr_cuda_chunk_plan){
        .storage = storage,
        .chunk = (int32_t)(recurrence->chunk ? recurrence->chunk : most),
        .key_width = recurrence->key_size <= 64    ? 64
                     : recurrence->key_size <= 128 ? 128
                                                   : 256,
        .value_width = round_up(recurrence->value_size, DR_CUDA_COLUMNS),
        .key_heads = (int32_t)recurrence->key_heads,
        .value_heads = (int32_t)recurrence->value_heads,
        .reads = any_read(rule),
        .reader_direct = reads_directly(rule),
        .query_direct = queries_directly(rule),
        .hopper = gpu->hopper,
        .processors = gpu->processors,
        .sequences = layout->sequences,
        .tokens = layout->rows,
        .length = layout->cu_seqlens ? 0 : layout->rows / layout->sequences,
    };
    plan->query_rows = round_up(plan->chunk, DR_CUDA_TILE);
    plan->slots = slots_of(recurrence, plan->chunk);
    plan->blocks = plan->slots * plan->value_heads;
    plan->halves = gpu->hopper && storage != DR_F32;
    plan->warpgroups = plan->halves && plan->key_width <= 128;
    plan->reader_sum = plan->warpgroups && plan->chunk == DR_CUDA_CHUNK_ROWS /* queries fill a tile */ &&
                       plan->value_width <= 128 && reads_sum(rule);
    plan->linear = plan->warpgroups && plan->chunk == DR_CUDA_CHUNK_ROWS && is_linear(rule);
    plan->linear_back = plan->linear && plan->value_width <= 128 && values_directly(&rule->row[0]);
    plan_parts(layout, rule->decay, plan);
    return DR_OK;
}

/* Of parts and heads, as many as chunks may give. */
static size_t part_places(const dr_cuda_chunk_plan *plan) {
    return ((size_t)plan->slots / DR_CUDA_PART_CHUNKS + 1) * (size_t)plan->value_heads;
}

void dr_cuda_chunk_lay(const dr_cuda_chunk_plan *plan, bool backward, dr_arena *arena, dr_cuda_chunk_tensors *tensors) {
    const size_t element = dr_dtype_size(plan->storage), blocks = (size_t)plan->blocks;
    const size_t rows = DR_CUDA_CHUNK_ROWS, queries = (size_t)plan->query_rows, keys = (size_t)plan->key_width;
    const size_t readers = blocks * rows * keys * element;
    /* Whether something is passed on. Of key + lambda query one kernel makes all only where all lies as boxes: a call tells. */
    const bool passes = !plan->linear && (!plan->one_pass || plan->reader_sum);
    const bool between = backward ? !plan->linear_back : passes;
    *tensors = (dr_cuda_chunk_tensors){0};
    if (between) tensors->exit = dr_arena_take(arena, readers);
    if (between) tensors->score = dr_arena_take(arena, blocks * queries * rows * element);
    if (plan->reads && !plan->reader_direct && !plan->reader_sum) tensors->reader = dr_arena_take(arena, readers);
    if (!plan->query_direct) tensors->query = dr_arena_take(arena, blocks * queries * keys * element);
    if (backward && plan->reads) tensors->inverse = dr_arena_take(arena, blocks * rows * rows * sizeof(float));
    if (between) tensors->factors = dr_arena_take(arena, blocks * sizeof(dr_cuda_factors));
    if (between) tensors->keep = dr_arena_take(arena, blocks * keys * sizeof(float));
    if (plan->beside.processors) tensors->made = dr_arena_take(arena, blocks * sizeof(unsigned));
    if (plan->early.parts)
        tensors->early =
            dr_arena_take(arena, ((size_t)(plan->sequences * plan->value_heads) * (size_t)(dr_cuda_early_count(plan) + 1) + 1) *
                                     sizeof(int32_t));
    if (plan->parts == 1) return;
    const size_t states = dr_cuda_chunk_part_states(plan) * sizeof(float);
    tensors->local = dr_arena_take(arena, states);
    tensors->entry = dr_arena_take(arena, states);
    if (!backward && plan->reader_sum) tensors->reader = dr_arena_take(arena, readers);
    if (plan->reads) tensors->passage = dr_arena_take(arena, states / (size_t)plan->value_width * keys);
    if (plan->linear) tensors->passage = dr_arena_take(arena, states / ((size_t)plan->value_width * keys));
    if (plan->trims) tensors->trims = dr_arena_take(arena, part_places(plan) * sizeof(dr_cuda_trim));
}

size_t dr_cuda_chunk_part_states(const dr_cuda_chunk_plan *plan) {
    return part_places(plan) * (size_t)plan->value_width * (size_t)plan->key_width;
}

size_t dr_cuda_chunk_saved_bytes(const dr_cuda_chunk_plan *plan) {
    return (size_t)plan->blocks * (size_t)plan->value_width * (size_t)plan->key_width * dr_dtype_size(plan->storage);
}

dr_status dr_cuda_chunk_begin_early(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, const float *initial,
                                    void *o, float *final, void *saved, bool never, cudaStream_t stream) {
    if (!plan->early.parts) return DR_OK;
    return dr_cuda_chunk_begin_early_bf16(plan, tensors, initial, o, final, saved, never, stream);
}

dr_status dr_cuda_chunk_prepare(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, cudaStream_t stream) {
    if (plan->linear || plan->one_pass || (tensors->early && dr_cuda_early_apart(plan))) return DR_OK;
    if (plan->storage == DR_BF16) return dr_cuda_chunk_prepare_bf16(plan, tensors, stream);
    return dr_cuda_chunk_prepare_float32(plan, tensors, stream);
}

dr_status dr_cuda_chunk_scan(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, const float *initial,
                             void *o, float *final, void *saved, cudaStream_t stream) {
    if (plan->storage == DR_BF16) return dr_cuda_chunk_scan_bf16(plan, tensors, initial, o, final, saved, stream);
    return dr_cuda_chunk_scan_float32(plan, tensors, initial, o, final, saved, stream);
}
