/* The entries of widened.h: buffers of float for the call's vectors, the chunkwise engine between them. */
#include "backends/cuda/chunkwise/widened.h"

#include "backends/cuda/engines.h"

/* Float in the place of the call's narrow tensors; others are the call's own. */
typedef struct {
    dr_backend backend; /* the same, storing float32 */
    dr_inputs inputs;
    dr_input_gradients gradients;
    float *o; /* or d_o */
    void *workspace;
} widened;

static bool depends_on_squash(const dr_rule *rule, const dr_row *row) {
    return row->write == DR_WRITE_PRECONDITIONED && (rule->decay == DR_DECAY_NONE || row->gain == DR_GAIN_IMPLICIT ||
                                                     row->gain == DR_GAIN_NORMALIZED || row->gain == DR_GAIN_EXPONENTIAL);
}

/* Erases all that a unit key held. */
static bool steps_fully(const dr_row *row) {
    const bool same = (row->read == DR_READ_KEY && row->write == DR_WRITE_KEY) ||
                      (row->read == DR_READ_ERASE_KEY && row->write == DR_WRITE_ERASE_KEY);
    return row->gain == DR_GAIN_NORMALIZED || (row->gain == DR_GAIN_ONE && same);
}

bool dr_cuda_widens(const dr_backend *backend, const dr_recurrence *recurrence) {
    const dr_rule *rule = recurrence->rule;
    if (backend->storage != DR_BF16) return backend->storage == DR_F16;
    if (rule->normalizer != DR_NORMALIZER_NONE) return true;
    for (int i = 0; i < rule->rows; i++)
        if (steps_fully(&rule->row[i]) || depends_on_squash(rule, &rule->row[i])) return true;
    return false;
}

static bool is_narrow(const dr_backend *backend, const dr_recurrence *recurrence, dr_input input) {
    return dr_rule_uses(recurrence->rule, input) && dr_recurrence_input_dtype(backend, input) != DR_F32;
}

static int64_t output_count(const dr_recurrence *recurrence) {
    return recurrence->layout.rows * recurrence->value_heads * recurrence->value_size;
}

static dr_backend widen_backend(const dr_backend *backend) {
    dr_backend wide = *backend;
    wide.storage = DR_F32;
    return wide;
}

/* The engine's workspace lies behind ours. */
static void lay(const dr_backend *backend, const dr_recurrence *recurrence, bool backward, size_t engine, dr_arena *arena,
                widened *w) {
    *w = (widened){.backend = widen_backend(backend)};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!is_narrow(backend, recurrence, (dr_input)i)) continue;
        const size_t bytes = (size_t)dr_recurrence_input_count(recurrence, (dr_input)i) * sizeof(float);
        w->inputs.at[i] = dr_arena_take(arena, bytes);
        if (backward) w->gradients.at[i] = dr_arena_take(arena, bytes);
    }
    w->o = dr_arena_take(arena, (size_t)output_count(recurrence) * sizeof(float));
    w->workspace = dr_arena_take(arena, engine);
}

dr_status dr_cuda_widened_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    const dr_backend wide = widen_backend(backend);
    widened w;
    dr_arena forward = {0}, backward = {0};
    DR_TRY(dr_cuda_chunkwise_plan(&wide, recurrence, memory));
    lay(backend, recurrence, false, memory->forward, &forward, &w);
    lay(backend, recurrence, true, memory->backward, &backward, &w);
    memory->forward = forward.used;
    memory->backward = backward.used;
    return DR_OK;
}

static dr_status widen_inputs(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs, widened *w) {
    for (int i = 0; i < DR_INPUTS; i++) {
        float *to = (float *)w->inputs.at[i];
        if (to)
            DR_TRY(dr_cuda_widen(backend->storage, inputs->at[i], dr_recurrence_input_count(recurrence, (dr_input)i), to,
                                 dr_cuda_of(backend)->stream));
        else
            w->inputs.at[i] = inputs->at[i];
    }
    return DR_OK;
}

dr_status dr_cuda_widened_forward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                  const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                  void *workspace) {
    widened w;
    lay(backend, recurrence, false, 0, &(dr_arena){.block = workspace}, &w);
    DR_TRY(widen_inputs(backend, recurrence, inputs, &w));
    DR_TRY(dr_cuda_chunkwise_forward(&w.backend, recurrence, &w.inputs, initial, w.o, final, saved, w.workspace));
    return dr_cuda_narrow(backend->storage, w.o, output_count(recurrence), o, dr_cuda_of(backend)->stream);
}

dr_status dr_cuda_widened_backward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                   const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                   const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    const cudaStream_t stream = dr_cuda_of(backend)->stream;
    widened w;
    lay(backend, recurrence, true, 0, &(dr_arena){.block = workspace}, &w);
    DR_TRY(widen_inputs(backend, recurrence, inputs, &w));
    DR_TRY(dr_cuda_widen(backend->storage, d_o, output_count(recurrence), w.o, stream));
    for (int i = 0; i < DR_INPUTS; i++) /* wanted is what the call wants */
        if (!w.gradients.at[i] || !d_inputs->at[i]) w.gradients.at[i] = d_inputs->at[i];
    DR_TRY(dr_cuda_chunkwise_backward(&w.backend, recurrence, &w.inputs, initial, saved, w.o, d_final, &w.gradients, d_initial,
                                      w.workspace));
    for (int i = 0; i < DR_INPUTS; i++)
        if (w.gradients.at[i] != d_inputs->at[i])
            DR_TRY(dr_cuda_narrow(backend->storage, (const float *)w.gradients.at[i],
                                  dr_recurrence_input_count(recurrence, (dr_input)i), d_inputs->at[i], stream));
    return DR_OK;
}

dr_status dr_cuda_widened_boundary(const dr_backend *backend, const dr_recurrence *recurrence, const void *saved,
                                   int64_t sequence, int64_t boundary, const dr_mutable_states *states) {
    const dr_backend wide = widen_backend(backend);
    return dr_cuda_chunkwise_boundary(&wide, recurrence, saved, sequence, boundary, states);
}

int dr_cuda_widened_kernel(const dr_backend *backend, const dr_recurrence *recurrence, char *text, size_t size) {
    const dr_backend wide = widen_backend(backend);
    return dr_cuda_chunkwise_kernel(&wide, recurrence, text, size);
}
