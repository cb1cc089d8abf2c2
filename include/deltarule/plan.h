/* Plans: what a recurrence needs and how it runs, settled once; and calls, which use a plan from any thread.
 *
 *     dr_plan_create(backend, &recurrence, &plan);
 *     dr_plan_memory(plan, &memory);                       bytes of workspaces and of what a forward saves
 *     dr_call call = {.size = sizeof call, .inputs = &inputs, .o = o, .workspace = workspace};
 *     dr_plan_forward(plan, &call);                        as often as one likes, from as many threads as one likes
 *     dr_plan_destroy(plan);
 *
 * A plan holds for any boundaries of that many sequences and rows: where sequences begin is said by the call.
 *
 * Threads. A plan never changes and keeps nothing of a call, so that any number of threads may use one plan, and one backend,
 * at the same time; each call has an output, a workspace and, on cuda, a stream of its own. Only dr_plan_destroy needs the plan
 * alone. */
#ifndef DELTARULE_PLAN_H
#define DELTARULE_PLAN_H

#include <deltarule/forms.h>
#include <deltarule/recurrence.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_plan dr_plan;

/* Plans a recurrence. layout.sequences and layout.rows bound the calls, with recurrence->longest; layout.cu_seqlens is not
 * read. The plan has a copy of the rule, without its names: the caller's may go. The backend must outlive the plan.
 * DR_ERROR_ARGUMENT; DR_ERROR_UNSUPPORTED if the backend has no engine for it; DR_ERROR_MEMORY. It does no work on a device,
 * and may be called while a stream is captured. */
DR_API dr_status dr_plan_create(dr_backend *backend, const dr_recurrence *recurrence, dr_plan **plan);
/* The same for calls whose tensors come in these forms, which are copied; NULL: in those of dr_forms_default.
 * DR_ERROR_ARGUMENT if they cannot be, or ask for something that the rule does not read; DR_ERROR_UNSUPPORTED where the backend
 * takes no others. What a forward saves is the same in all forms. */
DR_API dr_status dr_plan_create_with_forms(dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms,
                                           dr_plan **plan);
DR_API void dr_plan_destroy(dr_plan *plan); /* NULL is allowed; no call may be using it */

/* Bytes that a call needs, whatever its boundaries, and its threads up to those of the backend. */
DR_API dr_status dr_plan_memory(const dr_plan *plan, dr_recurrence_memory *memory);

/* What a forward saves for its backward, as a formula of the rows and sequences:
 *
 *     fixed + per_row rows + per_sequence sequences + per_segment (rows / segment + sequences)      (rows / segment rounded
 * down)
 *
 * It depends on the rule, the heads, sizes and types, path, chunk and whether longest is set, not on the threads nor on where
 * sequences begin. A forward writes every one of these bytes, with zeros where nothing belongs. */
typedef struct {
    size_t fixed, per_row, per_sequence, per_segment;
    int64_t segment; /* rows, at least 1 */
} dr_saved_size;
DR_API dr_status dr_plan_saved(const dr_plan *plan, dr_saved_size *saved);
/* The same without a backend, e.g. on a machine without a GPU. options: isa ("sm_90a" or "sm_80" of a GPU; NULL: "sm_90a" on
 * cuda) and dtype are read; NULL: the defaults. DR_ERROR_UNSUPPORTED if the build lacks the backend or it has no engine. */
DR_API dr_status dr_recurrence_saved(const char *backend, const dr_backend_options *options, const dr_recurrence *recurrence,
                                     dr_saved_size *saved);
/* The formula's value; SIZE_MAX if it is larger, or there is none. */
DR_API size_t dr_saved_bytes(const dr_saved_size *saved, int64_t rows, int64_t sequences);

/* Where the sequences of a call begin: sequences + 1 rows from 0 to all rows, never falling. */
typedef struct {
    const void *at; /* NULL: equal lengths, where sequences divides rows */
    dr_dtype dtype; /* DR_I64 or DR_I32 */
    /* Whether they lie in the backend's memory. On cuda the host then reads none of them: the call does not wait, and a
     * captured call takes what is there when it is replayed. That they are right, and no sequence longer than the plan's bound,
     * is then the caller's promise, which nobody checks. On the other backends this is host memory as well, and checked. */
    bool device;
} dr_boundaries;

/* One call. What a call does not read may stay zero; one struct may serve the forward and its backward. No memory that a call
 * writes may be used by another call at the same time.
 *
 * Alignment: workspace and saved begin at 16 bytes at least (dr_backend_allocate gives 64). Tensors begin where an element of
 * theirs may. The fast forms of cuda ask for more: inputs, gradients, o, d_o and states that begin at 16 bytes, with heads of a
 * multiple of 16 bytes; other ones give results that are as good, more slowly, and on cuda not always the same bits. */
typedef struct {
    size_t size;              /* sizeof(dr_call) */
    void *stream;             /* cuda: a cudaStream_t of the backend's device; NULL: the backend's. Elsewhere NULL */
    int threads;              /* cpu: at most so many, up to the backend's; 0: the backend's. Results do not depend on it */
    dr_boundaries boundaries; /* decode: none */
    const dr_inputs *inputs;  /* of the rule's inputs each and no other */
    const dr_states *initial; /* NULL: zero, as are members that are */
    void *o;                  /* forward, decode: [rows, HV, V] */
    const dr_mutable_states *final;     /* NULL: not wanted, as are members that are; may be the initial ones' memory */
    void *saved;                        /* forward: written, NULL if no backward follows; backward: read */
    void *workspace;                    /* of memory.forward, .backward or .decode bytes, not initialised */
    const void *d_o;                    /* backward, to the end: [rows, HV, V] */
    const dr_states *d_final;           /* NULL: zero */
    const dr_input_gradients *d_inputs; /* overwritten, every element of those that are wanted */
    const dr_mutable_states *d_initial; /* NULL: not wanted */
    const dr_mutable_states *states;    /* decode: updated in place */
    const dr_slots *slots; /* forward, decode: where the states lie; NULL: one of each sequence, in decode one token each */
    /* Of a raw decay (dr_forms), in the backend's own type; NULL: rates of 1, no bias, gradients not wanted. */
    const void *A_log;   /* [HV] */
    const void *dt_bias; /* [HV], of a decay by channel [HV, K] */
    void *d_A_log, *d_dt_bias;
} dr_call;

/* As dr_recurrence_forward, dr_recurrence_backward, dr_recurrence_decode and dr_recurrence_decode_slots, which plan each time.
 * On cuda they only put work on the stream, and may be captured in a graph: what their pointers point to in the backend's
 * memory is then read at each replay, host boundaries are those of the capture. */
DR_API dr_status dr_plan_forward(const dr_plan *plan, const dr_call *call);
DR_API dr_status dr_plan_backward(const dr_plan *plan, const dr_call *call);
DR_API dr_status dr_plan_decode(const dr_plan *plan, const dr_call *call);

/* As dr_recurrence_boundaries and dr_recurrence_boundary: call says the boundaries, which must lie in host memory on cuda, what
 * was saved, and the stream. */
DR_API dr_status dr_plan_boundaries(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t *chunk, int64_t *count);
DR_API dr_status dr_plan_boundary(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t boundary,
                                  const dr_mutable_states *states);

/* Bytes of a public struct, by its name ("dr_recurrence"); 0: there is none of that name. A caller in another language compares
 * them with its own before the first call. */
DR_API size_t dr_size_of(const char *type);

/* What runs, stage by stage. A stage that another one does has that one's instance. */
typedef enum {
    DR_STAGE_PREPARE,    /* decays, R W^T and the inverse of a chunk */
    DR_STAGE_STATE_PASS, /* the state from chunk to chunk, or from token to token */
    DR_STAGE_OUTPUT,
    DR_STAGE_BACKWARD,
    DR_STAGE_DECODE,
    DR_STAGES
} dr_stage;
typedef struct {
    char instance[64]; /* of the kernel, e.g. "chunkwise avx512", "one_pass tied" */
    dr_dtype storage;  /* of the vectors within the stage */
    int64_t chunk;     /* tokens */
    int64_t parts;     /* the most that a sequence is cut into, 1: it is not */
} dr_stage_path;
DR_API const char *dr_stage_name(dr_stage stage); /* "prepare", "state pass" and so on */
/* packed: of calls with boundaries. DR_ERROR_ARGUMENT if no such call can be. */
DR_API dr_status dr_plan_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path);

#ifdef __cplusplus
}
#endif
#endif
