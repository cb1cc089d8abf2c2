/* Geometry of a chunkwise call, its workspace, and the choice of the kernels. */
#include "backends/cuda/plan/chunkwise.h"
#include "backends/cuda/rows/rows_make.h"
#include "ops/shapes.h"

static int32_t round_up(int64_t size, int32_t unit) {
    return (int32_t)((size + unit - 1) / unit * unit);
}

static int64_t slots_of(const dr_recurrence *recurrence, bool packed, int64_t chunk) {
    const dr_layout *layout = &recurrence->layout;
    if (packed) return layout->rows / chunk + layout->sequences;
    const int64_t length = layout->rows / layout->sequences;
    return layout->sequences * ((length + chunk - 1) / chunk);
}

/* Whether the rows that read do so by a vector that stands in an input, and scalars can do the rest. */
static bool reads_directly(const dr_cuda_rows *rows) {
    const dr_reads reads = rows->row[0].reads;
    return !rows->channel_decay && rows->kinds == 1 && (reads == DR_READS_TIED || reads == DR_READS_TENSOR);
}

/* One row a token, no decay of each channel, and queries as they are. */
static bool is_single(const dr_cuda_rows *rows) {
    return !rows->channel_decay && rows->kinds == 1 && !rows->step_axis && rows->asks == DR_ASKS_TENSOR;
}

/* Whether a row's value is there and not gated. */
static bool values_directly(const dr_cuda_row *row) {
    return row->values == DR_VALUES_PLAIN || row->values == DR_VALUES_GAINED;
}

/* Whether whoever wants what they read makes it of the inputs, r = k + lambda q, since queries are at hand there: the stages
 * for values that are no wider and not gated do. */
static bool reads_sum(const dr_cuda_rows *rows) {
    const dr_cuda_row *row = &rows->row[0];
    return is_single(rows) && row->reads == DR_READS_AFFINE && row->read_other == rows->asked && row->written == row->read &&
           values_directly(row);
}

/* Whether the scan needs no prepare: nothing is read, keys and queries are inputs as they are, and gains one or inputs. */
static bool is_linear(const dr_cuda_rows *rows) {
    const dr_cuda_row *row = &rows->row[0];
    return is_single(rows) && row->reads == DR_READS_NONE && row->writes == DR_WRITES_TENSOR && row->gains != DR_GAINS_OF_DOT;
}

/* Whether one kernel can make all of a forward: rows that prepare calls plain or for which it makes the diagonal scan, or that
 * read a tensor of its own; heads of 128 by 128, or of 64 by 64 whose rows read the key that they write; sequences of one
 * length. */
static bool fits_one_pass(const dr_cuda_chunk_plan *plan) {
    const dr_cuda_rows *rows = &plan->rows;
    const dr_cuda_row *row = &rows->row[0];
    const bool known = (plan->reads && rows->tied) || plan->reader_sum || plan->scan_inside || dr_cuda_reads_apart(plan);
    const bool plain = is_single(rows) && known && row->gains != DR_GAINS_OF_DOT && values_directly(row);
    const bool wide = plan->key_width == 128, tied = rows->tied && !plan->reader_sum && !plan->scan_inside;
    return plain && plan->warpgroups && plan->chunk == DR_CUDA_CHUNK_ROWS && (wide || (plan->key_width == 64 && tied)) &&
           plan->value_width == plan->key_width && plan->length > 0;
}

/* Whether it can make of its tiles what is made before other kernels: one product of what rows read and what they write, or
 * queries less a part of one of these. That for narrow heads makes nothing. */
static bool makes_within(const dr_cuda_chunk_plan *plan) {
    const dr_cuda_rows *rows = &plan->rows;
    const dr_cuda_row *row = &rows->row[0];
    const dr_row_product *product = &rows->product[0];
    if (plan->key_width != 128 || plan->reader_sum || rows->diagonal_scan || rows->gains_made) return false;
    if (rows->query_made) return rows->products == 0 && (row->write == rows->ask_other || row->read == rows->ask_other);
    if (rows->products != 1) return false;
    if (rows->group > 1 && (rows->input[product->of].per_value || rows->input[product->by].per_value)) return false;
    return (product->of == row->read && product->by == row->write) || (product->of == row->write && product->by == row->read);
}

/* Whether it does. A multiprocessor that has a head to itself, or two narrow ones, then takes 0.6 to 0.8 of the time of both
 * stages, and so three quarters of them have to have one, all the time. Packed sequences may leave it with one long one. */
static bool is_one_pass(const dr_cuda_chunk_plan *plan) {
    const int64_t heads = plan->sequences * plan->value_heads, at_once = plan->processors * (plan->key_width == 64 ? 2 : 1);
    const int64_t rounds = (heads + at_once - 1) / at_once;
    return plan->parts == 1 && 4 * heads >= 3 * rounds * at_once;
}

/* Two thread blocks a multiprocessor are wanted, one of warp groups. Parts cost the scan's work once more, so fewer than four
 * do not pay; a third of that, where rows read nothing and a thread block has two groups of columns, and then three do. What is
 * wanted follows from the heads and the device only, so that a sequence is cut alike in any batch. */
static int32_t parts_wanted(const dr_cuda_chunk_plan *plan, int64_t processors) {
    const int64_t columns = plan->value_width / DR_CUDA_COLUMNS, blocks = plan->linear ? (columns + 1) / 2 : columns;
    const int64_t wanted = (plan->warpgroups ? 1 : 2) * processors / (plan->value_heads * blocks);
    return wanted < (plan->linear ? 3 : 4) ? 1 : (int32_t)wanted;
}

static void plan_parts(int64_t longest, dr_cuda_chunk_plan *plan) {
    plan->parts_wanted = parts_wanted(plan, plan->processors);
    const int64_t chunks = (longest + plan->chunk - 1) / plan->chunk;
    plan->parts = dr_cuda_most_parts(plan, chunks);
    plan->sequence_chunks = (int32_t)((plan->length + plan->chunk - 1) / plan->chunk);
    plan->sequence_parts = dr_cuda_parts(plan, plan->sequence_chunks, &plan->part_chunks);
    plan->trims = plan->parts > 1 && plan->parts <= DR_CUDA_TRIM_PARTS && plan->warpgroups && !plan->linear &&
                  (plan->rows.scalar_decay || plan->rows.channel_decay) && plan->forgets;
}

/* The scan's blocks have a multiprocessor each; prepare has what is left if that is worth it. Its rounds on all multiprocessors
 * leave it what it can make on those during the scan; time: of a round, in chunks of the scan (docs/lab/cuda/forward.md).
 * Chunks of packed sequences do not lie in the scan's order, and it would wait for the last. */
static void plan_beside(dr_cuda_chunk_plan *plan) {
    const bool channel = plan->rows.channel_decay;
    const int64_t scans = plan->sequences * plan->value_heads * (plan->value_width / DR_CUDA_COLUMNS);
    const int64_t left = plan->processors - scans, least = plan->processors / 4;
    const int steps = plan->rows.steps;
    if (!plan->warpgroups || plan->linear || plan->parts > 1 || (channel && steps > 2)) return;
    if (plan->length <= plan->chunk || left < least || plan->blocks > INT32_MAX) return;
    const int64_t groups = !channel ? 4 : steps == 2 || plan->scan_inside ? 3 : 2;
    const int64_t time = !channel ? 10 : groups == 2 ? 16 : plan->scan_inside ? 20 : plan->rows.tied ? 17 : 22;
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
static void plan_early(dr_cuda_chunk_plan *plan) {
    const int64_t heads = plan->sequences * plan->value_heads, chunks = plan->sequence_chunks;
    const int64_t most = chunks / DR_CUDA_PART_CHUNKS, wanted = plan->processors / heads;
    const int64_t parts = wanted < most ? wanted : most;
    /* rows that read before the decay take off what no decay bounds */
    const bool fades = plan->rows.scalar_decay && !plan->rows.constant_decay && !plan->rows.row[0].undecayed;
    if (!fades || !plan->forgets || parts < 2 || dr_cuda_reads_apart(plan) || plan->key_width == 64 ||
        (plan->beside.processors && plan->sequences > 1))
        return;
    const int64_t each = (chunks + parts - 1) / parts, made = (chunks + each - 1) / each;
    if (4 * heads * made < 3 * plan->processors) return;
    const int64_t pays = plan->parts > 1 ? each : each / 3; /* until it costs what joined or whole ones do */
    plan->early = (dr_cuda_early){
        .parts = (int32_t)made,
        .chunks = (int32_t)each,
        .most = (int32_t)(pays < DR_CUDA_EARLY_MOST ? pays : DR_CUDA_EARLY_MOST),
    };
}

void dr_cuda_chunk_plan_stages(dr_cuda_chunk_plan *plan) {
    const bool fits = fits_one_pass(plan);
    plan->one_pass = fits && is_one_pass(plan);
    plan->made_within = plan->one_pass && makes_within(plan);
    plan_beside(plan);
    if (fits && !plan->one_pass) plan_early(plan);
    if (plan->early.parts) plan->trims = false; /* it would have been one of those */
}

dr_status dr_cuda_chunk_make_plan(const dr_recurrence *recurrence, bool packed, dr_dtype storage, const dr_cuda *gpu,
                                  dr_cuda_chunk_plan *plan) {
    const int steps = dr_rule_steps(recurrence->rule);
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
        .hopper = gpu->hopper,
        .processors = gpu->processors < DR_CUDA_MOST_PROCESSORS ? gpu->processors : DR_CUDA_MOST_PROCESSORS,
        .forgets = recurrence->forget > 0,
        .forgotten = (float)log(recurrence->forget),
        .sequences = layout->sequences,
        .tokens = layout->rows,
        .length = packed ? 0 : layout->rows / layout->sequences,
    };
    dr_cuda_rows_plan(recurrence, storage, &plan->rows);
    dr_cuda_rows_make_before(&plan->rows);
    plan->reads = plan->rows.reads;
    plan->reader_direct = reads_directly(&plan->rows);
    plan->query_direct = !plan->rows.channel_decay && plan->rows.asks != DR_ASKS_AFFINE;
    plan->query_rows = round_up(plan->chunk, DR_CUDA_TILE);
    plan->slots = slots_of(recurrence, packed, plan->chunk);
    plan->blocks = plan->slots * plan->value_heads;
    plan->halves = gpu->hopper && storage != DR_F32;
    plan->warpgroups = plan->halves && plan->key_width <= DR_CUDA_STAGE_KEYS;
    plan->reader_sum = plan->warpgroups && plan->chunk == DR_CUDA_CHUNK_ROWS /* queries fill a tile */ &&
                       plan->value_width <= 128 && reads_sum(&plan->rows);
    plan->linear = plan->warpgroups && plan->chunk == DR_CUDA_CHUNK_ROWS && is_linear(&plan->rows);
    plan->linear_back = plan->linear && plan->value_width <= 128 && values_directly(&plan->rows.row[0]);
    plan_parts(packed ? recurrence->longest : plan->length, plan);
    return DR_OK;
}

/* Of parts and heads, as many as chunks may give. */
static size_t part_places(const dr_cuda_chunk_plan *plan) {
    return ((size_t)plan->slots / DR_CUDA_PART_CHUNKS + 1) * (size_t)plan->value_heads;
}

/* Of a block, what prepare leaves for the scan and, if it is saved, for a backward. */
enum { EXIT, SCORE, READER, QUERY, INVERSE, FACTORS, KEEP, BETWEEN };
typedef struct {
    size_t bytes[BETWEEN];
} between_bytes;

static between_bytes between_of(const dr_cuda_chunk_plan *plan, bool saved) {
    const size_t element = dr_dtype_size(plan->storage), rows = DR_CUDA_CHUNK_ROWS, keys = (size_t)plan->key_width;
    const size_t queries = (size_t)plan->query_rows;
    /* Whether something is passed on. What one kernel takes as boxes only: a call tells. */
    const bool boxes_alone = dr_cuda_one_pass_boxed(plan);
    const bool passes = saved ? !plan->linear_back : !plan->linear && (!plan->one_pass || boxes_alone);
    between_bytes of = {{0}};
    if (passes) {
        of.bytes[EXIT] = rows * keys * element;
        of.bytes[SCORE] = queries * rows * element;
        of.bytes[FACTORS] = sizeof(dr_cuda_factors);
        of.bytes[KEEP] = keys * sizeof(float);
    }
    if (plan->reads && !plan->reader_direct && !plan->reader_sum) of.bytes[READER] = rows * keys * element;
    if (!plan->query_direct) of.bytes[QUERY] = queries * keys * element;
    if (saved && plan->reads) of.bytes[INVERSE] = rows * rows * sizeof(float);
    return of;
}

void dr_cuda_chunk_lay_between(const dr_cuda_chunk_plan *plan, bool saved, dr_arena *arena, dr_cuda_chunk_tensors *tensors) {
    const between_bytes of = between_of(plan, saved);
    void *at[BETWEEN];
    for (int i = 0; i < BETWEEN; i++) at[i] = of.bytes[i] ? dr_arena_take(arena, (size_t)plan->blocks * of.bytes[i]) : NULL;
    tensors->exit = at[EXIT];
    tensors->score = at[SCORE];
    tensors->reader = at[READER];
    tensors->query = at[QUERY];
    tensors->inverse = at[INVERSE];
    tensors->factors = at[FACTORS];
    tensors->keep = at[KEEP];
}

static size_t early_bytes(const dr_cuda_chunk_plan *plan) {
    const size_t chains = (size_t)(plan->sequences * plan->value_heads);
    return plan->early.parts ? (chains * (size_t)(dr_cuda_early_count(plan) + 1) + 1) * sizeof(int32_t) : 0;
}

static size_t passage_bytes(const dr_cuda_chunk_plan *plan) { /* of a part and head */
    const size_t keys = (size_t)plan->key_width;
    return plan->reads ? keys * keys * sizeof(float) : plan->linear ? sizeof(float) : 0;
}

static void lay_parts(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_chunk_tensors *tensors) {
    const bool cut = plan->parts > 1;
    tensors->early = plan->early.parts ? dr_arena_take(arena, early_bytes(plan)) : NULL;
    tensors->passage = cut && passage_bytes(plan) ? dr_arena_take(arena, part_places(plan) * passage_bytes(plan)) : NULL;
    tensors->trims = cut && plan->trims ? dr_arena_take(arena, part_places(plan) * sizeof(dr_cuda_trim)) : NULL;
}

void dr_cuda_chunk_lay_rest(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_chunk_tensors *tensors) {
    const size_t states = dr_cuda_chunk_part_states(plan) * sizeof(float);
    if (plan->beside.processors) tensors->made = dr_arena_take(arena, (size_t)plan->blocks * sizeof(unsigned));
    lay_parts(plan, arena, tensors);
    if (plan->parts == 1) return;
    tensors->local = dr_arena_take(arena, states);
    tensors->entry = dr_arena_take(arena, states);
    if (plan->reader_sum)
        tensors->sums = dr_arena_take(arena, (size_t)plan->blocks * DR_CUDA_CHUNK_ROWS * (size_t)plan->key_width *
                                                 dr_dtype_size(plan->storage));
    tensors->reader = plan->reader_sum ? tensors->sums : tensors->reader;
}

void *dr_cuda_chunk_lay_saved_parts(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_chunk_tensors *tensors) {
    void *const begin = arena->block ? arena->block + arena->used : NULL;
    lay_parts(plan, arena, tensors);
    return begin;
}

void dr_cuda_chunk_pad(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, dr_cuda_saved_pad *pad) {
    const between_bytes of = between_of(plan, true);
    void *const at[BETWEEN] = {tensors->exit,    tensors->score,   tensors->reader, tensors->query,
                               tensors->inverse, tensors->factors, tensors->keep};
    for (int i = 0; i < BETWEEN; i++)
        if (of.bytes[i]) dr_cuda_pad_slots(pad, at[i], (size_t)plan->value_heads * of.bytes[i]);
}

size_t dr_cuda_chunk_part_states(const dr_cuda_chunk_plan *plan) {
    return part_places(plan) * (size_t)plan->value_width * (size_t)plan->key_width;
}

static size_t state_bytes(const dr_cuda_chunk_plan *plan) {
    return (size_t)plan->value_width * (size_t)plan->key_width * dr_dtype_size(plan->storage);
}

size_t dr_cuda_chunk_saved_bytes(const dr_cuda_chunk_plan *plan) {
    return (size_t)plan->blocks * state_bytes(plan);
}

void dr_cuda_chunk_saved_size(const dr_cuda_chunk_plan *plan, int64_t longest, dr_saved_size *size) {
    const size_t heads = (size_t)plan->value_heads;
    const between_bytes of = between_of(plan, true);
    size_t block = state_bytes(plan), places = sizeof(dr_cuda_trim);
    for (int i = 0; i < BETWEEN; i++) block += of.bytes[i];
    const bool cut = parts_wanted(plan, DR_CUDA_MOST_PROCESSORS) > 1 &&
                     (longest == 0 || (longest + plan->chunk - 1) / plan->chunk >= 3 * (DR_CUDA_PART_TOKENS / plan->chunk));
    if (cut) places += passage_bytes(plan);
    /* a part has DR_CUDA_PART_CHUNKS chunks; parts that begin early are told of by two numbers of 4 bytes a part and one a
     * sequence, and there may be as many sequences as slots */
    size->segment = plan->chunk;
    size->per_segment += heads * (block + (places + DR_CUDA_PART_CHUNKS - 1) / DR_CUDA_PART_CHUNKS + 5);
    size->fixed += heads * places + sizeof(int32_t) + 64 * (BETWEEN + 8);
}
