/* Products of small dense matrices: a tile of C is held in registers, each step of the contraction broadcasts one element of A
 * a row and multiplies it by two vectors of B. Columns are the outer loop, so that a panel of B two vectors wide stays in the
 * first-level cache while the rows pass. */
#include "backends/cpu/isa/recurrence_stages.h"

/* rows of a tile: as many accumulators as the registers hold beside two vectors of B and a broadcast */
#if defined(DR_ISA_avx512)
enum { TILE_ROWS = 8 };
#elif defined(DR_ISA_avx2)
enum { TILE_ROWS = 6 };
#else
enum { TILE_ROWS = 4 };
#endif

/* What a tile is a product of: rows from a on, columns from b on. */
typedef struct {
    int64_t depth;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_pitch;
} factors;

typedef struct {
    factors of, also; /* depth 0: nothing */
    const float *base;
    float *c;
    const float *keep, *keep_columns, *factor;
} tile;

static inline __attribute__((always_inline)) void accumulate(const factors *f, const int rows, const int vectors,
                                                             lanes sum[TILE_ROWS][2]) {
    const float *a = f->a, *b = f->b;
    const int64_t a_row = f->a_row, a_step = f->a_step, b_pitch = f->b_pitch;
#pragma GCC unroll 4
    for (int64_t k = 0; k < f->depth; k++, a += a_step, b += b_pitch) {
        lanes columns[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) columns[v] = lanes_load(b + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            lanes x = lanes_set(a[i * a_row]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[i][v] = lanes_fma(x, columns[v], sum[i][v]);
        }
    }
}

static inline __attribute__((always_inline)) void multiply_tile(const dr_matrix_product *p, const tile *t, const int rows,
                                                                const int vectors) {
    lanes sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[i][v] = lanes_zero();
    accumulate(&t->of, rows, vectors, sum);
    if (t->factor)
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[i][v] = lanes_set(t->factor[i]) * sum[i][v];
    if (t->also.depth > 0) accumulate(&t->also, rows, vectors, sum);
    /* copies: a store might change what a pointer points at, for all that the compiler knows */
    const float *base = t->base, *keep = t->keep, *keep_columns = t->keep_columns;
    const int64_t c_pitch = p->c_pitch;
    const bool subtract = p->subtract;
    float *c = t->c;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            lanes x = sum[i][v];
            if (keep)
                x = lanes_fma(lanes_set(keep[i]), lanes_load(base + v * LANES), x);
            else if (keep_columns)
                x = lanes_fma(lanes_load(keep_columns + v * LANES), lanes_load(base + v * LANES), x);
            else if (base)
                x = subtract ? lanes_load(base + v * LANES) - x : lanes_load(base + v * LANES) + x;
            lanes_store(c + v * LANES, x);
        }
        c += c_pitch;
        if (base) base += c_pitch;
    }
}

static inline __attribute__((always_inline)) void multiply_rows(const dr_matrix_product *p, const tile *t, int64_t rows,
                                                                const int vectors) {
    switch (rows) {
    case 1:
        multiply_tile(p, t, 1, vectors);
        break;
    case 2:
        multiply_tile(p, t, 2, vectors);
        break;
    case 3:
        multiply_tile(p, t, 3, vectors);
        break;
#if !defined(DR_ISA_portable)
    case 4:
        multiply_tile(p, t, 4, vectors);
        break;
    case 5:
        multiply_tile(p, t, 5, vectors);
        break;
#endif
#if defined(DR_ISA_avx512)
    case 6:
        multiply_tile(p, t, 6, vectors);
        break;
    case 7:
        multiply_tile(p, t, 7, vectors);
        break;
#endif
    default:
        multiply_tile(p, t, TILE_ROWS, vectors);
        break;
    }
}

static int64_t at_most(int64_t value, int64_t limit) {
    return value < limit ? value : limit;
}

/* The part of a product that rows i .. i + rows - 1 and the columns from j on need. */
static inline factors factors_of(const dr_matrix_product *p, int64_t i, int64_t rows, int64_t j) {
    int64_t begin = 0, end = p->depth;
    if (p->token_begin) begin = i / p->token_rows * p->token_begin;
    if (p->token_end) end = at_most(((i + rows - 1) / p->token_rows + 1) * p->token_end, end);
    return (factors){.depth = end - begin,
                     .a = p->a + i * p->a_row + begin * p->a_step,
                     .a_row = p->a_row,
                     .a_step = p->a_step,
                     .b = p->b + begin * p->b_pitch + j,
                     .b_pitch = p->b_pitch};
}

/* Whether a product is a triangle whose B has an infinity or a NaN in these columns. The rows of a tile share their steps, and
 * what one of them does not see it multiplies by zero. */
static bool spreads(const dr_matrix_product *p, int64_t columns) {
    if (!p->token_begin && !p->token_end) return false;
    lanes even = lanes_zero(), odd = lanes_zero(); /* zero times all elements */
    for (int64_t j = 0; j < columns; j += LANES) {
        const float *b = p->b + j;
        int64_t k = 0;
        for (; k + 1 < p->depth; k += 2, b += 2 * p->b_pitch) {
            even = lanes_fma(lanes_load(b), lanes_zero(), even);
            odd = lanes_fma(lanes_load(b + p->b_pitch), lanes_zero(), odd);
        }
        if (k < p->depth) even = lanes_fma(lanes_load(b), lanes_zero(), even);
    }
    return lanes_sum(even + odd) != 0;
}

void dr_matrix_multiply(const dr_matrix_product *p) {
    const bool alone = spreads(p, p->columns) || (p->also && spreads(p->also, p->columns));
    const int64_t most = alone ? 1 : TILE_ROWS; /* rows of a tile */
    for (int64_t j = 0; j < p->columns; j += 2 * LANES) {
        for (int64_t i = 0; i < p->rows; i += most) {
            const int64_t rows = at_most(p->rows - i, most), at = i * p->c_pitch + j;
            int64_t columns = p->columns;
            if (p->token_columns) columns = at_most(((i + rows - 1) / p->token_rows + 1) * p->token_columns, columns);
            if (columns <= j) continue;
            tile t = {.of = factors_of(p, i, rows, j),
                      .base = p->base ? p->base + at : NULL,
                      .c = p->c + at,
                      .keep = p->keep ? p->keep + i : NULL,
                      .keep_columns = p->keep_columns ? p->keep_columns + j : NULL,
                      .factor = p->factor ? p->factor + i : NULL};
            if (p->also) t.also = factors_of(p->also, i, rows, j);
            if (p->ahead) dr_ahead_fetch(p->ahead);
            if (columns - j > LANES)
                multiply_rows(p, &t, rows, 2);
            else
                multiply_rows(p, &t, rows, 1);
        }
    }
}

void dr_matrix_transpose(int64_t rows, int64_t columns, const float *from, int64_t from_pitch, float *to, int64_t to_pitch,
                         int64_t to_rows, int64_t to_width) {
    for (int64_t i = 0; i < to_width; i += LANES) {
        for (int64_t j = 0; j < to_rows; j += LANES) {
            lanes x[LANES];
            const float *block = from + i * from_pitch + j;
            if (i + LANES <= rows && j + LANES <= columns)
                for (int l = 0; l < LANES; l++) x[l] = lanes_load(block + l * from_pitch);
            else
                for (int l = 0; l < LANES; l++)
                    x[l] = i + l < rows && j < columns ? lanes_load_n(block + l * from_pitch, columns - j) : lanes_zero();
            lanes_turn(x);
            float *turned = to + j * to_pitch + i;
            if (i + LANES <= to_width && j + LANES <= to_rows)
                for (int l = 0; l < LANES; l++) lanes_store(turned + l * to_pitch, x[l]);
            else
                for (int l = 0; l < LANES && j + l < to_rows; l++)
                    lanes_store_n(turned + l * to_pitch, at_most(to_width - i, LANES), x[l]);
        }
    }
}

/* ---- memory ahead ------------------------------------------------------------------------------------------------------ */

enum { LINE = 64 };

void dr_ahead_clear(dr_cpu_ahead *ahead) {
    ahead->spans = ahead->next = 0;
    ahead->byte = ahead->lines = 0;
}

void dr_ahead_add(dr_cpu_ahead *ahead, const void *at, int64_t stride, int64_t rows, int64_t width, int64_t item) {
    if (!at || rows <= 0 || ahead->spans == DR_CPU_SPANS) return;
    dr_cpu_span span = {at, stride * item, rows, width * item};
    if (span.stride <= LINE) span = (dr_cpu_span){span.at, 0, 1, (rows - 1) * span.stride + span.bytes};
    ahead->span[ahead->spans++] = span;
    ahead->lines += span.rows * ((span.bytes + LINE - 1) / LINE);
}

void dr_ahead_spread(dr_cpu_ahead *ahead, int64_t rows, int64_t columns) {
    const int64_t tiles = ((rows + TILE_ROWS - 1) / TILE_ROWS) * ((columns + 2 * LANES - 1) / (2 * LANES));
    ahead->lines_a_tile = ahead->lines * 4 / (tiles * 5) + 1;
}

void dr_ahead_fetch(dr_cpu_ahead *ahead) {
    for (int64_t i = 0; i < ahead->lines_a_tile && ahead->next < ahead->spans; i++) {
        dr_cpu_span *span = &ahead->span[ahead->next];
        lanes_prefetch(span->at + ahead->byte);
        ahead->byte += LINE;
        if (ahead->byte < span->bytes) continue;
        ahead->byte = 0;
        span->at += span->stride;
        ahead->next += --span->rows <= 0;
    }
}
