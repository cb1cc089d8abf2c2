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
    const dr_documents *documents = &windows->documents;
    void *memory;
    windows->tokens = documents->bytes + documents->count;
    if (windows->tokens <= windows->length)
        return dr_fail(
            DR_ERROR_ARGUMENT,
            "the training text has %lld tokens, too few for one window of %lld and the token after it: give more text or "
            "a smaller seq_len",
            (long long)windows->tokens, (long long)windows->length);
    windows->windows = windows->tokens / windows->length - 1; /* any phase below length leaves room for so many */
    if (windows->windows < 1) windows->windows = 1;
    if (windows->windows > UINT32_MAX)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "the training text has %lld windows of %lld tokens, and at most 2^32 can be: give a "
                       "larger seq_len",
                       (long long)windows->windows, (long long)windows->length);
    DR_TRY(dr_allocate((size_t)documents->count * sizeof(int64_t), "the places of documents", &memory));
    windows->starts = memory;
    int64_t at = 0;
    for (int64_t i = 0; i < documents->count; i++) {
        windows->starts[i] = at;
        at += 1 + documents->at[i].bytes;
    }
    DR_TRY(allocate_order(windows, &windows->current));
    return allocate_order(windows, &windows->next);
}

dr_status dr_windows_create(const dr_documents *documents, int64_t length, uint64_t seed, dr_windows **windows) {
    void *memory;
    *windows = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_windows), "training windows", &memory));
    dr_windows *made = memory;
    made->documents = *documents;
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
    dr_release(windows->starts);
    dr_release(windows->current.order);
    dr_release(windows->next.order);
    dr_release(windows);
}

/* ---- the order ---- */

static void begin_order(const dr_windows *windows, int64_t epoch, dr_window_order *order) {
    order->random = dr_stream(windows->seed, DR_STREAM_WINDOWS, epoch);
    int64_t room = windows->tokens - windows->windows * windows->length; /* >= 1: a label follows the last window */
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

/* ---- tokens ---- */

/* The document that token number at lies in. */
static int64_t document_of(const dr_windows *windows, int64_t at) {
    int64_t low = 0, high = windows->documents.count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (windows->starts[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tokens from, from + 1, .. as ids; the same from the second on, and one more, as labels. */
static dr_status copy_tokens(const dr_windows *windows, int64_t from, int32_t *ids, int32_t *labels) {
    const int64_t end = from + windows->length + 1;
    int64_t i = document_of(windows, from);
    for (int64_t at = from; at < end; i++) {
        const dr_document *document = &windows->documents.at[i];
        int64_t first = windows->starts[i], last = first + 1 + document->bytes;
        if (last > end) last = end;
        DR_TRY(dr_document_check(document));
        int64_t text_from = at > first ? at - first - 1 : 0;
        for (; at < last; at++) {
            int32_t id = at == first ? DR_DOCUMENT_START : document->text[at - first - 1];
            if (at < end - 1) ids[at - from] = id;
            if (at > from) labels[at - from - 1] = id;
        }
        dr_document_forget(document, text_from, last - first - 1 - text_from);
    }
    return DR_OK;
}

dr_status dr_windows_get(dr_windows *windows, int64_t index, int32_t *ids, int32_t *labels) {
    dr_windows_prepare(windows, index);
    int64_t number = windows->current.order[index % windows->windows];
    return copy_tokens(windows, windows->current.phase + number * windows->length, ids, labels);
}
