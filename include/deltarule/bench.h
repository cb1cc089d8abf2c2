/* Times of the recurrences, of decoding and of training steps, beside the machine's own limits.
 *
 * Everything is measured in the same process and in turn: in every repeat, for each number of threads and each rule, first the
 * limit with as many threads, then the work. A machine that is shared slows both, so shares and ratios are taken within a
 * repeat, and the median of the repeats counts. Compare only what one call has measured.
 *
 * On backend cuda the GPU's clock tells the time of a run, many runs after another in a CUDA graph, and inputs, outputs,
 * gradients and states lie in so many copies, used in turn, that no run finds them in the second-level cache. Its limits are a
 * copy within its memory, which counts bytes read and written, and a product of matrices of bf16, 8192 x 8192, by cuBLAS where
 * this machine has it.
 *
 * Threads. Measurements disturb each other: one call of this header at a time in a process, and nothing beside it. They start
 * the threads that their options name. dr_bench_blas may be called at any time from any thread. */
#ifndef DELTARULE_BENCH_H
#define DELTARULE_BENCH_H

#include <deltarule/train.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DR_BENCH_MOST_REPEATS = 999 };

typedef struct {
    int64_t repeats;    /* measurements of each, 1 to DR_BENCH_MOST_REPEATS */
    const int *threads; /* [thread_counts] numbers of threads, each >= 1 */
    int thread_counts;  /* >= 1 */
    const char *isa;    /* of the CPU backend; NULL: the best that the machine has */
    uint64_t seed;      /* of the random inputs */
    double log_decay;   /* of every token, below 0; 0: as random as the other inputs */
    int64_t weak_heads; /* value heads, the first ones, that forget next to nothing: their log decays are -0.0001 */

    const char *backend; /* "cpu" or "cuda"; NULL: "cpu" */
    dr_dtype dtype;      /* of the vectors, on cuda: as in dr_backend_options */
    int device;          /* likewise */
} dr_bench_options;

/* Seconds of one run over the repeats; spread: from quartile to quartile, as a share of the median. */
typedef struct {
    double median, best, spread;
} dr_bench_seconds;

/* The memory's share of some work: bytes that must move, their rate, that of a copy, and its share within a repeat, median. */
typedef struct {
    double bytes, rate, limit, share;
} dr_bench_moved;

/* Some work measured. amount counts it: operations, two a multiplication with its addition, or bytes. */
typedef struct {
    dr_bench_seconds seconds;
    double amount, rate;      /* rate: amount over the median of seconds */
    double limit, limit_best; /* the machine's own rate: median, best */
    double share;             /* rate over limit within a repeat, median */
    double share_best;        /* the best rate over the best limit */
    double ratio;             /* time as a multiple of the first rule's with as many threads, within a repeat, median */
    double speed_up;          /* the same rule's time with the first number of threads over this, likewise */
    dr_bench_moved moved;     /* recurrences on backend cuda; zeros elsewhere */
} dr_bench_work;

/* What stands for the processor's limit of arithmetic: "OpenBLAS 0.3.21, kernels for SkylakeX", with what is wrong with it if
 * it is no measure of this processor. It is opened when a limit first asks for it, and this library is not linked to it; the
 * variable DELTARULE_OPENBLAS names the file to open. DR_ERROR_UNSUPPORTED if it cannot be opened. */
DR_API dr_status dr_bench_blas(char *text, size_t size);

/* Recurrences over many tokens. The limit is OpenBLAS sgemm at 512, every thread with matrices of its own; on cuda the product
 * above. If this machine has no library for it, or its kernels are below the processor, limit and share are 0 and `lacking`
 * says so. Work is counted the same way whatever the engine: as by the chunkwise form in chunks of 64 tokens, for a rule of one
 * row that reads 6 K V + 64 (2 K + 2 V) operations a token and value head; three times that with the backward. performed is the
 * same form with the chunk that ran. */
typedef struct {
    char kernel[96];
    int threads;
    int64_t chunk; /* tokens; 1: token by token */
    double performed_forward, performed_forward_backward;
    /* bytes beside inputs and outputs: of a forward alone, of both with what is saved between them, and that part */
    double workspace_forward, workspace_forward_backward, saved;
    double first; /* seconds from opening the backend to the end of the first run, inputs not counted */
    char lacking[192];
    dr_bench_work forward;
    dr_bench_work forward_backward; /* together; zeros if forward_only */
} dr_bench_op_result;

/* results: [thread_counts, count]. DR_ERROR_NUMERIC if an output is not finite. */
DR_API dr_status dr_bench_op(const dr_bench_options *options, bool forward_only, int count, const dr_recurrence *recurrences,
                             dr_bench_op_result *results);

/* One token for many sequences: layout.rows = layout.sequences. The amount is the bytes of the states, read and written; the
 * limit is an in-place y = a y + b over as many; on cuda a copy. */
typedef struct {
    char kernel[96];
    int threads;
    dr_bench_work token;
} dr_bench_decode_result;

/* results: [thread_counts, count] */
DR_API dr_status dr_bench_decode(const dr_bench_options *options, int count, const dr_recurrence *recurrences,
                                 dr_bench_decode_result *results);

/* Optimizer steps of task lm on random tokens: gradient, clipping, update. The limit is OpenBLAS sgemm as above; on cuda the
 * product above, and steps follow one another without waiting for the host, as in a run. Counted are
 * 6 operations a parameter and token, without an embedding that is only looked up, and those of the recurrence as above. */
typedef struct {
    char rule[32]; /* its name, or "composition" */
    int threads;
    int64_t parameters, tokens; /* tokens of a step */
    double recurrence;          /* operations of the recurrences, part of the amount */
    double bytes;               /* of the backend's memory: parameters, gradient, optimizer, a step */
    char lacking[192];          /* as of dr_bench_op_result */
    dr_bench_work step;
} dr_bench_train_result;

/* settings: [count] options of runs, of which those of the model, vocabulary (257 where it is not set), batch, seq_len,
 * keep_level and the optimizer matter. results:
 * [thread_counts, count] */
DR_API dr_status dr_bench_train(const dr_bench_options *options, int count, const dr_train_options *const *settings,
                                dr_bench_train_result *results);

/* The loss of a batch by the same models, as scoring reads text: forward alone, 2 operations a parameter and token. bytes are
 * those of the parameters and of a call. The clock of the process tells the times, also on cuda. */
DR_API dr_status dr_bench_score(const dr_bench_options *options, int count, const dr_train_options *const *settings,
                                dr_bench_train_result *results);
/* Tokens by the same models for `batch` sequences at once, from zero states, the most likely one each time; tokens of a result
 * are DR_BENCH_GENERATED for each. Where the backend chooses tokens a step begins before the host knows the last, as in
 * generating. On cuda work.moved holds the bytes that must move, the weights of products and the states, read and written,
 * against a copy. */
enum { DR_BENCH_GENERATED = 64 };
DR_API dr_status dr_bench_generate(const dr_bench_options *options, int count, const dr_train_options *const *settings,
                                   dr_bench_train_result *results);

#ifdef __cplusplus
}
#endif
#endif
