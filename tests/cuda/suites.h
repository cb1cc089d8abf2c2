/* What is tested of backend cuda on a GPU. Each suite adds to a count of checks and ends at the first that does not hold, with
 * a sentence. */
#ifndef DR_TESTS_CUDA_SUITES_H
#define DR_TESTS_CUDA_SUITES_H

#include "../recurrence/trial.h"

enum { MOST_WORKERS = 64 };

typedef struct {
    dr_backend *reference, *cpu;
    dr_backend *cuda[3]; /* float32, bf16, fp16 */
    void *stream;        /* theirs; NULL: the device's own */
    int device;
    int threads;           /* that take cases, each one at a time */
    uint64_t first, last;  /* seeds of random compositions */
    bool brief;            /* the short form */
    const char *pipeline;  /* the only one of suite_pipelines; NULL: all */
    const char *operation; /* the only case of suite_networks; NULL: all */
    long checks, refused;  /* refused: compositions that no engine of the GPU takes */
    double worst[3];       /* error over what is allowed, by type */
} gpu;

/* The backends of g->device, on a stream of their own, and the CPU's on one thread. Closing takes what was opened, also where
 * opening failed. */
bool gpu_open(gpu *g, fault *what);
void gpu_close(gpu *g);
/* Takes cases first to last in g->threads threads, each with backends of its own, and adds up their counts. Every case that
 * does not hold is printed; what then says how many. */
bool gpu_share(gpu *g, uint64_t first, uint64_t last, bool (*holds)(gpu *own, uint64_t n, void *context, fault *what),
               void *context, fault *what);
/* Whether an engine of the GPU takes the rule. */
bool gpu_takes(const dr_rule *rule);

/* Random compositions and shapes. float32, against the reference: token by token, chunkwise with its own chunk and another,
 * decoding; a second run gives the same bits, as does each sequence alone, and resuming from a state between chunks. 16 bits:
 * twice the error of the plain loop that rounds as much (rounding.h). */
bool suite_trials(gpu *g, fault *what);
/* The same bound for heads of 64 to 256 channels over several chunks, every rule of the table among them. */
bool suite_rounding(gpu *g, fault *what);
/* Lengths around a chunk's and head sizes around the kernels', for rules of every kind. */
bool suite_shapes(gpu *g, fault *what);
/* The same rules as layers call them: no states, a key head to one, two or four value heads; and of some as many heads as
 * multiprocessors. */
bool suite_layers(gpu *g, fault *what);
/* Parts of long sequences that begin early, where decays let them. */
bool suite_early(gpu *g, fault *what);
/* More than 65,535 sequences and heads; offsets beyond 2^31 elements, as sequence behind one that long; stages beside one
 * another, as stages in turn. */
bool suite_large(gpu *g, fault *what);
/* Decoding from slots: in place, to new ones, skipped; several tokens with the state after each; in a CUDA graph. */
bool suite_slots(gpu *g, fault *what);
/* Many sequences at once, in place, to other slots, skipped: the bits of few at a time. */
bool suite_many(gpu *g, fault *what);
/* Forward and backward in a CUDA graph, which is refused where a call allocates or waits: every replay gives the bits of the
 * calls themselves. */
bool suite_graphs(gpu *g, fault *what);
/* More chunks than multiprocessors, so that blocks that stay on one take several: the bits of few at a time. */
bool suite_busy(gpu *g, fault *what);
/* The diagonal scan from chunk to chunk: any lengths beside one another, and several streams at once. */
bool suite_chains(gpu *g, fault *what);
/* The gradient of log decays where gates are saturated, exactly 0 of one token; zero keys where the gain is a quotient. */
bool suite_decays(gpu *g, fault *what);
/* Plans: many threads and streams, boundaries on the device, what is saved, graphs, nothing forgotten. */
bool suite_plans(gpu *g, fault *what);
/* Forms of plans, and pools that forwards read and write (formed.h). */
bool suite_forms(gpu *g, fault *what);
/* Operations of networks: each with drawn shapes, against the reference (network/calls.h). */
bool suite_networks(gpu *g, fault *what);
/* Whole models: loss, gradient, the same bits again (network/models.h). */
bool suite_models(gpu *g, fault *what);
/* A small call of each pipeline of kernels, for compute-sanitizer; prints their names. */
bool suite_pipelines(gpu *g, fault *what);
void pipelines_list(void);
/* Refusals: each a sentence, nothing written. */
bool suite_refusals(gpu *g, fault *what);

#endif
