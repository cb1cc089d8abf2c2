/* What sums of products with a row's vectors settle: the gradient of its gain, and a multiple of w in w's. */
#ifndef DR_CUDA_GAINS_CUH
#define DR_CUDA_GAINS_CUH

#include "backends/cuda/backward/row_tiles.cuh"
#include "backends/cuda/rows/diagonal.cuh"

static __device__ inline void dr_put_scalar(const dr_cuda_rows &rows, dr_input i, int64_t token, int step, int head, float x) {
    const dr_cuda_input &input = rows.input[i];
    if (input.at && input.gradient) ((float *)input.gradient)[dr_input_index(input, token, step, head)] = x;
}

/* w only ever stands beside c u, so scaling it is scaling c: w . dw = u . dz, and c dc is that less what z = factor v gets.
 * What rounded products bring to the two sides differs, and gradients through a gain that divides by r . w, or through the
 * scan, are differences of them: so dw's part along w and dc both come from u . dz. Where c is too small to divide by, dc
 * stays as it is: what float rounds off u . dz is divided too, and products of floats are better than that sooner than those of
 * 16 bits. */
static __device__ inline void dr_settle_gain(dr_dtype storage, const dr_row &spec, const dr_row_gains &gains, float value_dot,
                                          float write_dot, float *d_gain) {
    const bool own_factor = spec.value != DR_VALUE_NONE && spec.value != DR_VALUE_GAIN;
    const float least = storage == DR_F32 ? 0x1p-4f : 0x1p-10f;
    if (spec.read == DR_READ_NONE && spec.value != DR_VALUE_GAIN) return;
    if (fabsf(gains.gain) >= least) *d_gain = (own_factor ? write_dot - gains.factor * value_dot : write_dot) / gains.gain;
}

/* The multiple of w that settles w's gradient, of row i of a chunk, to the diagonal scan's backward; parts: of w . d_write and
 * w . w, of 64 channels each, or none where nothing was made of these. */
static __device__ inline void dr_put_settle(const dr_cuda_backward_call &call, const dr_row_block &x, int i, int parts,
                                            float write_dot) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int64_t token = x.place.first + i, part = x.block * (call.plan.key_width / 64) * 64 + i;
    float dot = 0, square = 0;
    for (int p = 0; p < parts; p++) {
        dot += call.back.write_part[part + p * 64];
        square += call.back.square_part[part + p * 64];
    }
    const float settle = dr_settle_by(write_dot, dot, square);
    if (call.diagonal.key) {
        call.diagonal.settle[token * rows.key_heads + x.key_head] = settle;
    } else { /* beside the units, which are there */
        dr_cuda_scan_row &to = call.diagonal.row[x.block * 64 + i];
        to.alpha = dr_diagonal_alpha(rows, token, x.key_head);
        to.gain = dr_diagonal_gain(rows, token, x.key_head);
        to.settle = settle;
    }
}

#endif
