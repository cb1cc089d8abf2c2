/* Numbers as text, the same in every locale.
 *
 * The program that the library is part of may have called setlocale(): then strtod() reads "0.5" as 0 and printf() writes 0,5.
 * So all numbers with a point are read and written here, and nowhere else (tools/check-locale). Any thread may call these
 * functions at any time; none allocates, and none changes what another thread sees. */
#ifndef DR_BASE_NUMBER_H
#define DR_BASE_NUMBER_H

#include "base/for_check.h"

#include <locale.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* Reading takes finite numbers only, or "inf", "infinity" and "nan" in small or capital letters too. */
typedef enum { DR_NUMBER_FINITE, DR_NUMBER_ANY } dr_number_kind;

enum {
    DR_NUMBER_LONGEST = 1200, /* characters of a number that can be read */
    DR_NUMBER_SIZE = 32       /* bytes that dr_number_write needs */
};

/* Reads the longest number that text[0 .. length - 1] begins with: an optional sign, then decimal digits with an optional point
 * and an exponent, or "0x", hexadecimal digits with an optional point and a binary exponent. No blanks before it. The value is
 * the nearest double; a number near 0 may become 0. Returns the place behind the number, or NULL and leaves *value where there
 * is no number of this kind, it has more than DR_NUMBER_LONGEST characters or rounds to more than the largest double. */
DR_FOR_CHECK const char *dr_number_read(const char *text, size_t length, dr_number_kind kind, double *value);

/* The same for a text that ends with a zero byte and must be a number from its first character to its last. */
DR_FOR_CHECK bool dr_number_parse(const char *text, dr_number_kind kind, double *value);

/* The same for whole numbers: an optional sign and decimal digits, from INT64_MIN to INT64_MAX. */
bool dr_integer_parse(const char *text, int64_t *value);

/* Writes at most 17 digits, as few as dr_number_read needs to give back the same value: "0.1", "1e+300", "inf", "nan". */
DR_FOR_CHECK void dr_number_write(double value, char text[DR_NUMBER_SIZE]);

/* snprintf(), vsnprintf(), fprintf() and vfprintf() with a decimal point. */
DR_FOR_CHECK int dr_format(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
DR_FOR_CHECK int dr_format_list(char *text, size_t size, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));
int dr_print(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));
int dr_print_list(FILE *file, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));

/* strftime() with English names of days and months. */
size_t dr_format_time(char *text, size_t size, const char *format, const struct tm *time);

/* For calls into other libraries that read or write numbers: the calling thread has the locale "C" from dr_locale_enter() to
 * dr_locale_leave() with what it returned. */
locale_t dr_locale_enter(void);
void dr_locale_leave(locale_t before);

#endif
