/* The rows of a value head from its inputs: read key, write key, gain and value of every row, and back from their gradients.
 * The maps themselves are those of maps/, here are the loops and the sums over channels. */
#include "backends/cpu/isa/recurrence_stages.h"
#include "maps/gain.h"
#include "maps/keys.h"
#include <string.h>

static float *row_or_null(float *rows, int64_t row, int64_t pitch) {
    return rows ? rows + row * pitch : NULL;
}

/* The channels of row `row`: of the inputs, or of their gradients. */
static dr_map_keys keys_of(const dr_cpu_plan *plan, float *const *input, const int64_t *pitch, float *squash, float *morrison,
                           float *exact, int64_t row) {
    const int64_t t = row / plan->steps, own = plan->key_pitch;
    return (dr_map_keys){
        .query = row_or_null(input[DR_INPUT_QUERY], t, pitch[DR_INPUT_QUERY]),
        .key = row_or_null(input[DR_INPUT_KEY], plan->step_axis ? row : t, pitch[DR_INPUT_KEY]),
        .erase_key = row_or_null(input[DR_INPUT_ERASE_KEY], t, pitch[DR_INPUT_ERASE_KEY]),
        .feedback_key = row_or_null(input[DR_INPUT_FEEDBACK_KEY], t, pitch[DR_INPUT_FEEDBACK_KEY]),
        .free_read = row_or_null(input[DR_INPUT_FREE_READ], t, pitch[DR_INPUT_FREE_READ]),
        .free_write = row_or_null(input[DR_INPUT_FREE_WRITE], t, pitch[DR_INPUT_FREE_WRITE]),
        .rate = row_or_null(input[DR_INPUT_RATE], t, pitch[DR_INPUT_RATE]),
        .erase_gate = row_or_null(input[DR_INPUT_ERASE_GATE], t, pitch[DR_INPUT_ERASE_GATE]),
        .squash = row_or_null(squash, t, own),
        .morrison = row_or_null(morrison, t, own),
        .exact = row_or_null(exact, t, own),
    };
}

/* The kinds of keys as constants of each instance, so that nothing is asked in the inner loops. */
#define EACH_READ(CASE)                                                                                                        \
    CASE(DR_READ_NONE)                                                                                                         \
    CASE(DR_READ_KEY)                                                                                                          \
    CASE(DR_READ_GATED_KEY)                                                                                                    \
    CASE(DR_READ_KEY_PLUS_QUERY)                                                                                               \
    CASE(DR_READ_ERASE_KEY)                                                                                                    \
    CASE(DR_READ_FEEDBACK)                                                                                                     \
    CASE(DR_READ_FREE)
#define EACH_WRITE(CASE)                                                                                                       \
    CASE(DR_WRITE_KEY)                                                                                                         \
    CASE(DR_WRITE_PRECONDITIONED)                                                                                              \
    CASE(DR_WRITE_SHERMAN_MORRISON)                                                                                            \
    CASE(DR_WRITE_ERASE_KEY)                                                                                                   \
    CASE(DR_WRITE_RATE_READ)                                                                                                   \
    CASE(DR_WRITE_FREE)                                                                                                        \
    CASE(DR_WRITE_EXACT)

static float scalar_of(float *const *input, dr_input i, int64_t row) {
    return input[i] ? input[i][row] : 0;
}

static dr_map_gain_inputs gain_inputs_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t row) {
    const int64_t t = row / plan->steps;
    return (dr_map_gain_inputs){
        .beta = scalar_of(chunk->input, DR_INPUT_BETA, plan->step_axis ? row : t),
        .erase_gain = scalar_of(chunk->input, DR_INPUT_ERASE_GAIN, t),
        .alpha = plan->scalar ? chunk->alpha[t] : 1,
        .dot = chunk->dot[row],
        .key_dot = chunk->key_dot ? chunk->key_dot[t] : 0,
    };
}

/* The normalizer is a factor of rows with a preconditioned write key only. */
static dr_normalizer normalizer_of(const dr_cpu_plan *plan, const dr_row *spec) {
    return spec->write == DR_WRITE_PRECONDITIONED ? plan->rule->normalizer : DR_NORMALIZER_NONE;
}

void dr_chunk_map_decay(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    if (plan->rule->decay == DR_DECAY_NONE) return;
    const float *g = chunk->input[DR_INPUT_LOG_DECAY];
    if (plan->channel) {
        for (int64_t t = 0; t < chunk->tokens; t++, g += chunk->pitch[DR_INPUT_LOG_DECAY])
            for (int64_t d = 0; d < plan->key_width; d += LANES)
                lanes_store(chunk->alpha + t * plan->key_pitch + d, lanes_exp(lanes_load(g + d)));
        return;
    }
    bool constant = plan->rule->decay == DR_DECAY_CONSTANT;
    for (int64_t t = 0; t < chunk->tokens; t += LANES) {
        int64_t left = lanes_left(chunk->tokens, t);
        lanes_store_n(chunk->alpha + t, left, lanes_exp(constant ? lanes_set(g[0]) : lanes_load_n(g + t, left)));
    }
}

static bool gain_needs_dot(dr_gain gain) {
    return gain == DR_GAIN_IMPLICIT || gain == DR_GAIN_NORMALIZED || gain == DR_GAIN_EXPONENTIAL;
}

static void map_read(const dr_cpu_plan *plan, dr_read read, const dr_map_keys *keys, float lambda, float *to) {
    switch (read) {
#define CASE(kind)                                                                                                             \
    case kind:                                                                                                                 \
        for (int64_t d = 0; d < plan->key_width; d += LANES) lanes_store(to + d, dr_map_read(kind, keys, lambda, d));          \
        break;
        EACH_READ(CASE)
#undef CASE
    }
}

static void map_write(const dr_cpu_plan *plan, dr_write write, const dr_map_keys *keys, const float *reader, float *to) {
    switch (write) {
#define CASE(kind)                                                                                                             \
    case kind:                                                                                                                 \
        for (int64_t d = 0; d < plan->key_width; d += LANES)                                                                   \
            lanes_store(to + d,                                                                                                \
                        dr_map_write(kind, keys, (kind) == DR_WRITE_RATE_READ ? lanes_load(reader + d) : lanes_zero(), d));    \
        break;
        EACH_WRITE(CASE)
#undef CASE
    }
}

/* reader: the row's read key, or NULL: it has none. Keys that are inputs, or that a scan made, are there already. */
static void map_keys(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const dr_row *spec, int64_t row, float *reader) {
    const bool reads = reader && plan->read_input < 0, writes = plan->write_input < 0 && !chunk->writes_scanned;
    float *write = chunk->write + row * plan->key_pitch;
    if (reads || writes) {
        dr_map_keys keys = keys_of(plan, chunk->input, chunk->pitch, chunk->squash, chunk->morrison, chunk->solved, row);
        if (reads) map_read(plan, spec->read, &keys, scalar_of(chunk->input, DR_INPUT_LAMBDA, row / plan->steps), reader);
        if (writes) map_write(plan, spec->write, &keys, reader, write);
    }
    if (gain_needs_dot(spec->gain)) chunk->dot[row] = reader ? dot_rows(plan->key_width, reader, write) : 0;
}

static void map_value(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const dr_row *spec, int64_t row) {
    const int64_t t = row / plan->steps;
    float *z = chunk->update + row * plan->value_pitch;
    if (spec->value == DR_VALUE_NONE) {
        memset(z, 0, (size_t)plan->value_width * sizeof(float));
        return;
    }
    const float *v = chunk->input[DR_INPUT_VALUE] + (plan->step_axis ? row : t) * chunk->pitch[DR_INPUT_VALUE];
    const float *gate = row_or_null(chunk->input[DR_INPUT_WRITE_GATE], t, chunk->pitch[DR_INPUT_WRITE_GATE]);
    const lanes factor = lanes_set(spec->value == DR_VALUE_GAIN ? chunk->gain[row] : chunk->factor[row]);
    for (int64_t d = 0; d < plan->value_width; d += LANES) {
        lanes x = lanes_load(v + d);
        if (spec->value == DR_VALUE_GATED) x = lanes_load(gate + d) * x;
        lanes_store(z + d, factor * x);
    }
}

void dr_chunk_map_rows(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, bool values) {
    const int64_t pitch = plan->key_pitch;
    float *reader = chunk->reader;
    for (int64_t row = 0; row < chunk->rows; row++) {
        const dr_row *spec = dr_cpu_rule_row(plan, row);
        bool reads = spec->read != DR_READ_NONE;
        map_keys(plan, chunk, spec, row, reads ? reader : NULL);
        if (reads) reader += pitch;
        dr_map_gain_inputs x = gain_inputs_of(plan, chunk, row);
        chunk->base_gain[row] = dr_map_base_gain(spec->gain, plan->rule->gain_eps, &x);
        chunk->factor[row] = dr_map_normalizer(normalizer_of(plan, spec), &x);
        chunk->gain[row] = chunk->base_gain[row] * chunk->factor[row];
        if (values) map_value(plan, chunk, spec, row);
    }
    for (int64_t t = 0; plan->solved_query && t < chunk->tokens; t++)
        copy_row(plan->key_width, chunk->read_query + t * pitch, reader + t * pitch);
}

void dr_chunk_map_writers(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    if (!plan->erases) {
        dr_chunk_map_rows(plan, chunk, true);
        return;
    }
    if (plan->write_input >= 0) return;
    for (int64_t row = 0; row < chunk->rows; row++) {
        const dr_row *spec = dr_cpu_rule_row(plan, row);
        dr_map_keys keys = keys_of(plan, chunk->input, chunk->pitch, chunk->squash, chunk->morrison, chunk->solved, row);
        float *write = chunk->write + row * plan->key_pitch;
        if (spec->write == DR_WRITE_RATE_READ) /* its read key, where the write key will be */
            map_read(plan, spec->read, &keys, scalar_of(chunk->input, DR_INPUT_LAMBDA, row / plan->steps), write);
        map_write(plan, spec->write, &keys, write, write);
    }
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

/* Sets what nobody else adds to. */
static inline void give(bool alone, float *to, lanes x) {
    lanes_store(to, alone ? x : lanes_load(to) + x);
}

/* Gradients of value and write gate; adds what z brings to the gradients of the gain and of the factor. */
static void map_value_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const dr_row *spec, int64_t row, float *d_gain,
                           float *d_factor) {
    if (spec->value == DR_VALUE_NONE) return;
    const int64_t t = row / plan->steps, at = plan->step_axis ? row : t, V = plan->value_width;
    const float *v = chunk->input[DR_INPUT_VALUE] + at * chunk->pitch[DR_INPUT_VALUE];
    const float *d_z = chunk->d_update + row * plan->value_pitch;
    const float *gate = row_or_null(chunk->input[DR_INPUT_WRITE_GATE], t, chunk->pitch[DR_INPUT_WRITE_GATE]);
    float *d_v = chunk->d_input[DR_INPUT_VALUE] + at * chunk->d_pitch[DR_INPUT_VALUE];
    float *d_gate = row_or_null(chunk->d_input[DR_INPUT_WRITE_GATE], t, chunk->d_pitch[DR_INPUT_WRITE_GATE]);
    const bool gained = spec->value == DR_VALUE_GAIN, alone = plan->input[DR_INPUT_VALUE].direct_gradient;
    const bool gate_alone = plan->input[DR_INPUT_WRITE_GATE].direct_gradient;
    const lanes factor = lanes_set(gained ? chunk->gain[row] : chunk->factor[row]);
    lanes sum = lanes_zero();
    if (spec->value == DR_VALUE_GATED)
        for (int64_t d = 0; d < V; d += LANES) {
            lanes x = lanes_load(v + d), d_x = lanes_load(d_z + d), w = lanes_load(gate + d);
            give(gate_alone, d_gate + d, factor * x * d_x);
            sum = lanes_fma(w * x, d_x, sum);
            give(alone, d_v + d, factor * w * d_x);
        }
    else
        for (int64_t d = 0; d < V; d += LANES) {
            lanes x = lanes_load(v + d), d_x = lanes_load(d_z + d);
            sum = lanes_fma(x, d_x, sum);
            give(alone, d_v + d, factor * d_x);
        }
    *(gained ? d_gain : d_factor) += lanes_sum(sum);
}

/* Gradients of the scalars of a row from those of its gain and factor; returns those of r . w (or key . key) and of m. */
static dr_map_gain_inputs map_gain_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const dr_row *spec, int64_t row,
                                        float d_gain, float d_factor) {
    const int64_t t = row / plan->steps;
    dr_map_gain_inputs x = gain_inputs_of(plan, chunk, row), dx = {0};
    float base = chunk->base_gain[row], factor = chunk->factor[row];
    dr_map_base_gain_backward(spec->gain, &x, base, d_gain * factor, &dx);
    dr_map_normalizer_backward(normalizer_of(plan, spec), &x, factor, d_factor + d_gain * base, &dx);
    if (plan->input[DR_INPUT_BETA].used) chunk->d_input[DR_INPUT_BETA][plan->step_axis ? row : t] += dx.beta;
    if (plan->input[DR_INPUT_ERASE_GAIN].used) chunk->d_input[DR_INPUT_ERASE_GAIN][t] += dx.erase_gain;
    if (plan->scalar) chunk->d_log_decay[t] += dx.alpha * x.alpha;
    return dx;
}

/* Gradients of the inputs behind a write key, and what it passes on to the read key of its row. */
static void map_write_back(const dr_cpu_plan *plan, dr_write write, const dr_map_keys *x, const float *reader,
                           const float *d_write, const dr_map_keys *dx, float *d_reader) {
    switch (write) {
#define CASE(kind)                                                                                                             \
    case kind:                                                                                                                 \
        for (int64_t d = 0; d < plan->key_width; d += LANES) {                                                                 \
            const bool passes = (kind) == DR_WRITE_RATE_READ;                                                                  \
            lanes r = passes ? lanes_load(reader + d) : lanes_zero();                                                          \
            lanes part = dr_map_write_backward(kind, x, r, lanes_load(d_write + d), dx, d);                                    \
            if (passes) dr_map_add(d_reader + d, part);                                                                        \
        }                                                                                                                      \
        break;
        EACH_WRITE(CASE)
#undef CASE
    }
}

/* The same of a read key; returns the gradient of lambda. */
static float map_read_back(const dr_cpu_plan *plan, dr_read read, const dr_map_keys *x, float lambda, const float *d_reader,
                           const dr_map_keys *dx) {
    lanes d_lambda = lanes_zero();
    switch (read) {
#define CASE(kind)                                                                                                             \
    case kind:                                                                                                                 \
        for (int64_t d = 0; d < plan->key_width; d += LANES)                                                                   \
            d_lambda = d_lambda + dr_map_read_backward(kind, x, lambda, lanes_load(d_reader + d), dx, d);                      \
        break;
        EACH_READ(CASE)
#undef CASE
    }
    return lanes_sum(d_lambda);
}

/* reader NULL: the row has no read. */
static void map_keys_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const dr_row *spec, int64_t row, const float *reader,
                          float *d_reader, float d_dot, float d_key_dot) {
    const int64_t K = plan->key_width, t = row / plan->steps;
    dr_map_keys x = keys_of(plan, chunk->input, chunk->pitch, chunk->squash, chunk->morrison, chunk->solved, row);
    dr_map_keys dx = keys_of(plan, chunk->d_input, chunk->d_pitch, chunk->d_squash, chunk->d_morrison, chunk->d_solved, row);
    if (plan->input[DR_INPUT_ERASE_GATE].direct_gradient) memset(dx.erase_gate, 0, (size_t)K * sizeof(float));
    const float *write = chunk->write + row * plan->key_pitch;
    float *d_write = chunk->d_write + row * plan->key_pitch;
    if (reader && gain_needs_dot(spec->gain)) {
        add_row(K, d_dot, write, d_reader);
        add_row(K, d_dot, reader, d_write);
    }
    if (normalizer_of(plan, spec) != DR_NORMALIZER_NONE) {
        add_row(K, d_key_dot, x.key, d_write);
        add_row(K, d_key_dot, write, dx.key);
    }
    map_write_back(plan, spec->write, &x, reader, d_write, &dx, d_reader);
    if (!reader) return;
    const float lambda = scalar_of(chunk->input, DR_INPUT_LAMBDA, t);
    const float d_lambda = map_read_back(plan, spec->read, &x, lambda, d_reader, &dx);
    if (spec->read == DR_READ_KEY_PLUS_QUERY) chunk->d_input[DR_INPUT_LAMBDA][t] += d_lambda;
}

/* Decay by channel has its gradient where it is wanted. */
static void map_decay_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const bool constant = plan->rule->decay == DR_DECAY_CONSTANT;
    float *to = chunk->d_input[DR_INPUT_LOG_DECAY];
    for (int64_t t = 0; plan->scalar && t < chunk->tokens; t++) to[constant ? 0 : t] += chunk->d_log_decay[t];
}

void dr_chunk_map_rows_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const int64_t pitch = plan->key_pitch;
    const float *reader = chunk->reader;
    float *d_reader = chunk->d_reader;
    for (int64_t row = 0; row < chunk->rows; row++) {
        const dr_row *spec = dr_cpu_rule_row(plan, row);
        bool reads = spec->read != DR_READ_NONE;
        float d_gain = reads ? chunk->d_gain[row] : 0, d_factor = 0;
        map_value_back(plan, chunk, spec, row, &d_gain, &d_factor);
        dr_map_gain_inputs d = map_gain_back(plan, chunk, spec, row, d_gain, d_factor);
        map_keys_back(plan, chunk, spec, row, reads ? reader : NULL, d_reader, d.dot, d.key_dot);
        if (reads) {
            reader += pitch;
            d_reader += pitch;
        }
    }
    map_decay_back(plan, chunk);
    float *d_query = chunk->d_read_query;
    for (int64_t t = 0; t < chunk->tokens; t++, d_reader += pitch, d_query += pitch)
        for (int64_t d = 0; d < plan->key_width; d += LANES) dr_map_add(d_query + d, lanes_load(d_reader + d));
}
