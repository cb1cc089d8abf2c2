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

typedef struct {
    int64_t depth;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_pitch;
    float *c;
    int64_t c_pitch;
    dr_product_mode mode;
    const float *keep;
} tile;

static inline __attribute__((always_inline)) void multiply_tile(const tile *t, const int rows, const int vectors) {
    lanes sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[i][v] = lanes_zero();
    const float *a = t->a, *b = t->b;
    const int64_t a_row = t->a_row, a_step = t->a_step, b_pitch = t->b_pitch;
    for (int64_t k = 0; k < t->depth; k++, a += a_step, b += b_pitch) {
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
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            float *c = t->c + i * t->c_pitch + v * LANES;
            if (t->keep)
                sum[i][v] = lanes_fma(lanes_set(t->keep[i]), lanes_load(c), sum[i][v]);
            else if (t->mode == DR_PRODUCT_ADD)
                sum[i][v] = lanes_load(c) + sum[i][v];
            else if (t->mode == DR_PRODUCT_SUBTRACT)
                sum[i][v] = lanes_load(c) - sum[i][v];
            lanes_store(c, sum[i][v]);
        }
    }
}

static inline __attribute__((always_inline)) void multiply_rows(const tile *t, int64_t rows, const int vectors) {
    switch (rows) {
    case 1:
        multiply_tile(t, 1, vectors);
        break;
    case 2:
        multiply_tile(t, 2, vectors);
        break;
    case 3:
        multiply_tile(t, 3, vectors);
        break;
#if !defined(DR_ISA_portable)
    case 4:
        multiply_tile(t, 4, vectors);
        break;
    case 5:
        multiply_tile(t, 5, vectors);
        break;
#endif
#if defined(DR_ISA_avx512)
    case 6:
        multiply_tile(t, 6, vectors);
        break;
    case 7:
        multiply_tile(t, 7, vectors);
        break;
#endif
    default:
        multiply_tile(t, TILE_ROWS, vectors);
        break;
    }
}

void dr_matrix_multiply(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                        const float *b, int64_t b_pitch, float *c, int64_t c_pitch, dr_product_mode mode, const float *keep,
                        dr_cpu_ahead *ahead) {
    tile t = {.depth = depth, .a_row = a_row, .a_step = a_step, .b_pitch = b_pitch, .c_pitch = c_pitch, .mode = mode};
    for (int64_t j = 0; j < columns;) {
        int vectors = columns - j >= 2 * LANES ? 2 : 1;
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            t.a = a + i * a_row;
            t.b = b + j;
            t.c = c + i * c_pitch + j;
            t.keep = keep ? keep + i : NULL;
            if (ahead) dr_ahead_fetch(ahead);
            if (vectors == 2)
                multiply_rows(&t, rows - i, 2);
            else
                multiply_rows(&t, rows - i, 1);
        }
        j += vectors * LANES;
    }
}

void dr_matrix_transpose(int64_t rows, int64_t columns, const float *from, int64_t from_pitch, float *to, int64_t to_pitch,
                         int64_t to_width) {
    const __m128 zero = _mm_setzero_ps();
    for (int64_t i = 0; i < to_width; i += 4) {
        const float *x = from + i * from_pitch;
        for (int64_t j = 0; j < columns; j += 4) {
            __m128 a = i < rows ? _mm_loadu_ps(x + j) : zero;
            __m128 b = i + 1 < rows ? _mm_loadu_ps(x + from_pitch + j) : zero;
            __m128 c = i + 2 < rows ? _mm_loadu_ps(x + 2 * from_pitch + j) : zero;
            __m128 d = i + 3 < rows ? _mm_loadu_ps(x + 3 * from_pitch + j) : zero;
            _MM_TRANSPOSE4_PS(a, b, c, d);
            float *y = to + j * to_pitch + i;
            _mm_storeu_ps(y, a);
            _mm_storeu_ps(y + to_pitch, b);
            _mm_storeu_ps(y + 2 * to_pitch, c);
            _mm_storeu_ps(y + 3 * to_pitch, d);
        }
    }
}

/* ---- memory ahead ------------------------------------------------------------------------------------------------------ */

enum { LINE = 64, LINES_A_TILE = 12 }; /* a core follows up some twenty missing lines at a time */

void dr_ahead_clear(dr_cpu_ahead *ahead) {
    ahead->spans = ahead->next = 0;
    ahead->byte = 0;
}

void dr_ahead_add(dr_cpu_ahead *ahead, const float *at, int64_t stride, int64_t rows, int64_t width) {
    if (!at || ahead->spans == DR_CPU_SPANS) return;
    dr_cpu_span span = {(const char *)at, stride * 4, rows, width * 4};
    if (span.stride <= LINE) span = (dr_cpu_span){span.at, 0, 1, (rows - 1) * span.stride + span.bytes};
    ahead->span[ahead->spans++] = span;
}

void dr_ahead_fetch(dr_cpu_ahead *ahead) {
    for (int i = 0; i < LINES_A_TILE && ahead->next < ahead->spans; i++) {
        dr_cpu_span *span = &ahead->span[ahead->next];
        _mm_prefetch(span->at + ahead->byte, _MM_HINT_T1);
        ahead->byte += LINE;
        if (ahead->byte < span->bytes) continue;
        ahead->byte = 0;
        span->at += span->stride;
        ahead->next += --span->rows <= 0;
    }
}
