/* The order of windows: each epoch shifts the grid of windows by a phase of its own, so that the text is not cut at the same
 * places again, and visits every window once in shuffled order. Phase and order come from the stream of the epoch's number.
 *
 * A shuffle of all windows takes a while where there are many. So the order of the next epoch grows by one place with each
 * window that this one gives out, and is whole when it is needed. */
#include "data/windows.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/streams.h"

static dr_status allocate_order(dr_windows *windows, dr_window_order *order) {
    void *memory;
    DR_TRY(dr_allocate((size_t)windows->windows * sizeof(uint32_t), "the order of windows", &memory));
    order->order = memory;
    order->epoch = -1;
    return DR_OK;
}

static dr_status fill(dr_windows *windows) {
    const int64_t tokens = windows->tokens->count;
    void *memory;
    if (tokens <= windows->length)
        return dr_fail(
            DR_ERROR_ARGUMENT,
            "the training text has %lld tokens, too few for one window of %lld and the token after it: give more text or "
            "a smaller seq_len",
            (long long)tokens, (long long)windows->length);
    windows->windows = tokens / windows->length - 1; /* any phase below length leaves room for so many */
    if (windows->windows < 1) windows->windows = 1;
    if (windows->windows > UINT32_MAX)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "the training text has %lld windows of %lld tokens, and at most 2^32 can be: give a "
                       "larger seq_len",
                       (long long)windows->windows, (long long)windows->length);
    DR_TRY(dr_allocate((size_t)(windows->length + 1) * sizeof(int32_t), "a window of tokens", &memory));
    windows->ids = memory;
    DR_TRY(dr_allocate((size_t)windows->length + 1, "the marks of a window", &memory));
    windows->marks = memory;
    DR_TRY(allocate_order(windows, &windows->current));
    return allocate_order(windows, &windows->next);
}

dr_status dr_windows_create(dr_tokens *tokens, int64_t length, uint64_t seed, dr_windows **windows) {
    void *memory;
    *windows = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_windows), "training windows", &memory));
    dr_windows *made = memory;
    made->tokens = tokens;
    made->length = length, made->seed = seed;
    dr_status status = fill(made);
    if (status != DR_OK)
        dr_windows_destroy(made);
    else
        *windows = made;
    return status;
}

void dr_windows_destroy(dr_windows *windows) {
    if (!windows) return;
    dr_release(windows->ids);
    dr_release(windows->marks);
    dr_release(windows->current.order);
    dr_release(windows->next.order);
    dr_release(windows);
}

/* ---- the order ---- */

static void begin_order(const dr_windows *windows, int64_t epoch, dr_window_order *order) {
    order->random = dr_stream(windows->seed, DR_STREAM_WINDOWS, epoch);
    int64_t room = windows->tokens->count - windows->windows * windows->length; /* >= 1: a label follows the last window */
    order->phase = (int64_t)dr_random_below(&order->random, (uint64_t)(room < windows->length ? room : windows->length));
    order->done = 0;
    order->epoch = epoch;
}

/* Makes the order's places up to `until`: a shuffle that takes one window more in at each step. */
static void extend_order(dr_window_order *order, int64_t until) {
    for (; order->done < until; order->done++) {
        int64_t j = (int64_t)dr_random_below(&order->random, (uint64_t)order->done + 1);
        order->order[order->done] = order->order[j];
        order->order[j] = (uint32_t)order->done;
    }
}

static void enter_epoch(dr_windows *windows, int64_t epoch) {
    dr_window_order free = windows->current;
    if (windows->next.epoch != epoch) begin_order(windows, epoch, &windows->next);
    extend_order(&windows->next, windows->windows);
    windows->current = windows->next;
    windows->next = free;
}

void dr_windows_prepare(dr_windows *windows, int64_t index) {
    int64_t epoch = index / windows->windows, place = index % windows->windows;
    if (epoch != windows->current.epoch) enter_epoch(windows, epoch);
    if (windows->next.epoch != epoch + 1) begin_order(windows, epoch + 1, &windows->next);
    extend_order(&windows->next, place + 1);
}

dr_status dr_windows_get(dr_windows *windows, int64_t index, int32_t *ids, int32_t *labels, uint8_t *marks) {
    const int64_t length = windows->length;
    dr_tokens *tokens = windows->tokens;
    dr_windows_prepare(windows, index);
    int64_t from = windows->current.phase + windows->current.order[index % windows->windows] * length;
    DR_TRY(tokens->read(tokens, from, length + 1, windows->ids, windows->marks));
    for (int64_t i = 0; i < length; i++) {
        ids[i] = windows->ids[i];
        labels[i] = windows->ids[i + 1];
        marks[i] = (windows->marks[i] & DR_TOKEN_BEGINS) | (windows->marks[i + 1] & DR_TOKEN_GIVEN);
    }
    return DR_OK;
}
