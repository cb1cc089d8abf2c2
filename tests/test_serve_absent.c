/* The server of a build without libmicrohttpd, src/serve/absent.c: what it is asked it refuses with what is missing. */
#include "serve/serve.h"
#include <deltarule/status.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_says_so(void **unused) {
    (void)unused;
    const dr_serve_options options = {.host = "127.0.0.1"};
    dr_server *server = NULL;
    assert_int_equal(dr_server_start(&options, &server), DR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(dr_last_error(), "libmicrohttpd"));
    assert_null(server);
    assert_int_equal(dr_server_reload(server), DR_ERROR_UNSUPPORTED);
    assert_int_equal(dr_server_port(server), 0);
    dr_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_says_so)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
