/* The message of the last failure, one a thread, the names of the status codes, and the version.
 *
 * A message is put together in a buffer of its own before it replaces the old one, because its arguments may point into the old
 * one. A message longer than the buffer loses its end. Names of files and tensors stand in messages, and may hold anything:
 * what a terminal would obey, or is no text, is written as \xNN. */
#define DR_ERROR_DEFINITION 1 /* the functions themselves are wanted here */
#include "base/error.h"

#include "base/number.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];

dr_status dr_fail(dr_status status, const char *format, ...) {
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    dr_format_list(text, sizeof text, format, arguments);
    va_end(arguments);
    dr_printable(text, message, sizeof message);
    return status;
}

dr_status dr_fail_in(dr_status status, const char *format, ...) {
    char prefix[MESSAGE_BYTES / 2], text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    dr_format_list(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    int length = snprintf(text, sizeof text, "%s: ", prefix);
    size_t room = sizeof text - (size_t)length, old = strlen(message);
    size_t kept = old < room ? old : room - 1;
    memcpy(text + length, message, kept);
    text[(size_t)length + kept] = '\0';
    dr_printable(text, message, sizeof message);
    return status;
}

const char *dr_system_text(int number) {
    locale_t before = dr_locale_enter();
    const char *text = strerror(number);
    dr_locale_leave(before);
    return text;
}

const char *dr_last_error(void) {
    return message;
}

const char *dr_status_name(dr_status status) {
    switch (status) {
    case DR_OK:
        return "DR_OK";
    case DR_ERROR_ARGUMENT:
        return "DR_ERROR_ARGUMENT";
    case DR_ERROR_UNSUPPORTED:
        return "DR_ERROR_UNSUPPORTED";
    case DR_ERROR_MEMORY:
        return "DR_ERROR_MEMORY";
    case DR_ERROR_IO:
        return "DR_ERROR_IO";
    case DR_ERROR_FORMAT:
        return "DR_ERROR_FORMAT";
    case DR_ERROR_NUMERIC:
        return "DR_ERROR_NUMERIC";
    case DR_ERROR_INTERRUPTED:
        return "DR_ERROR_INTERRUPTED";
    case DR_ERROR_DEVICE:
        return "DR_ERROR_DEVICE";
    }
    return "unknown status";
}

const char *dr_version(void) {
    return DELTARULE_VERSION;
}

int dr_version_number(void) {
    return DELTARULE_VERSION_NUMBER;
}

int dr_abi(void) {
    return DELTARULE_ABI;
}
