/* Gates. The kernel sees rows of columns; narrow rows (one column a head) are joined `join` at a time, with their rates and
 * biases repeated as often, so that vectors are full. Gradients of A_log and the bias are summed over the rows of each of
 * DR_CPU_PARTS parts, then over parts and joined rows in order, and last over the columns that share an A_log. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <math.h>
#include <string.h>

enum { JOINED_COLUMNS = 128, STAGGER = 80 };

static int64_t join_of(int64_t columns) {
    return columns < JOINED_COLUMNS ? JOINED_COLUMNS / columns : 1;
}

/* Floats from one table or sum over columns to the next: where rows are pages long, those at the same place of a page would
 * drive each other out of the first-level cache. */
static int64_t pitch_of(int64_t columns) {
    return columns + STAGGER;
}

/* The gate over joined rows, with rates and shifts written to table [2, pitch]. */
static dr_cpu_gate joined_gate(const dr_gate *gate, const float *a_log, const float *bias, int64_t join, float *table) {
    int64_t columns = gate->heads * gate->dim;
    float *rates = table, *shifts = table + pitch_of(join * columns);
    for (int64_t c = 0; c < join * columns; c++) {
        int64_t channel = c % columns;
        rates[c] = a_log ? (float)exp((double)a_log[gate->a_log_per_channel ? channel : channel / gate->dim]) : 1.0f;
        shifts[c] = (float)(gate->shift + (bias ? (double)bias[channel] : 0));
    }
    return (dr_cpu_gate){.kind = gate->kind,
                         .columns = join * columns,
                         .multiplier = (float)gate->multiplier,
                         .lower_bound = (float)gate->lower_bound,
                         .upper_bound = gate->upper_bound > 0 ? (float)gate->upper_bound : INFINITY,
                         .rate = rates,
                         .shift = shifts};
}

/* The rows [begin, end) of a part, which are whole joined rows but for those left over at the very end. */
static int64_t part_begin(int64_t rows, int64_t join, int part) {
    return part == DR_CPU_PARTS ? rows : dr_cpu_part(rows / join, part, DR_CPU_PARTS) * join;
}

/* Rows of a panel, and joined rows as the kernel has them: copies from the one to the other, and back. */
static void gather(const float *from, int64_t row, int64_t rows, int64_t columns, float *to) {
    for (int64_t r = 0; r < rows; r++) memcpy(to + r * columns, from + r * row, (size_t)columns * sizeof *to);
}
static void scatter(const float *from, int64_t row, int64_t rows, int64_t columns, float *to) {
    for (int64_t r = 0; r < rows; r++) memcpy(to + r * row, from + r * columns, (size_t)columns * sizeof *to);
}

/* The rows [begin, end) of a panel. Narrow rows are joined in a copy. */
static void forward_panel(const dr_cpu_kernels *kernels, const dr_gate *gate, const dr_cpu_gate *joined, int64_t begin,
                          int64_t end, const float *x, float *y) {
    const int64_t columns = gate->heads * gate->dim, join = join_of(columns);
    float copy[JOINED_COLUMNS];
    for (int64_t r = begin; r < end; r += join) {
        const int64_t rows = end - r < join ? end - r : join;
        const float *from = x + r * gate->x_row;
        dr_cpu_gate part = *joined;
        part.columns = rows * columns;
        if (join > 1) gather(from, gate->x_row, rows, columns, copy), from = copy;
        kernels->gate_forward(&part, 1, from, y + r * columns);
    }
}

static void backward_panel(const dr_cpu_kernels *kernels, const dr_gate *gate, const dr_cpu_gate *joined, int64_t begin,
                           int64_t end, const float *x, const float *d_y, float *d_x, bool accumulate, float *d_rate,
                           float *d_shift) {
    const int64_t columns = gate->heads * gate->dim, join = join_of(columns);
    float copy[JOINED_COLUMNS], d_copy[JOINED_COLUMNS];
    for (int64_t r = begin; r < end; r += join) {
        const int64_t rows = end - r < join ? end - r : join;
        const float *from = x + r * gate->x_row;
        float *d_from = d_x ? d_x + r * gate->x_row : NULL, *d_to = d_from;
        dr_cpu_gate part = *joined;
        part.columns = rows * columns;
        if (join > 1) {
            gather(from, gate->x_row, rows, columns, copy), from = copy;
            if (d_from && accumulate) gather(d_from, gate->x_row, rows, columns, d_copy);
            if (d_from) d_to = d_copy;
        }
        kernels->gate_backward(&part, 1, from, d_y + r * columns, d_to, accumulate, d_rate, d_shift);
        if (d_to != d_from) scatter(d_copy, gate->x_row, rows, columns, d_from);
    }
}

dr_status dr_cpu_gate_forward(dr_backend *backend, const dr_gate *gate, const void *x_, const void *a_log, const void *bias,
                              void *y_) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t columns = gate->heads * gate->dim, join = join_of(columns);
    const float *x = x_;
    float *y = y_;
    dr_cpu_scratch *table = NULL;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)(2 * pitch_of(join * columns)) * sizeof(float), &table));
    dr_cpu_gate joined = joined_gate(gate, a_log, bias, join, (float *)table->memory);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, gate->rows *columns))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t begin = part_begin(gate->rows, join, part), end = part_begin(gate->rows, join, part + 1);
        int64_t whole = (end - begin) / join, left = begin + whole * join;
        if (gate->x_row > 0) {
            forward_panel(kernels, gate, &joined, begin, end, x, y);
            continue;
        }
        kernels->gate_forward(&joined, whole, x + begin * columns, y + begin * columns);
        if (left == end) continue;
        dr_cpu_gate rest = joined;
        rest.columns = (end - left) * columns;
        kernels->gate_forward(&rest, 1, x + left * columns, y + left * columns);
    }
    dr_cpu_scratch_give(backend, table);
    return DR_OK;
}

/* d_sum [count] += the columns of sums [DR_CPU_PARTS, pitch], count of the columns: all, or fewer that share */
static void add_joined(const float *sums, int64_t join, int64_t columns, int64_t count, float *d_sum) {
    for (int part = 0; part < DR_CPU_PARTS; part++, sums += 2 * pitch_of(join * columns))
        for (int64_t i = 0; i < join; i++)
            for (int64_t c = 0; c < columns; c++) d_sum[c / (columns / count)] += sums[i * columns + c];
}

dr_status dr_cpu_gate_backward(dr_backend *backend, const dr_gate *gate, const void *x_, const void *a_log, const void *bias,
                               const void *d_y_, void *d_x_, bool accumulate, void *d_a_log, void *d_bias) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t columns = gate->heads * gate->dim, join = join_of(columns), pitch = pitch_of(join * columns);
    const float *x = x_, *d_y = d_y_;
    float *d_x = d_x_;
    dr_cpu_scratch *scratch = NULL;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)((2 + 2 * DR_CPU_PARTS) * pitch) * sizeof(float), &scratch));
    dr_cpu_gate joined = joined_gate(gate, a_log, bias, join, (float *)scratch->memory);
    float *sums = (float *)scratch->memory + 2 * pitch; /* [parts, 2, pitch] of rates and shifts */
    memset(sums, 0, (size_t)(2 * DR_CPU_PARTS * pitch) * sizeof(float));
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, gate->rows *columns))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t begin = part_begin(gate->rows, join, part), end = part_begin(gate->rows, join, part + 1);
        int64_t whole = (end - begin) / join, left = begin + whole * join;
        float *own = sums + 2 * part * pitch, *d_rate = d_a_log ? own : NULL, *d_shift = d_bias ? own + pitch : NULL;
        if (gate->x_row > 0) {
            backward_panel(kernels, gate, &joined, begin, end, x, d_y, d_x, accumulate, d_rate, d_shift);
            continue;
        }
        kernels->gate_backward(&joined, whole, x + begin * columns, d_y + begin * columns, d_x ? d_x + begin * columns : NULL,
                               accumulate, d_rate, d_shift);
        if (left == end) continue;
        dr_cpu_gate rest = joined;
        rest.columns = (end - left) * columns;
        kernels->gate_backward(&rest, 1, x + left * columns, d_y + left * columns, d_x ? d_x + left * columns : NULL,
                               accumulate, d_rate, d_shift);
    }
    if (d_a_log) add_joined(sums, join, columns, gate->a_log_per_channel ? columns : gate->heads, d_a_log);
    if (d_bias) add_joined(sums + pitch, join, columns, columns, d_bias);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}
