/* Allocation in host memory, with messages; and an arena that plans and hands out parts of one block. All allocations of the
 * library go through dr_allocate and dr_resize, so that tests can make each of them fail. */
#ifndef DR_BASE_MEMORY_H
#define DR_BASE_MEMORY_H

#include "base/for_check.h"

#include <deltarule/status.h>
#include <stddef.h>
#include <stdint.h>

/* 64-byte aligned, not initialised; bytes 0 gives a valid pointer. what names it in the message. Free with dr_release. */
DR_FOR_CHECK dr_status dr_allocate(size_t bytes, const char *what, void **memory);
DR_FOR_CHECK dr_status dr_allocate_zero(size_t bytes, const char *what, void **memory);
/* Grows or shrinks a block of dr_allocate from old_bytes; on failure *memory is as it was. */
DR_FOR_CHECK dr_status dr_resize(void **memory, size_t old_bytes, size_t bytes, const char *what);
DR_FOR_CHECK void dr_release(void *memory); /* NULL is allowed */

/* Copy of a string; DR_ERROR_MEMORY. Free with dr_release. */
DR_FOR_CHECK dr_status dr_copy_string(const char *text, char **copy);

/* Bytes that this process may still take, as far as the system tells; INT64_MAX if it does not. */
int64_t dr_memory_available(void);

/* Room for one more item in a list of count, which grows at each power of two: its capacity follows from count. *memory is NULL
 * while count is 0. */
static inline dr_status dr_grow(void **memory, int64_t count, size_t item, const char *what) {
    if ((count & (count - 1)) != 0) return DR_OK;
    if (count == 0) return dr_allocate(item, what, memory);
    return dr_resize(memory, (size_t)count * item, 2 * (size_t)count * item, what);
}

/* Product of sizes; false on overflow of int64. */
DR_FOR_CHECK int dr_product(const int64_t *sizes, int count, int64_t *product);

/* Hands out 64-byte aligned parts of a block in order. With block NULL it only counts: run the same code twice, first to learn
 * `used`, then with a block of that many bytes. */
typedef struct {
    char *block;
    size_t used, peak;
    int64_t count; /* parts handed out */
    size_t *sizes; /* NULL, or [count] bytes of each part as they were asked for, written as parts are handed out */
    void **parts;  /* likewise, where each begins */
} dr_arena;

/* The next part, or NULL while counting. */
DR_FOR_CHECK void *dr_arena_take(dr_arena *arena, size_t bytes);
/* Takes back all that was taken after `used` had this value; peak remembers the most. */
void dr_arena_rewind(dr_arena *arena, size_t used);

#endif
