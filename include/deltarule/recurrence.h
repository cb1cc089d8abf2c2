/* The recurrence of a rule over many tokens, forward and backward, and one token for many sequences.
 *
 * Three engines compute it and agree: token by token, chunkwise (training and prefill), decode. Every tensor is dense in the
 * backend's type and memory. B T H HV K V as in docs/notation.md; rows counts the tokens of all sequences. Value head j uses
 * key head j / (HV/H).
 *
 * NaN and infinity: no token sees the future, and no sequence another one. On backends reference and cpu what is wrong with an
 * input of token t leaves outputs of earlier tokens and everything of other sequences bit for bit as it was, and what is wrong
 * with d_o of token t the gradients of later tokens. Gradients of earlier tokens see it, and an input that is wrong may reach
 * every gradient of its sequence: loss and state behind it depend on it. Gradients of what all tokens share (a constant log
 * decay, correction, scan_centre, ridge) are sums over all. Backend cuda multiplies whole tiles by zeros where it reads
 * chunkwise: there it may reach the tokens of the same chunk, earlier ones in the forward, later ones in the backward.
 *
 * Threads. All functions of this header may be called at once from any number of threads with one backend, one recurrence and
 * one rule, which they only read. Inputs and initial states may be shared too; memory that a call writes (outputs, gradients,
 * states, what is saved, workspace) belongs to that call alone. */
#ifndef DELTARULE_RECURRENCE_H
#define DELTARULE_RECURRENCE_H

#include <deltarule/backend.h>
#include <deltarule/rule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    DR_PATH_BEST,      /* chunkwise where it exists */
    DR_PATH_RECURRENT, /* token by token */
    DR_PATH_CHUNKWISE,
} dr_path;

typedef struct {
    const dr_rule *rule;
    dr_layout layout;
    int64_t key_heads, value_heads; /* H, HV: HV is a multiple of H */
    int64_t key_size, value_size;   /* K, V: per head */
    double scale;                   /* of the query read; 0 stands for K^-1/2 */
    dr_path path;
    int64_t chunk; /* tokens a chunk, >= 1; 0: planned from shapes and instruction set */
    /* State S between calls (initial, final, decoded) as DR_BF16 instead of the backend's type: half the memory that decoding
     * reads and writes. A call computes as ever and rounds S once, to the nearest, so each token adds an error of at most 2^-9
     * of an element, which later decays and erasures shrink. A, K, P and all gradients keep the backend's type; value_size must
     * be even. DR_ERROR_UNSUPPORTED except on the CPU backend. */
    bool bf16_state;
    /* A plan's bound on the tokens of a sequence, for which memory is planned; 0: the rows. The functions that take boundaries
     * here in layout find it themselves and do not read it. */
    int64_t longest;
    /* How little of a state may be taken as nothing, 0 <= forget < 1; 0: only what is gone exactly. Backend cuda, with vectors
     * of 16 bits, begins parts of a long sequence at zero where decays and erasures provably leave at most that much of what
     * was before, in parts whose number depends on how many sequences and heads are in the call: so outputs, states and
     * gradients of a sequence can differ, within that, with what else is in the batch. With 0 they do not, and it may take
     * longer. Other backends and types drop nothing. DR_FORGET is the usual value, and that of dr_recurrence_default. */
    double forget;
} dr_recurrence;

/* 2^-20: a 2048th of what numbers of 16 bits round. */
#define DR_FORGET 9.5367431640625e-7

/* A recurrence to start from: no rule, layout, heads and sizes yet, everything else as usual. */
DR_API dr_recurrence dr_recurrence_default(void);

typedef struct {
    const void *at[DR_INPUTS];
} dr_inputs; /* NULL where the rule does not use it */
typedef struct {
    void *at[DR_INPUTS];
} dr_input_gradients; /* NULL where not wanted; overwritten */
typedef struct {
    const void *at[DR_STATES];
} dr_states; /* NULL: zero */
typedef struct {
    void *at[DR_STATES];
} dr_mutable_states; /* NULL where not wanted; overwritten */

/* The element types in which the backend takes and gives the tensors of a recurrence. Vectors (query, key, value, erase_key,
 * feedback_key, free_read, free_write, rate, erase_gate, write_gate, their gradients, o and d_o) are in the storage type of
 * dr_backend_options on cuda; everything else, and all of it on other backends, is in dr_backend_dtype. NULL: DR_F32. */
DR_API dr_dtype dr_recurrence_input_dtype(const dr_backend *backend, dr_input input);
DR_API dr_dtype dr_recurrence_output_dtype(const dr_backend *backend);

/* Bytes the calls below need. saved: what a forward keeps for its backward. */
typedef struct {
    size_t forward, backward, saved, decode;
} dr_recurrence_memory;

/* DR_ERROR_ARGUMENT, or DR_ERROR_UNSUPPORTED if the backend has no engine for it; else fills *memory. */
DR_API dr_status dr_recurrence_plan(dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory);

/* o [rows, HV, V] and the final states. A sequence without tokens passes its initial states on. initial and final may be NULL;
 * an initial state may be the final one's memory. saved: memory->saved bytes, or NULL if no backward follows. workspace:
 * memory->forward bytes. Results are the same bits for any number of threads. */
DR_API dr_status dr_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                       const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                       void *workspace);

/* Gradients of L = <o, d_o> + <final, d_final>. inputs, initial and saved as in the forward; d_final may be NULL (zero), as may
 * its members. d_log_decay is 0 where log_decay is -inf. workspace: memory->backward bytes. */
DR_API dr_status dr_recurrence_backward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                        const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                        const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial,
                                        void *workspace);

/* One token for each sequence: layout.rows = layout.sequences, states updated in place. Token by token, the same numbers as the
 * recurrent engine to rounding. workspace: memory->decode bytes. */
DR_API dr_status dr_recurrence_decode(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                      const dr_mutable_states *states, void *o, void *workspace);

/* Where the states of each sequence lie when a server keeps those of many sequences in one pool, and which tokens of it come.
 * The states of a call are then [slots, ...] instead of [sequences, ...]. All lists are in the backend's memory and read when
 * the call runs: a captured call takes what is there when it is replayed. No slot that is written may be read or written by
 * another sequence of the call.
 *
 * A decode updates dr_call.states. A forward of a plan reads the pool dr_call.initial and writes the pool dr_call.final, which
 * may be one, and has any boundaries; a backward takes no slots. */
typedef struct {
    int64_t slots;
    int64_t tokens; /* decode: of each sequence, at least 1; layout.rows is sequences times that. A forward does not read it */
    /* from [sequences]: the slot that a sequence starts from. Negative numbers: a decode skips it, nothing of it is written; a
     * forward starts it from zero. */
    const int32_t *from;
    /* Decode: [sequences, tokens], the slot for the state after each token. Forward: [sequences], for the state after the last.
     * -1: that state is not kept. NULL: only the last state is kept, in place. */
    const int32_t *to;
    /* Forward: states that are kept on the way, for caches of prefixes: the state before row `row` [checkpoints] of all rows
     * goes to slot `slot` [checkpoints]. Such a row lies within a sequence, a multiple of the tokens of dr_plan_boundaries from
     * its start; the reference takes any. 0: none. */
    int64_t checkpoints;
    const int32_t *row, *slot;
} dr_slots;

/* Decoding with the states in slots: one token for each sequence or a few, as speculative decoding verifies them. o [rows, HV,
 * V]. workspace: memory->decode bytes of the plan for this layout. DR_ERROR_UNSUPPORTED where the backend has no pools. */
DR_API dr_status dr_recurrence_decode_slots(dr_backend *backend, const dr_recurrence *recurrence, const dr_slots *slots,
                                            const dr_inputs *inputs, const dr_mutable_states *states, void *o, void *workspace);

/* States between the chunks of a forward, read out of what it saved: for caches of prefixes and for passing states from device
 * to device. They lie *chunk tokens apart: the recurrence's chunk if the caller set one, else what the backend planned, which
 * may be several chunks, since it makes the states within such a stretch again when it needs them. Boundary i of a sequence
 * lies before its token i *chunk; i counts from 0, where it is the initial state, and there are *count, enough for all its
 * tokens, none if it has none. A forward that starts at one with the same path and chunk gives the rest of the outputs, bit for
 * bit. DR_ERROR_UNSUPPORTED if the backend saves no states: the reference. */
DR_API dr_status dr_recurrence_boundaries(dr_backend *backend, const dr_recurrence *recurrence, int64_t sequence,
                                          int64_t *chunk, int64_t *count);
/* The states of that one sequence, shaped as if layout.sequences were 1, in the backend's memory and type. recurrence and saved
 * as in the forward. */
DR_API dr_status dr_recurrence_boundary(dr_backend *backend, const dr_recurrence *recurrence, const void *saved,
                                        int64_t sequence, int64_t boundary, const dr_mutable_states *states);

/* The kernel that runs, e.g. "cpu chunkwise avx512 chunk 16". decode: that of dr_recurrence_decode. Writes like snprintf
 * (text may be NULL if size is 0); -1 if the recurrence cannot be, or a pointer is missing. */
DR_API int dr_recurrence_kernel(const dr_backend *backend, const dr_recurrence *recurrence, bool decode, char *text,
                                size_t size);

/* Shape of an input or a state under this recurrence, with the leading sizes above; returns the rank, 0 if a
 * pointer is missing. */
DR_API int dr_recurrence_input_shape(const dr_recurrence *recurrence, dr_input input, int64_t shape[DR_MAX_RANK]);
DR_API int dr_recurrence_state_shape(const dr_recurrence *recurrence, dr_state_kind state, int64_t shape[DR_MAX_RANK]);

#ifdef __cplusplus
}
#endif
#endif
