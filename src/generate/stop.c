/* What is held is always the longest end of the text that begins some stop text, so a stop text that is complete lies in it
 * whole. Stop texts are few and short: ends and beginnings are compared one by one. */
#include "generate/stop.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

dr_status dr_stop_create(const dr_generate_options *options, dr_stop *stop) {
    size_t longest = 1;
    void *memory;
    *stop = (dr_stop){.stop = options->stop, .count = options->stop_count};
    for (int64_t i = 0; i < stop->count; i++)
        if (strlen(stop->stop[i]) > longest) longest = strlen(stop->stop[i]);
    DR_TRY(dr_allocate(longest, "the beginning of a stop text", &memory));
    stop->held = memory;
    return DR_OK;
}

void dr_stop_destroy(dr_stop *stop) {
    dr_release(stop->held);
    *stop = (dr_stop){0};
}

/* The most of the last held bytes that begin this text, and whether they are all of it. */
static size_t beginning(const dr_stop *stop, const char *text, bool *whole) {
    size_t length = strlen(text), most = stop->held_bytes < length ? stop->held_bytes : length;
    for (size_t bytes = most; bytes > 0; bytes--)
        if (memcmp(stop->held + stop->held_bytes - bytes, text, bytes) == 0) {
            *whole = bytes == length;
            return bytes;
        }
    *whole = false;
    return 0;
}

bool dr_stop_add(dr_stop *stop, char byte, size_t *certain) {
    size_t longest = 0, longest_whole = 0;
    stop->held[stop->held_bytes++] = byte;
    for (int64_t i = 0; i < stop->count; i++) {
        bool whole;
        size_t bytes = beginning(stop, stop->stop[i], &whole);
        if (whole && bytes > longest_whole) longest_whole = bytes;
        if (bytes > longest) longest = bytes;
    }
    *certain = stop->held_bytes - (longest_whole ? longest_whole : longest);
    return longest_whole > 0;
}

void dr_stop_take(dr_stop *stop, size_t bytes) {
    stop->held_bytes -= bytes;
    memmove(stop->held, stop->held + bytes, stop->held_bytes);
}
