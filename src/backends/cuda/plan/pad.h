/* Zeros in what a forward saves, where no stage writes: slots of chunks that packed sequences do not use, and what lies between
 * tensors. So all of it is the same bytes whatever was there, and may be compared, hashed and copied. */
#ifndef DR_CUDA_PAD_H
#define DR_CUDA_PAD_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DR_CUDA_PADS = 16, DR_CUDA_SAVED_ALIGNMENT = 64 };

typedef struct {
    const int64_t *cu; /* [sequences + 1] on the device; NULL: each slot is used */
    int64_t sequences, slots, chunk;
    struct {
        uint32_t *at;
        int64_t each; /* words of a slot */
    } part[DR_CUDA_PADS];
    struct {
        char *at;
        int32_t bytes;
    } gap[DR_CUDA_PADS];
    int32_t parts, gaps;
} dr_cuda_saved_pad;

/* A tensor of so many bytes a slot, or of so many in all; at NULL: it is not there. */
void dr_cuda_pad_slots(dr_cuda_saved_pad *pad, void *at, size_t each);
void dr_cuda_pad_whole(dr_cuda_saved_pad *pad, void *at, size_t bytes);

dr_status dr_cuda_pad(const dr_cuda_saved_pad *pad, dr_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
