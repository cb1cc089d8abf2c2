/* The table of kernels of one instruction set. */
#include "backends/cpu/isa/kernels.h"

#define DR_TEXT_OF(x) #x
#define DR_TEXT(x)    DR_TEXT_OF(x)

const dr_cpu_kernels DR_ISA_NAME(dr_cpu_kernels) = {
    .name = DR_TEXT(DR_ISA),
    .product = DR_ISA_NAME(dr_cpu_product),
    .rms_norm_forward = DR_ISA_NAME(dr_cpu_rms_norm_forward),
    .rms_norm_backward = DR_ISA_NAME(dr_cpu_rms_norm_backward),
    .l2_norm_forward = DR_ISA_NAME(dr_cpu_l2_norm_forward),
    .l2_norm_backward = DR_ISA_NAME(dr_cpu_l2_norm_backward),
    .conv_forward = DR_ISA_NAME(dr_cpu_conv_forward),
    .conv_step = DR_ISA_NAME(dr_cpu_conv_step),
    .conv_backward = DR_ISA_NAME(dr_cpu_conv_backward),
    .gate_forward = DR_ISA_NAME(dr_cpu_gate_forward),
    .gate_backward = DR_ISA_NAME(dr_cpu_gate_backward),
    .rotary = DR_ISA_NAME(dr_cpu_rotary),
    .attention_softmax = DR_ISA_NAME(dr_cpu_attention_softmax),
    .attention_finish = DR_ISA_NAME(dr_cpu_attention_finish),
    .attention_gradient = DR_ISA_NAME(dr_cpu_attention_gradient),
    .attention_mix = DR_ISA_NAME(dr_cpu_attention_mix),
    .attention_finite = DR_ISA_NAME(dr_cpu_attention_finite),
    .layer_norm_forward = DR_ISA_NAME(dr_cpu_layer_norm_forward),
    .layer_norm_backward = DR_ISA_NAME(dr_cpu_layer_norm_backward),
    .sum_norm_forward = DR_ISA_NAME(dr_cpu_sum_norm_forward),
    .sum_norm_backward = DR_ISA_NAME(dr_cpu_sum_norm_backward),
    .blend_forward = DR_ISA_NAME(dr_cpu_blend_forward),
    .blend_backward = DR_ISA_NAME(dr_cpu_blend_backward),
    .bonus_forward = DR_ISA_NAME(dr_cpu_bonus_forward),
    .bonus_backward = DR_ISA_NAME(dr_cpu_bonus_backward),
    .gated_forward = DR_ISA_NAME(dr_cpu_gated_forward),
    .gated_backward = DR_ISA_NAME(dr_cpu_gated_backward),
    .swiglu_forward = DR_ISA_NAME(dr_cpu_swiglu_forward),
    .swiglu_backward = DR_ISA_NAME(dr_cpu_swiglu_backward),
    .add = DR_ISA_NAME(dr_cpu_add),
    .adamw = DR_ISA_NAME(dr_cpu_adamw),
    .sum_squares = DR_ISA_NAME(dr_cpu_sum_squares),
    .scale_forward = DR_ISA_NAME(dr_cpu_scale_forward),
    .scale_backward = DR_ISA_NAME(dr_cpu_scale_backward),
    .cross_entropy = DR_ISA_NAME(dr_cpu_cross_entropy),
};
