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
 * Memory would rest during the second pass, which therefore asks for the first third of the next state (passes that take
 * turns with the one over the next state are slower: they confuse what fetches ahead). It goes from the last channel to the
 * first, which are still in the first-level cache. The inputs of a head are asked for two heads ahead.
 *
 * What is read of 128 columns stays in registers, or of 256 for one reader at a time. Memory gives half of its rate where the
 * first pass reads parts of rows (even two whole rows side by side). A state of 256 columns or more goes by in bands of rows,
 * so that the second reader finds them in the first-level cache, and each reader asks for the same place of the next band.
 *
 * A state of bfloat16 is taken in pairs of vectors, of the columns at even and at odd places: what is read and the updates are
 * brought into that order once a pass, not every element.
 *
 * An element of what is read is one sum over the channels in order, whatever stands beside it. */
#include "backends/cpu/isa/recurrence_tensors.h"

#define INLINE static inline __attribute__((always_inline))

/* Most vectors of columns of a strip, an even number, and of one with a single reader; readers or writers of a pass. */
enum { TILE = 128 / LANES, WIDE = 2 * TILE, GROUP = 3 };
/* Bytes of a line and of a band; one of so many parts of the next state is asked for. */
enum { LINE = 64, BAND = 16384, ASKED = 3 };

/* Columns column .. column + width - 1 of the state of the head in a chunk: `vectors` whole vectors, or less than one; of the
 * channels begin .. end - 1. */
typedef struct {
    const dr_cpu_plan *plan;
    const dr_cpu_chunk *chunk;
    void *state;
    int64_t column, width;
    int vectors;
    int64_t begin, end;
} strip;

/* What a pass that writes does beside its writers: from the given ones on. */
typedef struct {
    int64_t first;
    bool fades;       /* decays the state */
    const char *next; /* asked for on the way, `lines` cache lines a channel */
    int64_t lines;
} pass;

/* Vectors that are taken at once. */
INLINE int step_of(const int vectors) {
    return vectors > 1 ? 2 : 1;
}

/* x [step_of(vectors)]: count elements (2 LANES of a pair) from `at` on; a pair of bfloat16 is parted */
INLINE void load(const void *state, const bool bf16, const int vectors, int64_t at, int64_t count, lanes *x) {
    if (!bf16) {
        const float *from = (const float *)state + at;
        x[0] = vectors > 1 || count == LANES ? lanes_load(from) : lanes_load_n(from, count);
        if (vectors > 1) x[1] = lanes_load(from + LANES);
        return;
    }
    const uint16_t *from = (const uint16_t *)state + at;
    if (vectors > 1) {
        lanes_load_bf16_pairs(from, &x[0], &x[1]);
        return;
    }
    uint16_t part[LANES] = {0};
    memcpy(part, from, (size_t)count * sizeof *part);
    x[0] = lanes_load_bf16(part);
}

INLINE void store(void *state, const bool bf16, const int vectors, int64_t at, int64_t count, const lanes *x) {
    if (!bf16) {
        float *to = (float *)state + at;
        if (vectors > 1 || count == LANES)
            lanes_store(to, x[0]);
        else
            lanes_store_n(to, count, x[0]);
        if (vectors > 1) lanes_store(to + LANES, x[1]);
        return;
    }
    uint16_t *to = (uint16_t *)state + at, part[LANES];
    if (vectors > 1) {
        lanes_store_bf16_pairs(to, x[0], x[1]);
        return;
    }
    lanes_store_bf16(part, x[0]);
    memcpy(to, part, (size_t)count * sizeof *part);
}

/* A row of sums or updates of the strip's columns, in the order in which load gives a state's. */
INLINE void load_row_of(const float *from, const bool bf16, const int vectors, lanes *x) {
#pragma GCC unroll 32
    for (int v = 0; v < vectors; v++) {
        x[v] = lanes_load(from + v * LANES);
        if (bf16) x[v] = lanes_plain_nan(x[v]);
    }
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v += 2)
        if (bf16 && vectors > 1) lanes_part(&x[v], &x[v + 1]);
}

INLINE void store_sums(float *to, const bool bf16, const int vectors, lanes *x) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v += 2)
        if (bf16 && vectors > 1) lanes_deal(&x[v], &x[v + 1]);
#pragma GCC unroll 32
    for (int v = 0; v < vectors; v++) lanes_store(to + v * LANES, x[v]);
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

/* Asks for what lies a band behind a pair of vectors. */
INLINE void ask(const void *state, const bool bf16, int64_t at) {
    const int64_t item = bf16 ? sizeof(uint16_t) : sizeof(float);
    const char *from = (const char *)state + at * item + BAND;
    for (int64_t i = 0; i < 2 * LANES * item; i += LINE) lanes_prefetch(from + i);
}

/* The sums over the channels before the strip's. */
INLINE void begin_sums(const strip *s, const int vectors, const bool bf16, const float *from, lanes *sum) {
    if (s->begin > 0) {
        load_row_of(from, bf16, vectors, sum);
        return;
    }
#pragma GCC unroll 32
    for (int v = 0; v < vectors; v++) sum[v] = lanes_zero();
}

INLINE void read_columns(const strip *s, int64_t first, const int vectors, const int readers, const bool bf16) {
    const int64_t V = s->plan->value_size, key_pitch = s->plan->key_pitch;
    const int64_t pitch = s->plan->value_pitch, column = s->column, width = s->width;
    const float *reader = readers_of(s) + first * key_pitch;
    float *out = s->chunk->read + first * pitch + column;
    const void *state = s->state;
    const int step = step_of(vectors);
    lanes sum[GROUP][WIDE];
#pragma GCC unroll 3
    for (int i = 0; i < readers; i++) begin_sums(s, vectors, bf16, out + i * pitch, sum[i]);
    for (int64_t d = s->begin; d < s->end; d++) {
        lanes r[GROUP];
#pragma GCC unroll 3
        for (int i = 0; i < readers; i++) r[i] = lanes_set(reader[i * key_pitch + d]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v += step) {
            lanes x[2];
            load(state, bf16, vectors, d * V + column + v * LANES, width, x);
            if (vectors == WIDE) ask(state, bf16, d * V + column + v * LANES);
#pragma GCC unroll 2
            for (int l = 0; l < step; l++)
#pragma GCC unroll 3
                for (int i = 0; i < readers; i++) sum[i][v + l] = lanes_fma(r[i], x[l], sum[i][v + l]);
        }
    }
#pragma GCC unroll 3
    for (int i = 0; i < readers; i++) store_sums(out + i * pitch, bf16, vectors, sum[i]);
}

INLINE void write_columns(const strip *s, pass at, const int vectors, const int writers, const bool bf16) {
    const int64_t V = s->plan->value_size, key_pitch = s->plan->key_pitch;
    const int64_t pitch = s->plan->value_pitch, column = s->column, width = s->width;
    const float *writer = s->chunk->write + at.first * key_pitch, *update = s->chunk->update + at.first * pitch + column;
    int64_t fade_step;
    const float *fade = fade_of(s, at.fades, &fade_step);
    void *state = s->state;
    const int step = step_of(vectors);
    lanes u[GROUP][TILE];
#pragma GCC unroll 3
    for (int i = 0; i < writers; i++) load_row_of(update + i * pitch, bf16, vectors, u[i]);
    for (int64_t d = s->end - 1; d >= s->begin; d--) {
        lanes w[GROUP], keep = lanes_set(fade[d * fade_step]);
        for (int64_t i = 0; i < at.lines; i++, at.next += LINE) lanes_prefetch(at.next);
#pragma GCC unroll 3
        for (int i = 0; i < writers; i++) w[i] = lanes_set(writer[i * key_pitch + d]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v += step) {
            const int64_t element = d * V + column + v * LANES;
            lanes x[2];
            load(state, bf16, vectors, element, width, x);
#pragma GCC unroll 2
            for (int l = 0; l < step; l++) {
                x[l] = keep * x[l];
#pragma GCC unroll 3
                for (int i = 0; i < writers; i++) x[l] = lanes_fma(w[i], u[i][v + l], x[l]);
            }
            store(state, bf16, vectors, element, width, x);
        }
    }
}

/* One reader and one writer, in one pass. */
INLINE void read_and_write_columns(const strip *s, const int vectors, const bool bf16) {
    const int64_t V = s->plan->value_size, column = s->column, width = s->width;
    const float *reader = readers_of(s), *writer = s->chunk->write;
    int64_t fade_step;
    const float *fade = fade_of(s, true, &fade_step);
    void *state = s->state;
    const int step = step_of(vectors);
    lanes sum[WIDE], u[WIDE];
    load_row_of(s->chunk->update + column, bf16, vectors, u);
    begin_sums(s, vectors, bf16, s->chunk->read + column, sum);
    for (int64_t d = s->begin; d < s->end; d++) {
        const lanes r = lanes_set(reader[d]), w = lanes_set(writer[d]), keep = lanes_set(fade[d * fade_step]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v += step) {
            const int64_t element = d * V + column + v * LANES;
            lanes x[2];
            load(state, bf16, vectors, element, width, x);
            if (vectors == WIDE && V > WIDE * LANES) ask(state, bf16, element);
#pragma GCC unroll 2
            for (int l = 0; l < step; l++) {
                sum[v + l] = lanes_fma(r, x[l], sum[v + l]);
                x[l] = lanes_fma(w, u[v + l], keep * x[l]);
            }
            store(state, bf16, vectors, element, width, x);
        }
    }
    store_sums(s->chunk->read + column, bf16, vectors, sum);
}

/* CALL(vectors, bf16), an instance for each width of a strip and type of the state */
#define INSTANCES(s, CALL)                                                                                                     \
    {                                                                                                                          \
        if ((s)->plan->bf16_state) {                                                                                           \
            WIDTHS(s, CALL, true)                                                                                              \
        } else {                                                                                                               \
            WIDTHS(s, CALL, false)                                                                                             \
        }                                                                                                                      \
    }
#define WIDE_INSTANCES(s, CALL)                                                                                                \
    {                                                                                                                          \
        if ((s)->plan->bf16_state)                                                                                             \
            CALL(WIDE, true);                                                                                                  \
        else                                                                                                                   \
            CALL(WIDE, false);                                                                                                 \
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
#define READ_AND_WRITE(vectors, bf16) read_and_write_columns(s, vectors, bf16)

static void read_one(const strip *s, int64_t first) {
    if (s->vectors == WIDE)
        WIDE_INSTANCES(s, READ_ONE)
    else
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
static void read_and_write(const strip *s) {
    if (s->vectors == WIDE)
        WIDE_INSTANCES(s, READ_AND_WRITE)
    else
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

/* update = u and output, from what the readers read; score [readers][rows] = reader . write, of rows before it */
static void solve(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk) {
    const int64_t pitch = plan->value_pitch;
    const lanes alpha = lanes_set(plan->scalar ? chunk->alpha[0] : 1);
    for (int64_t i = 0; i < chunk->readers; i++) {
        const bool is_query = i == chunk->erases;
        const int64_t row = is_query ? chunk->rows : dr_cpu_erase_row(plan, i);
        const lanes fade = !is_query && dr_cpu_reads_undecayed(plan, row) ? lanes_set(1) : alpha;
        const float *score = chunk->score + i * chunk->columns, *read = chunk->read + i * pitch;
        float *update = chunk->update + row * pitch;
        for (int64_t d = 0; d < plan->value_size; d += LANES) {
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

/* Makes the NaNs of what is written such that lanes_store_bf16_pairs takes them. */
static void make_plain(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const int64_t alphas = plan->channel ? plan->key_width : plan->scalar ? LANES : 0;
    for (int64_t d = 0; d < chunk->rows * plan->key_pitch; d += LANES)
        lanes_store(chunk->write + d, lanes_plain_nan(lanes_load(chunk->write + d)));
    for (int64_t d = 0; d < alphas; d += LANES) lanes_store(chunk->alpha + d, lanes_plain_nan(lanes_load(chunk->alpha + d)));
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------- */

/* The keys of a row of the call; A [K]: before it, NULL: zero. */
static void load_token(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t row, int64_t key_head,
                       const float *A) {
    dr_cpu_set_tokens(plan, chunk, row, 1);
    if (scans(plan)) copy_in(1, plan->key_size, A, 0, chunk->scan, 0);
    dr_chunk_load_keys(plan, call, chunk, key_head);
    dr_chunk_scan_keys(plan, chunk);
}

static float *scan_at(const dr_cpu_plan *plan, const dr_cpu_call *call, int64_t sequence, int64_t key_head) {
    return scans(plan) ? scan_of(plan, call->final->at[DR_STATE_A], sequence, key_head) : NULL;
}

/* A after the token. */
static void store_scan(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, float *A) {
    copy_out(1, plan->key_size, chunk->scan + plan->key_pitch, 0, A, 0);
}

/* The rows of a value head whose keys are there, and what does not need its state; with the matrix scan from that in the chunk.
 */
static void load_rows(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t head) {
    dr_chunk_load_rows(plan, call, chunk, head);
    dr_chunk_map_decay(plan, chunk);
    if (plan->matrix) dr_chunk_scan_matrix(plan, chunk, chunk->matrix, 0);
    dr_chunk_map_rows(plan, chunk, true);
    make_scores(plan, chunk);
    fade_readers(plan, chunk);
    if (plan->bf16_state) make_plain(plan, chunk);
}

/* All that of value head i, counted through all sequences. */
static void load_head(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t i) {
    const int64_t sequence = i / plan->value_heads, head = i % plan->value_heads, key_head = head / plan->group;
    float *matrix = plan->matrix ? matrix_of(plan, call->final->at[plan->matrix_state], sequence, head) : NULL;
    load_token(plan, call, chunk, sequence, key_head, scan_at(plan, call, sequence, key_head));
    if (matrix) start_matrix(plan, call, matrix, head, chunk->matrix);
    load_rows(plan, call, chunk, head);
    if (matrix) store_matrix(plan, chunk->matrix, matrix);
}

static void store_output(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t head) {
    dr_rows_store(plan->forms.output, 1, plan->value_size, chunk->output, 0, output_of(plan, call->o, chunk->first, head), 0);
}

/* The output of value head i, whose updates are made, and its scan, if it is the last head that reads it. */
static void store_head(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t i, bool whole) {
    const int64_t sequence = i / plan->value_heads, head = i % plan->value_heads;
    store_output(plan, call, chunk, head);
    if (whole && scans(plan) && head % plan->group == plan->group - 1)
        store_scan(plan, chunk, scan_at(plan, call, sequence, head / plan->group));
}

/* One row that does not read: what it writes is known before the state is. */
static bool is_one_pass(const dr_cpu_chunk *chunk) {
    return chunk->readers == 1 && chunk->rows == 1;
}

static int64_t item_of(const dr_cpu_plan *plan) {
    return plan->bf16_state ? sizeof(uint16_t) : sizeof(float);
}

static int64_t at_most(int64_t value, int64_t limit) {
    return value < limit ? value : limit;
}

static void read_strip(const strip *s) {
    static void (*const read[GROUP])(const strip *, int64_t) = {read_one, read_two, read_three};
    const int64_t group = s->vectors == WIDE ? 1 : GROUP;
    for (int64_t i = 0; i < s->chunk->readers; i += group) read[at_most(s->chunk->readers - i, group) - 1](s, i);
}

/* next: what is asked for of the state of the next head, or NULL; returns what is not yet */
static const char *write_strip(const strip *s, const char *next) {
    static void (*const write[GROUP])(const strip *, pass) = {write_one, write_two, write_three};
    const int64_t lines = next ? (s->width * item_of(s->plan) / ASKED + LINE - 1) / LINE : 0;
    for (int64_t i = 0; i < s->chunk->rows; i += GROUP)
        write[at_most(s->chunk->rows - i, GROUP) - 1](
            s, (pass){.first = i, .fades = i == 0, .next = next, .lines = i == 0 ? lines : 0});
    return next ? next + (s->end - s->begin) * lines * LINE : NULL;
}

/* The strip from `column` on of some channels, of so many vectors at most. */
static strip strip_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, void *state, int64_t column, int most, int64_t begin,
                      int64_t end) {
    const int64_t left = plan->value_size - column, vectors = left / LANES;
    strip s = {.plan = plan, .chunk = chunk, .state = state, .column = column, .begin = begin, .end = end};
    s.vectors = vectors >= most ? most : vectors >= TILE ? TILE : vectors >= TILE / 2 ? TILE / 2 : 1;
    s.width = at_most(left, s.vectors * LANES);
    return s;
}

/* What is read from the state of the head in the chunk, its updates and its output, and the state after the token. */
static void step(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, void *state, const char *next) {
    const int64_t K = plan->key_size, V = plan->value_size, rows = BAND / (V * item_of(plan));
    const int64_t band = V < WIDE * LANES ? K : rows > 1 ? rows : 1;
    const bool one_pass = is_one_pass(chunk);
    for (int64_t begin = 0; begin < K; begin += band) {
        const int64_t end = at_most(begin + band, K);
        for (int64_t column = 0; column < V;) {
            const strip s = strip_of(plan, chunk, state, column, WIDE, begin, end);
            if (one_pass)
                read_and_write(&s);
            else
                read_strip(&s);
            column += s.width;
        }
    }
    solve(plan, chunk);
    for (int64_t end = K; !one_pass && end > 0; end -= band)
        for (int64_t column = 0; column < V;) {
            const strip s = strip_of(plan, chunk, state, column, TILE, end > band ? end - band : 0, end);
            next = write_strip(&s, next);
            column += s.width;
        }
}

/* A state in the caller's layout, and the copy [K][V] in the chunk that a step works on where that is [V][K]. */
static void turn_in(const dr_cpu_plan *plan, const void *state, float *copy) {
    const int64_t K = plan->key_size, V = plan->value_size;
    if (!plan->bf16_state) {
        dr_matrix_transpose(V, K, state, K, copy, V, K, V);
        return;
    }
    for (int64_t k = 0; k < K; k++)
        for (int64_t v = 0; v < V; v++) ((uint16_t *)copy)[k * V + v] = ((const uint16_t *)state)[v * K + k];
}

static void turn_out(const dr_cpu_plan *plan, const float *copy, void *state) {
    const int64_t K = plan->key_size, V = plan->value_size;
    if (!plan->bf16_state) {
        dr_matrix_transpose(K, V, copy, V, state, K, V, K);
        return;
    }
    for (int64_t v = 0; v < V; v++)
        for (int64_t k = 0; k < K; k++) ((uint16_t *)state)[v * K + k] = ((const uint16_t *)copy)[k * V + v];
}

/* next: the state of the head after this one, or NULL */
static void step_carried(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, void *state, const char *next) {
    if (!plan->value_major) {
        step(plan, chunk, state, next);
        return;
    }
    turn_in(plan, state, chunk->state);
    step(plan, chunk, chunk->state, next);
    turn_out(plan, chunk->state, state);
}

void dr_decode_heads(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t begin, int64_t end,
                     bool whole) {
    void *states = call->final->at[DR_STATE_S];
    for (int64_t i = begin; i < end; i++) {
        load_head(plan, call, chunk, i);
        step_carried(plan, chunk, carried_state_of(plan, states, 0, i),
                     i + 1 < end ? carried_state_of(plan, states, 0, i + 1) : NULL);
        store_head(plan, call, chunk, i, whole);
    }
}

void dr_decode_scan(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence, int64_t key_head) {
    float *A = scan_at(plan, call, sequence, key_head);
    load_token(plan, call, chunk, sequence, key_head, A);
    store_scan(plan, chunk, A);
}

/* ---- tokens of pools ------------------------------------------------------------------------------------------------- */

/* A state of a slot to the chunk's copy, and back. */
static void copy_state(const dr_cpu_plan *plan, const void *state, float *copy) {
    const size_t item = plan->bf16_state ? sizeof(uint16_t) : sizeof(float);
    if (plan->value_major)
        turn_in(plan, state, copy);
    else
        memcpy(copy, state, (size_t)(plan->key_size * plan->value_size) * item);
}

static void keep_state(const dr_cpu_plan *plan, const float *copy, void *state) {
    const size_t item = plan->bf16_state ? sizeof(uint16_t) : sizeof(float);
    if (plan->value_major)
        turn_out(plan, copy, state);
    else
        memcpy(state, copy, (size_t)(plan->key_size * plan->value_size) * item);
}

/* The states of one value head after a token; A with the last head of its key head, when all have read it. */
static void keep_states(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t slot,
                        int64_t head) {
    const int64_t key_head = head / plan->group;
    keep_state(plan, chunk->state, carried_state_of(plan, call->final->at[DR_STATE_S], slot, head));
    if (plan->matrix) store_matrix(plan, chunk->matrix, matrix_of(plan, call->final->at[plan->matrix_state], slot, head));
    if (scans(plan) && head % plan->group == plan->group - 1) store_scan(plan, chunk, scan_at(plan, call, slot, key_head));
}

void dr_decode_slots(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                     int64_t key_head) {
    const dr_slots *slots = call->slots;
    const int64_t from = slots->from[sequence], tokens = slots->tokens;
    if (from < 0) return;
    for (int64_t i = 0; i < plan->group; i++) {
        const int64_t head = key_head * plan->group + i;
        copy_state(plan, carried_state_of(plan, call->final->at[DR_STATE_S], from, head), chunk->state);
        if (plan->matrix)
            start_matrix(plan, call, matrix_of(plan, call->final->at[plan->matrix_state], from, head), head, chunk->matrix);
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t row = sequence * tokens + t, last = t == tokens - 1 ? from : -1;
            const int64_t to = slots->to ? slots->to[row] : last;
            const float *A = t == 0 ? scan_at(plan, call, from, key_head) : chunk->scan + plan->key_pitch;
            load_token(plan, call, chunk, row, key_head, A);
            load_rows(plan, call, chunk, head);
            step(plan, chunk, chunk->state, NULL);
            store_output(plan, call, chunk, head);
            if (to >= 0) keep_states(plan, call, chunk, to, head);
        }
    }
}
