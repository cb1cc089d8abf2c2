/* A vector file (tests/vectors/README.md) opened: its metadata, and its tensors handed out one by one with their type and shape
 * checked, so that in the end it can be asked whether anything in it was not looked at. */
#ifndef DR_VERIFY_VECTOR_FILE_H
#define DR_VERIFY_VECTOR_FILE_H

#include "formats/safetensors.h"
#include <jansson.h>
#include <stdbool.h>

typedef struct {
    dr_safetensors *tensors;
    bool *taken;      /* one a tensor */
    const char *rule; /* lives in tensors */
    json_t *options;  /* an object */
    bool backward;    /* it records gradients */
    double rtol_forward, rtol_backward;
} dr_vector_file;

/* DR_ERROR_IO, DR_ERROR_FORMAT. Messages of these functions do not name the file. */
dr_status dr_vector_file_open(const char *path, dr_vector_file *file);
void dr_vector_file_close(dr_vector_file *file);

/* A number of the metadata. */
dr_status dr_vector_file_integer(const dr_vector_file *file, const char *key, int64_t least, int64_t most, int64_t *value);
dr_status dr_vector_file_real(const dr_vector_file *file, const char *key, double *value); /* finite */

bool dr_vector_file_has(const dr_vector_file *file, const char *prefix, const char *name);
/* Dimensions of a tensor; -1 if it is not there. */
int dr_vector_file_rank(const dr_vector_file *file, const char *prefix, const char *name);
/* The tensor "prefix" "name" (as "in." "q"), which must be there with that type and shape. */
dr_status dr_vector_file_take(dr_vector_file *file, const char *prefix, const char *name, dr_dtype dtype, int rank,
                              const int64_t *shape, dr_tensor *tensor);
/* The same with any shape of that rank. */
dr_status dr_vector_file_take_any(dr_vector_file *file, const char *prefix, const char *name, dr_dtype dtype, int rank,
                                  dr_tensor *tensor);
/* DR_ERROR_FORMAT if a tensor was not taken. */
dr_status dr_vector_file_all_taken(const dr_vector_file *file);

#endif
