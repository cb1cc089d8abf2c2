/* Reads a number from text: the C library must find the same end and the same bits, and what is written must be read again. The
 * program stays in the locale "C", so that strtod() knows the decimal point. */
#include "base/number.h"
#include "fuzz.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static void check_written(double value) {
    char text[DR_NUMBER_SIZE], exact[64];
    double again, exactly;
    dr_number_write(value, text);
    dr_format(exact, sizeof exact, "%a", value);
    if (!dr_number_parse(text, DR_NUMBER_ANY, &again) || !dr_number_parse(exact, DR_NUMBER_ANY, &exactly)) abort();
    if (isnan(value) ? !isnan(again) : again != value || exactly != value || signbit(again) != signbit(value)) abort();
}

/* What strtod() takes and dr_number_read() does not: blanks before the number, and "nan(...)", of which that takes "nan". */
static void check_read(const char *text, size_t length) {
    char *end, *copy = malloc(length + 1);
    double value = 0;
    if (!copy) abort();
    memcpy(copy, text, length);
    copy[length] = '\0';
    errno = 0;
    double expected = strtod(copy, &end);
    size_t used = (size_t)(end - copy);
    const char *found = dr_number_read(text, length, DR_NUMBER_ANY, &value);
    bool refused =
        used == 0 || used > DR_NUMBER_LONGEST || strchr(" \t\n\v\f\r", *copy) || (errno == ERANGE && isinf(expected));
    if (refused != !found) abort();
    if (found && isnan(expected) ? !isnan(value) : found && ((size_t)(found - text) != used || value != expected)) abort();
    if (dr_number_read(text, length, DR_NUMBER_FINITE, &value) != (found && isfinite(expected) ? found : NULL)) abort();
    if (found) check_written(expected);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    double value;
    for (size_t begin = 0; begin < size; begin++) /* one number a line */
        if (begin == 0 || data[begin - 1] == '\n') {
            const uint8_t *end = memchr(data + begin, '\n', size - begin);
            size_t length = end ? (size_t)(end - data) - begin : size - begin;
            if (!memchr(data + begin, 0, length)) check_read((const char *)data + begin, length);
        }
    for (size_t begin = 0; begin + sizeof value <= size; begin += sizeof value) {
        memcpy(&value, data + begin, sizeof value);
        check_written(value);
    }
    return 0;
}
