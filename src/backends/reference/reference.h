/* The reference backend: every operation of ops/operations.h in double, as plain loops on one thread. It is the specification
 * that the other backends are held to, so each function is written to be read beside its formula; it is not fast.
 *
 * The contract of each function (shapes, what may be NULL, what is added to) stands in ops/operations.h. Inside, x_ is the
 * untyped parameter and x the same pointer as doubles. */
#ifndef DR_BACKENDS_REFERENCE_REFERENCE_H
#define DR_BACKENDS_REFERENCE_REFERENCE_H

#include "ops/operations.h"

/* options may be NULL; neither threads nor isa concern this backend, and dtype is how it stores vectors: DR_BF16, DR_F16, or
 * double. Close with dr_backend_close or ops->close. */
dr_status dr_reference_open(const dr_backend_options *options, dr_backend **backend);

/* One to plan recurrences with, which calls nothing. */
dr_backend dr_reference_imagine(const dr_backend_options *options);

void dr_reference_close(dr_backend *);

/* memory.c */
dr_status dr_reference_allocate(dr_backend *, size_t bytes, void **memory);
dr_status dr_reference_upload(dr_backend *, void *to, const void *from, dr_dtype from_dtype, int64_t count);
dr_status dr_reference_download(dr_backend *, void *to, dr_dtype to_dtype, const void *from, int64_t count);

/* linear.c */
dr_status dr_reference_linear_forward(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *bias,
                                      void *y);
dr_status dr_reference_linear_backward(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *d_y,
                                       void *d_x, bool accumulate, void *d_weight, void *d_bias);
dr_status dr_reference_grouped_linear_forward(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight,
                                              void *y);
dr_status dr_reference_grouped_linear_backward(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight,
                                               const void *d_y, void *d_x, void *d_weight);

/* embedding.c */
dr_status dr_reference_embedding_forward(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *table,
                                         void *y);
dr_status dr_reference_embedding_backward(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y,
                                          void *d_table);

/* norm.c */
dr_status dr_reference_rms_norm_forward(dr_backend *, const dr_rms_norm *, const void *x, const void *weight, const void *gate,
                                        void *y);
dr_status dr_reference_rms_norm_backward(dr_backend *, const dr_rms_norm *, const void *x, const void *weight, const void *gate,
                                         const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_gate);
dr_status dr_reference_l2_norm_forward(dr_backend *, const dr_l2_norm *, const void *x, void *y);
dr_status dr_reference_l2_norm_backward(dr_backend *, const dr_l2_norm *, const void *x, const void *d_y, void *d_x);

/* conv.c */
dr_status dr_reference_conv_forward(dr_backend *, const dr_conv *, const void *x, const void *weight, const void *bias,
                                    const void *initial, void *y, void *final);
dr_status dr_reference_conv_backward(dr_backend *, const dr_conv *, const void *x, const void *weight, const void *bias,
                                     const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias);

/* gate.c */
dr_status dr_reference_gate_forward(dr_backend *, const dr_gate *, const void *x, const void *a_log, const void *bias, void *y);
dr_status dr_reference_gate_backward(dr_backend *, const dr_gate *, const void *x, const void *a_log, const void *bias,
                                     const void *d_y, void *d_x, bool accumulate, void *d_a_log, void *d_bias);

/* rotary.c */
dr_status dr_reference_rotary(dr_backend *, const dr_rotary *, void *x, bool backward);

/* attention.c */
dr_status dr_reference_attention_forward(dr_backend *, const dr_attention *, const void *q, const void *k, const void *v,
                                         const dr_attention_memory *memory, void *o, void *log_sums);
dr_status dr_reference_attention_backward(dr_backend *, const dr_attention *, const void *q, const void *k, const void *v,
                                          const void *o, const void *log_sums, const void *d_o, void *d_q, void *d_k,
                                          void *d_v);
dr_status dr_reference_attention_append(dr_backend *, const dr_attention *, const void *k, const void *v,
                                        const dr_attention_memory *memory);

/* layer_norm.c */
dr_status dr_reference_layer_norm_forward(dr_backend *, const dr_layer_norm *, const void *x, const void *weight,
                                          const void *bias, void *y);
dr_status dr_reference_layer_norm_backward(dr_backend *, const dr_layer_norm *, const void *x, const void *weight,
                                           const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias);
dr_status dr_reference_sum_norm_forward(dr_backend *, int64_t rows, int64_t dim, const void *x, void *y);
dr_status dr_reference_sum_norm_backward(dr_backend *, int64_t rows, int64_t dim, const void *x, const void *d_y, void *d_x);

/* mix.c */
dr_status dr_reference_token_shift_forward(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                           const void *initial, void *y, void *final);
dr_status dr_reference_token_shift_backward(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                            const void *initial, const void *d_y, void *d_x, bool accumulate, void *d_factors);
dr_status dr_reference_blend_forward(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                     const void *factor, void *y);
dr_status dr_reference_blend_backward(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                      const void *factor, const void *d_y, void *d_x, void *d_z, bool accumulate,
                                      void *d_factor);
dr_status dr_reference_bonus_forward(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u, const void *v,
                                     void *y);
dr_status dr_reference_bonus_backward(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u,
                                      const void *v, const void *d_y, void *d_r, void *d_k, void *d_u, void *d_v);

/* depth.c */
dr_status dr_reference_depth_forward(dr_backend *, const dr_depth *, const void *const *x, const void *weight,
                                     const void *query, void *y);
dr_status dr_reference_depth_backward(dr_backend *, const dr_depth *, const void *const *x, const void *weight,
                                      const void *query, const void *d_y, void *const *d_x, void *d_weight, void *d_query);

/* function.c */
dr_status dr_reference_apply_forward(dr_backend *, dr_function, int64_t count, const void *x, void *y);
dr_status dr_reference_apply_backward(dr_backend *, dr_function, int64_t count, const void *x, const void *d_y, void *d_x);
dr_status dr_reference_gated_forward(dr_backend *, dr_function, int64_t count, const void *x, const void *gate, void *y);
dr_status dr_reference_gated_backward(dr_backend *, dr_function, int64_t count, const void *x, const void *gate,
                                      const void *d_y, void *d_x, void *d_gate);
dr_status dr_reference_bound_forward(dr_backend *, const dr_bound *, int64_t count, const void *x, void *y);
dr_status dr_reference_bound_backward(dr_backend *, const dr_bound *, int64_t count, const void *x, const void *d_y, void *d_x);

/* swiglu.c */
dr_status dr_reference_swiglu_forward(dr_backend *, int64_t count, const void *gate, const void *up, void *y);
dr_status dr_reference_swiglu_panel_forward(dr_backend *, int64_t rows, int64_t columns, const void *panel, void *y);
dr_status dr_reference_swiglu_panel_backward(dr_backend *, int64_t rows, int64_t columns, const void *panel, const void *d_y,
                                             void *d_panel);
dr_status dr_reference_swiglu_backward(dr_backend *, int64_t count, const void *gate, const void *up, const void *d_y,
                                       void *d_gate, void *d_up);

/* experts.c */
dr_status dr_reference_route_forward(dr_backend *, const dr_router *, const void *logits, const void *bias, int32_t *index,
                                     void *weights);
dr_status dr_reference_route_backward(dr_backend *, const dr_router *, const void *logits, const int32_t *index,
                                      const void *d_weights, void *d_logits);
dr_status dr_reference_balance(dr_backend *, const dr_router *, const void *logits, const int32_t *index, double factor,
                               void *loss, void *d_logits);
dr_status dr_reference_experts_sort(dr_backend *, const dr_experts *, const int32_t *index, int32_t *order, int32_t *place,
                                    int32_t *begins);
dr_status dr_reference_experts_gather_forward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *order,
                                              const void *x, void *y);
dr_status dr_reference_experts_gather_backward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                               const void *d_y, void *d_x, bool accumulate);
dr_status dr_reference_experts_linear_forward(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                              const void *x, const void *weight, void *y);
dr_status dr_reference_experts_linear_backward(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                               const void *x, const void *weight, const void *d_y, void *d_x, bool accumulate,
                                               void *d_weight);
dr_status dr_reference_experts_combine_forward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                               const void *weights, const void *x, void *y, bool accumulate);
dr_status dr_reference_experts_combine_backward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                                const void *weights, const void *x, const void *d_y, void *d_weights,
                                                void *d_x);

/* heads.c */
dr_status dr_reference_scale_heads_forward(dr_backend *, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                           const void *factor, const void *x, void *y, bool accumulate);
dr_status dr_reference_scale_heads_backward(dr_backend *, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                            const void *factor, const void *x, const void *d_y, void *d_factor, void *d_x,
                                            bool accumulate);
dr_status dr_reference_copy_heads(dr_backend *, const dr_copy_heads *, const void *x, void *y);

/* rows.c */
dr_status dr_reference_add(dr_backend *, dr_kind kind, int64_t count, double factor, const void *x, void *y);
dr_status dr_reference_rows_gather(dr_backend *, int64_t count, int64_t dim, const int64_t *positions, const void *x, void *y);
dr_status dr_reference_rows_scatter(dr_backend *, int64_t rows, int64_t count, int64_t dim, const int64_t *positions,
                                    const void *d_y, void *d_x);

/* choose.c */
dr_status dr_reference_choose(dr_backend *, int64_t count, int64_t vocabulary, int64_t allowed, const void *logits,
                              const dr_draw *draws, int32_t *ids);

/* cross_entropy.c */
dr_status dr_reference_cross_entropy(dr_backend *, int64_t count, int64_t vocabulary, const void *logits, const int32_t *labels,
                                     double factor, double *loss, uint8_t *hit, void *d_logits);

/* optimizer.c */
dr_status dr_reference_sum_squares(dr_backend *, int64_t count, const void *x, dr_control *control);
dr_status dr_reference_adamw(dr_backend *, const dr_adamw *, const dr_control *, int runs, const dr_adamw_run *run,
                             const void *gradient, void *parameter, void *m, void *v);
dr_status dr_reference_momentum(dr_backend *, double beta, const dr_control *, int64_t count, const void *gradient,
                                void *momentum, void *y);
dr_status dr_reference_descend(dr_backend *, const dr_descent *, const dr_control *, int64_t count, const void *direction,
                               void *parameter);

#endif
