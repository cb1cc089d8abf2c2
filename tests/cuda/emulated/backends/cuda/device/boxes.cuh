/* In place of the project's header of that name: boxes by copies of block.h, 16 bytes each. */
#ifndef DR_CUDA_BOXES_CUH
#define DR_CUDA_BOXES_CUH

#include "backends/cuda/cuda.h"
#include "backends/cuda/device/bulk.cuh"

typedef struct {
    char *at;
    int sizes[4]; /* channels, heads, tokens, sequences */
    int64_t strides[3];
} dr_boxes;

static inline dr_status dr_boxes_make(dr_boxes *boxes, const void *at, int channels, int heads, int64_t tokens,
                                      int64_t sequences, int64_t token, int64_t head) {
    *boxes = {(char *)at, {channels, heads, (int)tokens, (int)sequences}, {head, token, tokens * token}};
    return DR_OK;
}

/* The eight channels of a row of a box that lie at one place of its tile; NULL outside of the tensor. */
static inline char *boxes_place(const dr_boxes &boxes, int row, int unit, int channel, int head, int token, int sequence) {
    channel += unit * 8, token += row;
    if (channel >= boxes.sizes[0] || head >= boxes.sizes[1] || token >= boxes.sizes[2] || sequence >= boxes.sizes[3])
        return NULL;
    return boxes.at + channel * 2 + head * boxes.strides[0] + token * boxes.strides[1] + sequence * boxes.strides[2];
}

static inline unsigned boxes_within(int row, int unit) {
    return (unsigned)(row * 128 + (unit ^ row % 8) * 16);
}

static inline void dr_boxes_load(const dr_boxes &boxes, unsigned tile, unsigned, int channel, int head, int token,
                                 int sequence) {
    if (tile % 1024) grid_fail("a box goes to a tile that does not begin at a multiple of 1024");
    for (int row = 0; row < 64; row++)
        for (int unit = 0; unit < 8; unit++) {
            const char *from = boxes_place(boxes, row, unit, channel, head, token, sequence);
            copy_ask(tile + boxes_within(row, unit), from, 16, from != NULL);
        }
}

static inline void dr_boxes_expect(const dr_boxes &, int, int, int, int) {}

static inline void dr_boxes_store(const dr_boxes &boxes, unsigned tile, int channel, int head, int token, int sequence) {
    copy_later([=] {
        for (int row = 0; row < 64; row++)
            for (int unit = 0; unit < 8; unit++) {
                char *to = boxes_place(boxes, row, unit, channel, head, token, sequence);
                if (to) memcpy(to, shared_at(tile + boxes_within(row, unit), 16), 16);
            }
    });
}

static inline void dr_boxes_wait_read() {
    copy_wait();
}

#endif
