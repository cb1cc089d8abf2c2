/* The kernels of this folder, by instruction set: each is an entry of dr_cpu_kernels (backends/cpu/kernels.h), which says what
 * it does. */
#ifndef DR_CPU_ISA_KERNELS_H
#define DR_CPU_ISA_KERNELS_H

#include "backends/cpu/isa/isa.h"
#include "backends/cpu/kernels.h"

void DR_ISA_NAME(dr_cpu_product)(const dr_cpu_product *p, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end);

void DR_ISA_NAME(dr_cpu_narrow_product)(const dr_cpu_narrow *p, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end);
void DR_ISA_NAME(dr_cpu_narrow_transposed)(const dr_cpu_narrow *p, int64_t out, int64_t m_begin, int64_t m_end, int64_t n_begin,
                                           int64_t n_end);
void DR_ISA_NAME(dr_cpu_narrow_widen)(dr_dtype type, int64_t columns, const char *row, float *y);

void DR_ISA_NAME(dr_cpu_rms_norm_forward)(const dr_rms_norm *norm, int64_t rows, const float *x, const float *weight,
                                          const float *gate, float *y);
void DR_ISA_NAME(dr_cpu_rms_norm_backward)(const dr_rms_norm *norm, int64_t rows, const float *x, const float *weight,
                                           const float *gate, const float *d_y, float *d_x, bool accumulate, float *d_weight,
                                           float *d_gate);
void DR_ISA_NAME(dr_cpu_l2_norm_forward)(const dr_l2_norm *norm, int64_t rows, const float *x, float *y);
void DR_ISA_NAME(dr_cpu_l2_norm_backward)(const dr_l2_norm *norm, int64_t rows, const float *x, const float *d_y, float *d_x);

void DR_ISA_NAME(dr_cpu_conv_forward)(const dr_cpu_conv *part, float *y);
void DR_ISA_NAME(dr_cpu_conv_step)(const dr_cpu_conv *part, float *y, float *final);
void DR_ISA_NAME(dr_cpu_conv_backward)(const dr_cpu_conv *part, const float *d_y, float *d_x, float *d_weight, float *d_bias);

void DR_ISA_NAME(dr_cpu_gate_forward)(const dr_cpu_gate *gate, int64_t rows, const float *x, float *y);
void DR_ISA_NAME(dr_cpu_gate_backward)(const dr_cpu_gate *gate, int64_t rows, const float *x, const float *d_y, float *d_x,
                                       bool accumulate, float *d_rate_log, float *d_bias);

void DR_ISA_NAME(dr_cpu_rotary)(const dr_rotary *rotary, int64_t rows, int64_t position, const double *turns, bool backward,
                                float *x);

void DR_ISA_NAME(dr_cpu_attention_softmax)(const dr_cpu_scores *s, float *largest, float *sum, int64_t size, float *o);
void DR_ISA_NAME(dr_cpu_attention_finish)(int64_t rows, int64_t size, const float *largest, const float *sum, float *o,
                                          float *log_sums);
void DR_ISA_NAME(dr_cpu_attention_gradient)(const dr_cpu_scores *s, const float *log_sums, const float *along, float *d_p);
void DR_ISA_NAME(dr_cpu_attention_mix)(const dr_cpu_scores *s, const float *v, int64_t v_row, int64_t size, float *o);
bool DR_ISA_NAME(dr_cpu_attention_finite)(int64_t rows, int64_t size, const float *v, int64_t v_row);

void DR_ISA_NAME(dr_cpu_layer_norm_forward)(const dr_layer_norm *norm, int64_t tokens, const float *x, const float *weight,
                                            const float *bias, float *y);
void DR_ISA_NAME(dr_cpu_layer_norm_backward)(const dr_layer_norm *norm, int64_t tokens, const float *x, const float *weight,
                                             const float *d_y, float *d_x, bool accumulate, float *d_weight, float *d_bias);
void DR_ISA_NAME(dr_cpu_sum_norm_forward)(int64_t rows, int64_t dim, const float *x, float *y);
void DR_ISA_NAME(dr_cpu_sum_norm_backward)(int64_t rows, int64_t dim, const float *x, const float *d_y, float *d_x);
void DR_ISA_NAME(dr_cpu_blend_forward)(int64_t count, const float *x, const float *z, const float *factor, float *y);
void DR_ISA_NAME(dr_cpu_blend_backward)(int64_t count, const float *x, const float *z, const float *factor, const float *d_y,
                                        float *d_x, bool add_x, float *d_z, bool add_z, float *d_factor, bool add_factor);
void DR_ISA_NAME(dr_cpu_bonus_forward)(const dr_bonus *bonus, int64_t rows, const float *r, const float *k, const float *u,
                                       const float *v, float *y);
void DR_ISA_NAME(dr_cpu_bonus_backward)(const dr_bonus *bonus, int64_t rows, const float *r, const float *k, const float *u,
                                        const float *v, const float *d_y, float *d_r, float *d_k, float *d_u, float *d_v);

void DR_ISA_NAME(dr_cpu_depth_forward)(const dr_depth *depth, int64_t begin, int64_t end, const float *const *x,
                                       const float *direction, float *y);
void DR_ISA_NAME(dr_cpu_depth_backward)(const dr_depth *depth, int64_t begin, int64_t end, const float *const *x,
                                        const float *direction, const float *d_y, float *const *d_x, float *d_direction);

void DR_ISA_NAME(dr_cpu_gated_forward)(dr_function function, int64_t count, const float *x, const float *gate, float *y);
void DR_ISA_NAME(dr_cpu_gated_backward)(dr_function function, int64_t count, const float *x, const float *gate,
                                        const float *d_y, float *d_x, float *d_gate);

void DR_ISA_NAME(dr_cpu_swiglu_forward)(int64_t count, const float *gate, const float *up, float *y);
void DR_ISA_NAME(dr_cpu_swiglu_backward)(int64_t count, const float *gate, const float *up, const float *d_y, float *d_gate,
                                         float *d_up);
void DR_ISA_NAME(dr_cpu_add)(int64_t count, float factor, const float *x, float *y);

void DR_ISA_NAME(dr_cpu_adamw)(const dr_adamw *adamw, const dr_adamw_run *run, const dr_control *control, int64_t count,
                               const float *gradient, float *parameter, float *m, float *v);
double DR_ISA_NAME(dr_cpu_sum_squares)(int64_t count, const float *x);

void DR_ISA_NAME(dr_cpu_scale_forward)(int64_t heads, int64_t dim, const float *factor, const float *x, float *y,
                                       bool accumulate);
void DR_ISA_NAME(dr_cpu_scale_backward)(int64_t heads, int64_t dim, const float *factor, const float *x, const float *d_y,
                                        float *d_factor, float *d_x, bool accumulate);

double DR_ISA_NAME(dr_cpu_cross_entropy)(int64_t vocabulary, const float *logits, int32_t label, float factor, uint8_t *hit,
                                         float *d_logits);

#endif
