/* Aligned allocation with messages, and the arena.
 *
 * Every block comes from posix_memalign, so that free() is right for all of them; a large one asks for large pages. A request
 * beyond PTRDIFF_MAX is refused before it is made: sizes that saturated on their way here (dr_arena_take) end as
 * DR_ERROR_MEMORY, not as a block too small.
 */
#include "base/memory.h"

#include "base/error.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, LARGE_PAGE = 2 << 20 };

dr_status dr_allocate(size_t bytes, const char *what, void **memory) {
    void *block = NULL;
    const bool large = bytes >= 2 * (size_t)LARGE_PAGE;
    if (bytes > PTRDIFF_MAX || posix_memalign(&block, large ? LARGE_PAGE : ALIGNMENT, bytes > 0 ? bytes : 1) != 0)
        return dr_fail(DR_ERROR_MEMORY, "there is no memory for %zu bytes of %s", bytes, what);
#ifdef MADV_HUGEPAGE
    /* The rows of a head lie a small page apart: looking up their addresses costs as much as reading them. Advice only. */
    if (large) madvise(block, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
    *memory = block;
    return DR_OK;
}

dr_status dr_allocate_zero(size_t bytes, const char *what, void **memory) {
    DR_TRY(dr_allocate(bytes, what, memory));
    memset(*memory, 0, bytes);
    return DR_OK;
}

dr_status dr_resize(void **memory, size_t old_bytes, size_t bytes, const char *what) {
    void *block = NULL;
    DR_TRY(dr_allocate(bytes, what, &block));
    size_t kept = old_bytes < bytes ? old_bytes : bytes;
    if (kept > 0) memcpy(block, *memory, kept);
    free(*memory);
    *memory = block;
    return DR_OK;
}

void dr_release(void *memory) {
    free(memory);
}

dr_status dr_copy_string(const char *text, char **copy) {
    size_t bytes = strlen(text) + 1;
    void *memory = NULL;
    DR_TRY(dr_allocate(bytes, "text", &memory));
    memcpy(memory, text, bytes);
    *copy = memory;
    return DR_OK;
}

int dr_product(const int64_t *sizes, int count, int64_t *product) {
    int64_t result = 1;
    bool zero = false, overflow = false; /* a zero anywhere makes the product 0, whatever overflows beside it */
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0) return 0;
        if (sizes[i] == 0)
            zero = true;
        else
            overflow |= __builtin_mul_overflow(result, sizes[i], &result);
    }
    if (overflow && !zero) return 0;
    *product = zero ? 0 : result;
    return 1;
}

void *dr_arena_take(dr_arena *arena, size_t bytes) {
    size_t begin = arena->used;
    size_t rounded = bytes > SIZE_MAX - (ALIGNMENT - 1) ? SIZE_MAX : (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    arena->used = rounded > SIZE_MAX - begin ? SIZE_MAX : begin + rounded;
    if (arena->used > arena->peak) arena->peak = arena->used;
    void *part = arena->block ? arena->block + begin : NULL;
    if (arena->sizes) arena->sizes[arena->count] = bytes;
    if (arena->parts) arena->parts[arena->count] = part;
    arena->count++;
    return part;
}

void dr_arena_rewind(dr_arena *arena, size_t used) {
    arena->used = used;
}
