/* Large tensors in safetensors files: written in pieces that a source gives, and forgotten once they were used. */
#include "base/memory.h"
#include "formats/file.h"
#include "formats/safetensors.h"
#include "scratch.h"

#include <stdatomic.h>

/* What a source gives in pieces is the file that whole tensors give; a source that fails leaves the old file. */
enum { LONG = 1100001 }; /* more than one thread takes of a tensor */
static float long_values[LONG];
static const uint16_t halves[2] = {0x3f80, 0xbf80};
static const double doubles[1] = {0.1};
static const char *const metadata[] = {"format", "pt", NULL};
static atomic_llong pieces_left, pieces;

static dr_status give_piece(void *context, int64_t index, int64_t first, int64_t count, void *to) {
    const dr_tensor *tensors = context;
    size_t size = dr_dtype_size(tensors[index].dtype);
    pieces++;
    if (atomic_fetch_sub(&pieces_left, 1) == 0) return DR_ERROR_DEVICE;
    memcpy(to, (const char *)tensors[index].data + (size_t)first * size, (size_t)count * size);
    return DR_OK;
}

static void assert_same_files(const char *one, const char *other) {
    char *first, *second;
    size_t bytes, others;
    assert_int_equal(dr_file_read(one, 1 << 24, &first, &bytes), DR_OK);
    assert_int_equal(dr_file_read(other, 1 << 24, &second, &others), DR_OK);
    assert_int_equal(bytes, others);
    assert_memory_equal(first, second, bytes);
    dr_release(first);
    dr_release(second);
}

static void test_pieces(void **state) {
    (void)state;
    const char *whole = scratch_path("whole.safetensors"), *path = scratch_path("pieces.safetensors");
    const char *const names[] = {"small", "long", "none", "wide"};
    const dr_tensor tensors[] = {{DR_BF16, 1, {2}, (void *)halves},
                                 {DR_F32, 1, {LONG}, long_values},
                                 {DR_F32, 2, {0, 5}, NULL},
                                 {DR_F64, 1, {1}, (void *)doubles}};
    dr_tensor without_data[4];
    memcpy(without_data, tensors, sizeof tensors);
    for (int i = 0; i < 4; i++) without_data[i].data = NULL;
    for (int i = 0; i < LONG; i++) long_values[i] = (float)i;
    memset(long_values + (1 << 17), 0, (1 << 19) * sizeof *long_values); /* whole pieces of zeros, too */
    assert_int_equal(dr_safetensors_write(whole, 4, names, tensors, metadata), DR_OK);
    pieces_left = INT64_MAX;
    pieces = 0;
    assert_int_equal(dr_safetensors_write_from(path, 4, names, without_data, metadata, give_piece, (void *)tensors), DR_OK);
    assert_true(pieces >= 4); /* the long one is not given at once */
    assert_same_files(whole, path);
    for (int64_t i = 0, all = pieces; i < all; i++) {
        pieces_left = i;
        assert_int_equal(dr_safetensors_write_from(path, 4, names, without_data, NULL, give_piece, (void *)tensors),
                         DR_ERROR_DEVICE);
        assert_same_files(whole, path);
    }
}

/* Forgotten pages are read again. */
static void test_forgetting(void **state) {
    (void)state;
    const char *path = scratch_path("forgotten.safetensors"), *name = "long";
    const dr_tensor tensor = {DR_F32, 1, {LONG}, long_values};
    dr_safetensors *file = NULL;
    dr_tensor found;
    for (int i = 0; i < LONG; i++) long_values[i] = (float)i;
    assert_int_equal(dr_safetensors_write(path, 1, &name, &tensor, NULL), DR_OK);
    assert_int_equal(dr_safetensors_open(path, &file), DR_OK);
    assert_true(dr_safetensors_find(file, name, &found));
    assert_memory_equal(found.data, long_values, sizeof long_values);
    dr_safetensors_forget(&found);
    assert_memory_equal(found.data, long_values, sizeof long_values);
    dr_safetensors_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces), cmocka_unit_test(test_forgetting)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
