/* Status codes and error messages.
 *
 * Every function of the library that can fail returns a dr_status. When it is not DR_OK, dr_last_error() gives a sentence that
 * says what was wrong, with the offending value, and what would be right. The library never prints, exits or aborts.
 *
 * Pointers. NULL where a pointer must not be NULL is DR_ERROR_ARGUMENT, with a sentence that names the argument; where NULL may
 * stand, the comment of the function says so, and it always may where there are no elements to point to. Functions that return
 * no status do nothing then, and return what their comments say.
 *
 * Threads. The sentence belongs to the thread whose call failed: ask on that thread. All functions of this header may be called
 * at any time from any thread. The other headers say at their top what of theirs may be shared; what they do not name is an
 * object that only one thread at a time may use. */
#ifndef DELTARULE_STATUS_H
#define DELTARULE_STATUS_H

#include <deltarule/version.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    DR_OK = 0,
    DR_ERROR_ARGUMENT,    /* a value passed in cannot be right; nothing was written */
    DR_ERROR_UNSUPPORTED, /* valid, but this build, backend or machine does not do it */
    DR_ERROR_MEMORY,      /* an allocation failed */
    DR_ERROR_IO,          /* the operating system refused to open, read, write, sync or rename */
    DR_ERROR_FORMAT,      /* a file's content is not what its format says */
    DR_ERROR_NUMERIC,     /* a result is not finite where it must be */
    DR_ERROR_INTERRUPTED, /* the caller asked to stop */
    DR_ERROR_DEVICE,      /* the GPU or its driver reported a failure */
} dr_status;

/* The sentence of the last failure on the calling thread; "" if there was none. Valid until the thread's next failure. */
DR_API const char *dr_last_error(void);

/* "DR_ERROR_FORMAT" for DR_ERROR_FORMAT, and so on. */
DR_API const char *dr_status_name(dr_status status);

#ifdef __cplusplus
}
#endif
#endif
