/* Element types and tensor views. Data is dense, row-major and little-endian.
 *
 * Threads. All functions of this header only read what they are given, and may be called at any time from any thread. */
#ifndef DELTARULE_TENSOR_H
#define DELTARULE_TENSOR_H

#include <deltarule/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { DR_F32, DR_F64, DR_F16, DR_BF16, DR_I32, DR_I64, DR_U8, DR_I8 } dr_dtype;

enum { DR_MAX_RANK = 6 };

/* A view: the tensor does not own its data. */
typedef struct {
    dr_dtype dtype;
    int rank;                   /* 0 is a single element */
    int64_t shape[DR_MAX_RANK]; /* every size >= 0 */
    void *data;
} dr_tensor;

/* Bytes per element. */
DR_API size_t dr_dtype_size(dr_dtype dtype);

/* "F32", "F64", "F16", "BF16", "I32", "I64", "U8", "I8": the names that safetensors uses. */
DR_API const char *dr_dtype_name(dr_dtype dtype);

/* Elements of a tensor: the product of its sizes; 0 of NULL. */
DR_API int64_t dr_tensor_count(const dr_tensor *tensor);

/* How rows of tokens fall into sequences. Every token tensor is [rows, ...]; an unpacked [B, T, ...] is sequences = B,
 * rows = B T, cu_seqlens = NULL. Packed: sequence i is rows cu_seqlens[i] .. cu_seqlens[i+1]-1, and may be empty. */
typedef struct {
    int64_t sequences;
    int64_t rows;
    const int64_t *cu_seqlens; /* [sequences + 1] in host memory, from 0 to rows, never falling; or NULL: equal lengths */
} dr_layout;

/* DR_ERROR_ARGUMENT unless the layout is consistent: rows >= 0, sequences >= 1, equal lengths divide, cu_seqlens as above. */
DR_API dr_status dr_layout_check(const dr_layout *layout);

/* First row of sequence i, for i from 0 to sequences (the last gives rows); 0 of no layout. */
DR_API int64_t dr_layout_begin(const dr_layout *layout, int64_t i);

#ifdef __cplusplus
}
#endif
#endif
