/* Growing texts and lists of ids. A zeroed one is empty. */
#ifndef DR_TOKENIZE_TEXT_H
#define DR_TOKENIZE_TEXT_H

#include <deltarule/status.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *bytes; /* [count] with room for `room`; no zero byte behind it */
    size_t count, room;
} dr_text;

dr_status dr_text_reserve(dr_text *text, size_t more); /* room for so many bytes behind those that are there */
dr_status dr_text_append(dr_text *text, const char *bytes, size_t count);
dr_status dr_text_append_string(dr_text *text, const char *string);
/* Puts bytes before the one at `at`. */
dr_status dr_text_insert(dr_text *text, size_t at, const char *bytes, size_t count);
void dr_text_release(dr_text *text);

typedef struct {
    int32_t *at; /* [count] */
    size_t count, room;
} dr_ids;

dr_status dr_ids_reserve(dr_ids *ids, size_t more);
dr_status dr_ids_append(dr_ids *ids, const int32_t *more, size_t count);
void dr_ids_release(dr_ids *ids);

/* Makes an array of `count` used elements of `size` bytes have room for `more`: for any growing array. */
dr_status dr_array_reserve(void **array, size_t count, size_t *room, size_t more, size_t size, const char *what);

#endif
