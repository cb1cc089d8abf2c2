/* What opening a model of 3 GB costs beside reading its files once: seconds and the most memory that is resident. `make FOLDER`
 * writes a model of random weights in files of 512 MB, `read FOLDER` reads its files into one small buffer, `keep FOLDER` into
 * memory of their size, as whoever needs the weights must, and `open FOLDER` loads the model. Touching new memory costs more
 * than reading on many virtual machines, whose host backs a page when it is touched first: `keep` holds that cost, `read` does
 * not. */
#include <deltarule/model.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MB = 1 << 20 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "%s\n", dr_last_error());
    exit(1);
}

static void make(dr_backend *backend, const char *folder) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    dr_model *model;
    config.vocabulary = 32000, config.hidden = 2048, config.layers = 11, config.heads = 8, config.value_size = 256;
    check(dr_model_create(backend, &config, 1, &model));
    check(dr_model_save_as(model, folder, DR_F32, (int64_t)512 * MB));
    dr_model_destroy(model);
}

/* Reads all files into `kept`, one behind another, or into one small buffer where kept is NULL; returns their bytes. */
static double read_all(const char *folder, char *kept) {
    static char piece[4 * MB];
    DIR *stream = opendir(folder);
    size_t bytes = 0;
    for (const struct dirent *item = stream ? readdir(stream) : NULL; item; item = readdir(stream)) {
        char path[PATH_MAX];
        if (!strstr(item->d_name, ".safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, item->d_name);
        const int file = open(path, O_RDONLY);
        for (ssize_t got; (got = read(file, kept ? kept + bytes : piece, sizeof piece)) > 0;) bytes += (size_t)got;
        close(file);
    }
    if (stream) closedir(stream);
    return (double)bytes;
}

int main(int argc, char **argv) {
    dr_backend *backend;
    dr_model *model;
    struct rusage use;
    if (argc != 3) return 2;
    check(dr_backend_open("cpu", NULL, &backend));
    getrusage(RUSAGE_SELF, &use);
    const long before = use.ru_maxrss;
    const double begin = now();
    if (strcmp(argv[1], "make") == 0) {
        make(backend, argv[2]);
    } else if (strcmp(argv[1], "read") == 0) {
        const double bytes = read_all(argv[2], NULL);
        printf("read %.3f s, %.2f GB\n", now() - begin, bytes * 1e-9);
    } else if (strcmp(argv[1], "keep") == 0) {
        char *kept = aligned_alloc(2 * MB, (size_t)4096 * MB);
        if (!kept) return 1;
        madvise(kept, (size_t)4096 * MB, MADV_HUGEPAGE); /* as dr_allocate asks for */
        const double bytes = read_all(argv[2], kept);
        printf("keep %.3f s, %.2f GB\n", now() - begin, bytes * 1e-9);
        free(kept);
    } else {
        check(dr_model_load(backend, argv[2], &model));
        const double seconds = now() - begin, weights = 4.0 * (double)dr_model_parameter_count(model);
        getrusage(RUSAGE_SELF, &use);
        printf("open %.3f s, %.3f of the weights resident at most\n", seconds,
               1024.0 * (double)(use.ru_maxrss - before) / weights);
        dr_model_destroy(model);
    }
    dr_backend_close(backend);
    return 0;
}
