/* Which documents are held out: they are walked in an order shuffled by the seed, so that they come from all over the corpus,
 * and taken until their bytes reach the goal. A document that would take them beyond twice the goal, or beyond half of what
 * is to stay, is passed over: one huge file must not eat what there is to learn from. What is still missing then comes from the
 * end of the largest document. */
#include "base/error.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "data/streams.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_HELD_OUT = 100000 };

/* By the share; without one a twentieth and at least 100 KB, but at most a fifth. */
static int64_t bytes_to_hold_out(int64_t bytes, double share) {
    if (share > 0) return (int64_t)ceil((double)bytes * share);
    int64_t goal = (bytes + 19) / 20;
    if (goal < LEAST_HELD_OUT) goal = LEAST_HELD_OUT;
    return goal < bytes / 5 ? goal : bytes / 5;
}

static dr_status shuffled_order(int64_t count, uint64_t seed, int64_t **order) {
    void *memory;
    DR_TRY(dr_allocate((size_t)count * sizeof(int64_t), "the order of documents", &memory));
    *order = memory;
    dr_random random = dr_stream(seed, DR_STREAM_SPLIT, 0);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = (int64_t)dr_random_below(&random, (uint64_t)i + 1);
        (*order)[i] = (*order)[j];
        (*order)[j] = i;
    }
    return DR_OK;
}

/* Where the held-out end of a document begins, at most `wanted` bytes before where it is wanted: the start of a line, or in a
 * text without lines the start of a character. */
static int64_t line_start(const dr_document *document, int64_t wanted) {
    int64_t from = document->bytes - wanted;
    for (int64_t i = from; i > 0 && i > from - wanted; i--)
        if (document->text[i - 1] == '\n') return i;
    while ((document->text[from] & 0xc0) == 0x80) from--;
    return from;
}

static void append(dr_documents *documents, dr_document document) {
    documents->at[documents->count++] = document;
    documents->bytes += document.bytes;
}

dr_status dr_split_create(const dr_corpus *corpus, uint64_t seed, double share, dr_split *split) {
    const dr_documents *all = &corpus->documents;
    int64_t goal = bytes_to_hold_out(all->bytes, share), most = goal + (all->bytes - goal) / 2;
    if (2 * goal < most) most = 2 * goal;
    *split = (dr_split){0};
    if (goal < 1 || goal >= all->bytes)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "the corpus has %lld bytes, too few to train on and to hold some out: give some 100 KB",
                       (long long)all->bytes);
    dr_status status;
    void *memory;
    int64_t *order = NULL;
    uint8_t *held_out = NULL;
    DR_GO(shuffled_order(all->count, seed, &order));
    DR_GO(dr_allocate_zero((size_t)all->count, "the choice of held-out documents", &memory));
    held_out = memory;
    /* one more than there are documents: the one that is cut stands in both lists */
    DR_GO(dr_allocate((size_t)(all->count + 1) * sizeof(dr_document), "the training documents", &memory));
    split->training.at = memory;
    DR_GO(dr_allocate((size_t)(all->count + 1) * sizeof(dr_document), "the held-out documents", &memory));
    split->held_out.at = memory;

    int64_t taken = 0, largest = -1;
    for (int64_t i = 0; i < all->count && taken < goal; i++)
        if (taken + all->at[order[i]].bytes <= most) {
            held_out[order[i]] = 1;
            taken += all->at[order[i]].bytes;
        }
    for (int64_t i = 0; i < all->count; i++)
        if (!held_out[i] && (largest < 0 || all->at[i].bytes > all->at[largest].bytes)) largest = i;
    for (int64_t i = 0; i < all->count; i++) {
        dr_document document = all->at[i];
        if (held_out[i]) {
            append(&split->held_out, document);
        } else if (i == largest && taken < goal) {
            int64_t from = line_start(&document, goal - taken);
            dr_document beginning = document, end = document;
            beginning.bytes = from;
            end.text += from, end.bytes -= from;
            append(&split->training, beginning);
            append(&split->held_out, end);
            split->cut = document.name;
        } else {
            append(&split->training, document);
        }
    }
    dr_release(order);
    dr_release(held_out);
    return DR_OK;
done:
    dr_release(order);
    dr_release(held_out);
    dr_split_destroy(split);
    return status;
}

static int by_identity(const void *left, const void *right) {
    const dr_document *a = left, *b = right;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    return a->inode < b->inode ? -1 : a->inode > b->inode;
}

/* All documents of `from` that are not among the sorted `without`. */
static void append_others(dr_documents *documents, const dr_documents *from, const dr_documents *without) {
    for (int64_t i = 0; i < from->count; i++)
        if (!bsearch(&from->at[i], without->at, (size_t)without->count, sizeof(dr_document), by_identity))
            append(documents, from->at[i]);
}

dr_status dr_split_create_from(const dr_corpus *corpus, const dr_corpus *held_out, dr_split *split) {
    const dr_documents *all = &corpus->documents, *other = &held_out->documents;
    void *memory;
    dr_status status;
    dr_documents sorted = *other;
    *split = (dr_split){0};
    DR_TRY(dr_allocate((size_t)other->count * sizeof(dr_document), "the held-out documents by identity", &memory));
    sorted.at = memory;
    if (other->count > 0) memcpy(sorted.at, other->at, (size_t)other->count * sizeof(dr_document));
    qsort(sorted.at, (size_t)sorted.count, sizeof(dr_document), by_identity);
    DR_GO(dr_allocate((size_t)all->count * sizeof(dr_document), "the training documents", &memory));
    split->training.at = memory;
    DR_GO(dr_allocate((size_t)other->count * sizeof(dr_document), "the held-out documents", &memory));
    split->held_out.at = memory;
    append_others(&split->training, all, &sorted);
    for (int64_t i = 0; i < other->count; i++) append(&split->held_out, other->at[i]);
    if (split->training.count == 0)
        status = dr_fail(DR_ERROR_ARGUMENT, "all text of the corpus is held out: none is left to train on");
done:
    dr_release(sorted.at);
    if (status != DR_OK) dr_split_destroy(split);
    return status;
}

void dr_split_destroy(dr_split *split) {
    dr_release(split->training.at);
    dr_release(split->held_out.at);
    *split = (dr_split){0};
}
