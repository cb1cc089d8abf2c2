/* The files of a folder, links followed: what a corpus is made of. */
#ifndef DR_DATA_FILES_H
#define DR_DATA_FILES_H

#include <deltarule/status.h>
#include <stdint.h>

typedef struct {
    char *path;
    char *problem;    /* a sentence: why it cannot be used; NULL: nothing is known against it */
    dr_status status; /* that fits the problem */
    uint64_t device, inode;
    int links; /* how many rounds of following links led here, 0: none */
} dr_found_file;

typedef struct {
    dr_found_file *at; /* [count] in order of paths: folder by folder, names as strcmp has them */
    int64_t count;
} dr_found_files;

/* The path itself if it is no folder, else all files in it and in its subfolders. Names that begin with a dot are left out; a
 * link to a file or a folder stands for what it leads to; a file with several names is found once, by one that no link leads to
 * if it has one; folders that contain themselves end nothing. Files that can never be text (named pipes, sockets, devices),
 * links to nothing, links to a folder that the path lies in, folders of the system's own as in /proc, and folders that cannot
 * be listed are found with their problem. Nothing is opened but folders. DR_ERROR_ARGUMENT if there is no such path,
 * DR_ERROR_IO if the system does not tell. */
dr_status dr_files_find(const char *path, dr_found_files *files);
void dr_files_release(dr_found_files *files);

/* Adds a printf-style sentence as the file's problem. DR_ERROR_MEMORY. */
dr_status dr_file_problem(dr_found_file *file, dr_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
