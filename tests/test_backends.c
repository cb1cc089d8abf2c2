/* Opening backends by name, what they tell of themselves, and their memory, for each backend of the build. */
#include "allocation.h"
#include "nn/model.h"
#include "ops/operations.h"

#include <deltarule/backend.h>

#include <math.h>
#include <stdint.h>

static const char *const names[] = {"reference", "cpu"};
enum { NAMES = sizeof names / sizeof *names };

static void test_opening(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        dr_backend *backend = NULL;
        assert_int_equal(dr_backend_open(names[i], NULL, &backend), DR_OK);
        assert_string_equal(dr_backend_name(backend), names[i]);
        assert_true(strlen(dr_backend_isa(backend)) > 0);
        assert_int_equal(dr_backend_dtype(backend), i == 0 ? DR_F64 : DR_F32);
        assert_true(dr_backend_threads(backend) >= 1);
        dr_backend_close(backend);
    }
    dr_backend_close(NULL);
    assert_int_equal(allocation_alive, 0);
}

static void test_options(void **state) {
    (void)state;
    dr_backend *backend = NULL;
    dr_backend_options options = {.threads = 3, .isa = "portable"};
    assert_int_equal(dr_backend_open("cpu", &options, &backend), DR_OK);
    assert_int_equal(dr_backend_threads(backend), 3);
    assert_string_equal(dr_backend_isa(backend), "portable");
    dr_backend_close(backend);
    assert_int_equal(dr_backend_open("reference", &options, &backend), DR_OK);
    assert_int_equal(dr_backend_threads(backend), 1);
    assert_string_equal(dr_backend_isa(backend), "double");
    dr_backend_close(backend);
}

static void test_refusals(void **state) {
    (void)state;
    dr_backend *const untouched = (dr_backend *)&allocation_alive, *backend = untouched;
    assert_int_equal(dr_backend_open("gpu", NULL, &backend), DR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(dr_last_error(), "\"gpu\""));
    for (int i = 0; i < NAMES; i++) assert_non_null(strstr(dr_last_error(), names[i]));
    assert_int_equal(dr_backend_open("", NULL, &backend), DR_ERROR_UNSUPPORTED);
    assert_int_equal(dr_backend_open(NULL, NULL, &backend), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_backend_open("cpu", NULL, NULL), DR_ERROR_ARGUMENT);
    for (int i = 0; i < NAMES; i++) {
        assert_int_equal(dr_backend_open(names[i], &(dr_backend_options){.threads = -2}, &backend), DR_ERROR_ARGUMENT);
        assert_non_null(strstr(dr_last_error(), "-2 threads"));
    }
    assert_int_not_equal(dr_backend_open("cpu", &(dr_backend_options){.isa = "sse9"}, &backend), DR_OK);
    assert_non_null(strstr(dr_last_error(), "sse9"));
    assert_ptr_equal(backend, untouched);
    assert_int_equal(allocation_alive, 0);
}

static void test_memory(void **state) {
    (void)state;
    static const float numbers[] = {1, -2.5f, 0, 1e30f, INFINITY};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    for (int i = 0; i < NAMES; i++) {
        dr_backend *backend = NULL;
        void *memory = NULL, *empty = NULL;
        float back[COUNT];
        size_t bytes = COUNT * dr_dtype_size(i == 0 ? DR_F64 : DR_F32);
        assert_int_equal(dr_backend_open(names[i], NULL, &backend), DR_OK);
        assert_int_equal(dr_backend_allocate(backend, 0, &empty), DR_OK);
        assert_int_equal(dr_backend_allocate(backend, bytes, &memory), DR_OK);
        assert_non_null(empty);
        assert_int_equal((uintptr_t)memory % 64, 0);
        assert_int_equal(dr_backend_upload(backend, memory, numbers, DR_F32, COUNT), DR_OK);
        assert_int_equal(dr_backend_download(backend, back, DR_F32, memory, COUNT), DR_OK);
        assert_memory_equal(back, numbers, sizeof numbers);
        assert_int_equal(dr_backend_upload(backend, memory, numbers, DR_I32, COUNT), DR_ERROR_ARGUMENT);
        assert_non_null(strstr(dr_last_error(), "I32"));
        assert_int_equal(dr_backend_download(backend, back, DR_U8, memory, COUNT), DR_ERROR_ARGUMENT);
        assert_int_equal(dr_backend_upload(backend, memory, numbers, DR_F32, -1), DR_ERROR_ARGUMENT);
        assert_non_null(strstr(dr_last_error(), "-1 elements"));
        dr_backend_zero(backend, memory, bytes);
        assert_int_equal(dr_backend_download(backend, back, DR_F32, memory, COUNT), DR_OK);
        for (int j = 0; j < COUNT; j++) assert_true(back[j] == 0 && !signbit(back[j]));
        assert_int_equal(dr_backend_allocate(backend, SIZE_MAX, &memory), DR_ERROR_MEMORY);
        dr_backend_free(backend, memory);
        dr_backend_free(backend, empty);
        dr_backend_free(backend, NULL);
        dr_backend_close(backend);
        assert_int_equal(allocation_alive, 0);
    }
}

static void count_line(void *context, const char *text) {
    ++*(int *)context;
    assert_true(strlen(text) > 0);
    assert_null(strchr(text, '\n'));
}

static void test_descriptions(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        dr_backend *backend = NULL;
        int lines = 0;
        assert_int_equal(dr_backend_open(names[i], NULL, &backend), DR_OK);
        dr_backend_describe(backend, count_line, &lines);
        assert_true(lines >= 1);
        dr_backend_close(backend);
    }
}

/* A backend of float32 that stores vectors as bf16: what each kind takes, and what a recurrence reads. */
static void test_kinds(void **state) {
    (void)state;
    const dr_operations single = {.name = "single", .dtype = DR_F32}, twice = {.name = "twice", .dtype = DR_F64};
    const dr_backend narrow = {.ops = &single, .storage = DR_BF16}, wide = {.ops = &single, .storage = DR_F32},
                     reference = {.ops = &twice, .storage = DR_F64};
    const int64_t many = INT64_C(1) << 40;
    assert_int_equal(dr_kind_dtype(&narrow, DR_VECTOR), DR_BF16);
    assert_int_equal(dr_kind_dtype(&narrow, DR_NUMBER), DR_F32);
    assert_int_equal(dr_kind_bytes(&narrow, DR_VECTOR, 7), 14);
    assert_int_equal(dr_kind_bytes(&narrow, DR_NUMBER, 7), 28);
    assert_int_equal(dr_kind_bytes(&wide, DR_VECTOR, 7), 28);
    assert_int_equal(dr_kind_bytes(&reference, DR_VECTOR, 7), 56);
    assert_int_equal(dr_kind_bytes(&reference, DR_NUMBER, 7), 56);
    assert_int_equal(dr_kind_bytes(&narrow, DR_NUMBER, many), (size_t)many * 4);
    for (int i = 0; i < DR_INPUTS; i++)
        assert_int_equal(dr_recurrence_input_dtype(&narrow, (dr_input)i),
                         dr_input_kind((dr_input)i) == DR_VECTOR ? DR_BF16 : DR_F32);
    assert_int_equal(dr_input_kind(DR_INPUT_QUERY), DR_VECTOR);
    assert_int_equal(dr_input_kind(DR_INPUT_LOG_DECAY), DR_NUMBER);
    assert_int_equal(dr_recurrence_output_dtype(&narrow), DR_BF16);
}

/* Both backends have all operations of a network; a model is refused on a backend that lacks one, by that one's name. */
static void test_support(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        dr_backend *backend = NULL;
        dr_model *model = NULL;
        assert_int_equal(dr_backend_open(names[i], NULL, &backend), DR_OK);
        for (int o = DR_OPERATION_LINEAR; o <= DR_OPERATION_ADAMW; o++) {
            assert_true(dr_supports(backend, (dr_operation)o));
            assert_non_null(dr_operation_name((dr_operation)o));
        }
        assert_false(dr_supports(backend, DR_OPERATION_TIME_RUNS));
        dr_operations lacking = *backend->ops;
        lacking.grouped_linear_backward = NULL;
        dr_backend partial = *backend;
        partial.ops = &lacking;
        assert_false(dr_supports(&partial, DR_OPERATION_GROUPED_LINEAR));
        dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
        config.vocabulary = config.hidden = 8;
        config.layers = config.heads = 1;
        assert_int_equal(dr_model_create(&partial, &config, 1, &model), DR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(dr_last_error(), "grouped_linear"));
        assert_null(model);
        dr_backend_close(backend);
    }
}

static dr_status open_and_allocate(void *context) {
    dr_backend *backend = NULL;
    void *memory = NULL;
    dr_status status;
    DR_GO(dr_backend_open(context, NULL, &backend));
    DR_GO(dr_backend_allocate(backend, 1000, &memory));
    dr_backend_free(backend, memory);
done:
    dr_backend_close(backend);
    return status;
}

static void test_failing_allocations(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++) assert_true(assert_survives_failed_allocations(open_and_allocate, (void *)names[i]) >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opening), cmocka_unit_test(test_options),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_memory),  cmocka_unit_test(test_descriptions), cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_kinds),   cmocka_unit_test(test_support),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
