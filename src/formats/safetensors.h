/* safetensors: u64 header length | JSON header | data (https://github.com/huggingface/safetensors). Reading maps the file and
 * trusts nothing in it; writing lays 8-byte types first, so that every tensor is aligned. */
#ifndef DR_FORMATS_SAFETENSORS_H
#define DR_FORMATS_SAFETENSORS_H

#include "base/for_check.h"

#include <deltarule/tensor.h>

typedef struct dr_safetensors dr_safetensors;

/* Opens and checks a whole file: header length within the file and at most 100 MB, valid JSON, known dtypes, offsets that match
 * the shapes, within the data, without overlap or gap, no name twice. DR_ERROR_IO or DR_ERROR_FORMAT with the file's name. */
DR_FOR_CHECK dr_status dr_safetensors_open(const char *file, dr_safetensors **tensors);
DR_FOR_CHECK void dr_safetensors_close(dr_safetensors *tensors);

DR_FOR_CHECK int64_t dr_safetensors_count(const dr_safetensors *tensors);
int64_t dr_safetensors_bytes(const dr_safetensors *tensors); /* of the whole file */
/* In order of names. The view's data may be unaligned if the file is; it lives as long as the object and must not be written.
 */
DR_FOR_CHECK const char *dr_safetensors_name(const dr_safetensors *tensors, int64_t index);
DR_FOR_CHECK dr_tensor dr_safetensors_tensor(const dr_safetensors *tensors, int64_t index);
/* -1 if there is none of that name. */
DR_FOR_CHECK int64_t dr_safetensors_index(const dr_safetensors *tensors, const char *name);
/* False if there is none of that name. */
DR_FOR_CHECK int dr_safetensors_find(const dr_safetensors *tensors, const char *name, dr_tensor *tensor);
/* Value of a key of __metadata__, or NULL. */
DR_FOR_CHECK const char *dr_safetensors_metadata(const dr_safetensors *tensors, const char *key);

/* Whoever is about to read a tensor, or a part of one, may say so: its pages are mapped at once, where the system can. */
void dr_safetensors_expect(const dr_tensor *tensor);
/* Whoever has used a tensor may say so: the mapping's pages inside it leave this process's memory, and come back when they are
 * touched. The file stays in the system's cache. */
void dr_safetensors_forget(const dr_tensor *tensor);

/* The element at index converted to double; F16 and BF16 too. */
DR_FOR_CHECK double dr_tensor_element(const dr_tensor *tensor, int64_t index);

/* The first element from `first` on, of `count`, that is a NaN or infinite; -1: there is none, or the type is not a floating
 * one. least: -infinity is taken for a number. */
int64_t dr_tensor_not_finite(const dr_tensor *tensor, int64_t first, int64_t count, int least);

/* Writes a file: tensors with names, and metadata pairs key, value, .., NULL (or NULL). Written whole and synced, but in place:
 * an atomic replacement is dr_folder's business (formats/folder.h). */
dr_status dr_safetensors_write(const char *file, int64_t count, const char *const *names, const dr_tensor *tensors,
                               const char *const *metadata);

/* Gives count elements of tensor index, from first on, in the tensor's type, aligned for it. Several threads call it at once.
 */
typedef dr_status (*dr_tensor_source)(void *context, int64_t index, int64_t first, int64_t count, void *to);

/* The same without the tensors' data, which source is asked for, some elements at a time: what is written need not be in host
 * memory whole. */
dr_status dr_safetensors_write_from(const char *file, int64_t count, const char *const *names, const dr_tensor *tensors,
                                    const char *const *metadata, dr_tensor_source source, void *context);

#endif
