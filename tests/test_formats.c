/* safetensors files and the writing of files: read and written, damaged, hostile, on a full disk and without memory. */
#include "allocation.h"
#include "formats/file.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static void assert_says(const char *words) {
    if (!strstr(dr_last_error(), words)) fail_msg("the message is \"%s\", without \"%s\"", dr_last_error(), words);
}

/* safetensors: hostile files */

/* Writes length | header | data_bytes bytes that count up. */
static void write_raw(const char *path, uint64_t length, const char *header, size_t header_bytes, size_t data_bytes) {
    size_t total = 8 + header_bytes + data_bytes;
    unsigned char *all = malloc(total);
    for (int i = 0; i < 8; i++) all[i] = (unsigned char)(length >> 8 * i);
    memcpy(all + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) all[8 + header_bytes + i] = (unsigned char)i;
    scratch_write_at(path, all, total);
    free(all);
}

static void assert_refused(const char *path, dr_status expected, const char *words) {
    dr_safetensors *tensors = NULL;
    dr_status status = dr_safetensors_open(path, &tensors);
    if (status != expected) fail_msg("%s instead of %s for: %s", dr_status_name(status), dr_status_name(expected), words);
    assert_null(tensors);
    assert_says(path);
    assert_says(words);
}

static void test_hostile_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *says;
    } cases[] = {
        {"not JSON", 0, "line 1, column"},
        {"{\"a\":", 0, "line 1, column"},
        {"{\"a\": 1}{", 0, "end of file expected"},
        {"{\"\xff\": 1}", 0, "unable to decode byte 0xff"},
        {"{\"a\\u0000b\": 1}", 0, "\\u0000"},
        {"[]", 0, "must be a JSON object"},
        {"{\"a\": 5}", 0, "tensor 'a' is not a JSON object"},
        {"{\"a\\u001b[2J\": 5}", 0, "tensor 'a?[2J'"},
        {"{\"a\": {}}", 0, "tensor 'a' has no dtype"},
        {"{\"a\": {\"dtype\": 4, \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "tensor 'a' has no dtype"},
        {"{\"a\": {\"dtype\": \"U7\", \"shape\": [1], \"data_offsets\": [0, 1]}}", 1, "dtype U7; known are F32"},
        {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 4]}}", 4, "tensor 'a' has no shape"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}}", 4, "7 dimensions"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", 4, "dimension 0 is the integer -1"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1.5], \"data_offsets\": [0, 4]}}", 4, "dimension 0 is the number 1.5"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [9223372036854775808], \"data_offsets\": [0, 4]}}", 4, "too big integer"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296], \"data_offsets\": [0, 0]}}", 0, "overflows"},
        {"{\"a\": {\"dtype\": \"F64\", \"shape\": [2305843009213693952], \"data_offsets\": [0, 0]}}", 0, "overflows"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1]}}", 4, "needs data_offsets"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", 4, "needs data_offsets"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, \"4\"]}}", 4, "needs data_offsets"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [-4, 0]}}", 4, "claims bytes -4 to 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", 4, "claims bytes 4 to 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}", 4,
         "claims bytes 0 to 8 of the data, which has 4"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 4]}}", 4, "needs 8 bytes by its shape"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 8, "the tensors end at byte 4"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}", 8, "leaving a gap"},
        {"{}", 4, "the tensors end at byte 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]},"
         " \"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [8, 12]}}",
         12, "tensor 'b' begins at byte 8"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},"
         " \"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
         8, "but the one before it ends"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]},"
         " \"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}",
         4, "but the one before it ends"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},"
         " \"b\": {\"dtype\": \"F32\", \"shape\": [0], \"data_offsets\": [4, 4]}}",
         8, "tensor 'b' begins at byte 4"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]},"
         " \"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
         8, "duplicate"},
        {"{\"a\": {\"dtype\": \"F32\", \"dtype\": \"I32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "duplicate"},
        {"{\"__metadata__\": 7}", 0, "__metadata__ is not a JSON object"},
        {"{\"__metadata__\": {\"rule\": 7}}", 0, "the value of 'rule'"},
    };
    const char *path = scratch_path("hostile.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = strlen(cases[i].header);
        write_raw(path, bytes, cases[i].header, bytes, cases[i].data_bytes);
        assert_refused(path, DR_ERROR_FORMAT, cases[i].says);
    }
}

static void test_hostile_lengths(void **state) {
    (void)state;
    static const struct {
        uint64_t length;
        const char *says;
    } cases[] = {{0, "header length is 0"},
                 {3, "should have 3 bytes, but the file has only 10"},
                 {100000000, "should have 100000000 bytes"},
                 {100000001, "header length is 100000001"},
                 {UINT64_MAX, "header length is 18446744073709551615"},
                 {UINT64_MAX - 7, "header length is"},
                 {(uint64_t)1 << 63, "header length is"}};
    const char *path = scratch_path("lengths.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_raw(path, cases[i].length, "{}", 2, 0);
        assert_refused(path, DR_ERROR_FORMAT, cases[i].says);
    }
    write_raw(path, 100000001, "{}", 2, 0);
    assert_int_equal(truncate(path, 200000000), 0); /* the file has room for it: too long all the same */
    assert_refused(path, DR_ERROR_FORMAT, "header length is 100000001");
}

static void test_deep_nesting(void **state) {
    (void)state;
    enum { DEPTH = 200000 };
    static const char begin[] = {'{', '"', 'a', '"', ':'};
    const char *path = scratch_path("deep.safetensors");
    char *header = malloc(DEPTH);
    memset(header, '[', DEPTH);
    memcpy(header, begin, sizeof begin);
    write_raw(path, DEPTH, header, DEPTH, 0);
    assert_refused(path, DR_ERROR_FORMAT, "maximum parsing depth");
    free(header);
}

static void test_what_is_no_file(void **state) {
    (void)state;
    assert_refused(scratch_path("missing.safetensors"), DR_ERROR_IO, "No such file");
    const char *folder = scratch_path("folder.safetensors"), *pipe = scratch_path("pipe.safetensors");
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_refused(folder, DR_ERROR_IO, "not a regular file");
    assert_int_equal(mkfifo(pipe, 0666), 0);
    assert_refused(pipe, DR_ERROR_IO, "not a regular file"); /* and does not wait for a writer */
}

/* safetensors: round trips */

enum { SAMPLES = 9 };

typedef struct {
    float f32[6];
    double f64[2], scalar;
    uint16_t f16[4], bf16[2];
    int32_t i32[2];
    int64_t i64[1];
    uint8_t u8[3];
} sample_data;

static const sample_data sample = {
    .f32 = {1, -2.5f, 0, FLT_MIN / 4, FLT_MAX, -0.0f},
    .f64 = {1e-300, -3},
    .scalar = 42,
    .f16 = {0x3e00, 0xc000, 0x0001, 0x7c00}, /* 1.5, -2, 2^-24, infinity */
    .bf16 = {0x3fc0, 0xff80},                /* 1.5, -infinity */
    .i32 = {INT32_MIN, 7},
    .i64 = {INT64_C(1) << 52},
    .u8 = {0, 128, 255},
};

static const char *const sample_names[SAMPLES] = {"weight",  "bias", "half",   "brain", "ids",
                                                  "offsets", "raw",  "\u00e9", "empty"};
static const char *const sample_metadata[] = {"format", "pt", "note", "a \"quoted\" line\n", NULL};

static void sample_tensors(dr_tensor tensors[SAMPLES]) {
    const dr_tensor all[SAMPLES] = {
        {DR_F32, 2, {2, 3}, (void *)sample.f32},     {DR_F64, 6, {1, 1, 2, 1, 1, 1}, (void *)sample.f64},
        {DR_F16, 1, {4}, (void *)sample.f16},        {DR_BF16, 1, {2}, (void *)sample.bf16},
        {DR_I32, 1, {2}, (void *)sample.i32},        {DR_I64, 1, {1}, (void *)sample.i64},
        {DR_U8, 1, {3}, (void *)sample.u8},          {DR_F64, 0, {0}, (void *)&sample.scalar},
        {DR_F32, 3, {2, 0, INT64_C(1) << 40}, NULL},
    };
    memcpy(tensors, all, sizeof all);
}

static void assert_element(const dr_safetensors *file, const char *name, int64_t index, double expected) {
    dr_tensor tensor;
    assert_true(dr_safetensors_find(file, name, &tensor));
    assert_true(dr_tensor_element(&tensor, index) == expected);
}

static void test_round_trip(void **state) {
    (void)state;
    const char *path = scratch_path("round.safetensors"), *again = scratch_path("again.safetensors");
    dr_tensor tensors[SAMPLES], found;
    sample_tensors(tensors);
    assert_int_equal(dr_safetensors_write(path, SAMPLES, sample_names, tensors, sample_metadata), DR_OK);
    assert_int_equal(dr_safetensors_write(again, SAMPLES, sample_names, tensors, sample_metadata), DR_OK);

    dr_safetensors *file = NULL;
    assert_int_equal(dr_safetensors_open(path, &file), DR_OK);
    assert_int_equal(dr_safetensors_count(file), SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        if (i > 0) assert_true(strcmp(dr_safetensors_name(file, i - 1), dr_safetensors_name(file, i)) < 0);
        assert_true(dr_safetensors_find(file, sample_names[i], &found));
        assert_int_equal(found.dtype, tensors[i].dtype);
        assert_int_equal(found.rank, tensors[i].rank);
        for (int d = 0; d < found.rank; d++) assert_int_equal(found.shape[d], tensors[i].shape[d]);
        assert_int_equal((uintptr_t)found.data % dr_dtype_size(found.dtype), 0);
        size_t bytes = (size_t)dr_tensor_count(&found) * dr_dtype_size(found.dtype);
        if (bytes > 0) assert_memory_equal(found.data, tensors[i].data, bytes);
    }
    assert_element(file, "weight", 3, FLT_MIN / 4);
    assert_element(file, "bias", 0, 1e-300);
    assert_element(file, "half", 0, 1.5);
    assert_element(file, "half", 2, 0x1p-24);
    assert_element(file, "half", 3, INFINITY);
    assert_element(file, "brain", 0, 1.5);
    assert_element(file, "brain", 1, -INFINITY);
    assert_element(file, "ids", 0, INT32_MIN);
    assert_element(file, "offsets", 0, 0x1p52);
    assert_element(file, "raw", 2, 255);
    assert_element(file, "\u00e9", 0, 42);
    assert_false(dr_safetensors_find(file, "Weight", &found));
    assert_string_equal(dr_safetensors_metadata(file, "note"), sample_metadata[3]);
    assert_null(dr_safetensors_metadata(file, "nothing"));
    dr_safetensors_close(file);

    size_t bytes = 0, bytes_again = 0;
    char *first = scratch_read_at(path, &bytes), *second = scratch_read_at(again, &bytes_again);
    assert_int_equal(bytes, bytes_again);
    assert_memory_equal(first, second, bytes);
    free(second);

    for (size_t kept = 0; kept < bytes; kept++) { /* cut anywhere, it is refused */
        scratch_write_at(again, first, kept);
        assert_int_equal(dr_safetensors_open(again, &file), DR_ERROR_FORMAT);
        assert_says(again);
    }
    free(first);
}

static void test_empty_and_unaligned_files(void **state) {
    (void)state;
    const char *path = scratch_path("odd.safetensors");
    dr_safetensors *file = NULL;
    dr_tensor tensor;
    assert_int_equal(dr_safetensors_write(path, 0, NULL, NULL, NULL), DR_OK);
    assert_int_equal(dr_safetensors_open(path, &file), DR_OK);
    assert_int_equal(dr_safetensors_count(file), 0);
    assert_false(dr_safetensors_find(file, "a", &tensor));
    assert_null(dr_safetensors_metadata(file, "rule"));
    dr_safetensors_close(file);

    const char header[] = "{\"a\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, 1]},"
                          " \"b\": {\"dtype\": \"I32\", \"shape\": [1], \"data_offsets\": [1, 5]},"
                          " \"c\": {\"dtype\": \"BOOL\", \"shape\": [2], \"data_offsets\": [5, 7]}}";
    write_raw(path, strlen(header), header, strlen(header), 7);
    assert_int_equal(dr_safetensors_open(path, &file), DR_OK);
    assert_element(file, "b", 0, 0x04030201);
    assert_element(file, "c", 1, 6); /* a byte, whatever it holds */
    dr_safetensors_close(file);
}

static void test_what_cannot_be_written(void **state) {
    (void)state;
    const char *path = scratch_path("kept.safetensors");
    float value[1] = {1};
    dr_tensor good = {DR_F32, 1, {1}, value}, negative = {DR_F32, 1, {-1}, value};
    dr_tensor huge = {DR_F32, 2, {INT64_C(1) << 40, INT64_C(1) << 40}, value}, two[] = {good, good};
    const struct {
        const char *names[2];
        dr_tensor tensor;
        int64_t count;
        const char *says;
    } cases[] = {{{"a", "a"}, good, 2, "the tensor name 'a' is taken"},
                 {{"__metadata__", NULL}, good, 1, "'__metadata__' is taken"},
                 {{"\xff", NULL}, good, 1, "not valid UTF-8"},
                 {{"a", NULL}, negative, 1, "tensor 'a' cannot be written"},
                 {{"a", NULL}, huge, 1, "tensor 'a' cannot be written"}};
    scratch_write_at(path, "old", 3);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        two[0] = cases[i].tensor;
        assert_int_equal(dr_safetensors_write(path, cases[i].count, cases[i].names, two, NULL), DR_ERROR_ARGUMENT);
        assert_says(cases[i].says);
    }
    const char *bad_metadata[] = {"rule", "\xff", NULL}, *name = "a";
    assert_int_equal(dr_safetensors_write(path, 1, &name, &good, bad_metadata), DR_ERROR_ARGUMENT);
    size_t bytes = 0;
    char *kept = scratch_read_at(path, &bytes);
    assert_string_equal(kept, "old"); /* an argument error writes nothing */
    free(kept);
}

/* full disks */

static void limit_file_size(rlim_t bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_full_disk(void **state) {
    (void)state;
    enum { FLOATS = 100000 };
    const char *path = scratch_path("full.safetensors"), *device = scratch_path("full"), *name = "a";
    float *values = calloc(FLOATS, sizeof *values);
    dr_tensor tensor = {DR_F32, 1, {FLOATS}, values};
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 400000; limit += 50001) {
        limit_file_size(limit);
        assert_int_equal(dr_safetensors_write(path, 1, &name, &tensor, NULL), DR_ERROR_IO);
        limit_file_size(RLIM_INFINITY);
        assert_says("full.safetensors: cannot write: File too large");
        assert_int_not_equal(access(path, F_OK), 0); /* nothing that looks like a checkpoint is left */
    }
    assert_int_equal(symlink("/dev/full", device), 0);
    assert_int_equal(dr_safetensors_write(device, 1, &name, &tensor, NULL), DR_ERROR_IO);
    assert_says("No space left on device");
    json_t *object = json_object();
    assert_int_equal(dr_json_write(device, object), DR_ERROR_IO);
    json_decref(object);
    assert_int_equal(access(device, F_OK), 0); /* a device is no partial file: it stays */
    assert_int_equal(dr_safetensors_write(scratch_path("no/such/folder"), 1, &name, &tensor, NULL), DR_ERROR_IO);
    assert_says("cannot create the file: No such file or directory");
    free(values);
}

static void assert_file_is(const char *file, const char *text) {
    size_t bytes = 0;
    char *found = scratch_read_at(file, &bytes);
    assert_non_null(found);
    assert_string_equal(found, text);
    free(found);
}

/* What had the name stays until the new file is whole: its readers, its mode, a link to it; writers at once do not meet; what a
 * killed writer left is used again. */
static void test_files_are_replaced(void **state) {
    (void)state;
    dr_file one, two;
    struct stat about;
    const char *file = scratch_write("replaced/file", "old", 3), *link_name = scratch_path("link");
    scratch_write("replaced/.file.new-0", "what a killed writer left behind", 32);
    assert_int_equal(chmod(file, 0640), 0);
    assert_int_equal(symlink(file, link_name), 0);
    int reader = open(file, O_RDONLY);
    dr_file_create(link_name, &one);
    dr_file_create(file, &two);
    dr_file_write(&one, "first", 5);
    dr_file_write(&two, "second", 6);
    assert_file_is(file, "old");
    assert_int_equal(dr_file_finish(&one), DR_OK);
    assert_file_is(file, "first");
    dr_file_create(file, &one); /* given up */
    dr_file_write(&one, "third", 5);
    one.status = DR_ERROR_IO;
    assert_int_equal(dr_file_finish(&one), DR_ERROR_IO);
    assert_int_equal(dr_file_finish(&two), DR_OK);
    assert_file_is(file, "second");
    char old[4] = "";
    assert_int_equal(read(reader, old, 3), 3);
    assert_string_equal(old, "old");
    close(reader);
    assert_int_equal(lstat(link_name, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    assert_int_equal(stat(file, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(scratch_path("replaced")), 0); /* nothing else lies there */
    char longest[NAME_MAX + 1] = "";
    memset(longest, 'x', NAME_MAX);
    dr_file_create(scratch_path(longest), &one);
    assert_int_equal(dr_file_finish(&one), DR_OK);
}

static dr_status open_and_close(void *context) {
    dr_safetensors *file = NULL;
    DR_TRY(dr_safetensors_open(context, &file));
    dr_safetensors_close(file);
    return DR_OK;
}

static dr_status read_json(void *context) {
    json_t *object = NULL;
    DR_TRY(dr_json_read(context, &object));
    json_decref(object);
    return DR_OK;
}

static void test_failed_allocations(void **state) {
    (void)state;
    const char *path = scratch_path("memory.safetensors"), *text = scratch_path("memory.json");
    dr_tensor tensors[SAMPLES];
    sample_tensors(tensors);
    assert_int_equal(dr_safetensors_write(path, SAMPLES, sample_names, tensors, NULL), DR_OK);
    assert_survives_failed_allocations(open_and_close, (void *)path);
    scratch_write_at(text, "{}", 2);
    assert_survives_failed_allocations(read_json, (void *)text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_hostile_lengths),
        cmocka_unit_test(test_deep_nesting),
        cmocka_unit_test(test_what_is_no_file),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_empty_and_unaligned_files),
        cmocka_unit_test(test_what_cannot_be_written),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_files_are_replaced),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
