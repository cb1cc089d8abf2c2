/* Sizes of a call, and the memory of a chunk. Chunk length: 16 rows, the triangle that is substituted in registers. The work
 * within a chunk grows with its length, that with the state does not: 32 rows cost 7% more arithmetic, and what they save, half
 * of the passes over the state, costs less than that in the second-level cache (docs/chunkwise.md). */
#include "backends/cpu/recurrence_plan.h"
#include "ops/shapes.h"
#include <math.h>

enum { CHUNK_ROWS = 16, SEGMENT_ROWS = 64, REPLAY_ROWS = 16, BLOCK_ROWS = 16, BLOCK_COLUMNS = 32, LOAD_AHEAD = 2 };

static int64_t round_up(int64_t size) {
    return (size + DR_CHUNK_TILE - 1) / DR_CHUNK_TILE * DR_CHUNK_TILE;
}

/* Rows 256 bytes apart, or a multiple of it, would fall into few sets of the first-level cache. */
static int64_t pitch_of(int64_t size) {
    int64_t width = round_up(size);
    return width % 64 ? width : width + DR_CHUNK_TILE;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t at_least_one(int64_t size) {
    return size > 1 ? size : 1;
}

static void plan_inputs(const dr_recurrence *recurrence, dr_cpu_plan *plan) {
    for (int i = 0; i < DR_INPUTS; i++) {
        dr_input_form form = dr_recurrence_input_form(recurrence, (dr_input)i);
        plan->input[i] = (dr_cpu_input){
            .used = dr_rule_uses(plan->rule, (dr_input)i),
            .per_token = form.per_row,
            .key_owned = !form.per_value,
            .heads = form.heads,
            .width = form.size,
            .taken = form.size,
            .steps = form.steps,
            .pitch = form.vector ? pitch_of(form.size) : 1,
            .dtype = plan->forms.dtype[i],
            .token = dr_forms_token(recurrence, (dr_input)i, plan->forms.pitch[i]),
            .d_token = dr_forms_token(recurrence, (dr_input)i, plan->forms.gradient_pitch[i]),
            .made = dr_forms_make(&plan->forms, (dr_input)i),
            .as_it_is = plan->forms.dtype[i] == DR_F32 && !dr_forms_make(&plan->forms, (dr_input)i),
        };
    }
}

static void plan_reads(dr_cpu_plan *plan) {
    const dr_rule *rule = plan->rule;
    bool first = rule->row[0].read != DR_READ_NONE, last = rule->row[rule->rows - 1].read != DR_READ_NONE;
    plan->erase_first = first ? 0 : 1;
    plan->erase_stride = first && last ? 1 : plan->steps;
    plan->erases = plan->step_axis ? (first ? plan->steps : 0) : rule->rows == 1 ? first : (int64_t)first + last;
    for (int i = 0; i < rule->rows; i++) {
        plan->preconditioned |= rule->row[i].write == DR_WRITE_PRECONDITIONED;
        plan->sherman_morrison |= rule->row[i].write == DR_WRITE_SHERMAN_MORRISON;
    }
}

/* Chunks from one saved state to the next: the backward replays those between from the updates, in cache, which costs less than
 * memory for them. A caller who sets the chunk length sets where states are, and a matrix scan is too dear to run twice. */
static int64_t segment_length(const dr_recurrence *recurrence, const dr_cpu_plan *plan) {
    if (!plan->chunkwise || recurrence->chunk > 0 || plan->matrix) return 1;
    return at_least_one(SEGMENT_ROWS / (plan->chunk * plan->steps));
}

/* The read and write keys of single rows that are an input: no copy of it is made. */
static void plan_keys(dr_cpu_plan *plan) {
    static const int reads[] = {[DR_READ_KEY] = DR_INPUT_KEY + 1,
                                [DR_READ_ERASE_KEY] = DR_INPUT_ERASE_KEY + 1,
                                [DR_READ_FEEDBACK] = DR_INPUT_FEEDBACK_KEY + 1,
                                [DR_READ_FREE] = 0};
    static const int writes[] = {[DR_WRITE_KEY] = DR_INPUT_KEY + 1,
                                 [DR_WRITE_ERASE_KEY] = DR_INPUT_ERASE_KEY + 1,
                                 [DR_WRITE_FREE] = DR_INPUT_FREE_WRITE + 1,
                                 [DR_WRITE_EXACT] = 0};
    const dr_row *row = &plan->rule->row[0];
    plan->read_input = plan->rule->rows == 1 ? reads[row->read] - 1 : -1;
    plan->write_input = plan->rule->rows == 1 ? writes[row->write] - 1 : -1;
    if (plan->read_input >= 0 && plan->input[plan->read_input].steps != plan->steps) plan->read_input = -1;
    if (plan->write_input >= 0 && plan->input[plan->write_input].steps != plan->steps) plan->write_input = -1;
}

/* Inputs that only the maps read, once or twice: products and scans want rows of their own pitch, padded to whole tiles. */
static void plan_direct(dr_cpu_plan *plan) {
    int values = 0;
    for (int i = 0; i < plan->rule->rows; i++) values += plan->rule->row[i].value != DR_VALUE_NONE;
    const bool key_is_scanned = plan->rule->scan != DR_SCAN_NONE || plan->rule->query != DR_QUERY_PLAIN;
    const bool direct[DR_INPUTS] = {[DR_INPUT_VALUE] = true,
                                    [DR_INPUT_LOG_DECAY] = true,
                                    [DR_INPUT_ERASE_GATE] = true,
                                    [DR_INPUT_WRITE_GATE] = true,
                                    [DR_INPUT_RATE] = true,
                                    [DR_INPUT_FREE_READ] = true,
                                    [DR_INPUT_ERASE_KEY] = true,
                                    [DR_INPUT_KEY] = !key_is_scanned,
                                    [DR_INPUT_QUERY] =
                                        plan->rule->query == DR_QUERY_CORRECTED || plan->rule->query == DR_QUERY_RIDGE};
    for (int i = 0; i < DR_INPUTS; i++) {
        dr_cpu_input *input = &plan->input[i];
        const int64_t dense = input->steps * input->heads * input->width;
        input->direct = input->used && direct[i] && input->per_token && input->pitch > 1 && input->width % DR_CHUNK_TILE == 0 &&
                        i != plan->read_input && i != plan->write_input && input->as_it_is &&
                        (input->steps == 1 || input->token == dense);
        const bool sole = i == DR_INPUT_ERASE_GATE
                              ? plan->rule->rows == 1 && !plan->step_axis
                              : (i == DR_INPUT_VALUE || i == DR_INPUT_WRITE_GATE) && (values == 1 || plan->step_axis);
        input->direct_gradient = input->direct && sole && !input->key_owned && (input->steps == 1 || input->d_token == dense);
    }
}

/* A replay needs the write keys and the decays, and makes the updates too where they are the values. */
static void plan_replay(dr_cpu_plan *plan) {
    for (int i = 0; i < DR_INPUTS; i++) plan->replayed[i] = plan->input[i].used;
    for (int i = 0; i < plan->rule->rows; i++)
        if (plan->rule->row[i].write == DR_WRITE_RATE_READ) return; /* anything may be in a read key */
    if (plan->erases == 0) return;
    static const dr_input spared[] = {DR_INPUT_QUERY,      DR_INPUT_VALUE,        DR_INPUT_WRITE_GATE,
                                      DR_INPUT_ERASE_GATE, DR_INPUT_FEEDBACK_KEY, DR_INPUT_FREE_READ};
    for (size_t i = 0; i < sizeof spared / sizeof *spared; i++) plan->replayed[spared[i]] = false;
}

void dr_cpu_recurrence_make_plan(const dr_recurrence *recurrence, const dr_forms *forms, bool decode, dr_cpu_plan *plan) {
    const dr_rule *rule = recurrence->rule;
    *plan = (dr_cpu_plan){
        .rule = rule,
        .layout = recurrence->layout,
        .key_heads = recurrence->key_heads,
        .value_heads = recurrence->value_heads,
        .group = recurrence->value_heads / recurrence->key_heads,
        .key_size = recurrence->key_size,
        .key_width = round_up(recurrence->key_size),
        .key_pitch = pitch_of(recurrence->key_size),
        .value_size = recurrence->value_size,
        .value_width = round_up(recurrence->value_size),
        .value_pitch = pitch_of(recurrence->value_size),
        .values = recurrence->value_size,
        .chunkwise = !decode && recurrence->path != DR_PATH_RECURRENT,
        .steps = dr_rule_steps(rule),
        .step_axis = rule->repeat > 1,
        .scalar = rule->decay == DR_DECAY_CONSTANT || rule->decay == DR_DECAY_SCALAR,
        .channel = rule->decay == DR_DECAY_CHANNEL,
        .bf16_state = recurrence->bf16_state,
        .forms = *forms,
        .value_major = forms->value_first,
        .bias_size = dr_forms_bias_size(recurrence),
        .scale = (float)(recurrence->scale != 0 ? recurrence->scale : 1 / sqrt((double)recurrence->key_size)),
        .squash = dr_map_squash_make(&rule->squash),
        .matrix = rule->scan == DR_SCAN_GRAM || rule->scan == DR_SCAN_INVERSE_GRAM,
        .matrix_state = rule->scan == DR_SCAN_GRAM ? DR_STATE_K : DR_STATE_P,
        .solved_query = rule->query == DR_QUERY_EXACT || rule->query == DR_QUERY_CONJUGATE_GRADIENT,
    };
    plan->load_ahead = decode ? LOAD_AHEAD : 0;
    plan->block = at_least_one(BLOCK_ROWS / plan->steps);
    if (plan->block > DR_BLOCK_TOKENS) plan->block = DR_BLOCK_TOKENS;
    plan->chunk = dr_cpu_chunk_length(recurrence, decode);
    plan->segment = segment_length(recurrence, plan);
    plan->segment_tokens = plan->segment * plan->chunk;
    const int64_t longest = decode ? 1 : recurrence->longest;
    if (plan->chunk > longest) plan->chunk = longest;
    plan_reads(plan);
    plan_inputs(recurrence, plan);
    plan_keys(plan);
    /* a corrected query is no longer needed itself, unless a read key has it too */
    plan->query_in_place =
        rule->query == DR_QUERY_PLAIN || (rule->query == DR_QUERY_CORRECTED && !plan->input[DR_INPUT_LAMBDA].used);
    plan_direct(plan);
    plan_replay(plan);
}

int64_t dr_cpu_most_blocks(const dr_cpu_plan *plan) {
    return (plan->values + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
}

void dr_cpu_plan_block(const dr_cpu_plan *plan, int64_t blocks, int64_t i, dr_cpu_plan *block) {
    const int64_t tiles = dr_cpu_most_blocks(plan), first = tiles * i / blocks * BLOCK_COLUMNS;
    int64_t end = tiles * (i + 1) / blocks * BLOCK_COLUMNS;
    if (end > plan->values) end = plan->values;
    *block = *plan;
    block->value_first = first;
    block->value_size = end - first;
    block->value_width = round_up(block->value_size);
    block->value_pitch = pitch_of(block->value_size);
    static const dr_input of_values[] = {DR_INPUT_VALUE, DR_INPUT_WRITE_GATE};
    for (size_t k = 0; k < sizeof of_values / sizeof *of_values; k++) {
        dr_cpu_input *input = &block->input[of_values[k]];
        input->first = first;
        input->taken = block->value_size;
        input->pitch = block->value_pitch;
        input->direct &= block->value_size % DR_CHUNK_TILE == 0;
    }
}

int64_t dr_cpu_chunk_length(const dr_recurrence *recurrence, bool decode) {
    if (decode) return 1;
    if (recurrence->path == DR_PATH_RECURRENT) return at_least_one(REPLAY_ROWS / dr_rule_steps(recurrence->rule));
    return recurrence->chunk > 0 ? recurrence->chunk : at_least_one(CHUNK_ROWS / dr_rule_steps(recurrence->rule));
}

/* ---- the memory of a chunk ------------------------------------------------------------------------------------------- */

static float *take(dr_arena *arena, int64_t rows, int64_t pitch) {
    return dr_arena_take(arena, (size_t)rows * (size_t)pitch * sizeof(float));
}

static void lay_inputs(const dr_cpu_plan *plan, bool backward, dr_arena *arena, dr_cpu_chunk *chunk) {
    for (int i = 0; i < DR_INPUTS; i++) {
        const dr_cpu_input *input = &plan->input[i];
        if (!input->used) continue;
        int64_t rows = input->per_token ? plan->chunk * input->steps : 1;
        /* scalars are read as whole vectors */
        int64_t padding = input->pitch == 1 ? DR_CHUNK_TILE : 0;
        bool is_row = i == plan->read_input || i == plan->write_input;
        bool is_query = i == DR_INPUT_QUERY && plan->query_in_place;
        chunk->pitch[i] = chunk->d_pitch[i] = input->pitch;
        if (!is_row && !is_query && !input->direct) chunk->input[i] = take(arena, rows * input->pitch + padding, 1);
        /* the gradient of the log decays of channels is what the engine gives, see lay_rows */
        const bool is_engines = i == DR_INPUT_LOG_DECAY && plan->channel;
        if (backward && !is_engines && !input->direct_gradient)
            chunk->d_input[i] = take(arena, rows * input->pitch + padding, 1);
    }
    if (!backward) return;
    const int64_t row = larger(plan->key_pitch, plan->value_pitch), scalars = round_up(plan->chunk * plan->steps);
    chunk->unwanted = take(arena, plan->chunk * plan->steps, row);
    chunk->given = take(arena, larger(row, scalars), 1);
    chunk->d_rate = take(arena, larger(row, scalars), 1);
}

static void lay_matrix(const dr_cpu_plan *plan, dr_cpu_chunk_use use, dr_arena *arena, dr_cpu_chunk *chunk) {
    int64_t K = plan->key_size, C = plan->chunk, Kp = plan->key_pitch;
    bool backward = use == DR_CHUNK_BACKWARD;
    if (!plan->matrix) return;
    chunk->matrix = take(arena, (backward ? C + 1 : use == DR_CHUNK_FORWARD ? plan->group : 1) * K, Kp);
    chunk->solved = take(arena, C, Kp);
    chunk->matrix_scratch = take(arena, 3, Kp);
    chunk->system = dr_arena_take(arena, (size_t)(K * K) * sizeof(double));
    chunk->system_scratch = dr_arena_take(arena, (size_t)(4 * K) * sizeof(double));
    if (!backward) return;
    chunk->d_matrix = take(arena, plan->group * K, Kp);
    chunk->d_solved = take(arena, C, Kp);
}

static void lay_keys(const dr_cpu_plan *plan, dr_cpu_chunk_use use, dr_arena *arena, dr_cpu_chunk *chunk) {
    bool backward = use == DR_CHUNK_BACKWARD;
    int64_t C = plan->chunk, Kp = plan->key_pitch;
    const int64_t S = backward ? plan->segment * C : C; /* tokens whose scan is kept */
    if (plan->rule->scan == DR_SCAN_DIAGONAL) {
        chunk->scan = take(arena, S + 1, Kp);
        chunk->scan_alpha = take(arena, S + DR_CHUNK_TILE, 1);
        if (backward) chunk->d_scan = take(arena, 1, Kp);
    }
    if (plan->preconditioned) {
        chunk->squash = take(arena, S, Kp);
        chunk->key_dot = take(arena, S, 1);
        if (backward) chunk->squash_slope = take(arena, S, Kp);
        if (backward) chunk->d_squash = take(arena, C, Kp);
    }
    if (plan->sherman_morrison) {
        chunk->morrison = take(arena, S, Kp);
        chunk->morrison_factor = take(arena, S, 1);
        if (backward) chunk->d_morrison = take(arena, C, Kp);
    }
    if (plan->solved_query) chunk->read_query = chunk->solved;
    chunk->writes_scanned = use == DR_CHUNK_FORWARD && plan->preconditioned && plan->rule->rows == 1 && !plan->step_axis &&
                            plan->rule->normalizer == DR_NORMALIZER_NONE && plan->rule->query != DR_QUERY_RIDGE;
    if (!backward) return;
    chunk->d_read_query = plan->query_in_place ? chunk->d_input[DR_INPUT_QUERY]
                          : plan->solved_query ? chunk->d_solved
                                               : take(arena, C, Kp);
}

static void lay_rows(const dr_cpu_plan *plan, dr_cpu_chunk_use use, dr_arena *arena, dr_cpu_chunk *chunk) {
    bool backward = use == DR_CHUNK_BACKWARD;
    int64_t C = plan->chunk, N = C * plan->steps, R = C * plan->erases + C, Kp = plan->key_pitch, Vp = plan->value_pitch;
    chunk->reader = take(arena, R, Kp);
    if (plan->read_input >= 0) chunk->input[plan->read_input] = chunk->reader;
    chunk->write = plan->write_input >= 0 && plan->write_input == plan->read_input ? chunk->reader : take(arena, N, Kp);
    if (plan->write_input >= 0) chunk->input[plan->write_input] = chunk->write;
    chunk->update = take(arena, N + DR_CHUNK_TILE, Vp);
    chunk->gain = take(arena, N, 1);
    chunk->base_gain = take(arena, N, 1);
    chunk->factor = take(arena, N, 1);
    chunk->dot = take(arena, N, 1);
    chunk->alpha = plan->channel ? take(arena, C, Kp) : take(arena, C + DR_CHUNK_TILE, 1);
    chunk->output = take(arena, C, Vp);
    if (use == DR_CHUNK_DECODE) { /* which works on the caller's states, or on a copy of one head's */
        chunk->state = take(arena, plan->key_size, plan->values);
        chunk->read = take(arena, R, Vp);
        chunk->columns = N;
        chunk->score = take(arena, R, N);
        if (plan->channel) chunk->reader_entry = take(arena, R, Kp);
        return;
    }
    if (!plan->chunkwise) chunk->read = take(arena, R, Vp);
    chunk->state =
        take(arena, (use == DR_CHUNK_FORWARD ? plan->group : plan->group * plan->segment) * dr_cpu_state_floats(plan), 1);
    if (!backward) return;
    chunk->d_reader = take(arena, R, Kp);
    chunk->d_write = take(arena, N, Kp);
    chunk->d_update = take(arena, N + DR_CHUNK_TILE, Vp);
    chunk->d_gain = take(arena, N, 1);
    chunk->d_log_decay = plan->channel ? take(arena, C, Kp) : take(arena, C, 1);
    if (plan->channel) chunk->d_input[DR_INPUT_LOG_DECAY] = chunk->d_log_decay;
    chunk->d_output = take(arena, C, Vp);
    chunk->d_state = take(arena, plan->group * dr_cpu_state_floats(plan), 1);
}

static void lay_decay(const dr_cpu_plan *plan, int64_t Np, dr_arena *arena, dr_cpu_chunk *chunk) {
    int64_t C = plan->chunk, N = C * plan->steps, R = C * plan->erases + C, Kp = plan->key_pitch;
    int64_t B = (C + plan->block - 1) / plan->block;
    chunk->reader_fade = take(arena, R, 1);
    chunk->writer_fade = take(arena, N, 1);
    chunk->reader_factor = take(arena, R, 1);
    chunk->keep = take(arena, 1, Kp);
    if (plan->scalar) {
        chunk->factors = take(arena, C + 1, Np);
        chunk->entry = take(arena, C + 1, 1);
    }
    if (!plan->channel) return;
    chunk->head = take(arena, C, Kp);
    chunk->tail = take(arena, C, Kp);
    chunk->total = take(arena, B, Kp);
    chunk->before = take(arena, B, Kp);
    chunk->after = take(arena, B, Kp);
    chunk->reader_head = take(arena, R, Kp);
    chunk->reader_entry = take(arena, R, Kp);
    chunk->write_tail = take(arena, N, Kp);
    chunk->write_exit = take(arena, N, Kp);
    chunk->scratch = take(arena, R > N ? R : N, Kp);
}

static void lay_chunkwise(const dr_cpu_plan *plan, bool backward, dr_arena *arena, dr_cpu_chunk *chunk) {
    int64_t C = plan->chunk, N = C * plan->steps, R = C * plan->erases + C;
    /* a block's columns may begin anywhere and are written in whole tiles: one tile to spare */
    int64_t Np = pitch_of(N) + DR_CHUNK_TILE;
    chunk->columns = Np;
    chunk->write_turned = take(arena, plan->key_width, Np);
    chunk->score = take(arena, R, Np);
    chunk->faded = take(arena, N, plan->value_pitch);
    lay_decay(plan, Np, arena, chunk);
    if (!backward) return;
    chunk->d_far = take(arena, N, plan->key_pitch);
    chunk->d_score = take(arena, R, Np);
    chunk->cotangent = take(arena, R, plan->value_pitch);
    chunk->update_turned = take(arena, plan->value_width, Np);
    if (plan->channel) chunk->exit_turned = take(arena, plan->key_width, Np);
    chunk->pairs = take(arena, 1, Np);
    chunk->exit = take(arena, 1, plan->key_pitch);
}

void dr_cpu_chunk_lay(const dr_cpu_plan *plan, dr_cpu_chunk_use use, dr_arena *arena, dr_cpu_chunk *chunk) {
    bool backward = use == DR_CHUNK_BACKWARD;
    *chunk = (dr_cpu_chunk){0};
    lay_inputs(plan, backward, arena, chunk);
    lay_matrix(plan, use, arena, chunk);
    lay_keys(plan, use, arena, chunk);
    lay_rows(plan, use, arena, chunk);
    if (plan->chunkwise) lay_chunkwise(plan, backward, arena, chunk);
    if (!plan->chunkwise && backward)
        chunk->states = take(arena, plan->chunk * plan->steps * plan->key_width, plan->value_pitch);
}
