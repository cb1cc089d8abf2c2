/* Reading and writing go to the C library in the locale "C", which rounds correctly both ways.
 *
 * glibc and musl hold that locale as a constant: newlocale() returns its address, allocates nothing and cannot fail, and there
 * is nothing to free. uselocale() sets it for the calling thread only.
 *
 * The extent of a number is found here, because strtod_l() reads on to a zero byte and a text may lie in a mapped file. */
#include "base/number.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static locale_t plain_locale(void) {
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

locale_t dr_locale_enter(void) {
    return uselocale(plain_locale());
}

void dr_locale_leave(locale_t before) {
    uselocale(before);
}

size_t dr_format_time(char *text, size_t size, const char *format, const struct tm *time) {
    locale_t before = dr_locale_enter();
    size_t length = strftime(text, size, format, time);
    dr_locale_leave(before);
    return length;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static bool is_digit(char c, bool hexadecimal) {
    return (c >= '0' && c <= '9') || (hexadecimal && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')));
}

/* The capital of an ASCII letter; other letters than those of "infinity" and "nan" may become anything. */
static char capital(char c) {
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

/* The length of the longest of these words that text begins with, or 0. */
static size_t word_length(const char *text, size_t length) {
    static const char *const words[] = {"INFINITY", "INF", "NAN"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t same = 0;
        while (same < length && words[i][same] && capital(text[same]) == words[i][same]) same++;
        if (!words[i][same]) return same;
    }
    return 0;
}

/* Digits with at most one point from text[at] on: where they end, and whether there was a digit. */
static size_t digits_end(const char *text, size_t length, size_t at, bool hexadecimal, bool *found) {
    bool point = false;
    *found = false;
    for (; at < length; at++) {
        if (is_digit(text[at], hexadecimal))
            *found = true;
        else if (text[at] == '.' && !point)
            point = true;
        else
            break;
    }
    return at;
}

/* The end of an exponent at text[at], or at if there is none. */
static size_t exponent_end(const char *text, size_t length, size_t at, char letter) {
    size_t end = at;
    if (end >= length || capital(text[end]) != letter) return at;
    end++;
    if (end < length && (text[end] == '+' || text[end] == '-')) end++;
    if (end >= length || !is_digit(text[end], false)) return at;
    while (end < length && is_digit(text[end], false)) end++;
    return end;
}

/* How many characters the number has that text begins with; 0 if it begins with none. */
static size_t number_length(const char *text, size_t length, dr_number_kind kind) {
    size_t begin = length > 0 && (text[0] == '+' || text[0] == '-'), end;
    bool found;
    size_t word = word_length(text + begin, length - begin);
    if (word > 0) return kind == DR_NUMBER_ANY ? begin + word : 0;
    if (begin + 1 < length && text[begin] == '0' && capital(text[begin + 1]) == 'X') {
        end = digits_end(text, length, begin + 2, true, &found);
        if (found) return exponent_end(text, length, end, 'P');
    }
    end = digits_end(text, length, begin, false, &found);
    return found ? exponent_end(text, length, end, 'E') : 0;
}

const char *dr_number_read(const char *text, size_t length, dr_number_kind kind, double *value) {
    char copy[DR_NUMBER_LONGEST + 1], *end;
    size_t used = number_length(text, length, kind);
    if (used == 0 || used > DR_NUMBER_LONGEST) return NULL;
    memcpy(copy, text, used);
    copy[used] = '\0';
    int before = errno;
    errno = 0;
    double number = strtod_l(copy, &end, plain_locale());
    bool too_large = errno == ERANGE && isinf(number);
    errno = before;
    if (end != copy + used || too_large) return NULL;
    *value = number;
    return text + used;
}

bool dr_number_parse(const char *text, dr_number_kind kind, double *value) {
    size_t length = strlen(text);
    double number;
    if (dr_number_read(text, length, kind, &number) != text + length) return false;
    *value = number;
    return true;
}

bool dr_integer_parse(const char *text, int64_t *value) {
    const char *digit = text + (*text == '+' || *text == '-');
    int64_t number = 0;
    if (!*digit) return false;
    for (; *digit; digit++) {
        if (!is_digit(*digit, false) || __builtin_mul_overflow(number, 10, &number)) return false;
        /* towards the sign, since the least number has no counterpart above 0 */
        int next = *text == '-' ? '0' - *digit : *digit - '0';
        if (__builtin_add_overflow(number, next, &number)) return false;
    }
    *value = number;
    return true;
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

/* 15 digits tell every number apart that was written with at most 15, and %g drops the zeros at their end; 17 tell all doubles
 * apart. Below the normal numbers fewer digits may do. */
void dr_number_write(double value, char text[DR_NUMBER_SIZE]) {
    double again;
    if (isnan(value)) {
        memcpy(text, "nan", sizeof "nan");
        return;
    }
    int digits = fabs(value) < DBL_MIN ? 1 : DBL_DIG;
    do dr_format(text, DR_NUMBER_SIZE, "%.*g", digits++, value);
    while (digits <= DBL_DECIMAL_DIG && !(dr_number_parse(text, DR_NUMBER_ANY, &again) && again == value));
}

int dr_format_list(char *text, size_t size, const char *format, va_list arguments) {
    locale_t before = dr_locale_enter();
    int length = vsnprintf(text, size, format, arguments);
    dr_locale_leave(before);
    return length;
}

int dr_format(char *text, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = dr_format_list(text, size, format, arguments);
    va_end(arguments);
    return length;
}

int dr_print_list(FILE *file, const char *format, va_list arguments) {
    locale_t before = dr_locale_enter();
    int length = vfprintf(file, format, arguments);
    dr_locale_leave(before);
    return length;
}

int dr_print(FILE *file, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = dr_print_list(file, format, arguments);
    va_end(arguments);
    return length;
}
