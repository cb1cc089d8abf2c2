/* One token for many sequences and heads: every state is streamed once, read from memory and written back.
 *
 * With r_0 .. r_E the read keys of a token's rows, then its query, S the state before the token and D its decay (a factor, or
 * one a channel), all that is read follows from D S, to which the rows before have added w_m u_m^T:
 *
 *     e_j = (D r_j)^T S + sum_{m<j} (r_j . w_m) u_m      u_j = z_j - c_j e_j      o = scale ((D q)^T S + sum_m (q . w_m) u_m)
 *     S  := D S + sum_m w_m u_m^T
 *
 * (a row that reads the state before the decay has no D there). So two passes over a state are enough, however many rows a
 * token has: the first reads for all of them and the query, and leaves the state in the second-level cache; the second writes.
 * Rules that do not read before they write need one.
 *
 * Memory would rest during the second pass. Where registers hold both, it is joined to the first pass over what comes next, by
 * turns of TURN bytes, which is what prefetching follows best by far: half or double of it is slower than no turns at all. Else
 * it asks for the first quarter of the next state. It goes from the last channel to the first, which are still in the
 * first-level cache. Rows are made of some heads in a row: their inputs lie one behind the other, so memory gives them at its
 * full rate.
 *
 * An element of what is read is one sum over the channels in order, whatever stands beside it. */
#include "backends/cpu/isa/recurrence_tensors.h"

#define INLINE static inline __attribute__((always_inline))

enum { TILE = 128 / LANES, GROUP = 3 }; /* most vectors of columns of a strip; readers or writers of a pass */
enum { LINE = 64, TURN = 2048 };        /* bytes */
enum { JOINS = LANES == 16 };           /* 24 sums and updates of a strip beside each other take 32 registers */

/* Columns column .. column + width - 1 of the state of the head in a chunk: `vectors` whole vectors, or less than one. */
typedef struct {
    const dr_cpu_plan *plan;
    const dr_cpu_chunk *chunk;
    void *state;
    int64_t column, width;
    int vectors;
} strip;

/* What a pass does beside its readers or writers: from the given ones on. */
typedef struct {
    int64_t first;
    bool fades;       /* the first pass that writes decays the state */
    const char *next; /* asked for on the way, `lines` cache lines a channel */
    int64_t lines;
} pass;

INLINE lanes load(const void *state, const bool bf16, int64_t at, int64_t count) {
    if (!bf16) {
        const float *from = (const float *)state + at;
        return count == LANES ? lanes_load(from) : lanes_load_n(from, count);
    }
    const uint16_t *from = (const uint16_t *)state + at;
    if (count == LANES) return lanes_load_bf16(from);
    uint16_t part[LANES] = {0};
    memcpy(part, from, (size_t)count * sizeof *part);
    return lanes_load_bf16(part);
}

INLINE void store(void *state, const bool bf16, int64_t at, int64_t count, lanes x) {
    if (!bf16) {
        float *to = (float *)state + at;
        if (count == LANES)
            lanes_store(to, x);
        else
            lanes_store_n(to, count, x);
        return;
    }
    uint16_t *to = (uint16_t *)state + at, part[LANES];
    if (count == LANES) {
        lanes_store_bf16(to, x);
        return;
    }
    lanes_store_bf16(part, x);
    memcpy(to, part, (size_t)count * sizeof *part);
}

static const float one = 1;

static const float *readers_of(const strip *s) {
    return s->plan->channel ? s->chunk->reader_entry : s->chunk->reader;
}

/* The decay of channel d is fade[d fade_step]. */
static const float *fade_of(const strip *s, bool fades, int64_t *fade_step) {
    const bool faded = fades && s->plan->rule->decay != DR_DECAY_NONE;
    *fade_step = faded && s->plan->channel;
    return faded ? s->chunk->alpha : &one;
}

INLINE void read_columns(const strip *s, int64_t first, const int vectors, const int readers, const bool bf16) {
    const int64_t K = s->plan->key_size, V = s->plan->value_size, key_pitch = s->plan->key_pitch;
    const int64_t pitch = s->plan->value_pitch, column = s->column, there = vectors > 1 ? LANES : s->width;
    const float *reader = readers_of(s) + first * key_pitch;
    float *out = s->chunk->read + first * pitch + column;
    const void *state = s->state;
    lanes sum[GROUP][TILE];
#pragma GCC unroll 3
    for (int i = 0; i < readers; i++)
#pragma GCC unroll 32
        for (int v = 0; v < vectors; v++) sum[i][v] = lanes_zero();
    for (int64_t d = 0; d < K; d++) {
        lanes r[GROUP];
#pragma GCC unroll 3
        for (int i = 0; i < readers; i++) r[i] = lanes_set(reader[i * key_pitch + d]);
#pragma GCC unroll 32
        for (int v = 0; v < vectors; v++) {
            const lanes x = load(state, bf16, d * V + column + v * LANES, there);
#pragma GCC unroll 3
            for (int i = 0; i < readers; i++) sum[i][v] = lanes_fma(r[i], x, sum[i][v]);
        }
    }
#pragma GCC unroll 3
    for (int i = 0; i < readers; i++)
#pragma GCC unroll 32
        for (int v = 0; v < vectors; v++) lanes_store(out + i * pitch + v * LANES, sum[i][v]);
}

INLINE void write_columns(const strip *s, pass at, const int vectors, const int writers, const bool bf16) {
    const int64_t K = s->plan->key_size, V = s->plan->value_size, key_pitch = s->plan->key_pitch;
    const int64_t pitch = s->plan->value_pitch, column = s->column, there = vectors > 1 ? LANES : s->width;
    const float *writer = s->chunk->write + at.first * key_pitch, *update = s->chunk->update + at.first * pitch + column;
    int64_t fade_step;
    const float *fade = fade_of(s, at.fades, &fade_step);
    void *state = s->state;
    lanes u[GROUP][TILE];
#pragma GCC unroll 3
    for (int i = 0; i < writers; i++)
#pragma GCC unroll 32
        for (int v = 0; v < vectors; v++) u[i][v] = lanes_load(update + i * pitch + v * LANES);
    for (int64_t d = K - 1; d >= 0; d--) {
        lanes w[GROUP], keep = lanes_set(fade[d * fade_step]);
        for (int64_t i = 0; i < at.lines; i++, at.next += LINE) _mm_prefetch(at.next, _MM_HINT_T1);
#pragma GCC unroll 3
        for (int i = 0; i < writers; i++) w[i] = lanes_set(writer[i * key_pitch + d]);
#pragma GCC unroll 32
        for (int v = 0; v < vectors; v++) {
            const int64_t element = d * V + column + v * LANES;
            lanes x = keep * load(state, bf16, element, there);
#pragma GCC unroll 3
            for (int i = 0; i < writers; i++) x = lanes_fma(w[i], u[i][v], x);
            store(state, bf16, element, there, x);
        }
    }
}

/* Reads one strip and writes another by turns, from the last to the first: memory gives the one while caches give the other. */
INLINE void join_columns(const strip *from, const strip *to, const int vectors, const int readers, const int writers,
                         const bool bf16) {
    const dr_cpu_plan *plan = from->plan;
    const int64_t K = plan->key_size, V = plan->value_size, key_pitch = plan->key_pitch, pitch = plan->value_pitch;
    const int64_t there = vectors > 1 ? LANES : from->width, row_bytes = from->width * (bf16 ? 2 : 4);
    const int64_t turn = row_bytes < TURN ? TURN / row_bytes : 1;
    const int64_t read_column = from->column, write_column = to->column;
    const float *reader = readers_of(from), *writer = to->chunk->write, *update = to->chunk->update + write_column;
    int64_t fade_step;
    const float *fade = fade_of(to, true, &fade_step);
    const void *read_state = from->state;
    void *write_state = to->state;
    lanes sum[GROUP][TILE], u[GROUP][TILE];
#pragma GCC unroll 32
    for (int v = 0; v < vectors; v++) {
#pragma GCC unroll 3
        for (int i = 0; i < readers; i++) sum[i][v] = lanes_zero();
#pragma GCC unroll 3
        for (int i = 0; i < writers; i++) u[i][v] = lanes_load(update + i * pitch + v * LANES);
    }
    for (int64_t k = 0; k < K; k += turn) {
        const int64_t end = k + turn < K ? k + turn : K;
        for (int64_t d = k; d < end; d++) {
            lanes r[GROUP];
#pragma GCC unroll 3
            for (int i = 0; i < readers; i++) r[i] = lanes_set(reader[i * key_pitch + d]);
#pragma GCC unroll 32
            for (int v = 0; v < vectors; v++) {
                const lanes x = load(read_state, bf16, d * V + read_column + v * LANES, there);
#pragma GCC unroll 3
                for (int i = 0; i < readers; i++) sum[i][v] = lanes_fma(r[i], x, sum[i][v]);
            }
        }
        for (int64_t d = K - end; d < K - k; d++) {
            lanes w[GROUP], keep = lanes_set(fade[d * fade_step]);
#pragma GCC unroll 3
            for (int i = 0; i < writers; i++) w[i] = lanes_set(writer[i * key_pitch + d]);
#pragma GCC unroll 32
            for (int v = 0; v < vectors; v++) {
                const int64_t element = d * V + write_column + v * LANES;
                lanes x = keep * load(write_state, bf16, element, there);
#pragma GCC unroll 3
                for (int i = 0; i < writers; i++) x = lanes_fma(w[i], u[i][v], x);
                store(write_state, bf16, element, there, x);
            }
        }
    }
#pragma GCC unroll 3
    for (int i = 0; i < readers; i++)
#pragma GCC unroll 32
        for (int v = 0; v < vectors; v++) lanes_store(from->chunk->read + i * pitch + read_column + v * LANES, sum[i][v]);
}

/* One reader and one writer, in one pass. */
INLINE void read_and_write_columns(const strip *s, const int vectors, const bool bf16) {
    const int64_t K = s->plan->key_size, V = s->plan->value_size, column = s->column, there = vectors > 1 ? LANES : s->width;
    const float *reader = readers_of(s), *writer = s->chunk->write;
    int64_t fade_step;
    const float *fade = fade_of(s, true, &fade_step);
    void *state = s->state;
    lanes sum[TILE], u[TILE];
#pragma GCC unroll 32
    for (int v = 0; v < vectors; v++) {
        sum[v] = lanes_zero();
        u[v] = lanes_load(s->chunk->update + column + v * LANES);
    }
    for (int64_t d = 0; d < K; d++) {
        const lanes r = lanes_set(reader[d]), w = lanes_set(writer[d]), keep = lanes_set(fade[d * fade_step]);
#pragma GCC unroll 32
        for (int v = 0; v < vectors; v++) {
            const int64_t element = d * V + column + v * LANES;
            const lanes x = load(state, bf16, element, there);
            sum[v] = lanes_fma(r, x, sum[v]);
            store(state, bf16, element, there, lanes_fma(w, u[v], keep * x));
        }
    }
#pragma GCC unroll 32
    for (int v = 0; v < vectors; v++) lanes_store(s->chunk->read + column + v * LANES, sum[v]);
}

/* CALL(vectors, bf16), an instance for each width of a strip and type of the state */
#define INSTANCES(s, CALL)                                                                                                     \
    if ((s)->plan->bf16_state) {                                                                                               \
        WIDTHS(s, CALL, true)                                                                                                  \
    } else {                                                                                                                   \
        WIDTHS(s, CALL, false)                                                                                                 \
    }
#define WIDTHS(s, CALL, bf16)                                                                                                  \
    if ((s)->vectors == TILE)                                                                                                  \
        CALL(TILE, bf16);                                                                                                      \
    else if ((s)->vectors == TILE / 2)                                                                                         \
        CALL(TILE / 2, bf16);                                                                                                  \
    else                                                                                                                       \
        CALL(1, bf16);

#define READ_ONE(vectors, bf16)       read_columns(s, first, vectors, 1, bf16)
#define READ_TWO(vectors, bf16)       read_columns(s, first, vectors, 2, bf16)
#define READ_THREE(vectors, bf16)     read_columns(s, first, vectors, 3, bf16)
#define WRITE_ONE(vectors, bf16)      write_columns(s, at, vectors, 1, bf16)
#define WRITE_TWO(vectors, bf16)      write_columns(s, at, vectors, 2, bf16)
#define WRITE_THREE(vectors, bf16)    write_columns(s, at, vectors, 3, bf16)
#define JOIN(vectors, bf16)           join_columns(s, to, vectors, 2, 1, bf16)
#define READ_AND_WRITE(vectors, bf16) read_and_write_columns(s, vectors, bf16)

static void read_one(const strip *s, int64_t first) {
    INSTANCES(s, READ_ONE)
}
static void read_two(const strip *s, int64_t first) {
    INSTANCES(s, READ_TWO)
}
static void read_three(const strip *s, int64_t first) {
    INSTANCES(s, READ_THREE)
}
static void write_one(const strip *s, pass at) {
    INSTANCES(s, WRITE_ONE)
}
static void write_two(const strip *s, pass at) {
    INSTANCES(s, WRITE_TWO)
}
static void write_three(const strip *s, pass at) {
    INSTANCES(s, WRITE_THREE)
}
static void join(const strip *s, const strip *to) {
    INSTANCES(s, JOIN)
}
static void read_and_write(const strip *s) {
    INSTANCES(s, READ_AND_WRITE)
}

/* ---- a token of a value head ----------------------------------------------------------------------------------------- */

/* Decay by channel goes into the readers, (D r)^T S being one sum; a factor is left to the sums. */
static void fade_readers(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t i = 0; plan->channel && i < chunk->readers; i++) {
        const float *reader = chunk->reader + i * plan->key_pitch;
        float *faded = chunk->reader_entry + i * plan->key_pitch;
        const bool fades = i > 0 || !dr_cpu_reads_undecayed(plan, 0);
        for (int64_t d = 0; d < plan->key_width; d += LANES) {
            const lanes alpha = fades ? lanes_load(chunk->alpha + d) : lanes_set(1);
            lanes_store(faded + d, alpha * lanes_load(reader + d));
        }
    }
}

/* update = u and output of the strip, from what the readers read; score [readers][rows] = reader . write, of rows before it */
static void solve(const strip *s) {
    const dr_cpu_plan *plan = s->plan;
    const dr_cpu_chunk *chunk = s->chunk;
    const int64_t pitch = plan->value_pitch, end = s->column + s->width;
    const lanes alpha = lanes_set(plan->scalar ? chunk->alpha[0] : 1);
    for (int64_t i = 0; i < chunk->readers; i++) {
        const bool is_query = i == chunk->erases;
        const int64_t row = is_query ? chunk->rows : dr_cpu_erase_row(plan, i);
        const lanes fade = !is_query && dr_cpu_reads_undecayed(plan, row) ? lanes_set(1) : alpha;
        const float *score = chunk->score + i * chunk->columns, *read = chunk->read + i * pitch;
        float *update = chunk->update + row * pitch;
        for (int64_t d = s->column; d < end; d += LANES) {
            lanes e = fade * lanes_load(read + d);
            for (int64_t m = 0; m < row; m++) e = lanes_fma(lanes_set(score[m]), lanes_load(chunk->update + m * pitch + d), e);
            if (is_query)
                lanes_store(chunk->output + d, lanes_set(plan->scale) * e);
            else
                lanes_store(update + d, lanes_fnma(lanes_set(chunk->gain[row]), e, lanes_load(update + d)));
        }
    }
}

static void make_scores(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const int64_t pitch = plan->key_pitch;
    for (int64_t i = 0; i < chunk->readers; i++) {
        const int64_t before = i < chunk->erases ? dr_cpu_erase_row(plan, i) : chunk->rows;
        for (int64_t m = 0; m < before; m++)
            chunk->score[i * chunk->columns + m] =
                dot_rows(plan->key_width, chunk->reader + i * pitch, chunk->write + m * pitch);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------- */

static void load_token(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                       int64_t key_head) {
    dr_cpu_set_tokens(plan, chunk, sequence, 1);
    if (scans(plan))
        copy_in(1, plan->key_size, scan_of(plan, call->final->at[DR_STATE_A], sequence, key_head), 0, chunk->scan, 0);
    dr_chunk_load_keys(plan, call->inputs, chunk, key_head);
    dr_chunk_scan_keys(plan, chunk);
}

static void store_scan(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t sequence,
                       int64_t key_head) {
    copy_out(1, plan->key_size, chunk->scan + plan->key_pitch, 0,
             scan_of(plan, call->final->at[DR_STATE_A], sequence, key_head), 0);
}

static void scan_matrix(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                        int64_t value_head) {
    float *matrix = matrix_of(plan, call->final->at[plan->matrix_state], sequence, value_head);
    start_matrix(plan, call, matrix, value_head, chunk->matrix);
    dr_chunk_scan_matrix(plan, chunk, chunk->matrix, 0);
    store_matrix(plan, chunk->matrix, matrix);
}

/* The rows of value head i, counted through all sequences, and what does not need its state. */
static void load_head(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t i) {
    const int64_t sequence = i / plan->value_heads, head = i % plan->value_heads;
    load_token(plan, call, chunk, sequence, head / plan->group);
    dr_chunk_load_rows(plan, call->inputs, chunk, head);
    dr_chunk_map_decay(plan, chunk);
    if (plan->matrix) scan_matrix(plan, call, chunk, sequence, head);
    dr_chunk_map_rows(plan, chunk, true);
    make_scores(plan, chunk);
    fade_readers(plan, chunk);
}

/* The output of value head i, whose updates are made, and its scan, if it is the last head that reads it. */
static void store_head(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t i, bool whole) {
    const int64_t sequence = i / plan->value_heads, head = i % plan->value_heads;
    copy_out(1, plan->value_size, chunk->output, 0, (float *)call->o + output_at(plan, chunk, head), 0);
    if (whole && scans(plan) && head % plan->group == plan->group - 1)
        store_scan(plan, call, chunk, sequence, head / plan->group);
}

/* One row that does not read: what it writes is known before the state is. */
static bool is_one_pass(const dr_cpu_chunk *chunk) {
    return chunk->readers == 1 && chunk->rows == 1;
}

static int64_t at_most(int64_t value, int64_t limit) {
    return value < limit ? value : limit;
}

static void read_strip(const strip *s) {
    static void (*const read[GROUP])(const strip *, int64_t) = {read_one, read_two, read_three};
    for (int64_t i = 0; i < s->chunk->readers; i += GROUP) read[at_most(s->chunk->readers - i, GROUP) - 1](s, i);
}

/* next: what is read after it, or NULL */
static void write_strip(const strip *s, const strip *next) {
    static void (*const write[GROUP])(const strip *, pass) = {write_one, write_two, write_three};
    const int64_t row_bytes = s->width * (int64_t)(s->plan->bf16_state ? sizeof(uint16_t) : sizeof(float));
    const bool asks = next && next->column == 0;
    for (int64_t i = 0; i < s->chunk->rows; i += GROUP)
        write[at_most(s->chunk->rows - i, GROUP) - 1](s,
                                                      (pass){.first = i,
                                                             .fades = i == 0,
                                                             .next = asks ? next->state : NULL,
                                                             .lines = asks && i == 0 ? (row_bytes / 4 + LINE - 1) / LINE : 0});
}

/* The strip from `column` on. */
static strip strip_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, void *state, int64_t column) {
    const int64_t left = plan->value_size - column, vectors = left / LANES;
    strip s = {.plan = plan, .chunk = chunk, .state = state, .column = column};
    s.vectors = vectors >= TILE ? TILE : vectors >= TILE / 2 ? TILE / 2 : 1;
    s.width = at_most(left, s.vectors * LANES);
    return s;
}

/* Reads a strip and writes the one that was read before it, if there is one. */
static void read_and_write_strips(const strip *from, const strip *to) {
    const bool fits = JOINS && to && to->width == from->width;
    if (fits && from->chunk->readers == 2 && to->chunk->rows == 1) {
        join(from, to);
        return;
    }
    if (to) write_strip(to, from);
    read_strip(from);
}

/* What is read from the state of the head in the chunk, its updates and its output; and the states after the token, but of the
 * last strip, which is left in *before for the next head. */
static void step(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, void *state, strip *before) {
    for (int64_t column = 0; column < plan->value_size;) {
        const strip s = strip_of(plan, chunk, state, column);
        column += s.width;
        if (is_one_pass(chunk)) {
            read_and_write(&s);
        } else {
            read_and_write_strips(&s, before->plan ? before : NULL);
            *before = s;
        }
        solve(&s);
    }
}

void dr_decode_heads(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunks, int64_t begin, int64_t end,
                     bool whole) {
    void *states = call->final->at[DR_STATE_S];
    strip before = {0};
    for (int64_t first = begin; first < end; first += plan->decode_heads) {
        /* the chunks take turns by halves: the last head of the other half is yet to be written */
        dr_cpu_chunk *half = chunks + (first - begin) / plan->decode_heads % 2 * plan->decode_heads;
        const int64_t count = at_most(plan->decode_heads, end - first);
        for (int64_t i = 0; i < count; i++) load_head(plan, call, &half[i], first + i);
        for (int64_t i = 0; i < count; i++) {
            step(plan, &half[i], carried_state_of(plan, states, 0, first + i), &before);
            store_head(plan, call, &half[i], first + i, whole);
        }
    }
    if (before.plan) write_strip(&before, NULL);
}

void dr_decode_scan(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence, int64_t key_head) {
    load_token(plan, call, chunk, sequence, key_head);
    store_scan(plan, call, chunk, sequence, key_head);
}
