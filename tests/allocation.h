/* Making allocations fail, one after the other. All allocations of the library go through the functions of base/memory.h; a
 * test program that includes this file and says dr_wrap_allocations(NAME) after its dr_test line in CMakeLists.txt has the
 * linker put the functions here before them. They count, fail on demand and know how many blocks and bytes are alive. Include
 * it in one file only. */
#ifndef DR_TESTS_ALLOCATION_H
#define DR_TESTS_ALLOCATION_H

#include "base/error.h"
#include "base/memory.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

static atomic_long allocation_calls; /* since the last allocation_fail_at */
static atomic_long allocation_failing;
static atomic_long allocation_alive; /* blocks not yet released */
static atomic_long allocation_bytes; /* in them, as malloc rounds them up */
static atomic_long allocation_peak;  /* the most bytes since a test set it */

dr_status __real_dr_allocate(size_t bytes, const char *what, void **memory);
dr_status __real_dr_allocate_zero(size_t bytes, const char *what, void **memory);
dr_status __real_dr_resize(void **memory, size_t old_bytes, size_t bytes, const char *what);
dr_status __real_dr_copy_string(const char *text, char **copy);
void __real_dr_release(void *memory);

dr_status __wrap_dr_allocate(size_t bytes, const char *what, void **memory);
dr_status __wrap_dr_allocate_zero(size_t bytes, const char *what, void **memory);
dr_status __wrap_dr_resize(void **memory, size_t old_bytes, size_t bytes, const char *what);
dr_status __wrap_dr_copy_string(const char *text, char **copy);
void __wrap_dr_release(void *memory);

/* From now on the n-th allocation fails, counted from 1, and only that one; 0: none does. */
static inline void allocation_fail_at(long n) {
    allocation_calls = 0;
    allocation_failing = n;
}

static inline dr_status allocation_permit(const char *what) {
    long call = ++allocation_calls;
    if (call == allocation_failing) return dr_fail(DR_ERROR_MEMORY, "the test lets allocation %ld fail: %s", call, what);
    return DR_OK;
}

static inline void allocation_count(const void *memory) {
    const long size = (long)malloc_usable_size((void *)memory), bytes = atomic_fetch_add(&allocation_bytes, size) + size;
    if (bytes > allocation_peak) allocation_peak = bytes; /* of threads that allocate at once the last one counts */
}

dr_status __wrap_dr_allocate(size_t bytes, const char *what, void **memory) {
    DR_TRY(allocation_permit(what));
    DR_TRY(__real_dr_allocate(bytes, what, memory));
    memset(*memory, 0xA5, bytes); /* what is not initialised should not look like zeros */
    allocation_alive++;
    allocation_count(*memory);
    return DR_OK;
}

dr_status __wrap_dr_allocate_zero(size_t bytes, const char *what, void **memory) {
    DR_TRY(allocation_permit(what));
    DR_TRY(__real_dr_allocate_zero(bytes, what, memory));
    allocation_alive++;
    allocation_count(*memory);
    return DR_OK;
}

dr_status __wrap_dr_resize(void **memory, size_t old_bytes, size_t bytes, const char *what) {
    bool first = *memory == NULL;
    const long before = (long)malloc_usable_size(*memory);
    DR_TRY(allocation_permit(what));
    DR_TRY(__real_dr_resize(memory, old_bytes, bytes, what));
    if (first) allocation_alive++;
    allocation_bytes -= before;
    allocation_count(*memory);
    return DR_OK;
}

dr_status __wrap_dr_copy_string(const char *text, char **copy) {
    DR_TRY(allocation_permit(text));
    DR_TRY(__real_dr_copy_string(text, copy));
    allocation_alive++;
    allocation_count(*copy);
    return DR_OK;
}

void __wrap_dr_release(void *memory) {
    if (memory) allocation_alive--;
    allocation_bytes -= (long)malloc_usable_size(memory);
    __real_dr_release(memory);
}

/* Runs a call again and again, its first, second, third ... allocation failing, until it gets through. Each failed run must
 * report DR_ERROR_MEMORY with a message; every run, the last too, must leave as many blocks as it found (so the call itself
 * releases what it makes when it succeeds). Returns how many allocations the call makes, at least one. */
static inline long assert_survives_failed_allocations(dr_status (*call)(void *context), void *context) {
    for (long n = 1;; n++) {
        long before = allocation_alive;
        allocation_fail_at(n);
        dr_status status = call(context);
        bool failed = allocation_calls >= n;
        allocation_fail_at(0);
        if (allocation_alive != before)
            fail_msg("allocation %ld failed or none did: %ld blocks before, %ld after", n, before, (long)allocation_alive);
        if (!failed) {
            if (status != DR_OK) fail_msg("no allocation failed, and yet: %s", dr_last_error());
            assert_true(n > 1);
            return n - 1;
        }
        if (status != DR_ERROR_MEMORY)
            fail_msg("allocation %ld failed, the call returned %s: %s", n, dr_status_name(status), dr_last_error());
        assert_true(strlen(dr_last_error()) > 0);
    }
}

#endif
