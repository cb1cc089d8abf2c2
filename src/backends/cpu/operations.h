/* The CPU backend's functions behind the table of ops/operations.h, which says what each does; the recurrence's are in
 * recurrence.h. */
#ifndef DR_CPU_OPERATIONS_H
#define DR_CPU_OPERATIONS_H

#include "ops/operations.h"

/* memory.c */
dr_status dr_cpu_allocate(dr_backend *, size_t bytes, void **memory);
dr_status dr_cpu_upload(dr_backend *, void *to, const void *from, dr_dtype from_dtype, int64_t count);
dr_status dr_cpu_download(dr_backend *, void *to, dr_dtype to_dtype, const void *from, int64_t count);

/* linear.c */
dr_status dr_cpu_linear_forward(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *bias, void *y);
dr_status dr_cpu_linear_backward(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *d_y, void *d_x,
                                 bool accumulate, void *d_weight, void *d_bias);
dr_status dr_cpu_grouped_linear_forward(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight, void *y);
dr_status dr_cpu_grouped_linear_backward(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight,
                                         const void *d_y, void *d_x, void *d_weight);

/* narrow.c: as linear.c, embedding.c and experts.c, of weights that are stored apart */
dr_status dr_cpu_narrow_linear_forward(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *bias,
                                       void *y);
dr_status dr_cpu_narrow_linear_backward(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *d_y,
                                        void *d_x, bool accumulate, void *d_weight, void *d_bias);
dr_status dr_cpu_narrow_grouped_linear_forward(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight,
                                               void *y);
dr_status dr_cpu_narrow_embedding_forward(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *table,
                                          void *y);
dr_status dr_cpu_narrow_experts_linear_forward(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                               const void *x, const void *weight, void *y);

/* embedding.c */
dr_status dr_cpu_embedding_forward(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *table, void *y);
dr_status dr_cpu_embedding_backward(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y,
                                    void *d_table);

/* norm.c */
dr_status dr_cpu_rms_norm_forward(dr_backend *, const dr_rms_norm *, const void *x, const void *weight, const void *gate,
                                  void *y);
dr_status dr_cpu_rms_norm_backward(dr_backend *, const dr_rms_norm *, const void *x, const void *weight, const void *gate,
                                   const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_gate);
dr_status dr_cpu_l2_norm_forward(dr_backend *, const dr_l2_norm *, const void *x, void *y);
dr_status dr_cpu_l2_norm_backward(dr_backend *, const dr_l2_norm *, const void *x, const void *d_y, void *d_x);

/* conv.c */
dr_status dr_cpu_conv_forward(dr_backend *, const dr_conv *, const void *x, const void *weight, const void *bias,
                              const void *initial, void *y, void *final);
dr_status dr_cpu_conv_backward(dr_backend *, const dr_conv *, const void *x, const void *weight, const void *bias,
                               const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias);

/* gate.c */
dr_status dr_cpu_gate_forward(dr_backend *, const dr_gate *, const void *x, const void *a_log, const void *bias, void *y);
dr_status dr_cpu_gate_backward(dr_backend *, const dr_gate *, const void *x, const void *a_log, const void *bias,
                               const void *d_y, void *d_x, bool accumulate, void *d_a_log, void *d_bias);

/* rotary.c */
dr_status dr_cpu_rotary(dr_backend *, const dr_rotary *, void *x, bool backward);

/* attention.c, attention_backward.c */
dr_status dr_cpu_attention_forward(dr_backend *, const dr_attention *, const void *q, const void *k, const void *v,
                                   const dr_attention_memory *memory, void *o, void *log_sums);
dr_status dr_cpu_attention_backward(dr_backend *, const dr_attention *, const void *q, const void *k, const void *v,
                                    const void *o, const void *log_sums, const void *d_o, void *d_q, void *d_k, void *d_v);
dr_status dr_cpu_attention_append(dr_backend *, const dr_attention *, const void *k, const void *v,
                                  const dr_attention_memory *memory);

/* layer_norm.c */
dr_status dr_cpu_layer_norm_forward(dr_backend *, const dr_layer_norm *, const void *x, const void *weight, const void *bias,
                                    void *y);
dr_status dr_cpu_layer_norm_backward(dr_backend *, const dr_layer_norm *, const void *x, const void *weight, const void *d_y,
                                     void *d_x, bool accumulate, void *d_weight, void *d_bias);
dr_status dr_cpu_sum_norm_forward(dr_backend *, int64_t rows, int64_t dim, const void *x, void *y);
dr_status dr_cpu_sum_norm_backward(dr_backend *, int64_t rows, int64_t dim, const void *x, const void *d_y, void *d_x);

/* mix.c */
dr_status dr_cpu_token_shift_forward(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                     const void *initial, void *y, void *final);
dr_status dr_cpu_token_shift_backward(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                      const void *initial, const void *d_y, void *d_x, bool accumulate, void *d_factors);
dr_status dr_cpu_blend_forward(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                               const void *factor, void *y);
dr_status dr_cpu_blend_backward(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                const void *factor, const void *d_y, void *d_x, void *d_z, bool accumulate, void *d_factor);
dr_status dr_cpu_bonus_forward(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u, const void *v,
                               void *y);
dr_status dr_cpu_bonus_backward(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u, const void *v,
                                const void *d_y, void *d_r, void *d_k, void *d_u, void *d_v);

/* depth.c */
dr_status dr_cpu_depth_forward(dr_backend *, const dr_depth *, const void *const *x, const void *weight, const void *query,
                               void *y);
dr_status dr_cpu_depth_backward(dr_backend *, const dr_depth *, const void *const *x, const void *weight, const void *query,
                                const void *d_y, void *const *d_x, void *d_weight, void *d_query);

/* function.c */
dr_status dr_cpu_apply_forward(dr_backend *, dr_function, int64_t count, const void *x, void *y);
dr_status dr_cpu_apply_backward(dr_backend *, dr_function, int64_t count, const void *x, const void *d_y, void *d_x);
dr_status dr_cpu_gated_forward(dr_backend *, dr_function, int64_t count, const void *x, const void *gate, void *y);
dr_status dr_cpu_gated_backward(dr_backend *, dr_function, int64_t count, const void *x, const void *gate, const void *d_y,
                                void *d_x, void *d_gate);
dr_status dr_cpu_bound_forward(dr_backend *, const dr_bound *, int64_t count, const void *x, void *y);
dr_status dr_cpu_bound_backward(dr_backend *, const dr_bound *, int64_t count, const void *x, const void *d_y, void *d_x);

/* swiglu.c */
dr_status dr_cpu_swiglu_forward(dr_backend *, int64_t count, const void *gate, const void *up, void *y);
dr_status dr_cpu_swiglu_backward(dr_backend *, int64_t count, const void *gate, const void *up, const void *d_y, void *d_gate,
                                 void *d_up);

/* route.c */
dr_status dr_cpu_route_forward(dr_backend *, const dr_router *, const void *logits, const void *bias, int32_t *index,
                               void *weights);
dr_status dr_cpu_route_backward(dr_backend *, const dr_router *, const void *logits, const int32_t *index,
                                const void *d_weights, void *d_logits);
dr_status dr_cpu_balance(dr_backend *, const dr_router *, const void *logits, const int32_t *index, double factor, void *loss,
                         void *d_logits);

/* experts.c */
dr_status dr_cpu_experts_sort(dr_backend *, const dr_experts *, const int32_t *index, int32_t *order, int32_t *place,
                              int32_t *begins);
dr_status dr_cpu_experts_gather_forward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *order, const void *x,
                                        void *y);
dr_status dr_cpu_experts_gather_backward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place, const void *d_y,
                                         void *d_x, bool accumulate);
dr_status dr_cpu_experts_linear_forward(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                        const void *x, const void *weight, void *y);
dr_status dr_cpu_experts_linear_backward(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                         const void *x, const void *weight, const void *d_y, void *d_x, bool accumulate,
                                         void *d_weight);
dr_status dr_cpu_experts_combine_forward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                         const void *weights, const void *x, void *y, bool accumulate);
dr_status dr_cpu_experts_combine_backward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                          const void *weights, const void *x, const void *d_y, void *d_weights, void *d_x);

/* heads.c */
dr_status dr_cpu_scale_heads_forward(dr_backend *, int64_t rows, int64_t heads, int64_t dim, bool shared, const void *factor,
                                     const void *x, void *y, bool accumulate);
dr_status dr_cpu_scale_heads_backward(dr_backend *, int64_t rows, int64_t heads, int64_t dim, bool shared, const void *factor,
                                      const void *x, const void *d_y, void *d_factor, void *d_x, bool accumulate);
dr_status dr_cpu_copy_heads(dr_backend *, const dr_copy_heads *, const void *x, void *y);

/* rows.c */
dr_status dr_cpu_add(dr_backend *, dr_kind kind, int64_t count, double factor, const void *x, void *y);
dr_status dr_cpu_rows_gather(dr_backend *, int64_t count, int64_t dim, const int64_t *positions, const void *x, void *y);
dr_status dr_cpu_rows_scatter(dr_backend *, int64_t rows, int64_t count, int64_t dim, const int64_t *positions, const void *d_y,
                              void *d_x);

/* cross_entropy.c */
dr_status dr_cpu_cross_entropy(dr_backend *, int64_t count, int64_t vocabulary, const void *logits, const int32_t *labels,
                               double factor, double *loss, uint8_t *hit, void *d_logits);

/* optimizer.c */
dr_status dr_cpu_sum_squares(dr_backend *, int64_t count, const void *x, dr_control *control);
dr_status dr_cpu_adamw(dr_backend *, const dr_adamw *, const dr_control *, int runs, const dr_adamw_run *run,
                       const void *gradient, void *parameter, void *m, void *v);
dr_status dr_cpu_momentum(dr_backend *, double beta, const dr_control *, int64_t count, const void *gradient, void *momentum,
                          void *y);
dr_status dr_cpu_descend(dr_backend *, const dr_descent *, const dr_control *, int64_t count, const void *direction,
                         void *parameter);

#endif
