/* Backends: where operations run, and in which precision.
 *
 *     reference   double precision, plain loops, the specification; vectors may be stored as bf16 or fp16
 *     cpu         float32, OpenMP, instruction set chosen at run time
 *     cuda        float32 on an NVIDIA GPU, recurrences only; their vectors may be stored as bf16 or fp16
 *
 * A backend computes in one element type (dr_backend_dtype). Pointers to tensors that its operations take are pointers into its
 * memory, in that type (but see dr_recurrence_input_dtype): host memory for the first two, the GPU's for cuda.
 *
 * Threads. One backend may be used by any number of threads at once: by recurrences, plans, states
 * and models. So may the functions below be called at once, but
 * dr_backend_close, which must come after all others have returned; memory that a call writes belongs to that call. On backend
 * cuda the calls of all threads go to the backend's one stream, in the order in which they come, unless a dr_call names
 * another.
 *
 * The cpu backend has the threads of OpenMP's runtime, for each thread that calls it a team of its own. A call computes on one
 * thread, with the same bits, in the child of a fork whose parent had several threads at the time, and within a parallel region
 * of the caller; and on fewer threads than the backend has where the system lets it make no more. A backend may be opened
 * before a fork and used in the child. (fork(): what skips its handlers, like vfork, leaves a child that must not compute.) The
 * library stays loaded once it has computed on several threads: dlclose leaves it.
 *
 * The library has no handlers of signals or of the process's end. Results are those of the usual floating-point environment:
 * round to nearest, no flushing of subnormal numbers to zero. It is never changed here; where the calling thread has another
 * one it holds for what that thread computes and not for those of OpenMP, so that results then depend on the number of threads.
 *
 * Backend cuda puts its work in order on one stream and does not wait for it, but for these, which wait until the stream is
 * idle: upload, download, wait, close; allocate and free may wait for the whole device. A failure on the GPU that shows only
 * after a call has returned is reported by one of those. None of them may be captured in a CUDA graph; zero and the
 * recurrence's calls may be. */
#ifndef DELTARULE_BACKEND_H
#define DELTARULE_BACKEND_H

#include <deltarule/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_backend dr_backend;

enum { DR_MOST_THREADS = 1024 }; /* of a backend */

typedef struct {
    int threads;     /* 1 to DR_MOST_THREADS; 0: what OpenMP says (OMP_NUM_THREADS, else the cores). No result depends on it */
    const char *isa; /* NULL: the best that the machine has; else "portable", "avx2", "avx512" (cpu only) */

    /* How vectors are stored (dr_recurrence_input_dtype): DR_F32, DR_BF16 or DR_F16 on cuda; on the reference DR_BF16, DR_F16,
     * or zero for its own DR_F64; zero elsewhere. */
    dr_dtype dtype;

    /* cuda only; zero elsewhere */
    int device;   /* as CUDA counts them, from 0 */
    void *stream; /* a cudaStream_t of that device, which must outlive the backend; NULL: the default stream */

    /* How the matrices that products read are stored: DR_BF16, or DR_I8 with a scale for each row, on cpu and on the reference;
     * zero: as vectors. Such weights are only read: models are loaded, run and saved, not trained. What is computed from them
     * is summed in the backend's own type. */
    dr_dtype weights;
} dr_backend_options;

/* The names of the build's backends, in the order in which they are told; NULL beyond the last. */
DR_API const char *dr_backend_listed(int index);

/* Opens a backend by name; options may be NULL. DR_ERROR_UNSUPPORTED with a sentence if the build or the machine lacks it, or
 * lets the process make no more threads. DR_ERROR_ARGUMENT if options cannot be, or OMP_NUM_THREADS where it is asked. */
DR_API dr_status dr_backend_open(const char *name, const dr_backend_options *options, dr_backend **backend);
DR_API void dr_backend_close(dr_backend *backend); /* NULL is allowed */

/* Of NULL: "", "", DR_F32 and 0. */
DR_API const char *dr_backend_name(const dr_backend *backend);
DR_API const char *dr_backend_isa(const dr_backend *backend); /* "double" for the reference, "sm_90a" on a GPU */
DR_API dr_dtype dr_backend_dtype(const dr_backend *backend);
DR_API int dr_backend_threads(const dr_backend *backend);

/* Memory of the backend, 64-byte aligned, not initialised. DR_ERROR_MEMORY if there is none; size 0 gives a valid pointer. */
DR_API dr_status dr_backend_allocate(dr_backend *backend, size_t bytes, void **memory);
DR_API void dr_backend_free(dr_backend *backend, void *memory);               /* NULL is allowed */
DR_API void dr_backend_zero(dr_backend *backend, void *memory, size_t bytes); /* NULL: nothing is done */

/* Copies count elements between host memory of a floating dtype and backend memory in the backend's type, converting. */
DR_API dr_status dr_backend_upload(dr_backend *backend, void *to, const void *from, dr_dtype from_dtype, int64_t count);
DR_API dr_status dr_backend_download(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, int64_t count);

/* The same where the backend's memory holds another type than its own, which is that of an input or of the output. */
DR_API dr_status dr_backend_upload_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                                      int64_t count);
DR_API dr_status dr_backend_download_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                                        int64_t count);

/* Returns when all that was asked of the backend is done. DR_ERROR_DEVICE if something failed on the way. */
DR_API dr_status dr_backend_wait(dr_backend *backend);

/* One line a fact for `deltarule info`: features found, kernels chosen, libraries. Calls line(context, text) for each;
 * nothing is done without a backend or a line. */
DR_API void dr_backend_describe(const dr_backend *backend, void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif
#endif
