/* The recurrence in double: sequence by sequence, key head by key head. A key head first runs its scan, then each of its value
 * heads in order, each with a matrix scan of its own before its rows; in the backward a scan runs back when all that reads it
 * has added to its gradient. Gradients start at
 * zero and are added to in that order, last token first, so that the same bits come out each time. */
#include "backends/reference/recurrence.h"
#include "backends/reference/recurrence_forms.h"
#include "backends/reference/recurrence_head.h"
#include "base/error.h"
#include "base/memory.h"
#include "ops/shapes.h"
#include <stdio.h>
#include <string.h>

static double *take(dr_arena *arena, int64_t count) {
    return dr_arena_take(arena, (size_t)count * sizeof(double));
}

/* Lays scratch and the scan's states into a workspace, for sequences of at most tokens tokens; states: how many S are kept. */
static void lay_out(dr_arena *arena, const dr_recurrence *recurrence, int64_t tokens, int64_t states, dr_reference_head *head,
                    dr_reference_scratch *scratch) {
    int64_t K = recurrence->key_size, V = recurrence->value_size;
    head->A = take(arena, (tokens + 1) * K);
    head->d_A = take(arena, (tokens + 1) * K);
    if (dr_reference_has_matrix(recurrence->rule)) {
        head->matrix_stride = states > 1 ? K * K : 0;
        head->matrix = take(arena, (states > 1 ? tokens + 1 : 1) * K * K);
        head->d_matrix = take(arena, K * K);
        head->solved = take(arena, tokens * K);
        head->d_solved = take(arena, tokens * K);
        head->system = take(arena, K * K);
        head->matrix_scratch = take(arena, 3 * K);
    }
    scratch->alpha = take(arena, K);
    scratch->d_alpha = take(arena, K);
    scratch->query = take(arena, K);
    scratch->d_query = take(arena, K);
    scratch->row = (dr_reference_row){.r = take(arena, K), .w = take(arena, K), .z = take(arena, V)};
    scratch->d_row = (dr_reference_row){.r = take(arena, K), .w = take(arena, K), .z = take(arena, V)};
    scratch->erased = take(arena, V);
    scratch->d_erased = take(arena, V);
    scratch->update = take(arena, V);
    scratch->D = take(arena, K * V);
    scratch->d_S = take(arena, K * V);
    scratch->S = take(arena, states * K * V);
}

static size_t workspace_bytes(const dr_recurrence *recurrence, int64_t tokens, int64_t states) {
    dr_reference_head head;
    dr_reference_scratch scratch;
    dr_arena arena = {0};
    lay_out(&arena, recurrence, tokens, states, &head, &scratch);
    return arena.used;
}

/* States that a backward keeps: before each step of the longest sequence, and the last. */
static int64_t states_kept(const dr_recurrence *recurrence) {
    return recurrence->longest * dr_rule_steps(recurrence->rule) + 1;
}

/* The states of one sequence, which decoding from a pool works on. */
static void lay_one_sequence(const dr_recurrence *recurrence, dr_arena *arena, dr_mutable_states *states) {
    dr_recurrence one = *recurrence;
    one.layout = (dr_layout){.sequences = 1, .rows = 1};
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(recurrence->rule, (dr_state_kind)i))
            states->at[i] = take(arena, dr_recurrence_state_count(&one, (dr_state_kind)i));
}

static size_t one_sequence_bytes(const dr_recurrence *recurrence) {
    dr_arena arena = {0};
    dr_mutable_states states = {{0}};
    lay_one_sequence(recurrence, &arena, &states);
    return arena.used;
}

dr_status dr_reference_recurrence_plan(dr_plan *plan) {
    const dr_recurrence *recurrence = &plan->recurrence;
    int64_t tokens = recurrence->longest, states = states_kept(recurrence), bytes;
    int64_t sizes[] = {states, recurrence->key_size, recurrence->value_size, sizeof(double)};
    if (!dr_product(sizes, 4, &bytes))
        return dr_fail(DR_ERROR_ARGUMENT, "the states of a sequence of %lld tokens are more than can be addressed",
                       (long long)tokens);
    plan->saved = (dr_saved_size){.segment = 1};
    const size_t forward = dr_reference_forms_bytes(plan, false), backward = dr_reference_forms_bytes(plan, true);
    plan->memory = (dr_recurrence_memory){
        .forward = forward + workspace_bytes(recurrence, tokens, 1),
        .backward = backward + workspace_bytes(recurrence, tokens, states),
        .saved = 0,
        .decode = forward + one_sequence_bytes(recurrence) + workspace_bytes(recurrence, 1, 1),
    };
    return DR_OK;
}

/* to[count] = the slice of a state of sequence and head, or zero where there is none */
static void load_state(const void *from, int64_t index, int64_t count, double *to) {
    if (from)
        memcpy(to, (const double *)from + index * count, (size_t)count * sizeof(double));
    else
        memset(to, 0, (size_t)count * sizeof(double));
}

static void store_state(const double *from, int64_t index, int64_t count, void *to) {
    if (to) memcpy((double *)to + index * count, from, (size_t)count * sizeof(double));
}

/* The same of S [K, V], which the caller may have as [V, K]. index < 0: there is none. */
static void load_S(const dr_plan *plan, const void *from, int64_t index, double *S) {
    const int64_t K = plan->recurrence.key_size, V = plan->recurrence.value_size;
    if (!from || !plan->forms.value_first) {
        load_state(from, index, K * V, S);
        return;
    }
    const double *turned = (const double *)from + index * K * V;
    for (int64_t k = 0; k < K; k++)
        for (int64_t v = 0; v < V; v++) S[k * V + v] = turned[v * K + k];
}

static void store_S(const dr_plan *plan, const double *S, int64_t index, void *to) {
    const int64_t K = plan->recurrence.key_size, V = plan->recurrence.value_size;
    if (!to || !plan->forms.value_first) {
        store_state(S, index, K * V, to);
        return;
    }
    double *turned = (double *)to + index * K * V;
    for (int64_t k = 0; k < K; k++)
        for (int64_t v = 0; v < V; v++) turned[v * K + k] = S[k * V + v];
}

static dr_state_kind matrix_state(const dr_recurrence *recurrence) {
    return recurrence->rule->scan == DR_SCAN_GRAM ? DR_STATE_K : DR_STATE_P;
}

/* The matrix scan of a value head, if the rule has one: at is the number of the state. */
static void matrix_forward(const dr_reference_head *head, const dr_states *initial, int64_t at) {
    if (!head->matrix) return;
    int64_t K = head->recurrence->key_size;
    load_state(initial->at[matrix_state(head->recurrence)], at, K * K, head->matrix);
    dr_reference_matrix_start(head);
    dr_reference_matrix_forward(head);
}

static void store_matrix(const dr_reference_head *head, int64_t at, const dr_mutable_states *final) {
    if (!head->matrix) return;
    int64_t K = head->recurrence->key_size;
    store_state(head->matrix + head->tokens * head->matrix_stride, at, K * K, final->at[matrix_state(head->recurrence)]);
}

/* Before the rows run back: nothing has come from them yet. */
static void start_matrix_gradient(const dr_reference_head *head, const dr_states *d_final, int64_t at) {
    if (!head->matrix) return;
    int64_t K = head->recurrence->key_size;
    load_state(NULL, 0, head->tokens * K, head->d_solved);
    load_state(d_final->at[matrix_state(head->recurrence)], at, K * K, head->d_matrix);
}

static void matrix_backward(const dr_reference_head *head, const dr_states *initial, int64_t at,
                            const dr_mutable_states *d_initial) {
    if (!head->matrix) return;
    dr_state_kind kind = matrix_state(head->recurrence);
    int64_t count = head->recurrence->key_size * head->recurrence->key_size;
    const double *given = initial->at[kind];
    dr_reference_matrix_backward(head);
    dr_reference_matrix_start_backward(head, given ? given + at * count : NULL);
    store_state(head->d_matrix, at, count, d_initial->at[kind]);
}

/* A forward: what it reads and writes, and the memory it works in. */
typedef struct {
    const dr_plan *plan;
    const dr_recurrence *recurrence;
    const dr_inputs *inputs;
    void *o;
    dr_reference_head head;
    dr_reference_scratch scratch;
} forward_run;

static forward_run run_of(const dr_plan *plan, const dr_recurrence *recurrence, const dr_call *call, void *workspace) {
    forward_run run = {.plan = plan, .recurrence = recurrence, .inputs = call->inputs, .o = call->o};
    dr_arena arena = {.block = workspace};
    lay_out(&arena, recurrence, recurrence->longest, 1, &run.head, &run.scratch);
    run.head.recurrence = recurrence;
    run.head.inputs = call->inputs;
    return run;
}

/* Some tokens from the states of place `start` of initial (negative: zero) to those of place `end` of final (negative: not
 * kept). */
static void forward_tokens(forward_run *run, int64_t first_row, int64_t tokens, const dr_states *initial, int64_t start,
                           const dr_mutable_states *final, int64_t end) {
    const dr_recurrence *recurrence = run->recurrence;
    dr_reference_head *head = &run->head;
    const int64_t K = recurrence->key_size, H = recurrence->key_heads, HV = recurrence->value_heads, group = HV / H;
    const bool scans = recurrence->rule->scan == DR_SCAN_DIAGONAL;
    const dr_states from = initial && start >= 0 ? *initial : (dr_states){{0}};
    const dr_mutable_states to = final && end >= 0 ? *final : (dr_mutable_states){{0}};
    head->first_row = first_row;
    head->tokens = tokens;
    for (head->key_head = 0; head->key_head < H; head->key_head++) {
        head->value_head = head->key_head; /* for the tied scan, where H = HV */
        if (scans) {
            load_state(from.at[DR_STATE_A], start * H + head->key_head, K, head->A);
            dr_reference_scan_forward(head);
            store_state(head->A + head->tokens * K, end * H + head->key_head, K, to.at[DR_STATE_A]);
        }
        for (int64_t j = 0; j < group; j++) {
            head->value_head = head->key_head * group + j;
            matrix_forward(head, &from, start * HV + head->value_head);
            load_S(run->plan, from.at[DR_STATE_S], start * HV + head->value_head, run->scratch.S);
            dr_reference_rows_forward(head, &run->scratch, run->o);
            store_S(run->plan, run->scratch.S, end * HV + head->value_head, to.at[DR_STATE_S]);
            store_matrix(head, end * HV + head->value_head, &to);
        }
    }
}

/* The checkpoint of a sequence after checkpoint `last`, by row and place in the list; -1: there is none. */
static int64_t next_checkpoint(const dr_slots *slots, int64_t begin, int64_t end, int64_t last) {
    int64_t next = -1;
    for (int64_t i = 0; i < slots->checkpoints; i++) {
        const int64_t row = slots->row[i], before = last < 0 ? -1 : slots->row[last];
        if (row < begin || row >= end || slots->slot[i] < 0) continue;
        if (row < before || (row == before && i <= last)) continue;
        if (next < 0 || row < slots->row[next]) next = i;
    }
    return next;
}

/* A sequence whose states lie in a pool, from checkpoint to checkpoint: each piece starts from the state that the one before it
 * left there. */
static void forward_from_pool(forward_run *run, const dr_call *call, int64_t sequence) {
    const dr_slots *slots = call->slots;
    const int64_t end = dr_layout_begin(&run->recurrence->layout, sequence + 1);
    const int64_t begin = dr_layout_begin(&run->recurrence->layout, sequence);
    const int64_t to = slots->to ? slots->to[sequence] : slots->from[sequence];
    int64_t first = begin, start = slots->from[sequence];
    dr_states kept;
    const dr_states *initial = call->initial;
    for (int64_t i = next_checkpoint(slots, begin, end, -1); i >= 0; i = next_checkpoint(slots, begin, end, i)) {
        forward_tokens(run, first, slots->row[i] - first, initial, start, call->final, slots->slot[i]);
        for (int k = 0; k < DR_STATES; k++) kept.at[k] = call->final->at[k];
        first = slots->row[i], start = slots->slot[i], initial = &kept;
    }
    forward_tokens(run, first, end - first, initial, start, call->final, to);
}

static void forward(const dr_plan *plan, const dr_recurrence *recurrence, const dr_call *call, void *workspace) {
    forward_run run = run_of(plan, recurrence, call, workspace);
    for (int64_t i = 0; i < recurrence->layout.sequences; i++) {
        const int64_t first = dr_layout_begin(&recurrence->layout, i), end = dr_layout_begin(&recurrence->layout, i + 1);
        if (call->slots)
            forward_from_pool(&run, call, i);
        else
            forward_tokens(&run, first, end - first, call->initial, i, call->final, i);
    }
}

/* What a call is about, with where its sequences begin. */
static dr_recurrence recurrence_of(const dr_plan *plan, const dr_call *call) {
    dr_recurrence recurrence = plan->recurrence;
    recurrence.layout = dr_call_layout(plan, call);
    return recurrence;
}

dr_status dr_reference_recurrence_forward(const dr_plan *plan, const dr_call *call) {
    const dr_recurrence recurrence = recurrence_of(plan, call);
    dr_reference_dense dense;
    if (!plan->formed) {
        forward(plan, &recurrence, call, call->workspace);
        return DR_OK;
    }
    dr_reference_forms_begin(plan, call, false, call->workspace, &dense);
    forward(plan, &recurrence, &dense.call, (char *)call->workspace + dr_reference_forms_bytes(plan, false));
    dr_reference_forms_end(plan, call, false, &dense);
    return DR_OK;
}

static void zero_gradients(const dr_recurrence *recurrence, const dr_input_gradients *gradients) {
    for (int i = 0; i < DR_INPUTS; i++)
        if (gradients->at[i])
            memset(gradients->at[i], 0, (size_t)dr_recurrence_input_count(recurrence, (dr_input)i) * sizeof(double));
}

static void backward(const dr_plan *plan, const dr_recurrence *recurrence, const dr_call *call, void *workspace) {
    const dr_inputs *inputs = call->inputs;
    const dr_input_gradients *d_inputs = call->d_inputs;
    const double *d_o = call->d_o;
    int64_t K = recurrence->key_size;
    int64_t H = recurrence->key_heads, HV = recurrence->value_heads, group = HV / H;
    bool scans = recurrence->rule->scan == DR_SCAN_DIAGONAL;
    const dr_states from = call->initial ? *call->initial : (dr_states){{0}};
    const dr_states d_from = call->d_final ? *call->d_final : (dr_states){{0}};
    const dr_mutable_states d_to = call->d_initial ? *call->d_initial : (dr_mutable_states){{0}};
    dr_reference_head head = {.recurrence = recurrence, .inputs = inputs, .gradients = d_inputs};
    dr_reference_scratch scratch;
    dr_arena arena = {.block = workspace};
    lay_out(&arena, recurrence, recurrence->longest, states_kept(recurrence), &head, &scratch);
    zero_gradients(recurrence, d_inputs);
    for (int64_t i = 0; i < recurrence->layout.sequences; i++) {
        head.first_row = dr_layout_begin(&recurrence->layout, i);
        head.tokens = dr_layout_begin(&recurrence->layout, i + 1) - head.first_row;
        for (head.key_head = 0; head.key_head < H; head.key_head++) {
            int64_t key_at = i * H + head.key_head;
            head.value_head = head.key_head; /* for the tied scan, where H = HV */
            if (scans) {
                load_state(from.at[DR_STATE_A], key_at, K, head.A);
                dr_reference_scan_forward(&head);
                load_state(NULL, 0, head.tokens * K, head.d_A);
                load_state(d_from.at[DR_STATE_A], key_at, K, head.d_A + head.tokens * K);
            }
            for (int64_t j = 0; j < group; j++) {
                head.value_head = head.key_head * group + j;
                int64_t at = i * HV + head.value_head;
                matrix_forward(&head, &from, at);
                start_matrix_gradient(&head, &d_from, at);
                load_S(plan, from.at[DR_STATE_S], at, scratch.S);
                load_S(plan, d_from.at[DR_STATE_S], at, scratch.d_S);
                dr_reference_rows_backward(&head, &scratch, d_o);
                store_S(plan, scratch.d_S, at, d_to.at[DR_STATE_S]);
                matrix_backward(&head, &from, at, &d_to);
            }
            if (scans) {
                head.value_head = head.key_head;
                dr_reference_scan_backward(&head);
                store_state(head.d_A, key_at, K, d_to.at[DR_STATE_A]);
            }
        }
    }
}

dr_status dr_reference_recurrence_backward(const dr_plan *plan, const dr_call *call) {
    const dr_recurrence recurrence = recurrence_of(plan, call);
    dr_reference_dense dense;
    if (!plan->formed) {
        backward(plan, &recurrence, call, call->workspace);
        return DR_OK;
    }
    dr_reference_forms_begin(plan, call, true, call->workspace, &dense);
    backward(plan, &recurrence, &dense.call, (char *)call->workspace + dr_reference_forms_bytes(plan, true));
    dr_reference_forms_end(plan, call, true, &dense);
    return DR_OK;
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

/* The states of one place of a pool, or of one sequence, to another. */
static void copy_states(const dr_recurrence *recurrence, const dr_mutable_states *from, int64_t start,
                        const dr_mutable_states *to, int64_t end) {
    dr_recurrence one = *recurrence;
    one.layout = (dr_layout){.sequences = 1, .rows = 1};
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(recurrence->rule, (dr_state_kind)i)) continue;
        const int64_t count = dr_recurrence_state_count(&one, (dr_state_kind)i);
        memcpy((double *)to->at[i] + end * count, (const double *)from->at[i] + start * count, (size_t)count * sizeof(double));
    }
}

static void decode_slots(forward_run *run, const dr_call *call, const dr_mutable_states *own) {
    const dr_slots *slots = call->slots;
    dr_states initial;
    for (int i = 0; i < DR_STATES; i++) initial.at[i] = own->at[i];
    for (int64_t n = 0; n < run->recurrence->layout.sequences; n++) {
        const int64_t from = slots->from[n];
        if (from < 0) continue;
        copy_states(run->recurrence, call->states, from, own, 0);
        for (int64_t t = 0; t < slots->tokens; t++) {
            const int64_t row = n * slots->tokens + t, last = t == slots->tokens - 1 ? from : -1;
            const int64_t to = slots->to ? slots->to[row] : last;
            forward_tokens(run, row, 1, &initial, 0, own, 0);
            if (to >= 0) copy_states(run->recurrence, own, 0, call->states, to);
        }
    }
}

static void decode(const dr_plan *plan, const dr_call *call, void *workspace) {
    dr_recurrence recurrence = plan->recurrence;
    recurrence.longest = 1;
    dr_arena arena = {.block = workspace};
    dr_mutable_states own = {{0}};
    lay_one_sequence(&recurrence, &arena, &own);
    forward_run run = run_of(plan, &recurrence, call, (char *)workspace + arena.used);
    dr_states initial;
    for (int i = 0; i < DR_STATES; i++) initial.at[i] = call->states->at[i];
    if (call->slots) {
        decode_slots(&run, call, &own);
        return;
    }
    for (int64_t i = 0; i < recurrence.layout.sequences; i++) forward_tokens(&run, i, 1, &initial, i, call->states, i);
}

dr_status dr_reference_recurrence_decode(const dr_plan *plan, const dr_call *call) {
    dr_reference_dense dense;
    if (!plan->formed) {
        decode(plan, call, call->workspace);
        return DR_OK;
    }
    dr_reference_forms_begin(plan, call, false, call->workspace, &dense);
    dr_reference_forms_keep(plan, call, &dense);
    decode(plan, &dense.call, (char *)call->workspace + dr_reference_forms_bytes(plan, false));
    dr_reference_forms_end(plan, call, false, &dense);
    return DR_OK;
}

int dr_reference_recurrence_kernel(const dr_plan *plan, bool decode, char *text, size_t size) {
    (void)plan, (void)decode;
    return snprintf(text, size, "reference recurrent");
}

void dr_reference_recurrence_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path) {
    (void)plan, (void)packed, (void)stage;
    *path = (dr_stage_path){.instance = "recurrent", .storage = DR_F64, .chunk = 1, .parts = 1};
}
