/* What opening a model of 3 GB costs beside reading its files once: seconds and the most memory that is resident. `make FOLDER`
 * writes a model of random weights in files of 512 MB. `read FOLDER` reads its files into one small buffer. `keep FOLDER` reads
 * them into new memory of their size. `open FOLDER` loads the model. On many virtual machines the host backs a page when it is
 * first touched, which costs more than reading: the time of `keep` contains that cost, the time of `read` does not. */
#include "base/clock.h"

#include <deltarule/model.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MB = 1 << 20 };

static void check(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "%s\n", dr_last_error());
    exit(1);
}

static void make(dr_backend *backend, const char *folder) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    dr_model *model;
    config.vocabulary = 32000, config.hidden = 2048, config.layers = 13, config.heads = 8, config.value_size = 256;
    check(dr_model_create(backend, &config, 1, &model));
    check(dr_model_save_as(model, folder, DR_F32, (int64_t)512 * MB));
    dr_model_destroy(model);
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Reads a file into `kept`, or again and again into one small buffer where kept is NULL; returns its bytes. */
static size_t read_file(const char *path, char *kept) {
    static char piece[4 * MB];
    const int file = open(path, O_RDONLY);
    size_t bytes = 0;
    ssize_t got;
    if (file < 0) fail(path);
    while ((got = read(file, kept ? kept + bytes : piece, sizeof piece)) > 0) bytes += (size_t)got;
    if (got < 0) fail(path);
    close(file);
    return bytes;
}

/* All files, one behind another. */
static double read_all(const char *folder, char *kept) {
    DIR *stream = opendir(folder);
    size_t bytes = 0;
    if (!stream) fail(folder);
    for (const struct dirent *item = readdir(stream); item; item = readdir(stream)) {
        char path[PATH_MAX];
        if (!strstr(item->d_name, ".safetensors") || strstr(item->d_name, ".json")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, item->d_name);
        bytes += read_file(path, kept ? kept + bytes : NULL);
    }
    closedir(stream);
    return (double)bytes;
}

static void need_3_gb(double bytes) {
    if (bytes >= 3e9) return;
    fprintf(stderr, "the model has %.2f GB of weights, not 3\n", bytes * 1e-9);
    exit(1);
}

int main(int argc, char **argv) {
    dr_backend *backend;
    dr_model *model;
    struct rusage use;
    if (argc != 3) return 2;
    check(dr_backend_open("cpu", NULL, &backend));
    getrusage(RUSAGE_SELF, &use);
    const long before = use.ru_maxrss;
    const double begin = dr_clock_now();
    if (strcmp(argv[1], "make") == 0) {
        make(backend, argv[2]);
    } else if (strcmp(argv[1], "read") == 0) {
        const double bytes = read_all(argv[2], NULL), seconds = dr_clock_now() - begin;
        need_3_gb(bytes);
        printf("read %.3f s, %.2f GB\n", seconds, bytes * 1e-9);
    } else if (strcmp(argv[1], "keep") == 0) {
        char *kept = aligned_alloc(2 * MB, (size_t)4096 * MB);
        if (!kept) return 1;
        madvise(kept, (size_t)4096 * MB, MADV_HUGEPAGE); /* as dr_allocate asks for */
        const double bytes = read_all(argv[2], kept), seconds = dr_clock_now() - begin;
        need_3_gb(bytes);
        printf("keep %.3f s, %.2f GB\n", seconds, bytes * 1e-9);
        free(kept);
    } else {
        check(dr_model_load(backend, argv[2], &model));
        const double seconds = dr_clock_now() - begin, weights = 4.0 * (double)dr_model_parameter_count(model);
        getrusage(RUSAGE_SELF, &use);
        need_3_gb(weights);
        printf("open %.3f s, %.3f of the weights resident at most\n", seconds,
               1024.0 * (double)(use.ru_maxrss - before) / weights);
        dr_model_destroy(model);
    }
    dr_backend_close(backend);
    return 0;
}
