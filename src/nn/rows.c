/* The block of a batch, in this order: tokens seen, slots, boundaries (packed only), positions, ids, labels. It has the same
 * layout on the host, where it is filled, and in the backend's memory. */
#include "nn/rows.h"
#include "base/error.h"
#include "ops/shapes.h"

#include <string.h>

typedef struct {
    int64_t *seen, *slot, *boundaries, *positions;
    int32_t *ids, *labels;
    size_t bytes;
} parts;

static parts parts_at(const dr_rows *tokens, void *block) {
    dr_arena arena = {.block = block};
    const dr_layout *layout = &tokens->layout;
    parts p = {0};
    p.seen = dr_arena_take(&arena, (size_t)layout->sequences * sizeof(int64_t));
    p.slot = dr_arena_take(&arena, (size_t)layout->sequences * sizeof(int64_t));
    if (layout->cu_seqlens) p.boundaries = dr_arena_take(&arena, (size_t)(layout->sequences + 1) * sizeof(int64_t));
    if (tokens->selects) p.positions = dr_arena_take(&arena, (size_t)tokens->targets * sizeof(int64_t));
    p.ids = dr_arena_take(&arena, (size_t)layout->rows * sizeof(int32_t));
    if (tokens->labelled) p.labels = dr_arena_take(&arena, (size_t)tokens->targets * sizeof(int32_t));
    p.bytes = arena.used;
    return p;
}

void dr_rows_place(const dr_layout *layout, int64_t targets, bool selects, bool labelled, dr_arena *arena, dr_rows *tokens) {
    const int64_t longest = dr_layout_longest(layout);
    *tokens = (dr_rows){.layout = *layout,
                        .longest = longest > 1 ? longest : 1,
                        .targets = targets,
                        .selects = selects,
                        .labelled = labelled,
                        .staging = tokens->staging,
                        .room = tokens->room};
    tokens->bytes = parts_at(tokens, NULL).bytes;
    tokens->block = dr_arena_take(arena, tokens->bytes);
    if (!tokens->block) return;
    const parts p = parts_at(tokens, tokens->block);
    tokens->layout.cu_seqlens = p.boundaries;
    tokens->seen = p.seen, tokens->positions = p.positions, tokens->ids = p.ids, tokens->labels = p.labels;
}

dr_status dr_rows_reserve(dr_rows *tokens) {
    void *memory = NULL;
    if (tokens->bytes <= tokens->room) return DR_OK;
    DR_TRY(dr_allocate(tokens->bytes, "a batch", &memory));
    dr_release(tokens->staging);
    tokens->staging = memory;
    tokens->room = tokens->bytes;
    return DR_OK;
}

static void copy(void *to, const void *from, int64_t count, size_t size) {
    if (to && count > 0) memcpy(to, from, (size_t)count * size);
}

dr_status dr_rows_upload(dr_backend *backend, const dr_batch *batch, const int64_t *seen, const int64_t *slot,
                         dr_rows *tokens) {
    const dr_layout *layout = &tokens->layout;
    const parts p = parts_at(tokens, tokens->staging);
    if (seen)
        copy(p.seen, seen, layout->sequences, sizeof *seen);
    else
        memset(p.seen, 0, (size_t)layout->sequences * sizeof *p.seen);
    for (int64_t i = 0; i < layout->sequences; i++) p.slot[i] = slot ? slot[i] : i;
    tokens->slot = slot ? parts_at(tokens, tokens->block).slot : NULL;
    copy(p.boundaries, batch->layout.cu_seqlens, layout->sequences + 1, sizeof(int64_t));
    copy(p.positions, batch->positions, tokens->targets, sizeof(int64_t));
    if (batch->ids) copy(p.ids, batch->ids, layout->rows, sizeof(int32_t));
    copy(p.labels, batch->labels, tokens->targets, sizeof(int32_t));
    const size_t bytes = batch->ids ? tokens->bytes : (size_t)((char *)p.ids - (char *)tokens->staging);
    return backend->ops->put(backend, tokens->block, tokens->staging, bytes);
}

void dr_rows_release(dr_rows *tokens) {
    dr_release(tokens->staging);
    tokens->staging = NULL;
    tokens->room = 0;
}
