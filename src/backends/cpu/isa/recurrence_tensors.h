/* Where a head's part of a tensor is, and copies between tensors and the memory of a chunk. */
#ifndef DR_CPU_RECURRENCE_TENSORS_H
#define DR_CPU_RECURRENCE_TENSORS_H

#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

/* rows of `width` floats between a tensor (stride) and the chunk (pitch); the chunk's are zero up to whole tiles */
static inline void copy_in(int64_t rows, int64_t width, const float *from, int64_t stride, float *to, int64_t pitch) {
    for (int64_t i = 0; i < rows; i++) load_row(width, from ? from + i * stride : NULL, to + i * pitch);
}

static inline void copy_out(int64_t rows, int64_t width, const float *from, int64_t pitch, float *to, int64_t stride) {
    for (int64_t i = 0; i < rows; i++) copy_row(width, from + i * pitch, to + i * stride);
}

/* S [sequences, HV, K, V] of one value head, from the plan's first column on; NULL if there is none */
static inline float *state_of(const dr_cpu_plan *plan, void *states, int64_t sequence, int64_t value_head) {
    if (!states) return NULL;
    return (float *)states + (sequence * plan->value_heads + value_head) * plan->key_size * plan->values + plan->value_first;
}

/* The same of states that calls carry from one to the next, whose type and layout the caller chooses: [K][V] or [V][K]. */
static inline int64_t carried_at(const dr_cpu_plan *plan, int64_t sequence, int64_t value_head) {
    const int64_t first = plan->value_first * (plan->value_major ? plan->key_size : 1);
    return (sequence * plan->value_heads + value_head) * plan->key_size * plan->values + first;
}

static inline void *carried_state_of(const dr_cpu_plan *plan, void *states, int64_t sequence, int64_t value_head) {
    if (!states) return NULL;
    const size_t item = plan->bf16_state ? sizeof(uint16_t) : sizeof(float);
    return (char *)states + (size_t)carried_at(plan, sequence, value_head) * item;
}

static inline float *carried_gradient_of(const dr_cpu_plan *plan, void *states, int64_t sequence, int64_t value_head) {
    return states ? (float *)states + carried_at(plan, sequence, value_head) : NULL;
}

/* A [sequences, H, K] of one key head */
static inline float *scan_of(const dr_cpu_plan *plan, void *states, int64_t sequence, int64_t key_head) {
    return states ? (float *)states + (sequence * plan->key_heads + key_head) * plan->key_size : NULL;
}

/* K or P [sequences, HV, K, K] of one value head */
static inline float *matrix_of(const dr_cpu_plan *plan, void *states, int64_t sequence, int64_t value_head) {
    if (!states) return NULL;
    return (float *)states + (sequence * plan->value_heads + value_head) * plan->key_size * plan->key_size;
}

/* from [K, K], NULL: zero */
static inline void load_matrix(const dr_cpu_plan *plan, const float *from, float *matrix) {
    copy_in(plan->key_size, plan->key_size, from, plan->key_size, matrix, plan->key_pitch);
}

static inline void store_matrix(const dr_cpu_plan *plan, const float *matrix, float *to) {
    copy_out(plan->key_size, plan->key_size, matrix, plan->key_pitch, to, plan->key_size);
}

/* An inverse that is zero or missing is the one before the first token. */
static inline bool is_unset(const dr_cpu_plan *plan, const float *matrix) {
    return plan->rule->scan == DR_SCAN_INVERSE_GRAM && (!matrix || matrix[0] == 0);
}

static inline const float *ridge_of(const dr_cpu_plan *plan, const dr_cpu_call *call, int64_t value_head) {
    return (const float *)call->inputs->at[DR_INPUT_RIDGE] + value_head / plan->group * plan->key_size;
}

/* The matrix before the first token: the caller's, or 1 / ridge on its diagonal. */
static inline void start_matrix(const dr_cpu_plan *plan, const dr_cpu_call *call, const float *given, int64_t value_head,
                                float *matrix) {
    load_matrix(plan, given, matrix);
    if (!is_unset(plan, given)) return;
    const float *ridge = ridge_of(plan, call, value_head);
    for (int64_t i = 0; i < plan->key_size; i++) matrix[i * plan->key_pitch + i] = 1 / ridge[i];
}

/* Tokens from `first` on in o or d_o [rows, HV, V] of a value head. */
static inline int64_t output_item(const dr_cpu_plan *plan) {
    return plan->forms.output == DR_F32 ? sizeof(float) : sizeof(uint16_t);
}

static inline void *output_of(const dr_cpu_plan *plan, const void *tensor, int64_t first, int64_t value_head) {
    const int64_t at = (first * plan->value_heads + value_head) * plan->values + plan->value_first;
    return (char *)tensor + at * output_item(plan);
}

static inline bool scans(const dr_cpu_plan *plan) {
    return plan->rule->scan == DR_SCAN_DIAGONAL;
}

#endif
