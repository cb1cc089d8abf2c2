/* Replacing several files of a folder at once: a kill at any moment leaves all old ones or all new ones.
 *
 * dr_folder_begin makes FOLDER if missing and a fresh subfolder FOLDER/.new-XXXXXX; the caller writes its files there;
 * dr_folder_commit syncs them and the folder, then publishes. Readers call dr_folder_recover before they read, which finishes
 * or drops what a kill left. src/formats/folder.c tells the protocol. */
#ifndef DR_FORMATS_FOLDER_H
#define DR_FORMATS_FOLDER_H

#include "base/for_check.h"

#include <deltarule/status.h>
#include <stdbool.h>

typedef struct dr_folder dr_folder;

/* Makes a folder and its parents where they are missing, so that they last. */
DR_FOR_CHECK dr_status dr_folder_make(const char *folder);
dr_status dr_folder_begin(const char *folder, dr_folder **change);
/* FOLDER/.new-XXXXXX/name, valid until the next call with this object. */
const char *dr_folder_path(dr_folder *change, const char *name);
/* Whether a path is that of a file right in the subfolder of a change, which dr_folder_commit will sync. */
bool dr_folder_syncs(const char *path);
/* Makes FOLDER/.new-XXXXXX/name, a folder whose files are published with it; FOLDER must have none of this name yet. */
dr_status dr_folder_subfolder(dr_folder *change, const char *name);
/* Publishes all files written, and removes the object whether it succeeds or not. */
dr_status dr_folder_commit(dr_folder *change);
/* Drops them, and the object. NULL is allowed. */
void dr_folder_abandon(dr_folder *change);
dr_status dr_folder_recover(const char *folder);
/* Removes FOLDER/name, a folder, with what is in it. It loses its name before anything in it goes: a kill at any moment leaves
 * it whole or nameless, and the next recovery removes what is left. DR_ERROR_IO if it is not there. */
dr_status dr_folder_remove(const char *folder, const char *name);

#endif
