/* What tests say of calls: that they succeed, or are refused in these words. */
#ifndef DR_TESTS_STATUSES_H
#define DR_TESTS_STATUSES_H

#include <deltarule/backend.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static inline void must(dr_status status) {
    if (status != DR_OK) fail_msg("%s", dr_last_error());
}

/* The call is refused so, with all these words in the message. */
static inline void assert_refused(dr_status status, dr_status expected, const char *words) {
    assert_string_equal(dr_status_name(status), dr_status_name(expected));
    if (!strstr(dr_last_error(), words)) fail_msg("the message lacks '%s': %s", words, dr_last_error());
}

/* isa NULL: the best of this machine. */
static inline dr_backend *open_backend(const char *name, const char *isa, int threads) {
    dr_backend *backend;
    must(dr_backend_open(name, &(dr_backend_options){.isa = isa, .threads = threads}, &backend));
    return backend;
}

#endif
