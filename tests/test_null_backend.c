/* Every pointer of tensor.h, backend.h and rule.h, NULL. */
#include "null.h"

#include <deltarule/backend.h>
#include <deltarule/rule.h>

static void test_tensor(void **unused) {
    (void)unused;
    HARMLESS(dr_tensor_count, "tensor", == 0, NULL);
    REFUSED(dr_layout_check, "layout", NULL);
    HARMLESS(dr_layout_begin, "layout", == 0, NULL, 1);
    null_all_right();
}

static void test_backend(void **unused) {
    (void)unused;
    static const char *const names[] = {"reference", "cpu"};
    for (int i = 0; i < 2; i++) {
        dr_backend *backend = NULL;
        const dr_backend_options options = {.threads = 1};
        void *memory = NULL;
        float host[4] = {0};
        assert_int_equal(dr_backend_open(names[i], &options, &backend), DR_OK);
        assert_int_equal(dr_backend_allocate(backend, 64, &memory), DR_OK);
        const dr_dtype dtype = dr_backend_dtype(backend);
        REFUSED(dr_backend_open, "name", NULL, &options, &backend);
        ALLOWED(dr_backend_open, "options", names[i], NULL, &backend);
        REFUSED(dr_backend_open, "backend", names[i], &options, NULL);
        NOTHING(dr_backend_close, "backend", NULL);
        EMPTY(dr_backend_name, "backend", NULL);
        EMPTY(dr_backend_isa, "backend", NULL);
        HARMLESS(dr_backend_dtype, "backend", == DR_F32, NULL);
        HARMLESS(dr_backend_threads, "backend", == 0, NULL);
        REFUSED(dr_backend_allocate, "backend", NULL, 64, &memory);
        REFUSED(dr_backend_allocate, "memory", backend, 64, NULL);
        NOTHING(dr_backend_free, "backend", NULL, memory);
        NOTHING(dr_backend_free, "memory", backend, NULL);
        NOTHING(dr_backend_zero, "backend", NULL, memory, 64);
        NOTHING(dr_backend_zero, "memory", backend, NULL, 64);
        REFUSED(dr_backend_upload, "backend", NULL, memory, host, DR_F32, 4);
        REFUSED(dr_backend_upload, "to", backend, NULL, host, DR_F32, 4);
        REFUSED(dr_backend_upload, "from", backend, memory, NULL, DR_F32, 4);
        ALLOWED(dr_backend_upload, "to and from", backend, NULL, NULL, DR_F32, 0);
        REFUSED(dr_backend_download, "backend", NULL, host, DR_F32, memory, 4);
        REFUSED(dr_backend_download, "to", backend, NULL, DR_F32, memory, 4);
        REFUSED(dr_backend_download, "from", backend, host, DR_F32, NULL, 4);
        REFUSED(dr_backend_upload_as, "backend", NULL, memory, dtype, host, DR_F32, 4);
        REFUSED(dr_backend_upload_as, "to", backend, NULL, dtype, host, DR_F32, 4);
        REFUSED(dr_backend_upload_as, "from", backend, memory, dtype, NULL, DR_F32, 4);
        REFUSED(dr_backend_download_as, "backend", NULL, host, DR_F32, memory, dtype, 4);
        REFUSED(dr_backend_download_as, "to", backend, NULL, DR_F32, memory, dtype, 4);
        REFUSED(dr_backend_download_as, "from", backend, host, DR_F32, NULL, dtype, 4);
        REFUSED(dr_backend_wait, "backend", NULL);
        NOTHING(dr_backend_describe, "backend", NULL, null_line, NULL);
        NOTHING(dr_backend_describe, "line", backend, NULL, NULL);
        dr_backend_free(backend, memory);
        dr_backend_close(backend);
    }
    null_all_right();
}

static void test_rule(void **unused) {
    (void)unused;
    dr_rule rule = *dr_rule_find("gdn"), *handle = NULL;
    dr_gates gates = dr_gates_default();
    char text[512], file[] = "/tmp/null_rule_XXXXXX";
    const int descriptor = mkstemp(file);
    assert_true(descriptor >= 0);
    static const char json[] = "{\"base\": \"gdn\"}";
    assert_int_equal(write(descriptor, json, strlen(json)), (ssize_t)strlen(json));
    close(descriptor);
    HARMLESS(dr_rule_find, "name", == NULL, NULL);
    REFUSED(dr_rule_check, "rule", NULL);
    HARMLESS(dr_rule_steps, "rule", == 0, NULL);
    HARMLESS(dr_rule_uses, "rule", == false, NULL, DR_INPUT_QUERY);
    HARMLESS(dr_rule_uses, "rule", == false, NULL, DR_INPUT_BETA);
    HARMLESS(dr_rule_carries, "rule", == false, NULL, DR_STATE_S);
    REFUSED(dr_rule_read_text, "text", NULL, &rule, &gates);
    REFUSED(dr_rule_read_text, "rule", json, NULL, &gates);
    ALLOWED(dr_rule_read_text, "gates", json, &rule, NULL);
    REFUSED(dr_rule_read_file, "file", NULL, &rule, &gates);
    REFUSED(dr_rule_read_file, "rule", file, NULL, &gates);
    ALLOWED(dr_rule_read_file, "gates", file, &rule, NULL);
    REFUSED(dr_rule_create, "text", NULL, &handle);
    REFUSED(dr_rule_create, "rule", "gdn", NULL);
    NOTHING(dr_rule_destroy, "rule", NULL);
    HARMLESS(dr_rule_get_name, "rule", == NULL, NULL);
    HARMLESS(dr_rule_get_title, "rule", == NULL, NULL);
    HARMLESS(dr_rule_get_source, "rule", == NULL, NULL);
    HARMLESS(dr_rule_get_repeat, "rule", == 0, NULL);
    HARMLESS(dr_rule_write_text, "rule", == -1, NULL, &gates, text, sizeof text);
    HARMLESS(dr_rule_write_text, "gates", > 0, &rule, NULL, text, sizeof text);
    HARMLESS(dr_rule_write_text, "text", == -1, &rule, &gates, NULL, sizeof text);
    HARMLESS(dr_rule_write_text, "text", > 0, &rule, &gates, NULL, 0);
    HARMLESS(dr_rule_equation, "rule", == -1, NULL, text, sizeof text);
    HARMLESS(dr_rule_equation, "text", == -1, &rule, NULL, sizeof text);
    HARMLESS(dr_rule_equation, "text", > 0, &rule, NULL, 0);
    unlink(file);
    null_all_right();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensor), cmocka_unit_test(test_backend),
                                       cmocka_unit_test(test_rule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
