/* Verifies a vector file: what passes the checks of the reader runs on every backend and engine. */
#include "fuzz.h"
#include <deltarule/verify.h>

static void ignore(void *context, const char *text) {
    (void)context, (void)text;
}

static void verify(const char *path) {
    dr_verify_options options = {.threads = 1};
    dr_verify_counts counts = {0};
    dr_status status = dr_verify(path, &options, ignore, NULL, &counts);
    if ((status == DR_OK) != (counts.passed + counts.failed + counts.skipped == 1)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_with_file(data, size, verify);
    return 0;
}
