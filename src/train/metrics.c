/* The file is only ever appended to. A resumed run cuts it back to its checkpoint first: it will make the lines after it again.
 */
#include "train/metrics.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { LONGEST_LINE = 512 };

static const char HEADER[] =
    "step,loss,bits_per_byte,learning_rate,gradient_norm,tokens_per_second,seconds,skipped,held_out_loss,"
    "held_out_bits_per_byte,accuracy\n";

static dr_status fail_io(const dr_metrics *metrics, const char *action) {
    return dr_fail(DR_ERROR_IO, "cannot %s %s: %s", action, metrics->path, dr_system_text(errno));
}

/* Where the lines end that are kept: the header and whole lines of steps up to `step`. */
static long kept_length(FILE *file, int64_t step) {
    char line[LONGEST_LINE];
    long length = 0;
    while (fgets(line, sizeof line, file)) {
        bool whole = strchr(line, '\n') != NULL, is_header = length == 0 && strcmp(line, HEADER) == 0;
        if (!whole || (!is_header && (length == 0 || strtoll(line, NULL, 10) > step))) break;
        length += (long)strlen(line);
    }
    return length;
}

static dr_status open_at(dr_metrics *metrics, int64_t step) {
    int descriptor = open(metrics->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return fail_io(metrics, "open");
    metrics->file = fdopen(descriptor, "r+");
    if (!metrics->file) {
        close(descriptor);
        return fail_io(metrics, "open");
    }
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return fail_io(metrics, "lock");
        return dr_fail(DR_ERROR_IO, "another process is training in this run folder: %s is locked", metrics->path);
    }
    long length = kept_length(metrics->file, step);
    if (ferror(metrics->file)) return fail_io(metrics, "read");
    if (ftruncate(descriptor, length) != 0 || fseek(metrics->file, length, SEEK_SET) != 0) return fail_io(metrics, "shorten");
    if (length == 0 && (fputs(HEADER, metrics->file) < 0 || fflush(metrics->file) != 0)) return fail_io(metrics, "write");
    return DR_OK;
}

dr_status dr_metrics_open(const char *folder, int64_t step, dr_metrics *metrics) {
    char path[PATH_MAX];
    *metrics = (dr_metrics){0};
    if (snprintf(path, sizeof path, "%s/metrics.csv", folder) >= (int)sizeof path)
        return dr_fail(DR_ERROR_ARGUMENT, "the path of the run folder %s is too long", folder);
    DR_TRY(dr_copy_string(path, &metrics->path));
    dr_status status = open_at(metrics, step);
    if (status != DR_OK) dr_metrics_close(metrics);
    return status;
}

/* ",number", or only the comma where there is nothing to tell. */
static void print_cell(FILE *file, bool present, const char *format, double number) {
    fputc(',', file);
    if (present) dr_print(file, format, number);
}

dr_status dr_metrics_append(dr_metrics *metrics, const dr_progress *progress, const dr_evaluation *evaluation) {
    FILE *file = metrics->file;
    bool is_text = !isnan(progress->bits_per_byte);
    dr_print(file, "%lld,%.17g", (long long)progress->step, progress->loss);
    print_cell(file, is_text, "%.6g", progress->bits_per_byte);
    dr_print(file, ",%.6g,%.6g,%.6g,%.3f,%lld", progress->learning_rate, progress->gradient_norm, progress->tokens_per_second,
             progress->seconds, (long long)progress->skipped);
    print_cell(file, evaluation != NULL, "%.17g", evaluation ? evaluation->loss : 0);
    print_cell(file, evaluation && !isnan(evaluation->bits_per_byte), "%.6g", evaluation ? evaluation->bits_per_byte : 0);
    print_cell(file, evaluation && !isnan(evaluation->accuracy), "%.6g", evaluation ? evaluation->accuracy : 0);
    fputc('\n', file);
    if (fflush(file) != 0 || ferror(file)) return fail_io(metrics, "write");
    return DR_OK;
}

dr_status dr_metrics_sync(dr_metrics *metrics) {
    return fsync(fileno(metrics->file)) == 0 ? DR_OK : fail_io(metrics, "sync");
}

void dr_metrics_close(dr_metrics *metrics) {
    if (metrics->file) fclose(metrics->file);
    dr_release(metrics->path);
    *metrics = (dr_metrics){0};
}
