/* The recurrence as it is written, token by token and row by row:
 *
 *     D = decay S        e = r^T D (undecayed: r^T S)        S = D + w (z - c e)^T        o = scale S^T q~
 *
 * A row that reads passes over the state twice: once to decay and read it, once to write it and, in the last row of a token, to
 * let the query read it. One token of many sequences goes another way, recurrence_decode.c. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

typedef struct {
    int64_t rows, width, pitch;
    float *state;
    const float *alpha; /* decays row k by alpha[k alpha_step]; NULL: no decay */
    int64_t alpha_step;
    const float *write, *update; /* adds write update^T after the decay; NULL: nothing */
    const float *read;           /* out = read^T state after all that; before all that if undecayed; NULL: nothing */
    bool undecayed;
    float *out;
} pass;

static inline __attribute__((always_inline)) void pass_over(const pass *p, const bool fades, const bool writes,
                                                            const bool reads, const bool undecayed) {
    enum { TILE = 4 }; /* vectors of columns: enough sums to hide the latency of one */
    for (int64_t v = 0; v < p->width; v += TILE * LANES) {
        const int vectors = p->width - v >= TILE * LANES ? TILE : (int)((p->width - v) / LANES);
        lanes sum[TILE], update[TILE];
        for (int i = 0; i < vectors; i++) {
            sum[i] = lanes_zero();
            update[i] = writes ? lanes_load(p->update + v + i * LANES) : lanes_zero();
        }
        float *state = p->state + v;
        for (int64_t k = 0; k < p->rows; k++, state += p->pitch) {
            const lanes alpha = lanes_set(fades ? p->alpha[k * p->alpha_step] : 1.0f);
            const lanes write = lanes_set(writes ? p->write[k] : 0.0f), read = lanes_set(reads ? p->read[k] : 0.0f);
            for (int i = 0; i < vectors; i++) {
                lanes x = lanes_load(state + i * LANES);
                if (reads && undecayed) sum[i] = lanes_fma(read, x, sum[i]);
                if (fades) x = alpha * x;
                if (writes) x = lanes_fma(write, update[i], x);
                if (fades || writes) lanes_store(state + i * LANES, x);
                if (reads && !undecayed) sum[i] = lanes_fma(read, x, sum[i]);
            }
        }
        if (reads)
            for (int i = 0; i < vectors; i++) lanes_store(p->out + v + i * LANES, sum[i]);
    }
}

static void run_pass(const pass *p) {
    const bool fades = p->alpha, writes = p->write, reads = p->read;
    if (!fades && !writes)
        pass_over(p, false, false, true, false);
    else if (!fades && !reads)
        pass_over(p, false, true, false, false);
    else if (!fades)
        pass_over(p, false, true, true, false);
    else if (!writes && p->undecayed)
        pass_over(p, true, false, true, true);
    else if (!writes)
        pass_over(p, true, false, true, false);
    else if (!reads)
        pass_over(p, true, true, false, false);
    else
        pass_over(p, true, true, true, false);
}

/* The decay of token t, at its first row; NULL elsewhere. */
static const float *alpha_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t row) {
    const int64_t t = row / plan->steps;
    if (row % plan->steps || plan->rule->decay == DR_DECAY_NONE) return NULL;
    return chunk->alpha + t * (plan->channel ? plan->key_pitch : 1);
}

static pass pass_of(const dr_cpu_plan *plan, float *state, int64_t pitch) {
    return (pass){
        .rows = plan->key_size, .width = plan->value_width, .pitch = pitch, .state = state, .alpha_step = plan->channel};
}

void dr_tokens_forward(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *state, int64_t pitch) {
    const int64_t Kp = plan->key_pitch, Vp = plan->value_pitch, n = plan->steps;
    int64_t i = 0; /* erase rows so far */
    for (int64_t row = 0; row < chunk->rows; row++) {
        float *update = chunk->update + row * Vp;
        if (chunk->states)
            memcpy(chunk->states + row * plan->key_width * Vp, state, (size_t)(plan->key_size * Vp) * sizeof(float));
        pass write = pass_of(plan, state, pitch);
        write.alpha = alpha_of(plan, chunk, row);
        if (dr_cpu_rule_row(plan, row)->read != DR_READ_NONE) {
            pass read = write;
            read.read = chunk->reader + i * Kp;
            read.undecayed = dr_cpu_reads_undecayed(plan, row);
            read.out = chunk->read + i * Vp;
            run_pass(&read);
            add_row(plan->value_width, -chunk->gain[row], read.out, update);
            write.alpha = NULL;
            i++;
        }
        write.write = chunk->write + row * Kp;
        write.update = update;
        const int64_t t = row / n;
        float *output = chunk->output + t * Vp;
        if (row % n == n - 1) {
            write.read = chunk->reader + (chunk->erases + t) * Kp;
            write.out = output;
        }
        run_pass(&write);
        if (write.read) scale_row(plan->value_width, plan->scale, output, output);
    }
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

/* o = scale S^T q~: d_reader of the query; d_state += scale q~ d_o^T */
static void output_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t, const float *state, float *d_state) {
    const int64_t pitch = plan->value_pitch, at = (chunk->erases + t) * plan->key_pitch;
    const float *d_o = chunk->d_output + t * pitch;
    for (int64_t k = 0; k < plan->key_size; k++) {
        chunk->d_reader[at + k] = plan->scale * dot_rows(plan->value_width, state + k * pitch, d_o);
        add_row(plan->value_width, plan->scale * chunk->reader[at + k], d_o, d_state + k * pitch);
    }
}

/* D = alpha S: d_state from that of D to that of S, d_log_decay of the token */
static void decay_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t row, const float *state, float *d_state) {
    const float *alpha = alpha_of(plan, chunk, row);
    if (!alpha) return;
    const int64_t t = row / plan->steps, pitch = plan->value_pitch;
    float sum = 0;
    for (int64_t k = 0; k < plan->key_size; k++) {
        const float factor = alpha[plan->channel ? k : 0];
        const float d = factor * dot_rows(plan->value_width, state + k * pitch, d_state + k * pitch);
        if (plan->channel) chunk->d_log_decay[t * plan->key_pitch + k] = d;
        sum += d;
        scale_row(plan->value_width, factor, d_state + k * pitch, d_state + k * pitch);
    }
    if (plan->scalar) chunk->d_log_decay[t] = sum;
}

/* S = D + w (z - c e)^T, e = r^T D or r^T S, i the erase row or -1; state: before the row and its decay */
static void row_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t row, int64_t i, const float *state, float *d_state) {
    const int64_t pitch = plan->value_pitch, V = plan->value_width, at = row * plan->key_pitch;
    const float *update = chunk->update + row * pitch, *alpha = alpha_of(plan, chunk, row);
    float *d_update = chunk->d_update + row * pitch;
    memset(d_update, 0, (size_t)V * sizeof(float));
    for (int64_t k = 0; k < plan->key_size; k++) {
        add_row(V, chunk->write[at + k], d_state + k * pitch, d_update);
        chunk->d_write[at + k] = dot_rows(V, d_state + k * pitch, update);
    }
    if (i < 0) {
        decay_back(plan, chunk, row, state, d_state);
        return;
    }
    const float *reader = chunk->reader + i * plan->key_pitch;
    float *d_reader = chunk->d_reader + i * plan->key_pitch;
    const bool undecayed = dr_cpu_reads_undecayed(plan, row);
    const float gain = chunk->gain[row];
    chunk->d_gain[row] = -dot_rows(V, chunk->read + i * pitch, d_update);
    if (undecayed) decay_back(plan, chunk, row, state, d_state);
    for (int64_t k = 0; k < plan->key_size; k++) {
        const float fade = alpha && !undecayed ? alpha[plan->channel ? k : 0] : 1;
        d_reader[k] = -gain * fade * dot_rows(V, state + k * pitch, d_update);
        add_row(V, -gain * reader[k], d_update, d_state + k * pitch);
    }
    if (!undecayed) decay_back(plan, chunk, row, state, d_state);
}

void dr_tokens_backward(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state, float *d_state) {
    const int64_t n = plan->steps, size = plan->key_width * plan->value_pitch, Kp = plan->key_pitch;
    int64_t i = chunk->erases;
    /* channels behind the true size are not touched below */
    memset(chunk->d_reader, 0, (size_t)(chunk->readers * Kp) * sizeof(float));
    memset(chunk->d_write, 0, (size_t)(chunk->rows * Kp) * sizeof(float));
    for (int64_t row = chunk->rows - 1; row >= 0; row--) {
        const float *before = chunk->states + row * size, *after = row + 1 < chunk->rows ? before + size : state;
        if (row % n == n - 1) output_back(plan, chunk, row / n, after, d_state);
        const bool reads = dr_cpu_rule_row(plan, row)->read != DR_READ_NONE;
        if (reads) i--;
        row_back(plan, chunk, row, reads ? i : -1, before, d_state);
    }
}
