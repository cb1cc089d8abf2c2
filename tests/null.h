/* Calls with a pointer that is NULL. Each is made in a child of its own, so that a crash is one failure with a name: of the
 * function and of the argument. A line a pointer of the public functions, in the words of the headers, by which
 * tests/tools/check_null.sh finds what is missing:
 *
 *     REFUSED(function, "argument", its arguments)             DR_ERROR_ARGUMENT, and a sentence that names the argument
 *     HARMLESS(function, "argument", == value, its arguments)  there is no status: the value that the header says
 *     EMPTY(function, "argument", its arguments)               the text ""
 *     NOTHING(function, "argument", its arguments)             it returns nothing, and does nothing
 *     ALLOWED(function, "argument", its arguments)             NULL may stand there
 *
 * Every other argument is valid: without its check the function would crash, or accept the call. */
#ifndef DR_TESTS_NULL_H
#define DR_TESTS_NULL_H

#include <deltarule/status.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int null_calls, null_failures;

/* True in a child, which makes the call and ends; false in the parent, once it has. */
static bool null_begins(const char *function, const char *argument) {
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) return true;
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    null_calls++;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return false;
    null_failures++;
    if (WIFSIGNALED(status))
        print_error("%s with %s NULL: signal %d\n", function, argument, WTERMSIG(status));
    else
        print_error("%s with %s NULL: not what the header says\n", function, argument);
    return false;
}

static inline void null_ends(bool right) {
    _exit(right ? 0 : 1);
}

static inline bool null_refused(dr_status status, const char *argument) {
    if (status == DR_ERROR_ARGUMENT && strstr(dr_last_error(), argument)) return true;
    print_error("%s: %s\n", dr_status_name(status), dr_last_error());
    return false;
}

#define REFUSED(function, argument, ...)                                                                                       \
    if (null_begins(#function, argument)) null_ends(null_refused(function(__VA_ARGS__), argument))
#define HARMLESS(function, argument, is_right, ...)                                                                            \
    if (null_begins(#function, argument)) null_ends(function(__VA_ARGS__) is_right)
#define EMPTY(function, argument, ...)                                                                                         \
    if (null_begins(#function, argument)) null_ends(strcmp(function(__VA_ARGS__), "") == 0)
#define NOTHING(function, argument, ...)                                                                                       \
    if (null_begins(#function, argument)) null_ends((function(__VA_ARGS__), true))
#define ALLOWED(function, argument, ...)                                                                                       \
    if (null_begins(#function, argument)) null_ends(function(__VA_ARGS__) == DR_OK)

/* At the end of a test. */
static inline void null_all_right(void) {
    assert_true(null_calls > 0);
    assert_int_equal(null_failures, 0);
}

/* A function that a call tells its progress, and goes on. */
static inline bool null_goes_on(void *context, int64_t done, int64_t total) {
    (void)context, (void)done, (void)total;
    return true;
}

static inline void null_line(void *context, const char *text) {
    (void)context, (void)text;
}

#endif
