/* Holding a build against recorded results. The file format is that of tests/vectors/README.md; a model's folder, and a folder
 * of those, is held against its expected.safetensors (tests/checkpoints/README.md).
 *
 * Threads. dr_verify opens backends of its own and may be called at once from any number of threads, each with counts of its
 * own. line is called on the calling thread. */
#ifndef DELTARULE_VERIFY_H
#define DELTARULE_VERIFY_H

#include <deltarule/backend.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *backend; /* "reference", "cpu", "cuda", or NULL: all that the build and the machine have */
    const char *path;    /* "recurrent", "chunkwise", "decode", or NULL: all that apply */
    const char *isa;     /* NULL: best */
    int threads;         /* 0: as OpenMP says */
    dr_dtype dtype;      /* of backend cuda: DR_F32, DR_BF16, DR_F16 */
    int device;          /* of backend cuda */
    bool strict;         /* an unknown rule, or a path that exists for the rule but was not run, is a failure */
} dr_verify_options;

typedef struct {
    int64_t passed, failed, skipped;
} dr_verify_counts; /* cases */

/* Runs every case of a file, or of all .safetensors files of a folder in order of names, adds to *counts, and calls line with a
 * line a case and path. DR_ERROR_IO, DR_ERROR_FORMAT for a file that cannot be read; a wrong result is a count, not an error.
 */
DR_API dr_status dr_verify(const char *path, const dr_verify_options *options, void (*line)(void *context, const char *text),
                           void *context, dr_verify_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
