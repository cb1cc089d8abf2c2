/* The operations of networks on a GPU, for backends/cuda/backend.c: their contracts stand in ops/operations.h. Vectors are bf16
 * or float, numbers float, sums float or double. One operation is one kernel, or a few where sums over rows follow; all go to
 * the backend's stream. Every result has the same bits in every run: partial sums are added in an order that shapes alone
 * decide, and no float is added atomically. Offsets are 64 bits. */
#ifndef DR_CUDA_NETWORK_NETWORK_H
#define DR_CUDA_NETWORK_NETWORK_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what a backend keeps for them (state.c) -------------------------------------------------------------------------- */

dr_status dr_cuda_network_open(dr_cuda *gpu);
void dr_cuda_network_close(dr_cuda *gpu);

/* Memory of the GPU between the kernels of one operation; it holds until it is given back, and no other thread has it
 * meanwhile. It grows where a call needs more than any before, which waits for the device and cannot be captured in a graph. */
dr_status dr_cuda_scratch_take(dr_backend *backend, size_t bytes, void **memory);
void dr_cuda_scratch_give(dr_backend *backend);

/* The backend's products, opened when they are first asked for. */
struct dr_cuda_products;
dr_status dr_cuda_products_of(dr_backend *backend, struct dr_cuda_products **products);

/* ---- operations ------------------------------------------------------------------------------------------------------- */

/* linear.cu: products */
dr_status dr_cuda_linear_forward(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *bias, void *y);
dr_status dr_cuda_linear_backward(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *d_y,
                                  void *d_x, bool accumulate, void *d_weight, void *d_bias);
dr_status dr_cuda_grouped_linear_forward(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight, void *y);
dr_status dr_cuda_grouped_linear_backward(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight,
                                          const void *d_y, void *d_x, void *d_weight);

/* rows.cu */
dr_status dr_cuda_embedding_forward(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *table, void *y);
dr_status dr_cuda_embedding_backward(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y,
                                     void *d_table);

/* norms.cu */
dr_status dr_cuda_rms_norm_forward(dr_backend *, const dr_rms_norm *, const void *x, const void *weight, const void *gate,
                                   void *y);
dr_status dr_cuda_rms_norm_backward(dr_backend *, const dr_rms_norm *, const void *x, const void *weight, const void *gate,
                                    const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_gate);
dr_status dr_cuda_l2_norm_forward(dr_backend *, const dr_l2_norm *, const void *x, void *y);
dr_status dr_cuda_l2_norm_backward(dr_backend *, const dr_l2_norm *, const void *x, const void *d_y, void *d_x);

/* conv.cu */
bool dr_cuda_conv_units(int64_t width, int64_t unit);
dr_status dr_cuda_conv_forward(dr_backend *, const dr_conv *, const void *x, const void *weight, const void *bias,
                               const void *initial, void *y, void *final);
dr_status dr_cuda_conv_backward(dr_backend *, const dr_conv *, const void *x, const void *weight, const void *bias,
                                const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias);

/* gates.cu */
dr_status dr_cuda_gate_forward(dr_backend *, const dr_gate *, const void *x, const void *a_log, const void *bias, void *y);
dr_status dr_cuda_gate_backward(dr_backend *, const dr_gate *, const void *x, const void *a_log, const void *bias,
                                const void *d_y, void *d_x, bool accumulate, void *d_a_log, void *d_bias);

/* rotary.cu */
dr_status dr_cuda_rotary(dr_backend *, const dr_rotary *, void *x, bool backward);

/* attention.cu, attention_back.cu */
dr_status dr_cuda_attention_forward(dr_backend *, const dr_attention *, const void *q, const void *k, const void *v,
                                    const dr_attention_memory *memory, void *o, void *log_sums);
dr_status dr_cuda_attention_backward(dr_backend *, const dr_attention *, const void *q, const void *k, const void *v,
                                     const void *o, const void *log_sums, const void *d_o, void *d_q, void *d_k, void *d_v);
dr_status dr_cuda_attention_append(dr_backend *, const dr_attention *, const void *k, const void *v,
                                   const dr_attention_memory *memory);

/* norms.cu */
dr_status dr_cuda_layer_norm_forward(dr_backend *, const dr_layer_norm *, const void *x, const void *weight, const void *bias,
                                     void *y);
dr_status dr_cuda_layer_norm_backward(dr_backend *, const dr_layer_norm *, const void *x, const void *weight, const void *d_y,
                                      void *d_x, bool accumulate, void *d_weight, void *d_bias);
dr_status dr_cuda_sum_norm_forward(dr_backend *, int64_t rows, int64_t dim, const void *x, void *y);
dr_status dr_cuda_sum_norm_backward(dr_backend *, int64_t rows, int64_t dim, const void *x, const void *d_y, void *d_x);

/* mix.cu */
dr_status dr_cuda_token_shift_forward(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                      const void *initial, void *y, void *final);
dr_status dr_cuda_token_shift_backward(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                       const void *initial, const void *d_y, void *d_x, bool accumulate, void *d_factors);
dr_status dr_cuda_blend_forward(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                const void *factor, void *y);
dr_status dr_cuda_blend_backward(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                 const void *factor, const void *d_y, void *d_x, void *d_z, bool accumulate, void *d_factor);
dr_status dr_cuda_bonus_forward(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u, const void *v,
                                void *y);
dr_status dr_cuda_bonus_backward(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u, const void *v,
                                 const void *d_y, void *d_r, void *d_k, void *d_u, void *d_v);

/* depth.cu */
dr_status dr_cuda_depth_forward(dr_backend *, const dr_depth *, const void *const *x, const void *weight, const void *query,
                                void *y);
dr_status dr_cuda_depth_backward(dr_backend *, const dr_depth *, const void *const *x, const void *weight, const void *query,
                                 const void *d_y, void *const *d_x, void *d_weight, void *d_query);

/* elements.cu */
dr_status dr_cuda_apply_forward(dr_backend *, dr_function, int64_t count, const void *x, void *y);
dr_status dr_cuda_apply_backward(dr_backend *, dr_function, int64_t count, const void *x, const void *d_y, void *d_x);
dr_status dr_cuda_gated_forward(dr_backend *, dr_function, int64_t count, const void *x, const void *gate, void *y);
dr_status dr_cuda_gated_backward(dr_backend *, dr_function, int64_t count, const void *x, const void *gate, const void *d_y,
                                 void *d_x, void *d_gate);
dr_status dr_cuda_bound_forward(dr_backend *, const dr_bound *, int64_t count, const void *x, void *y);
dr_status dr_cuda_bound_backward(dr_backend *, const dr_bound *, int64_t count, const void *x, const void *d_y, void *d_x);

/* elements.cu */
dr_status dr_cuda_swiglu_forward(dr_backend *, int64_t count, const void *gate, const void *up, void *y);
dr_status dr_cuda_swiglu_backward(dr_backend *, int64_t count, const void *gate, const void *up, const void *d_y, void *d_gate,
                                  void *d_up);

dr_status dr_cuda_swiglu_panel_forward(dr_backend *, int64_t rows, int64_t columns, const void *panel, void *y);
dr_status dr_cuda_swiglu_panel_backward(dr_backend *, int64_t rows, int64_t columns, const void *panel, const void *d_y,
                                        void *d_panel);

/* route.cu, experts.cu */
dr_status dr_cuda_route_forward(dr_backend *, const dr_router *, const void *logits, const void *bias, int32_t *index,
                                void *weights);
dr_status dr_cuda_route_backward(dr_backend *, const dr_router *, const void *logits, const int32_t *index,
                                 const void *d_weights, void *d_logits);
dr_status dr_cuda_balance(dr_backend *, const dr_router *, const void *logits, const int32_t *index, double factor, void *loss,
                          void *d_logits);
dr_status dr_cuda_experts_sort(dr_backend *, const dr_experts *, const int32_t *index, int32_t *order, int32_t *place,
                               int32_t *begins);
dr_status dr_cuda_experts_gather_forward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *order, const void *x,
                                         void *y);
dr_status dr_cuda_experts_gather_backward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place, const void *d_y,
                                          void *d_x, bool accumulate);
dr_status dr_cuda_experts_linear_forward(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                         const void *x, const void *weight, void *y);
dr_status dr_cuda_experts_linear_backward(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                          const void *x, const void *weight, const void *d_y, void *d_x, bool accumulate,
                                          void *d_weight);
dr_status dr_cuda_experts_combine_forward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                          const void *weights, const void *x, void *y, bool accumulate);
dr_status dr_cuda_experts_combine_backward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                           const void *weights, const void *x, const void *d_y, void *d_weights, void *d_x);

/* heads.cu */
dr_status dr_cuda_scale_heads_forward(dr_backend *, int64_t rows, int64_t heads, int64_t dim, bool shared, const void *factor,
                                      const void *x, void *y, bool accumulate);
dr_status dr_cuda_scale_heads_backward(dr_backend *, int64_t rows, int64_t heads, int64_t dim, bool shared, const void *factor,
                                       const void *x, const void *d_y, void *d_factor, void *d_x, bool accumulate);
dr_status dr_cuda_copy_heads(dr_backend *, const dr_copy_heads *, const void *x, void *y);

/* rows.cu */
dr_status dr_cuda_add(dr_backend *, dr_kind kind, int64_t count, double factor, const void *x, void *y);
dr_status dr_cuda_store_vectors(dr_backend *, int64_t count, const void *x, void *y);
dr_status dr_cuda_rows_gather(dr_backend *, int64_t count, int64_t dim, const int64_t *positions, const void *x, void *y);
dr_status dr_cuda_rows_scatter(dr_backend *, int64_t rows, int64_t count, int64_t dim, const int64_t *positions,
                               const void *d_y, void *d_x);

/* loss.cu */
dr_status dr_cuda_cross_entropy(dr_backend *, int64_t count, int64_t vocabulary, const void *logits, const int32_t *labels,
                                double factor, double *loss, uint8_t *hit, void *d_logits);

dr_status dr_cuda_sum_losses(dr_backend *, int64_t count, const double *loss, const uint8_t *hit, dr_loss_sum *sum);

/* choose.cu */
dr_status dr_cuda_choose(dr_backend *, int64_t count, int64_t vocabulary, int64_t allowed, const void *logits,
                         const dr_draw *draws, int32_t *ids);

/* optimizer.cu */
dr_status dr_cuda_clip(dr_backend *, double clip, dr_control *control);
dr_status dr_cuda_sum_squares(dr_backend *, int64_t count, const void *x, dr_control *control);
dr_status dr_cuda_adamw(dr_backend *, const dr_adamw *, const dr_control *, int runs, const dr_adamw_run *run,
                        const void *gradient, void *parameter, void *m, void *v);
dr_status dr_cuda_momentum(dr_backend *, double beta, const dr_control *, int64_t count, const void *gradient, void *momentum,
                           void *y);
dr_status dr_cuda_descend(dr_backend *, const dr_descent *, const dr_control *, int64_t count, const void *direction,
                          void *parameter);

/* All of them, for the table of a backend. */
#define DR_CUDA_NETWORK_OPERATIONS                                                                                             \
    .linear_forward = dr_cuda_linear_forward, .linear_backward = dr_cuda_linear_backward,                                      \
    .grouped_linear_forward = dr_cuda_grouped_linear_forward, .grouped_linear_backward = dr_cuda_grouped_linear_backward,      \
    .embedding_forward = dr_cuda_embedding_forward, .embedding_backward = dr_cuda_embedding_backward,                          \
    .rms_norm_forward = dr_cuda_rms_norm_forward, .rms_norm_backward = dr_cuda_rms_norm_backward,                              \
    .l2_norm_forward = dr_cuda_l2_norm_forward, .l2_norm_backward = dr_cuda_l2_norm_backward,                                  \
    .conv_forward = dr_cuda_conv_forward, .conv_backward = dr_cuda_conv_backward, .conv_units = dr_cuda_conv_units,            \
    .gate_forward = dr_cuda_gate_forward, .gate_backward = dr_cuda_gate_backward, .rotary = dr_cuda_rotary,                    \
    .attention_forward = dr_cuda_attention_forward, .attention_backward = dr_cuda_attention_backward,                          \
    .attention_append = dr_cuda_attention_append, .layer_norm_forward = dr_cuda_layer_norm_forward,                            \
    .layer_norm_backward = dr_cuda_layer_norm_backward, .sum_norm_forward = dr_cuda_sum_norm_forward,                          \
    .sum_norm_backward = dr_cuda_sum_norm_backward, .token_shift_forward = dr_cuda_token_shift_forward,                        \
    .token_shift_backward = dr_cuda_token_shift_backward, .blend_forward = dr_cuda_blend_forward,                              \
    .blend_backward = dr_cuda_blend_backward, .bonus_forward = dr_cuda_bonus_forward,                                          \
    .bonus_backward = dr_cuda_bonus_backward, .depth_forward = dr_cuda_depth_forward,                                          \
    .depth_backward = dr_cuda_depth_backward, .apply_forward = dr_cuda_apply_forward,                                          \
    .apply_backward = dr_cuda_apply_backward, .gated_forward = dr_cuda_gated_forward,                                          \
    .gated_backward = dr_cuda_gated_backward, .bound_forward = dr_cuda_bound_forward,                                          \
    .bound_backward = dr_cuda_bound_backward, .swiglu_forward = dr_cuda_swiglu_forward,                                        \
    .swiglu_panel_forward = dr_cuda_swiglu_panel_forward, .swiglu_panel_backward = dr_cuda_swiglu_panel_backward,              \
    .swiglu_backward = dr_cuda_swiglu_backward, .route_forward = dr_cuda_route_forward,                                        \
    .route_backward = dr_cuda_route_backward, .balance = dr_cuda_balance, .experts_sort = dr_cuda_experts_sort,                \
    .experts_gather_forward = dr_cuda_experts_gather_forward, .experts_gather_backward = dr_cuda_experts_gather_backward,      \
    .experts_linear_forward = dr_cuda_experts_linear_forward, .experts_linear_backward = dr_cuda_experts_linear_backward,      \
    .experts_combine_forward = dr_cuda_experts_combine_forward, .experts_combine_backward = dr_cuda_experts_combine_backward,  \
    .scale_heads_forward = dr_cuda_scale_heads_forward, .scale_heads_backward = dr_cuda_scale_heads_backward,                  \
    .copy_heads = dr_cuda_copy_heads, .add = dr_cuda_add, .store_vectors = dr_cuda_store_vectors,                              \
    .rows_gather = dr_cuda_rows_gather, .rows_scatter = dr_cuda_rows_scatter, .cross_entropy = dr_cuda_cross_entropy,          \
    .choose = dr_cuda_choose, .sum_losses = dr_cuda_sum_losses, .clip = dr_cuda_clip, .sum_squares = dr_cuda_sum_squares,      \
    .adamw = dr_cuda_adamw, .momentum = dr_cuda_momentum, .descend = dr_cuda_descend

#ifdef __cplusplus
}
#endif
#endif
