/* A file that one process holds at a time, until it lets go of it or ends, however it ends. */
#ifndef DR_FORMATS_LOCK_H
#define DR_FORMATS_LOCK_H

#include "base/for_check.h"

#include <stdbool.h>

/* Makes `path` if it is missing and locks it; what is in it is left as it is. Returns its descriptor, open for reading and
 * writing, or -1 with errno: EWOULDBLOCK if somebody else holds it, in this process or another. Closing the descriptor unlocks
 * the file; whoever removes or renames it must do that before. */
DR_FOR_CHECK int dr_lock_take(const char *path);
/* Whether somebody holds the lock now; false where there is no such file. What stands in the file does not count: its writer
 * may have ended, and its number may be another process's. */
bool dr_lock_held(const char *path);
/* Whether `path` is still the locked file: nobody removed, moved or replaced it. */
bool dr_lock_stands(int descriptor, const char *path);

#endif
