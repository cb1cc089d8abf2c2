/* The module of docs/adding-a-module.md, whose blocks of code are compiled beside this file, against differences. */
#include "backends/reference/reference.h"
#include "module_problem.h"

dr_status dr_tanh_create(int64_t hidden, int64_t width, const char *prefix, dr_layer_parameters *list, dr_module **module);

static void test_differences(void **state) {
    (void)state;
    module_problem of = {0};
    ASSERT_OK(dr_reference_open(NULL, &of.backend));
    ASSERT_OK(dr_tanh_create(7, 5, "mlp.", &of.list, &of.module));
    assert_string_equal(of.list.at[0].name, "mlp.up_proj.weight");
    module_begin(&of);
    module_check("tanh", &of, 1e-6);
    dr_backend *backend = of.backend;
    module_end(&of);
    backend->ops->close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
