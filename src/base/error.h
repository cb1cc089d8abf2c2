/* Setting the message that dr_last_error() returns, and passing failures on. */
#ifndef DR_BASE_ERROR_H
#define DR_BASE_ERROR_H

#include "base/for_check.h"

#include <deltarule/status.h>

/* Sets the calling thread's message (printf-style, a whole sentence) and returns status. */
DR_FOR_CHECK dr_status dr_fail(dr_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " before the message that is there and returns status: where a failure is passed on to say which file or
 * tensor. */
DR_FOR_CHECK dr_status dr_fail_in(dr_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What an errno says, in English in every locale: "No such file or directory". Valid until the thread's next call. */
DR_FOR_CHECK const char *dr_system_text(int number);

#if defined(__clang_analyzer__) && !defined(DR_ERROR_DEFINITION)
/* The analyzer sees one file at a time. It is told what the definitions promise: the status that was given comes back, and so a
 * failure is never DR_OK. */
#define dr_fail(status, ...)    ((void)dr_fail(status, __VA_ARGS__), (status))
#define dr_fail_in(status, ...) ((void)dr_fail_in(status, __VA_ARGS__), (status))
#endif

/* return from this function if call fails */
#define DR_TRY(call)                                                                                                           \
    do {                                                                                                                       \
        dr_status status_of_call_ = (call);                                                                                    \
        if (status_of_call_ != DR_OK) return status_of_call_;                                                                  \
    } while (0)

/* Fails, with a sentence that names the argument, if a pointer that must not be NULL is. */
#define DR_NEED(pointer)                                                                                                       \
    do {                                                                                                                       \
        if (!(pointer)) return dr_fail(DR_ERROR_ARGUMENT, "%s is missing: it must not be NULL", #pointer);                     \
    } while (0)

/* status = call; goto done if it fails: for functions that own something. Needs `dr_status status` and a label `done`. */
#define DR_GO(call)                                                                                                            \
    do {                                                                                                                       \
        status = (call);                                                                                                       \
        if (status != DR_OK) goto done;                                                                                        \
    } while (0)

#endif
