/* The recurrence on a GPU: what it takes, and which engine runs. Two engines share what this table entry offers: token by
 * token and chunkwise, which DR_PATH_BEST prefers where it takes the recurrence. Decoding is the first
 * one's. The thread's device is set here, once a call. */
#include "backends/cuda/recurrence.h"

#include "backends/cuda/engines.h"

/* The rules and sizes that no engine of the GPU takes. */
static dr_status check(const dr_recurrence *recurrence) {
    const dr_rule *rule = recurrence->rule;
    if (rule->scan == DR_SCAN_GRAM || rule->scan == DR_SCAN_INVERSE_GRAM)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend cuda has no scan \"%s\", only none and diagonal: use backend cpu",
                       dr_scan_name(rule->scan));
    if (recurrence->key_size > DR_CUDA_MOST_KEY || recurrence->value_size > DR_CUDA_MOST_VALUE)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "backend cuda takes heads of at most %d key and %d value channels, not %lld and %lld: use backend cpu",
                       DR_CUDA_MOST_KEY, DR_CUDA_MOST_VALUE, (long long)recurrence->key_size,
                       (long long)recurrence->value_size);
    return DR_OK;
}

/* Whether the chunkwise engine runs. DR_ERROR_UNSUPPORTED if it is asked for and does not take the recurrence. */
static dr_status choose(const dr_backend *backend, const dr_recurrence *recurrence, bool *chunkwise) {
    DR_TRY(check(recurrence));
    *chunkwise = false;
    if (recurrence->path == DR_PATH_RECURRENT) return DR_OK;
    dr_status status = dr_cuda_chunkwise_check(backend, recurrence);
    *chunkwise = status == DR_OK;
    return recurrence->path == DR_PATH_CHUNKWISE ? status : DR_OK;
}

dr_status dr_cuda_recurrence_plan(dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    bool chunkwise;
    DR_TRY(choose(backend, recurrence, &chunkwise));
    *memory = (dr_recurrence_memory){0};
    DR_TRY(dr_cuda_decode_plan(backend, recurrence, memory));
    return chunkwise ? dr_cuda_chunkwise_plan(backend, recurrence, memory)
                     : dr_cuda_recurrent_plan(backend, recurrence, memory);
}

dr_status dr_cuda_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                     void *workspace) {
    const dr_states from = initial ? *initial : (dr_states){{NULL}};
    const dr_mutable_states to = final ? *final : (dr_mutable_states){{NULL}};
    bool chunkwise;
    int before;
    DR_TRY(choose(backend, recurrence, &chunkwise));
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status = chunkwise ? dr_cuda_chunkwise_forward(backend, recurrence, inputs, &from, o, &to, saved, workspace)
                                 : dr_cuda_recurrent_forward(backend, recurrence, inputs, &from, o, &to, saved, workspace);
    dr_cuda_leave(before);
    return status;
}

dr_status dr_cuda_recurrence_backward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                      const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                      const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    const dr_states from = initial ? *initial : (dr_states){{NULL}}, d_from = d_final ? *d_final : (dr_states){{NULL}};
    const dr_mutable_states d_to = d_initial ? *d_initial : (dr_mutable_states){{NULL}};
    bool chunkwise;
    int before;
    DR_TRY(choose(backend, recurrence, &chunkwise));
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status =
        chunkwise
            ? dr_cuda_chunkwise_backward(backend, recurrence, inputs, &from, saved, d_o, &d_from, d_inputs, &d_to, workspace)
            : dr_cuda_recurrent_backward(backend, recurrence, inputs, &from, saved, d_o, &d_from, d_inputs, &d_to, workspace);
    dr_cuda_leave(before);
    return status;
}

dr_status dr_cuda_recurrence_decode(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_mutable_states *states, void *o, void *workspace) {
    return dr_cuda_recurrence_decode_slots(backend, recurrence, NULL, inputs, states, o, workspace);
}

/* slots NULL: sequence i has slot i. */
dr_status dr_cuda_recurrence_decode_slots(dr_backend *backend, const dr_recurrence *recurrence, const dr_slots *slots,
                                          const dr_inputs *inputs, const dr_mutable_states *states, void *o, void *workspace) {
    int before;
    DR_TRY(check(recurrence));
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status = dr_cuda_decode(backend, recurrence, slots, inputs, states, o, workspace);
    dr_cuda_leave(before);
    return status;
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

int64_t dr_cuda_recurrence_chunk(const dr_backend *backend, const dr_recurrence *recurrence) {
    bool chunkwise = false;
    return choose(backend, recurrence, &chunkwise) == DR_OK && chunkwise ? dr_cuda_chunkwise_chunk(backend, recurrence)
                                                                         : dr_cuda_recurrent_chunk(recurrence);
}

dr_status dr_cuda_recurrence_boundary(dr_backend *backend, const dr_recurrence *recurrence, const void *saved, int64_t sequence,
                                      int64_t boundary, const dr_mutable_states *states) {
    bool chunkwise;
    int before;
    DR_TRY(choose(backend, recurrence, &chunkwise));
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status = chunkwise ? dr_cuda_chunkwise_boundary(backend, recurrence, saved, sequence, boundary, states)
                                 : dr_cuda_recurrent_boundary(backend, recurrence, saved, sequence, boundary, states);
    dr_cuda_leave(before);
    return status;
}

int dr_cuda_recurrence_kernel(const dr_backend *backend, const dr_recurrence *recurrence, bool decode, char *text,
                              size_t size) {
    bool chunkwise = false;
    const char *storage = dr_dtype_name(backend->storage);
    if (decode) return snprintf(text, size, "cuda decode %s %s", backend->isa, storage);
    if (choose(backend, recurrence, &chunkwise) == DR_OK && chunkwise)
        return dr_cuda_chunkwise_kernel(backend, recurrence, text, size);
    return snprintf(text, size, "cuda recurrent %s %s", backend->isa, storage);
}
