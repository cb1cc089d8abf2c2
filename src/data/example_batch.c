/* Batches of examples. */
#include "data/example_batch.h"

#include "base/error.h"
#include "base/memory.h"

dr_status dr_example_batch_create(const dr_generator *generator, dr_example_size largest, int64_t sequences,
                                  dr_example_batch *batch) {
    const int64_t tokens = generator->kind->tokens(generator, largest), targets = generator->kind->targets(generator, largest);
    int64_t bytes;
    void *memory = NULL;
    *batch = (dr_example_batch){.even = true};
    if (!dr_product((int64_t[]){sequences, tokens + targets + 1, 4 * sizeof(int64_t)}, 3, &bytes))
        return dr_fail(DR_ERROR_ARGUMENT, "batch %lld times examples of %lld tokens is more than can be counted",
                       (long long)sequences, (long long)tokens);
    const size_t count = (size_t)sequences, rows = count * (size_t)tokens, labels = count * (size_t)targets;
    for (int pass = 0; pass < 2; pass++) { /* count, then hand out */
        dr_arena arena = {.block = memory};
        batch->ids = dr_arena_take(&arena, rows * sizeof(int32_t));
        batch->positions = dr_arena_take(&arena, labels * sizeof(int64_t));
        batch->labels = dr_arena_take(&arena, labels * sizeof(int32_t));
        batch->bounds = dr_arena_take(&arena, (count + 1) * sizeof(int64_t));
        batch->target_bounds = dr_arena_take(&arena, (count + 1) * sizeof(int64_t));
        if (!memory) DR_TRY(dr_allocate(arena.used, "a batch of examples", &memory));
    }
    batch->most_rows = (int64_t)rows, batch->most_targets = (int64_t)labels;
    dr_example_batch_clear(batch);
    return DR_OK;
}

void dr_example_batch_destroy(dr_example_batch *batch) {
    dr_release(batch->ids); /* the block begins with them */
    *batch = (dr_example_batch){0};
}

void dr_example_batch_clear(dr_example_batch *batch) {
    batch->sequences = batch->rows = batch->targets = 0;
    batch->even = true;
    batch->bounds[0] = batch->target_bounds[0] = 0;
}

void dr_example_batch_draw(dr_example_batch *batch, dr_generator *generator, dr_random *random, dr_example_size size) {
    dr_example example = {batch->ids + batch->rows, batch->positions + batch->targets, batch->labels + batch->targets};
    const int64_t tokens = generator->kind->tokens(generator, size), targets = generator->kind->targets(generator, size);
    generator->kind->draw(generator, random, size, &example);
    for (int64_t k = 0; k < targets; k++) example.positions[k] += batch->rows;
    batch->even = batch->even && tokens * batch->sequences == batch->rows;
    batch->rows += tokens;
    batch->targets += targets;
    batch->sequences++;
    batch->bounds[batch->sequences] = batch->rows;
    batch->target_bounds[batch->sequences] = batch->targets;
}
