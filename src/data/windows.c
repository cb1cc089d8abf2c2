/* The order of windows: each epoch shifts the grid of windows by a phase of its own, so that the text is not cut at the same
 * places again, and visits every window once in shuffled order. Phase and order come from the stream of the epoch's number. */
#include "data/windows.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/streams.h"

static dr_status fill(dr_windows *windows, const dr_documents *documents) {
    void *memory;
    windows->tokens = documents->bytes + documents->count;
    if (windows->tokens <= windows->length)
        return dr_fail(
            DR_ERROR_ARGUMENT,
            "the training text has %lld tokens, too few for one window of %lld and the token after it: give more text or "
            "a smaller seq_len",
            (long long)windows->tokens, (long long)windows->length);
    DR_TRY(dr_allocate((size_t)windows->tokens * sizeof(uint16_t), "the training tokens", &memory));
    windows->ids = memory;
    int64_t at = 0;
    for (int64_t i = 0; i < documents->count; i++) {
        windows->ids[at++] = DR_DOCUMENT_START;
        for (int64_t byte = 0; byte < documents->at[i].bytes; byte++) windows->ids[at++] = documents->at[i].text[byte];
    }
    windows->windows = windows->tokens / windows->length - 1; /* any phase below length leaves room for so many */
    if (windows->windows < 1) windows->windows = 1;
    DR_TRY(dr_allocate((size_t)windows->windows * sizeof(int64_t), "the order of windows", &memory));
    windows->order = memory;
    return DR_OK;
}

dr_status dr_windows_create(const dr_documents *documents, int64_t length, uint64_t seed, dr_windows **windows) {
    void *memory;
    *windows = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_windows), "training windows", &memory));
    dr_windows *made = memory;
    made->length = length, made->seed = seed, made->epoch = -1;
    dr_status status = fill(made, documents);
    if (status != DR_OK)
        dr_windows_destroy(made);
    else
        *windows = made;
    return status;
}

void dr_windows_destroy(dr_windows *windows) {
    if (!windows) return;
    dr_release(windows->ids);
    dr_release(windows->order);
    dr_release(windows);
}

static void start_epoch(dr_windows *windows, int64_t epoch) {
    dr_random random = dr_stream(windows->seed, DR_STREAM_WINDOWS, epoch);
    int64_t room = windows->tokens - windows->windows * windows->length; /* >= 1: a label follows the last window */
    windows->phase = (int64_t)dr_random_below(&random, (uint64_t)(room < windows->length ? room : windows->length));
    for (int64_t i = 0; i < windows->windows; i++) {
        int64_t j = (int64_t)dr_random_below(&random, (uint64_t)i + 1);
        windows->order[i] = windows->order[j];
        windows->order[j] = i;
    }
    windows->epoch = epoch;
}

void dr_windows_get(dr_windows *windows, int64_t index, int32_t *ids, int32_t *labels) {
    int64_t epoch = index / windows->windows;
    if (epoch != windows->epoch) start_epoch(windows, epoch);
    const uint16_t *from = windows->ids + windows->phase + windows->order[index % windows->windows] * windows->length;
    for (int64_t i = 0; i < windows->length; i++) ids[i] = from[i], labels[i] = from[i + 1];
}
