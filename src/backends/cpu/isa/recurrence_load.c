/* Tensors to the rows of a chunk and gradients of a chunk to tensors: strided copies. The rows of a chunk are zero behind the
 * true size, so nothing after this has a tail. Inputs that only maps read, and that have no tail, are read where they are. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

enum { LINE = 16 }; /* floats of a cache line */

static int64_t rows_of(const dr_cpu_input *input, const dr_cpu_chunk *chunk) {
    return input->per_token ? chunk->tokens * input->steps : 1;
}

/* Element of the first row of this chunk and head, tokens being `token` elements apart. */
static int64_t offset_of(const dr_cpu_input *input, const dr_cpu_chunk *chunk, int64_t token, int64_t head) {
    return (input->per_token ? chunk->first * token : 0) + head * input->width;
}

/* From there to a row of it. */
static int64_t row_at(const dr_cpu_input *input, int64_t token, int64_t row) {
    if (input->steps == 1) return row * token;
    return row / input->steps * token + row % input->steps * (input->heads * input->width);
}

/* Elements from row to row, where they are equally far apart. */
static int64_t stride_of(const dr_cpu_input *input, int64_t token) {
    return input->steps == 1 ? token : input->heads * input->width;
}

static void load(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int i, int64_t head) {
    const dr_cpu_input *input = &plan->input[i];
    if (!input->as_it_is) {
        dr_chunk_load_formed(plan, call, chunk, i, head);
        return;
    }
    const float *from = (const float *)call->inputs->at[i] + offset_of(input, chunk, input->token, head) + input->first;
    const int64_t rows = rows_of(input, chunk);
    /* heads lie one behind the other, also from one sequence's token to the next */
    const float *ahead = from + plan->load_ahead * input->width;
    for (int64_t d = 0; plan->load_ahead && d < input->taken; d += LINE) lanes_prefetch(ahead + d);
    if (input->direct) {
        chunk->input[i] = (float *)from;
        chunk->pitch[i] = stride_of(input, input->token);
        return;
    }
    float *to = chunk->input[i];
    if (input->pitch == 1) {
        for (int64_t row = 0; row < rows; row++) to[row] = from[row_at(input, input->token, row)];
        return;
    }
    for (int64_t row = 0; row < rows; row++, to += input->pitch)
        load_row(input->taken, from + row_at(input, input->token, row), to);
    /* what is divided by A + ridge is 0 behind the true size, and stays it */
    for (int64_t d = input->width; i == DR_INPUT_RIDGE && d < round_to_tile(input->width); d++) chunk->input[i][d] = 1;
}

static void store(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int i, int64_t sequence,
                  int64_t head) {
    const dr_cpu_input *input = &plan->input[i];
    const float *from = chunk->d_input[i];
    if (!input->per_token) {
        double *sum = call->d_parameter[i];
        if (!sum) return;
        sum += (sequence * input->heads + head) * input->width;
        for (int64_t d = 0; d < input->width; d++) sum[d] += (double)from[d];
        return;
    }
    if (!input->as_it_is) {
        dr_chunk_store_formed(plan, call, chunk, i, sequence, head);
        return;
    }
    float *to = call->d_inputs->at[i];
    if (!to || input->direct_gradient) return;
    to += offset_of(input, chunk, input->d_token, head);
    const int64_t rows = rows_of(input, chunk);
    if (input->pitch == 1) {
        for (int64_t row = 0; row < rows; row++) to[row_at(input, input->d_token, row)] = from[row];
        return;
    }
    for (int64_t row = 0; row < rows; row++, from += input->pitch)
        copy_row(input->width, from, to + row_at(input, input->d_token, row));
}

/* With a tied scan, value head and key head are the same head, and the key head needs the value head's decay and gain. */
static bool tied(const dr_cpu_plan *plan, int i) {
    return plan->rule->tied_scan && (i == DR_INPUT_LOG_DECAY || i == DR_INPUT_BETA);
}

void dr_chunk_load_keys(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t key_head) {
    for (int i = 0; i < DR_INPUTS; i++)
        if (plan->input[i].used && (plan->input[i].key_owned || tied(plan, i))) load(plan, call, chunk, i, key_head);
}

void dr_chunk_load_replay(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t head, bool keys) {
    for (int i = 0; i < DR_INPUTS; i++)
        if (plan->replayed[i] && (plan->input[i].key_owned || tied(plan, i)) == keys) load(plan, call, chunk, i, head);
}

void dr_chunk_load_rows(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t value_head) {
    for (int i = 0; i < DR_INPUTS; i++)
        if (plan->input[i].used && !plan->input[i].key_owned && !tied(plan, i)) load(plan, call, chunk, i, value_head);
}

/* A tensor of the shape of input i, tokens being `token` elements apart */
static void expect(const dr_cpu_plan *plan, const void *tensor, int64_t token, dr_cpu_chunk *chunk, int64_t first,
                   int64_t tokens, int i, int64_t head) {
    const dr_cpu_input *input = &plan->input[i];
    if (!tensor || !input->per_token) return;
    const int64_t item = (int64_t)dr_dtype_size(input->dtype), at = first * token + head * input->width + input->first;
    const int64_t dense = input->steps * input->heads * input->width;
    if (input->steps > 1 && token != dense) return; /* rows of unequal distance are left to the processor */
    dr_ahead_add(&chunk->ahead, (const char *)tensor + at * item, stride_of(input, token), tokens * input->steps, input->taken,
                 item);
}

void dr_chunk_expect(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t first, int64_t tokens,
                     int64_t head, bool keys, dr_cpu_expected expected) {
    const int64_t key_head = head / plan->group;
    for (int i = 0; i < DR_INPUTS; i++) {
        const bool of_key = plan->input[i].key_owned || tied(plan, i);
        if (!plan->input[i].used || (of_key && !keys)) continue;
        const int64_t owner = of_key ? key_head : head;
        if (expected == DR_EXPECT_ALL || plan->replayed[i] == (expected == DR_EXPECT_REPLAYED))
            expect(plan, call->inputs->at[i], plan->input[i].token, chunk, first, tokens, i, owner);
        if (call->d_inputs && expected != DR_EXPECT_REPLAYED)
            expect(plan, call->d_inputs->at[i], plan->input[i].d_token, chunk, first, tokens, i, owner);
    }
}

static void clear(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int i) {
    const dr_cpu_input *input = &plan->input[i];
    if (i == DR_INPUT_LOG_DECAY && plan->channel) return; /* the engine sets it */
    memset(chunk->d_input[i], 0, (size_t)(rows_of(input, chunk) * input->pitch) * sizeof(float));
}

void dr_chunk_clear_keys(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int i = 0; i < DR_INPUTS; i++)
        if (plan->input[i].used && (plan->input[i].key_owned || tied(plan, i))) clear(plan, chunk, i);
    size_t bytes = (size_t)(chunk->tokens * plan->key_pitch) * sizeof(float);
    if (plan->preconditioned) memset(chunk->d_squash, 0, bytes);
    if (plan->sherman_morrison) memset(chunk->d_morrison, 0, bytes);
    if (!plan->query_in_place && !plan->solved_query) memset(chunk->d_read_query, 0, bytes);
}

/* Where the maps put a gradient that no other row adds to. */
static void place(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int i, int64_t head) {
    const dr_cpu_input *input = &plan->input[i];
    float *to = call->d_inputs->at[i];
    chunk->d_input[i] = to ? to + offset_of(input, chunk, input->d_token, head) : chunk->unwanted;
    chunk->d_pitch[i] = to ? stride_of(input, input->d_token) : input->pitch;
}

void dr_chunk_clear_rows(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t value_head) {
    if (plan->matrix) memset(chunk->d_solved, 0, (size_t)(chunk->tokens * plan->key_pitch) * sizeof(float));
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!plan->input[i].used || plan->input[i].key_owned || tied(plan, i)) continue;
        if (plan->input[i].direct_gradient)
            place(plan, call, chunk, i, value_head);
        else
            clear(plan, chunk, i);
    }
}

void dr_chunk_store_keys(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                         int64_t key_head) {
    for (int i = 0; i < DR_INPUTS; i++)
        if (plan->input[i].used && (plan->input[i].key_owned || tied(plan, i))) store(plan, call, chunk, i, sequence, key_head);
}

void dr_chunk_store_rows(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                         int64_t value_head) {
    for (int i = 0; i < DR_INPUTS; i++)
        if (plan->input[i].used && !plan->input[i].key_owned && !tied(plan, i))
            store(plan, call, chunk, i, sequence, value_head);
}
