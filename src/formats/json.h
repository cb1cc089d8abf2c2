/* JSON files, read and written whole. */
#ifndef DR_FORMATS_JSON_H
#define DR_FORMATS_JSON_H

#include "base/json.h"

/* dr_json_parse of a file of at most 100 MB; DR_ERROR_IO. */
DR_FOR_CHECK dr_status dr_json_read(const char *file, json_t **object);
/* Writes an object with two spaces of indent, keys in the order in which they were set, every number such that it reads back
 * the same, and syncs. Nothing is left behind on failure (DR_ERROR_IO). In place: an atomic replacement is dr_folder's
 * business. */
dr_status dr_json_write(const char *file, const json_t *object);
/* The same by dr_json_format_lenient: an object that dr_json_read has read stands there as other programs know it. */
dr_status dr_json_write_lenient(const char *file, const json_t *object);

#endif
