/* What the chunks of a diagonal scan, or of the gradient of its A, make for one another while they run (diagonal_chain.cuh). */
#ifndef DR_CUDA_CHAIN_H
#define DR_CUDA_CHAIN_H

/* A over the chunks of a sequence, or its gradient from the last chunk on; [slots][H][K] floats. */
typedef struct {
    float *end;       /* what a chunk leaves that began with zero */
    float *product;   /* [slots][H] of the chunk's alphas; a chain for every 64 channels: [H][K/64][slots] */
    float *entry;     /* what a chunk begins with: A before each chunk; a forward that a backward follows saves it */
    unsigned *told;   /* [H][slots] what chunks of a single pass have told of themselves: CHAIN_NOTHING, .. */
    unsigned *ticket; /* how many chunks thread blocks that stay have taken: one waits for none that is not taken */
    const float *initial;
    float *final; /* [sequences][H][K] or NULL, both */
} dr_cuda_diagonal_chain;

/* Nothing; end and product; the state that it leaves. */
enum { CHAIN_NOTHING, CHAIN_SUM, CHAIN_WHOLE };

#endif
