/* Ending a text where one of several stop texts appears, also if it comes in many pieces. */
#ifndef DR_GENERATE_STOP_H
#define DR_GENERATE_STOP_H

#include <deltarule/generate.h>

/* Bytes that may be the beginning of a stop text are held back until that is decided. */
typedef struct {
    const char *const *stop; /* [count] */
    int64_t count;
    char *held; /* [held_bytes] of at most as many as the longest stop text has */
    size_t held_bytes;
} dr_stop;

dr_status dr_stop_create(const dr_generate_options *options, dr_stop *stop);
void dr_stop_destroy(dr_stop *stop);

/* Adds a byte to what is held. *certain: so many of the held bytes, from the first, are part of the text; the caller takes them
 * with dr_stop_take. Returns true if a stop text ends with this byte: then the rest of what is held is that text. */
bool dr_stop_add(dr_stop *stop, char byte, size_t *certain);
/* Drops the first bytes of what is held. */
void dr_stop_take(dr_stop *stop, size_t bytes);

#endif
