/* C = A B for dense matrices: the product behind every linear layer, forward and backward.
 *
 * What is asked of it decides how it is made: a row of C must be the same bits whatever its neighbours are, wherever it stands
 * and however the work is cut, so that packed equals separate and threads do not matter. Library kernels do not give that (some
 * of OpenBLAS's add in another order in every other group of six rows). Here each element of C has one accumulator that takes
 * the products of STEPS steps in order and is then added to C, block of steps by block of steps; tiles only say which elements
 * are computed side by side.
 *
 * Order: for a block of WIDTH columns and STEPS steps B is copied to panels of COLUMNS columns [steps][COLUMNS], which stay in
 * the second-level cache; then for each ROWS rows A is copied to [rows][A_ROW] (first-level cache, no two rows on the same
 * cache lines modulo 4096), and every panel makes one tile of ROWS x COLUMNS accumulators in registers, which meanwhile asks
 * for its share of what the next panels are copied from. Few last columns would leave most of a tile empty: they are sums over
 * the lanes of a vector of steps instead, NARROW_ROWS rows side by side.
 *
 * With few rows, decoding, the copy would take most of the time. Then columns of weights are turned in registers and used
 * there, and those behind them, which lie behind them in memory too, are asked for in order. */
#include "backends/cpu/isa/isa.h"
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#if defined(DR_ISA_avx512)
enum { ROWS = 12, FEW = 8 }; /* 24 of 32 registers accumulate */
#else
enum { ROWS = 6, FEW = 4 }; /* 12 of 16 registers */
#endif
enum { COLUMNS = 2 * LANES, STEPS = 256, WIDTH = 256, A_ROW = STEPS + 16, NARROW = LANES / 2, NARROW_ROWS = 8 };

static int64_t at_most(int64_t value, int64_t limit) {
    return value < limit ? value : limit;
}

/* x[j] lane i = from[i, j] for i < rows <= LANES, j < columns <= LANES, zero where there is none */
static inline __attribute__((always_inline)) void load_turned(const float *from, int64_t from_row, int64_t rows,
                                                              int64_t columns, lanes x[LANES]) {
    if (rows == LANES && columns == LANES)
        for (int i = 0; i < LANES; i++) x[i] = lanes_load(from + i * from_row);
    else
        for (int i = 0; i < LANES; i++) x[i] = i < rows ? lanes_load_n(from + i * from_row, columns) : lanes_zero();
    lanes_turn(x);
}

/* to[j, i] = from[i, j]; kept rows of LANES are written, zero where there is none */
static void copy_turned(const float *from, int64_t from_row, int64_t rows, int64_t columns, float *to, int64_t to_row,
                        int64_t kept) {
    lanes x[LANES];
    load_turned(from, from_row, rows, columns, x);
    if (kept == LANES)
        for (int j = 0; j < LANES; j++) lanes_store(to + j * to_row, x[j]);
    else
        for (int j = 0; j < kept; j++) lanes_store(to + j * to_row, x[j]);
}

/* One panel: to [steps][COLUMNS] = B[k0 .. k0 + steps, n0 .. n0 + columns], zero in the missing columns */
static void copy_panel(const dr_cpu_product *p, int64_t k0, int64_t steps, int64_t n0, int64_t columns, float *to) {
    if (p->b_column == 1) {
        const float *from = p->b + k0 * p->b_step + n0;
        for (int64_t k = 0; k < steps; k++, from += p->b_step, to += COLUMNS)
            for (int j = 0; j < COLUMNS; j += LANES) {
                int64_t there = columns - j;
                lanes_store(to + j, there >= LANES ? lanes_load(from + j)
                                    : there > 0    ? lanes_load_n(from + j, there)
                                                   : lanes_zero());
            }
        return;
    }
    for (int j = 0; j < COLUMNS; j += LANES)
        for (int64_t k = 0; k < steps; k += LANES)
            copy_turned(p->b + (n0 + j) * p->b_column + k0 + k, p->b_column, columns - j, at_most(steps - k, LANES),
                        to + k * COLUMNS + j, COLUMNS, at_most(steps - k, LANES));
}

/* to [ROWS][A_ROW] = A[m0 .. m0 + rows, k0 .. k0 + steps], zero in the missing rows */
static void copy_rows(const dr_cpu_product *p, int64_t m0, int64_t rows, int64_t k0, int64_t steps, float *to) {
    if (p->a_step == 1) {
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t k = 0; k < steps; k += LANES) {
                const float *from = p->a + (m0 + i) * p->a_row + k0 + k;
                int64_t there = steps - k;
                lanes_store(to + i * A_ROW + k, i >= rows       ? lanes_zero()
                                                : there < LANES ? lanes_load_n(from, there)
                                                                : lanes_load(from));
            }
        return;
    }
    for (int64_t i = 0; i < ROWS; i += LANES)
        for (int64_t k = 0; k < steps; k += LANES)
            copy_turned(p->a + (m0 + i) + (k0 + k) * p->a_step, p->a_step, at_most(steps - k, LANES),
                        rows - i < 0 ? 0 : at_most(rows - i, LANES), to + i * A_ROW + k, A_ROW, at_most(ROWS - i, LANES));
}

/* Cache lines of B that the next panels will be copied from: of some columns, LINES of each. */
enum { LINE = 16, LINES = STEPS / LINE }; /* LINE: floats */
typedef struct {
    const float *at;
    int64_t column, lines; /* column: from one to the next; lines: of all of them, at most STEPS */
} expected;

/* c [rows, columns] = base + a [rows][A_ROW] b [steps][COLUMNS]; base is c itself, or the bias for every row, or zero */
static inline __attribute__((always_inline)) void tile(const int rows, int64_t steps, const float *a, const float *b, float *c,
                                                       int64_t c_row, int64_t columns, bool add, const float *bias,
                                                       expected next) {
    lanes sum[ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = lanes_zero();
    for (int64_t k = 0; k < steps; k++) {
        if (k < next.lines) lanes_prefetch(next.at + k / LINES * next.column + k % LINES * LINE);
        lanes b0 = lanes_load(b + k * COLUMNS), b1 = lanes_load(b + k * COLUMNS + LANES);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            lanes value = lanes_set(a[i * A_ROW + k]);
            sum[i][0] = lanes_fma(value, b0, sum[i][0]);
            sum[i][1] = lanes_fma(value, b1, sum[i][1]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++, c += c_row) {
        const float *base = add ? c : bias;
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            int64_t there = columns - j * LANES;
            if (there >= LANES) {
                lanes before = base ? lanes_load(base + j * LANES) : lanes_zero();
                lanes_store(c + j * LANES, before + sum[i][j]);
            } else if (there > 0) {
                lanes before = base ? lanes_load_n(base + j * LANES, there) : lanes_zero();
                lanes_store_n(c + j * LANES, there, before + sum[i][j]);
            }
        }
    }
}

/* A tile of any height: the missing rows of a are zero, but c is only written where it is */
static void tile_of(int64_t rows, int64_t steps, const float *a, const float *b, float *c, int64_t c_row, int64_t columns,
                    bool add, const float *bias, expected next) {
    switch (rows) {
#define CASE(n)                                                                                                                \
    case n:                                                                                                                    \
        tile(n, steps, a, b, c, c_row, columns, add, bias, next);                                                              \
        break;
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
#if defined(DR_ISA_avx512)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
#endif
#undef CASE
    }
}

/* Elements of columns n_begin .. n_end - 1, few of them: rows of A and columns of B are both contiguous. */
static inline __attribute__((always_inline)) void narrow_rows(const dr_cpu_product *p, int64_t m, const int rows, int64_t n) {
    const float *a = p->a + m * p->a_row, *b = p->b + n * p->b_column;
    lanes sum[NARROW_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) sum[i] = lanes_zero();
    for (int64_t k = 0; k < p->k; k += LANES) {
        const int64_t left = lanes_left(p->k, k);
        const lanes column = lanes_load_n(b + k, left);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) sum[i] = lanes_fma(lanes_load_n(a + i * p->a_row + k, left), column, sum[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        float *c = p->c + (m + i) * p->c_row + n;
        *c = (p->accumulate ? *c : p->bias ? p->bias[n] : 0.0f) + lanes_sum(sum[i]);
    }
}

static void narrow_product(const dr_cpu_product *p, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end) {
    for (int64_t m = m_begin; m < m_end;) {
        const bool whole = m_end - m >= NARROW_ROWS;
        for (int64_t n = n_begin; n < n_end; n++)
            if (whole)
                narrow_rows(p, m, NARROW_ROWS, n);
            else
                narrow_rows(p, m, 1, n);
        m += whole ? NARROW_ROWS : 1;
    }
}

/* ---- few rows -------------------------------------------------------------------------------------------------------- */

/* `rows` rows of C in LANES columns, of which `columns` are there */
static inline __attribute__((always_inline)) void few_rows(const dr_cpu_product *p, int64_t m, const int rows, int64_t n,
                                                           int64_t columns) {
    const float *a = p->a + m * p->a_row, *b = p->b + n * p->b_column;
    const char *ahead = (const char *)(b + LANES * p->b_column); /* the next columns */
    for (int64_t k0 = 0; k0 < p->k; k0 += STEPS) {
        const int64_t end = at_most(p->k, k0 + STEPS);
        lanes sum[FEW];
        for (int i = 0; i < rows; i++) sum[i] = lanes_zero();
        int64_t k = k0;
        for (; k + LANES <= end; k += LANES) {
            lanes x[LANES];
            for (int j = 0; j < LANES; j++, ahead += sizeof(lanes)) lanes_prefetch(ahead);
            load_turned(b + k, p->b_column, columns, LANES, x);
#pragma GCC unroll 16
            for (int j = 0; j < LANES; j++)
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) sum[i] = lanes_fma(lanes_set(a[i * p->a_row + k + j]), x[j], sum[i]);
        }
        if (k < end) {
            lanes x[LANES];
            load_turned(b + k, p->b_column, columns, end - k, x);
            for (int j = 0; k + j < end; j++)
                for (int i = 0; i < rows; i++) sum[i] = lanes_fma(lanes_set(a[i * p->a_row + k + j]), x[j], sum[i]);
        }
        for (int i = 0; i < rows; i++) {
            float *c = p->c + (m + i) * p->c_row + n;
            const float *base = p->accumulate || k0 > 0 ? c : p->bias ? p->bias + n : NULL;
            lanes_store_n(c, columns, (base ? lanes_load_n(base, columns) : lanes_zero()) + sum[i]);
        }
    }
}

static void few_rows_product(const dr_cpu_product *p, int64_t m, int64_t rows, int64_t n_begin, int64_t n_end) {
    for (int64_t n = n_begin; n < n_end; n += LANES) {
        const int64_t columns = at_most(n_end - n, LANES);
        switch (rows) {
#define CASE(count)                                                                                                            \
    case count:                                                                                                                \
        few_rows(p, m, count, n, columns);                                                                                     \
        break;
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
#if defined(DR_ISA_avx512)
            CASE(5)
            CASE(6)
            CASE(7)
            CASE(8)
#endif
#undef CASE
        }
    }
}

/* The share of tile `tile` of `tiles` in the panel's columns, from column n on, of the next block: the next steps, or the first
 * ones WIDTH columns on. Only where it lies in short rows; a row of B that is contiguous is seen to come. */
static expected expect(const dr_cpu_product *p, int64_t n, int64_t n_end, int64_t k0, int64_t tile, int64_t tiles) {
    const bool within = k0 + STEPS < p->k;
    if (!within) n += WIDTH;
    const int64_t first = n + COLUMNS * tile / tiles, end = at_most(n + COLUMNS * (tile + 1) / tiles, n_end);
    if (p->b_step != 1 || first >= end) return (expected){0};
    return (expected){p->b + first * p->b_column + (within ? k0 + STEPS : 0), p->b_column, LINES * (end - first)};
}

void DR_ISA_NAME(dr_cpu_product)(const dr_cpu_product *p, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end) {
    const int64_t rest = p->a_step == 1 && p->b_step == 1 && p->n % COLUMNS <= NARROW ? p->n % COLUMNS : 0;
    if (n_end > p->n - rest) {
        const int64_t first = n_begin > p->n - rest ? n_begin : p->n - rest;
        narrow_product(p, m_begin, m_end, first, n_end);
        n_end = first;
    }
    if (m_end - m_begin <= FEW && p->a_step == 1 && p->b_step == 1) {
        few_rows_product(p, m_begin, m_end - m_begin, n_begin, n_end);
        return;
    }
    const int64_t tiles = (m_end - m_begin + ROWS - 1) / ROWS;
    _Static_assert(STEPS * WIDTH == DR_CPU_PRODUCT_SPACE, "the block of B");
    _Alignas(64) float a[ROWS * A_ROW];
    float *b = p->space;
    for (int64_t n0 = n_begin; n0 < n_end; n0 += WIDTH) {
        int64_t width = at_most(n_end - n0, WIDTH);
        for (int64_t k0 = 0; k0 < p->k; k0 += STEPS) {
            int64_t steps = at_most(p->k - k0, STEPS);
            bool add = p->accumulate || k0 > 0;
            for (int64_t n = 0; n < width; n += COLUMNS)
                copy_panel(p, k0, steps, n0 + n, at_most(width - n, COLUMNS), b + n * STEPS);
            for (int64_t m0 = m_begin; m0 < m_end; m0 += ROWS) {
                const int64_t rows = at_most(m_end - m0, ROWS), t = (m0 - m_begin) / ROWS;
                copy_rows(p, m0, rows, k0, steps, a);
                for (int64_t n = 0; n < width; n += COLUMNS)
                    tile_of(rows, steps, a, b + n * STEPS, p->c + m0 * p->c_row + n0 + n, p->c_row, at_most(width - n, COLUMNS),
                            add, p->bias ? p->bias + n0 + n : NULL, expect(p, n0 + n, n_end, k0, t, tiles));
            }
        }
    }
}
