/* Products with weights in 16 or 8 bits (base/weight_row.h), summed in float32: y = x W^T, x W, and single rows of W.
 *
 * An element of x W^T is the same bits whatever is computed beside it, as in product.c, but in another order, in which a row of
 * weights is read as it lies: for each STEPS columns of the row, sums over every LANES-th one, added up lane by lane, times the
 * row's scale, are added to what the columns before gave. With few rows, decoding, weights are widened in registers on their
 * way from memory, so that the time is that of reading W: the rows of W are cut into parts, from each of which one row after
 * another is read, side by side with those of the other parts, since processors read some long streams faster than one. With
 * many, rows of W are widened once for all rows of x and stay in the second-level cache. */
#include "backends/cpu/isa/isa.h"
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"
#include "base/weight_row.h"

#include <string.h>

enum { STEPS = 1024, PANEL = 32, PANEL_ROW = STEPS + 16, COLUMNS = 4, LINE_BYTES = 64, AHEAD_BYTES = 1024 };
#if defined(DR_ISA_avx512)
enum { ROWS = 6, FEW = 4 }; /* a tile of ROWS x COLUMNS sums in registers; up to FEW rows go without a panel */
#else
enum { ROWS = 3, FEW = 2 };
#endif
_Static_assert(PANEL *PANEL_ROW <= DR_CPU_PRODUCT_SPACE, "a panel of widened rows");

static int64_t at_most(int64_t value, int64_t limit) {
    return value < limit ? value : limit;
}

static inline int64_t bytes_of(const dr_dtype type, int64_t columns) {
    return type == DR_I8 ? columns : 2 * columns;
}

/* signed bytes to floats */
static inline lanes lanes_load_i8(const int8_t *p) {
#if defined(DR_ISA_avx512)
    return lanes_of_int(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(DR_ISA_avx2)
    return lanes_of_int(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#elif !defined(__SSE2__)
    return lanes_of_int((lanes_int){p[0], p[1], p[2], p[3]});
#else
    return lanes_of_int(_mm_setr_epi32(p[0], p[1], p[2], p[3]));
#endif
}

/* The elements of a row, from k on. */
static inline const char *elements(const dr_dtype type, const char *row, int64_t k) {
    return row + (type == DR_I8 ? DR_WEIGHT_SCALE_BYTES : 0) + bytes_of(type, k);
}

static inline float scale_of(const dr_dtype type, const char *row) {
    float scale = 1;
    if (type == DR_I8) memcpy(&scale, row, sizeof scale);
    return scale;
}

static inline __attribute__((always_inline)) lanes load(const dr_dtype type, const char *at) {
    return type == DR_I8 ? lanes_load_i8((const int8_t *)at) : lanes_load_bf16((const uint16_t *)at);
}

/* zero where there is none */
static inline lanes load_n(const dr_dtype type, const char *at, int64_t there) {
    uint16_t whole[LANES] = {0};
    memcpy(whole, at, (size_t)bytes_of(type, there));
    return load(type, (const char *)whole);
}

/* y += scale sum, from the bias or zero at first */
static inline void add_sum(const dr_cpu_narrow *p, int64_t m, int64_t n, int64_t k0, float scale, lanes sum) {
    float *y = p->y + m * p->y_row + n;
    const float before = k0 > 0 ? *y : p->bias ? p->bias[n] : 0.0f;
    *y = before + scale * lanes_sum(sum);
}

/* ---- few rows -------------------------------------------------------------------------------------------------------- */

/* `vectors` vectors of each row of x with those of `columns` rows of W, from column k on. */
static inline __attribute__((always_inline)) void few_vectors(const dr_cpu_narrow *p, const dr_dtype type, const float *x,
                                                              const int rows, const int columns, const char *const *row,
                                                              int64_t k, const int vectors, lanes sum[FEW][2 * COLUMNS]) {
    lanes from[FEW];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) from[i] = lanes_load(x + i * p->x_row + k + v * LANES);
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) {
            const lanes w = load(type, elements(type, row[c], k + v * LANES));
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) sum[i][c] = lanes_fma(from[i], w, sum[i][c]);
        }
    }
}

/* `rows` rows of x with rows n, n + part, n + 2 part, ... of W, `columns` of them; those from n_end on are not there */
static inline __attribute__((always_inline)) void few_rows(const dr_cpu_narrow *p, const dr_dtype type, int64_t m,
                                                           const int rows, const int columns, int64_t n, int64_t part,
                                                           int64_t n_end) {
    const size_t row_bytes = dr_weight_row_bytes(type, p->in);
    const float *x = p->x + m * p->x_row;
    const char *row[2 * COLUMNS];
    const int vectors = LINE_BYTES / (int)bytes_of(type, LANES);
    for (int c = 0; c < columns; c++) row[c] = p->weight + (size_t)at_most(n + c * part, n_end - 1) * row_bytes;
    for (int64_t k0 = 0; k0 < p->in; k0 += STEPS) {
        const int64_t end = at_most(p->in, k0 + STEPS);
        lanes sum[FEW][2 * COLUMNS];
        int64_t k = k0;
        for (int i = 0; i < rows; i++)
            for (int c = 0; c < columns; c++) sum[i][c] = lanes_zero();
        for (; k + vectors * LANES <= end; k += vectors * LANES) {
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++) __builtin_prefetch(elements(type, row[c], k) + AHEAD_BYTES, 0, 3);
            few_vectors(p, type, x, rows, columns, row, k, vectors, sum);
        }
        for (; k + LANES <= end; k += LANES) few_vectors(p, type, x, rows, columns, row, k, 1, sum);
        for (int c = 0; k < end && c < columns; c++)
            for (int i = 0; i < rows; i++)
                sum[i][c] = lanes_fma(lanes_load_n(x + i * p->x_row + k, end - k),
                                      load_n(type, elements(type, row[c], k), end - k), sum[i][c]);
        for (int c = 0; c < columns && n + c * part < n_end; c++)
            for (int i = 0; i < rows; i++) add_sum(p, m + i, n + c * part, k0, scale_of(type, row[c]), sum[i][c]);
    }
}

static inline __attribute__((always_inline)) void few_product(const dr_cpu_narrow *p, const dr_dtype type, int64_t m,
                                                              int64_t rows, int64_t n_begin, int64_t n_end) {
    const int columns = rows == 1 ? 2 * COLUMNS : COLUMNS;
    const int64_t part = (n_end - n_begin + columns - 1) / columns;
    for (int64_t n = n_begin; n < n_begin + part; n++) switch (rows) {
        case 1:
            few_rows(p, type, m, 1, 2 * COLUMNS, n, part, n_end);
            break;
        case 2:
            few_rows(p, type, m, 2, COLUMNS, n, part, n_end);
            break;
#if defined(DR_ISA_avx512)
        case 3:
            few_rows(p, type, m, 3, COLUMNS, n, part, n_end);
            break;
        case 4:
            few_rows(p, type, m, 4, COLUMNS, n, part, n_end);
            break;
#endif
        }
}

/* ---- many rows ------------------------------------------------------------------------------------------------------- */

static void widen(const dr_dtype type, const char *row, int64_t k0, int64_t count, float *to) {
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES) lanes_store(to + k, load(type, elements(type, row, k0 + k)));
    if (k < count) lanes_store_n(to + k, count - k, load_n(type, elements(type, row, k0 + k), count - k));
}

/* ROWS rows of x from m on with COLUMNS rows of the panel, whose first is column n of y; beyond the ends the last one again,
 * which is not written. */
static void tile(const dr_cpu_narrow *p, const float *panel, int64_t k0, int64_t steps, int64_t m, int64_t m_end, int64_t n,
                 int64_t n_end) {
    const float *x[ROWS], *w[COLUMNS];
    lanes sum[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++) x[i] = p->x + at_most(m + i, m_end - 1) * p->x_row + k0;
    for (int c = 0; c < COLUMNS; c++) w[c] = panel + at_most(c, n_end - 1 - n) * PANEL_ROW;
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) sum[i][c] = lanes_zero();
    int64_t k = 0;
    for (; k + LANES <= steps; k += LANES) {
        lanes from[ROWS];
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++) from[i] = lanes_load(x[i] + k);
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) {
            const lanes by = lanes_load(w[c] + k);
#pragma GCC unroll 6
            for (int i = 0; i < ROWS; i++) sum[i][c] = lanes_fma(from[i], by, sum[i][c]);
        }
    }
    if (k < steps)
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++)
                sum[i][c] = lanes_fma(lanes_load_n(x[i] + k, steps - k), lanes_load_n(w[c] + k, steps - k), sum[i][c]);
    const size_t row_bytes = dr_weight_row_bytes(p->type, p->in);
    for (int c = 0; c < COLUMNS && n + c < n_end; c++) {
        const float scale = scale_of(p->type, p->weight + (size_t)(n + c) * row_bytes);
        for (int i = 0; i < ROWS && m + i < m_end; i++) add_sum(p, m + i, n + c, k0, scale, sum[i][c]);
    }
}

static void many_rows_product(const dr_cpu_narrow *p, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end) {
    const size_t row_bytes = dr_weight_row_bytes(p->type, p->in);
    for (int64_t n0 = n_begin; n0 < n_end; n0 += PANEL)
        for (int64_t k0 = 0; k0 < p->in; k0 += STEPS) {
            const int64_t steps = at_most(p->in - k0, STEPS), last = at_most(n0 + PANEL, n_end);
            for (int64_t n = n0; n < last; n++)
                widen(p->type, p->weight + (size_t)n * row_bytes, k0, steps, p->space + (n - n0) * PANEL_ROW);
            for (int64_t m = m_begin; m < m_end; m += ROWS)
                for (int64_t n = n0; n < last; n += COLUMNS)
                    tile(p, p->space + (n - n0) * PANEL_ROW, k0, steps, m, m_end, n, last);
        }
}

void DR_ISA_NAME(dr_cpu_narrow_product)(const dr_cpu_narrow *p, int64_t m_begin, int64_t m_end, int64_t n_begin,
                                        int64_t n_end) {
    if (m_end - m_begin > FEW)
        many_rows_product(p, m_begin, m_end, n_begin, n_end);
    else if (p->type == DR_I8)
        few_product(p, DR_I8, m_begin, m_end - m_begin, n_begin, n_end);
    else
        few_product(p, DR_BF16, m_begin, m_end - m_begin, n_begin, n_end);
}

/* ---- the other way, and rows ----------------------------------------------------------------------------------------- */

/* A sum over rows of W in order, LANES columns side by side. */
void DR_ISA_NAME(dr_cpu_narrow_transposed)(const dr_cpu_narrow *p, int64_t out, int64_t m_begin, int64_t m_end, int64_t n_begin,
                                           int64_t n_end) {
    const size_t row_bytes = dr_weight_row_bytes(p->type, p->in);
    for (int64_t m = m_begin; m < m_end; m++)
        for (int64_t n = n_begin; n < n_end; n += LANES) {
            const int64_t there = lanes_left(n_end, n);
            const char *row = p->weight;
            lanes sum = lanes_zero();
            for (int64_t o = 0; o < out; o++, row += row_bytes) {
                const char *at = elements(p->type, row, n);
                const lanes w = there == LANES ? load(p->type, at) : load_n(p->type, at, there);
                sum = lanes_fma(lanes_set(p->x[m * p->x_row + o] * scale_of(p->type, row)), w, sum);
            }
            float *y = p->y + m * p->y_row + n;
            lanes_store_n(y, there, p->accumulate ? lanes_load_n(y, there) + sum : sum);
        }
}

void DR_ISA_NAME(dr_cpu_narrow_widen)(dr_dtype type, int64_t columns, const char *row, float *y) {
    const lanes scale = lanes_set(scale_of(type, row));
    widen(type, row, 0, columns, y);
    for (int64_t k = 0; type == DR_I8 && k < columns; k += LANES) {
        const int64_t there = lanes_left(columns, k);
        lanes_store_n(y + k, there, scale * lanes_load_n(y + k, there));
    }
}
