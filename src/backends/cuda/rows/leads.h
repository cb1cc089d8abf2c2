/* Where the gradients of a rule's rows lead: which inputs they belong to, and whether keys.cu can write those at once. It can
 * where every input has its gradient from one row of a token, so that nothing is summed over rows or heads; elsewhere the rows'
 * gradients go through memory in float, and row_gradients.cu makes the sums. */
#ifndef DR_CUDA_LEADS_H
#define DR_CUDA_LEADS_H

#include "backends/cuda/rows/rows.h"

#ifdef __CUDACC__
#define DR_LEADS static __host__ __device__ inline
#else
#define DR_LEADS static inline
#endif

/* What the gradient r of a row's read key comes to; it has its factor -c already. */
typedef enum {
    DR_LEAD_APART, /* r, or -r, is that of an input that the row does not write */
    DR_LEAD_TIED,  /* the row writes what it reads: r goes to the write key's */
    DR_LEAD_GATED, /* gate * r goes to the write key's, key * r to the gate's */
    DR_LEAD_SUM    /* r goes to the write key's, lambda r to the query's, query . r to lambda's */
} dr_lead;

/* Whether a row writes the key that it reads. */
DR_LEADS bool dr_row_tied(const dr_row *row) {
    return (row->read == DR_READ_KEY && row->write == DR_WRITE_KEY) ||
           (row->read == DR_READ_ERASE_KEY && row->write == DR_WRITE_ERASE_KEY);
}

DR_LEADS dr_lead dr_row_lead(const dr_row *row) {
    if (row->read == DR_READ_GATED_KEY) return DR_LEAD_GATED;
    if (row->read == DR_READ_KEY_PLUS_QUERY) return DR_LEAD_SUM;
    return dr_row_tied(row) ? DR_LEAD_TIED : DR_LEAD_APART;
}

/* The input that a row's write key is; DR_INPUTS: it is none as it stands. */
DR_LEADS dr_input dr_row_written(const dr_row *row) {
    return row->write == DR_WRITE_KEY         ? DR_INPUT_KEY
           : row->write == DR_WRITE_ERASE_KEY ? DR_INPUT_ERASE_KEY
           : row->write == DR_WRITE_FREE      ? DR_INPUT_FREE_WRITE
                                              : DR_INPUTS;
}

/* The input that has a gradient of its own from a row's read key; DR_INPUTS: none. */
DR_LEADS dr_input dr_row_led(const dr_row *row) {
    const dr_lead lead = dr_row_lead(row);
    if (lead == DR_LEAD_GATED) return DR_INPUT_ERASE_GATE;
    if (lead != DR_LEAD_APART) return DR_INPUTS;
    return row->read == DR_READ_KEY         ? DR_INPUT_KEY
           : row->read == DR_READ_ERASE_KEY ? DR_INPUT_ERASE_KEY
           : row->read == DR_READ_FEEDBACK  ? DR_INPUT_FEEDBACK_KEY
           : row->read == DR_READ_FREE      ? DR_INPUT_FREE_READ
                                            : DR_INPUTS;
}

/* The input that is a row's gain; DR_INPUTS: the gain is one, or made of more. */
DR_LEADS dr_input dr_row_gained(const dr_row *row) {
    return row->gain == DR_GAIN_BETA ? DR_INPUT_BETA : row->gain == DR_GAIN_GAMMA ? DR_INPUT_ERASE_GAIN : DR_INPUTS;
}

/* Bits of the inputs whose gradients a row has a part in. */
DR_LEADS unsigned dr_row_inputs(const dr_row *row) {
    const unsigned none = 1u << DR_INPUTS, query = dr_row_lead(row) == DR_LEAD_SUM ? 1u << DR_INPUT_QUERY : 0;
    return (1u << dr_row_written(row) | 1u << dr_row_led(row) | 1u << dr_row_gained(row) | query) & ~none;
}

/* Rows that differ: steps are all like the first. */
DR_LEADS int dr_rows_kinds(const dr_cuda_rows *rows) {
    return rows->step_axis ? 1 : rows->steps;
}

/* Rules whose gains are one, or inputs, and whose queries are. */
DR_LEADS bool dr_rows_plain(const dr_cuda_rows *rows) {
    for (int i = 0; i < dr_rows_kinds(rows); i++)
        if (rows->row[i].gain != DR_GAIN_ONE && dr_row_gained(&rows->row[i]) == DR_INPUTS) return false;
    return rows->query == DR_QUERY_PLAIN;
}

/* Rules of which keys.cu leads all gradients of vectors to the inputs, or to a part of each value head (dr_rows_spread). */
DR_LEADS bool dr_rows_direct(const dr_cuda_rows *rows) {
    if (!dr_rows_plain(rows) || rows->diagonal_scan) return false;
    unsigned seen = 0;
    for (int i = 0; i < dr_rows_kinds(rows); i++) {
        const dr_row *row = &rows->row[i];
        const dr_lead lead = dr_row_lead(row);
        const unsigned inputs = dr_row_inputs(row);
        if (dr_row_written(row) == DR_INPUTS || seen & inputs) return false;
        if (rows->step_axis && inputs & ~(1u << DR_INPUT_KEY | 1u << DR_INPUT_BETA)) return false;
        if (lead >= DR_LEAD_GATED && (row->write != DR_WRITE_KEY || rows->steps > 1)) return false;
        if (lead == DR_LEAD_GATED && row->undecayed) return false;
        if (lead == DR_LEAD_SUM && rows->channel_decay) return false;
        seen |= inputs;
    }
    return seen >> DR_INPUT_KEY & 1; /* a key that no row takes is an input all the same, and has a gradient of zeros */
}

/* Of those, whether an input's gradient is the sum of the parts of its key head's value heads. */
DR_LEADS bool dr_rows_spread(const dr_cuda_rows *rows, dr_input i) {
    return rows->group > 1 && rows->input[i].vector && !rows->input[i].per_value && rows->input[i].gradient;
}

/* Rules whose write key the diagonal scan makes, of the key that they read, and whose value heads have a key head each: keys.cu
 * leads the gradients of both to the scan's backward, that of the query to the input. */
DR_LEADS bool dr_rows_made(const dr_cuda_rows *rows) {
    const dr_row *row = &rows->row[0];
    return rows->group == 1 && dr_rows_plain(rows) && rows->diagonal_scan && rows->steps == 1 &&
           row->write == DR_WRITE_PRECONDITIONED && rows->normalizer == DR_NORMALIZER_NONE &&
           (row->read == DR_READ_NONE || row->read == DR_READ_KEY);
}

#endif
