/* Arrays double, so that n appends cost O(n). */
#include "tokenize/text.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum { LEAST_ROOM = 64 };

dr_status dr_array_reserve(void **array, size_t count, size_t *room, size_t more, size_t size, const char *what) {
    if (more <= *room - count) return DR_OK;
    if (more > SIZE_MAX / 4 / size || count > SIZE_MAX / 4 / size)
        return dr_fail(DR_ERROR_MEMORY, "there is no memory for %zu more elements of %s", more, what);
    size_t wanted = *room < LEAST_ROOM ? LEAST_ROOM : 2 * *room;
    if (wanted < count + more) wanted = count + more;
    if (*array)
        DR_TRY(dr_resize(array, count * size, wanted * size, what));
    else
        DR_TRY(dr_allocate(wanted * size, what, array));
    *room = wanted;
    return DR_OK;
}

dr_status dr_text_reserve(dr_text *text, size_t more) {
    void *bytes = text->bytes;
    DR_TRY(dr_array_reserve(&bytes, text->count, &text->room, more, 1, "text"));
    text->bytes = bytes;
    return DR_OK;
}

dr_status dr_text_append(dr_text *text, const char *bytes, size_t count) {
    DR_TRY(dr_text_reserve(text, count));
    if (count > 0) memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    return DR_OK;
}

dr_status dr_text_append_string(dr_text *text, const char *string) {
    return dr_text_append(text, string, strlen(string));
}

dr_status dr_text_insert(dr_text *text, size_t at, const char *bytes, size_t count) {
    DR_TRY(dr_text_reserve(text, count));
    memmove(text->bytes + at + count, text->bytes + at, text->count - at);
    memcpy(text->bytes + at, bytes, count);
    text->count += count;
    return DR_OK;
}

void dr_text_release(dr_text *text) {
    dr_release(text->bytes);
    *text = (dr_text){0};
}

dr_status dr_ids_reserve(dr_ids *ids, size_t more) {
    void *at = ids->at;
    DR_TRY(dr_array_reserve(&at, ids->count, &ids->room, more, sizeof *ids->at, "token ids"));
    ids->at = at;
    return DR_OK;
}

dr_status dr_ids_append(dr_ids *ids, const int32_t *more, size_t count) {
    DR_TRY(dr_ids_reserve(ids, count));
    if (count > 0) memcpy(ids->at + ids->count, more, count * sizeof *more);
    ids->count += count;
    return DR_OK;
}

void dr_ids_release(dr_ids *ids) {
    dr_release(ids->at);
    *ids = (dr_ids){0};
}
