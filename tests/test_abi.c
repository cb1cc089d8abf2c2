/* The version and the number of the binary interface, at compile time and at run time, and the counts that are frozen with it.
 * tests/tools/abi.sh holds the structs. */
#include <deltarule/rule.h>
#include <deltarule/version.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void versions_agree(void **state) {
    (void)state;
    assert_int_equal(dr_abi(), DELTARULE_ABI);
    assert_string_equal(dr_version(), DELTARULE_VERSION);
    assert_string_equal(DELTARULE_VERSION, DR_CMAKE_VERSION); /* of CMakeLists.txt */
    int major, minor, patch;
    char end;
    assert_int_equal(sscanf(DELTARULE_VERSION, "%d.%d.%d%c", &major, &minor, &patch, &end), 3);
    assert_int_equal(major, DELTARULE_VERSION_MAJOR);
    assert_int_equal(minor, DELTARULE_VERSION_MINOR);
    assert_int_equal(patch, DELTARULE_VERSION_PATCH);
    assert_int_equal(DELTARULE_VERSION_NUMBER, DELTARULE_VERSION_OF(major, minor, patch));
    assert_int_equal(dr_version_number(), DELTARULE_VERSION_NUMBER);
    assert_true(DELTARULE_VERSION_OF(1, 2, 3) == 1002003);
}

/* Counts that are sizes of arrays in structs. */
static void counts_are_frozen(void **state) {
    (void)state;
    assert_int_equal(DR_MAX_RANK, 6);
    assert_int_equal(DR_MAX_ROWS, 2);
    assert_int_equal(DR_INPUTS, 19);
    assert_int_equal(DR_STATES, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_agree),
        cmocka_unit_test(counts_are_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
