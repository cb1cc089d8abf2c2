/* The table of the reference whose vectors are stored in 16 bits. */
#ifndef DR_BACKENDS_REFERENCE_STORED_H
#define DR_BACKENDS_REFERENCE_STORED_H

#include "ops/operations.h"

extern const dr_operations dr_reference_stored_operations;

/* stored_layers.c */
dr_status dr_reference_stored_layer_norm_forward(dr_backend *, const dr_layer_norm *, const void *x, const void *weight,
                                                 const void *bias, void *y);
dr_status dr_reference_stored_layer_norm_backward(dr_backend *, const dr_layer_norm *, const void *x, const void *weight,
                                                  const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias);
dr_status dr_reference_stored_sum_norm_forward(dr_backend *, int64_t rows, int64_t dim, const void *x, void *y);
dr_status dr_reference_stored_sum_norm_backward(dr_backend *, int64_t rows, int64_t dim, const void *x, const void *d_y,
                                                void *d_x);
dr_status dr_reference_stored_token_shift_forward(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                                  const void *initial, void *y, void *final);
dr_status dr_reference_stored_token_shift_backward(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                                   const void *initial, const void *d_y, void *d_x, bool accumulate,
                                                   void *d_factors);
dr_status dr_reference_stored_copy_heads(dr_backend *, const dr_copy_heads *, const void *x, void *y);
dr_status dr_reference_stored_blend_forward(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                            const void *factor, void *y);
dr_status dr_reference_stored_blend_backward(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                             const void *factor, const void *d_y, void *d_x, void *d_z, bool accumulate,
                                             void *d_factor);
dr_status dr_reference_stored_bonus_forward(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u,
                                            const void *v, void *y);
dr_status dr_reference_stored_bonus_backward(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u,
                                             const void *v, const void *d_y, void *d_r, void *d_k, void *d_u, void *d_v);
dr_status dr_reference_stored_depth_forward(dr_backend *, const dr_depth *, const void *const *x, const void *weight,
                                            const void *query, void *y);
dr_status dr_reference_stored_depth_backward(dr_backend *, const dr_depth *, const void *const *x, const void *weight,
                                             const void *query, const void *d_y, void *const *d_x, void *d_weight,
                                             void *d_query);
dr_status dr_reference_stored_apply_forward(dr_backend *, dr_function, int64_t count, const void *x, void *y);
dr_status dr_reference_stored_apply_backward(dr_backend *, dr_function, int64_t count, const void *x, const void *d_y,
                                             void *d_x);
dr_status dr_reference_stored_gated_forward(dr_backend *, dr_function, int64_t count, const void *x, const void *gate, void *y);
dr_status dr_reference_stored_gated_backward(dr_backend *, dr_function, int64_t count, const void *x, const void *gate,
                                             const void *d_y, void *d_x, void *d_gate);
dr_status dr_reference_stored_bound_forward(dr_backend *, const dr_bound *, int64_t count, const void *x, void *y);
dr_status dr_reference_stored_bound_backward(dr_backend *, const dr_bound *, int64_t count, const void *x, const void *d_y,
                                             void *d_x);
dr_status dr_reference_stored_experts_gather_backward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                                      const void *d_y, void *d_x, bool accumulate);
dr_status dr_reference_stored_experts_linear_forward(dr_backend *, const dr_experts *, int64_t in, int64_t out,
                                                     const int32_t *begins, const void *x, const void *weight, void *y);
dr_status dr_reference_stored_experts_linear_backward(dr_backend *, const dr_experts *, int64_t in, int64_t out,
                                                      const int32_t *begins, const void *x, const void *weight, const void *d_y,
                                                      void *d_x, bool accumulate, void *d_weight);
dr_status dr_reference_stored_experts_combine_forward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                                      const void *weights, const void *x, void *y, bool accumulate);
dr_status dr_reference_stored_experts_combine_backward(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                                       const void *weights, const void *x, const void *d_y, void *d_weights,
                                                       void *d_x);

#endif
