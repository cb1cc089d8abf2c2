/* What rules do to one head, token by token in double, for programs that hold kernels to plain loops: what a token's inputs
 * are, and what its rows read and write. */
#ifndef DR_TESTS_CUDA_EMULATED_LOOPS_H
#define DR_TESTS_CUDA_EMULATED_LOOPS_H

#include "backends/cuda/chunkwise/scan.cuh"
#include "call.h"

enum { SIZE = 128, MOST_SIZE = 256 }; /* of K and V; cases may name another `size`, up to the latter */

/* In place of gradients.cu's, for the layout of memory. */
extern "C" bool dr_cuda_backward_fuses(const dr_cuda_chunk_plan *plan) {
    return !plan->rows.channel_decay;
}

typedef struct {
    double read[MOST_SIZE], write[MOST_SIZE];
    double gain, value; /* of what is read; of the value */
} row_of_doubles;

struct head_of_doubles {
    const dr_cuda_chunk_plan *plan;
    int sequence, head;

    int64_t token(int64_t i) const { return sequence * plan->length + i; }

    int size() const { return plan->rows.key_size; }

    int64_t vector_at(int64_t i) const { return (token(i) * HEADS + head) * size(); }

    int64_t block(int64_t i) const { return (dr_sequence_slot(*plan, NULL, sequence) + i / plan->chunk) * HEADS + head; }

    double number(dr_input input, int64_t i, int channel) const {
        const dr_cuda_input &x = plan->rows.input[input];
        const int64_t at = dr_input_index(x, token(i), 0, head) + channel;
        return dr_input_is_vector(input) ? element(x.at, at) : (double)((const float *)x.at)[at];
    }

    double alpha(int64_t i, int channel) const {
        const dr_cuda_rows &rows = plan->rows;
        if (!rows.scalar_decay && !rows.channel_decay) return 1;
        return exp(number(DR_INPUT_LOG_DECAY, i, rows.channel_decay ? channel : 0));
    }

    /* Row `step` of token i. */
    row_of_doubles row(int64_t i, int step) const {
        const dr_cuda_row &row = plan->rows.row[step];
        const bool sums = row.reads == DR_READS_AFFINE;
        row_of_doubles x;
        x.gain = row.gained == DR_NO_SOURCE ? 1 : number((dr_input)row.gained, i, 0);
        x.value = row.values == DR_VALUES_NONE ? 0 : row.values == DR_VALUES_GAINED ? x.gain : 1;
        for (int k = 0; k < size(); k++) {
            x.read[k] = x.write[k] = number((dr_input)row.written, i, k);
            if (row.reads == DR_READS_TENSOR) x.read[k] = (row.negative ? -1 : 1) * number((dr_input)row.read, i, k);
            if (sums) x.read[k] += number(DR_INPUT_LAMBDA, i, 0) * number(DR_INPUT_QUERY, i, k);
        }
        if (row.reads == DR_READS_NONE) x.gain = 0;
        return x;
    }
};

/* ---- parts of which some chunks do ------------------------------------------------------------------------------------- */

/* Of sequences in four parts: those of which one channel keeps all, or with one decay a head all do. Of the last chain's all
 * parts, of the first one's none, of the others one of those in the middle. */
static inline bool keeps_a_channel(int chain, int part) {
    return chain == SEQUENCES * HEADS - 1 || (part == 1 && chain == 2) || (part == 2 && chain == 1);
}

static inline void keep_channels(const dr_cuda_chunk_plan &plan) {
    const dr_cuda_input &input = plan.rows.input[DR_INPUT_LOG_DECAY];
    int32_t length;
    check(dr_cuda_parts(&plan, dr_sequence_chunks(plan, NULL, 0), &length) == 4, "the plan is not what the case is for");
    for (int chain = 0; chain < SEQUENCES * HEADS; chain++)
        for (int64_t i = 0; i < plan.length; i++)
            if (keeps_a_channel(chain, (int)(i / (length * plan.chunk))))
                ((float *)input.at)[dr_input_index(input, chain / HEADS * plan.length + i, 0, chain % HEADS) +
                                    (plan.rows.channel_decay ? 5 : 0)] = -1e-5f;
}

/* Of what a chunk leaves of a state, no more than this: of the tensors that prepare has left, which the kernel reads, too, and
 * of the keys. */
static inline double left_by_chunk(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors, int64_t block) {
    const int slot = (int)(block / HEADS), first = slot % plan.sequence_chunks * plan.chunk;
    const head_of_doubles head = {&plan, slot / plan.sequence_chunks, (int)(block % HEADS)};
    static double sums[SIZE][SIZE];
    double left = 0, square = 0;
    for (int k = 0; k < SIZE; k++) left = fmax(left, (double)tensors.keep[block * SIZE + k]);
    memset(sums, 0, sizeof sums);
    for (int row = 0; row < 64 && plan.reads; row++) {
        if (plan.reader_direct && first + row >= plan.length) break;
        const double erase = (double)tensors.factors[block].erase[row];
        for (int k = 0; k < SIZE; k++) {
            const int64_t at = (block * 64 + row) * SIZE;
            const double reader =
                plan.reader_direct ? head.number(DR_INPUT_KEY, first + row, k) : element(tensors.reader, at + k);
            for (int l = 0; l < SIZE; l++) sums[l][k] += element(tensors.exit, at + l) * erase * reader;
        }
    }
    for (int k = 0; k < SIZE * SIZE; k++) square += sums[k / SIZE][k % SIZE] * sums[k / SIZE][k % SIZE];
    left += sqrt(square);
    return left;
}

/* A trim is right if so many chunks bring the bound to 2^-20, and one less does not. */
static inline void check_trims(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors) {
    const int chunks = (int)dr_sequence_chunks(plan, NULL, 0);
    int32_t length;
    const int parts = dr_cuda_parts(&plan, chunks, &length);
    for (int chain = 0; chain < SEQUENCES * HEADS; chain++) {
        const int64_t slot = dr_sequence_slot(plan, NULL, chain / HEADS), head = chain % HEADS;
        for (int part = 0; part < parts; part++) {
            const dr_cuda_trim trim = tensors.trims[(slot / DR_CUDA_PART_CHUNKS + part) * HEADS + head];
            const int begin = part * length, end = begin + length < chunks ? begin + length : chunks;
            const auto brings = [&](int count, bool last) {
                double sum = 0;
                for (int i = 0; i < count; i++)
                    sum += log(left_by_chunk(plan, tensors, (slot + (last ? end - 1 - i : begin + i)) * HEADS + head));
                return sum / plan.forgotten;
            };
            const auto is_right = [&](int count, bool last) {
                return count > 0 && brings(count, last) > 1 - 1e-4 && brings(count - 1, last) < 1 + 1e-4;
            };
            if (keeps_a_channel(chain, part))
                check(trim.last == -1 || trim.first == -1, "a part that keeps a channel is not taken whole");
            else
                check((part + 1 == parts || is_right(trim.last, true)) && (part == 0 || is_right(trim.first, false)),
                      "of a part other chunks are taken than the bound asks for");
        }
    }
}

/* ---- forward ------------------------------------------------------------------------------------------------------------ */

/* What the scan leaves, and what it takes from the stage before it. */
static inline void lay_forward(call_memory *s, const dr_cuda_chunk_plan &plan, dr_scan_call *call) {
    dr_cuda_chunk_tensors tensors;
    const auto lay = [&](char *block) {
        dr_arena arena = {};
        arena.block = block;
        lay_stages(&plan, &arena, &tensors);
        return arena.used;
    };
    lay(add_tensor(&s->left, lay(NULL))->at);
    const size_t size = (size_t)plan.rows.key_size;
    void *o = add_tensor(&s->left, (size_t)plan.tokens * HEADS * size * sizeof(T))->at;
    void *saved = add_tensor(&s->left, dr_cuda_chunk_saved_bytes(&plan))->at;
    float *last = (float *)add_tensor(&s->left, SEQUENCES * HEADS * size * size * sizeof(float))->at;
    *call = {plan, tensors, NULL, last, o, saved, dr_scan_lay(plan, sizeof(T), false), false};
}

static inline uint16_t *last_key(const dr_cuda_chunk_plan &plan) {
    return (uint16_t *)plan.rows.input[DR_INPUT_KEY].at + (plan.length - 1) * HEADS * plan.rows.key_size;
}

static inline void take_token(const head_of_doubles &head, int64_t i, double (&state)[MOST_SIZE][MOST_SIZE]) {
    const dr_cuda_rows &rows = head.plan->rows;
    const int size = head.size();
    row_of_doubles row[DR_MAX_ROWS];
    double alpha[MOST_SIZE];
    for (int k = 0; k < size; k++) alpha[k] = head.alpha(i, k);
    for (int step = 0; step < rows.steps; step++) row[step] = head.row(i, step);
    for (int v = 0; v < size; v++) {
        double before[MOST_SIZE];
        for (int k = 0; k < size; k++) before[k] = state[v][k], state[v][k] *= alpha[k];
        for (int step = 0; step < rows.steps; step++) {
            const double *seen = step == 0 && rows.row[0].undecayed ? before : state[v];
            double u = row[step].value * head.number(DR_INPUT_VALUE, i, v);
            for (int k = 0; k < size; k++) u -= row[step].gain * row[step].read[k] * seen[k];
            for (int k = 0; k < size; k++) state[v][k] += u * row[step].write[k];
        }
    }
}

/* Outputs, states before each chunk if they are saved, and those behind the sequences. */
static inline void check_scan(const dr_scan_call &call) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const int size = plan.rows.key_size;
    distance output = {0, 0}, before = {0, 0}, last = {0, 0};
    for (int chain = 0; chain < SEQUENCES * HEADS; chain++) {
        const head_of_doubles head = {&plan, chain / HEADS, chain % HEADS};
        static double state[MOST_SIZE][MOST_SIZE]; /* [V][K] */
        memset(state, 0, sizeof state);
        for (int64_t i = 0; i < plan.length; i++) {
            for (int v = 0; v < size && call.saved && i % plan.chunk == 0; v++)
                for (int k = 0; k < size; k++)
                    add_distance(&before, element(call.saved, (head.block(i) * plan.value_width + v) * plan.key_width + k),
                                 state[v][k]);
            take_token(head, i, state);
            double query[MOST_SIZE];
            for (int k = 0; k < size; k++) query[k] = head.number(DR_INPUT_QUERY, i, k);
            for (int v = 0; v < size; v++) {
                double sum = 0;
                for (int k = 0; k < size; k++) sum += plan.rows.scale * state[v][k] * query[k];
                add_distance(&output, element(call.o, head.vector_at(i) + v), sum);
            }
        }
        for (int v = 0; v < size; v++)
            for (int k = 0; k < size; k++) add_distance(&last, (double)call.final[(chain * size + k) * size + v], state[v][k]);
    }
    check_near(output, "outputs are not those of the plain loops");
    if (call.saved) check_near(before, "the states that are saved are not those of the plain loops");
    check_near(last, "the states behind the sequences are not those of the plain loops");
}

#endif
