/* The file is only ever appended to. A resumed run reads it first: what its checkpoint does not know is left out, since the run
 * will make it again, and if anything is to be left out or mended the file is replaced whole. Users keep notes in such files,
 * spreadsheets change their line ends and older versions wrote other columns: no line is dropped for being strange. */
#include "train/metrics.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "formats/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LONGEST_LINE = 8192,
    LONGEST_COLUMN = 120,
    ALWAYS_THERE = 11 /* columns that files of all versions have: the first ones */
};

static const char FILE_NAME[] = "metrics.csv";

static const char *const names[DR_METRICS_COLUMNS] = {
    "step",    "loss",    "bits_per_byte", "learning_rate",          "gradient_norm", "tokens_per_second",
    "seconds", "skipped", "held_out_loss", "held_out_bits_per_byte", "accuracy",      "balancing_loss"};

/* What is told of a held-out set. */
typedef struct {
    const char *name, *format;
    size_t offset; /* in dr_set_evaluation */
} measure;

static const measure of_text[] = {{"held_out_loss", "%.17g", offsetof(dr_set_evaluation, loss)},
                                  {"held_out_bits_per_byte", "%.6g", offsetof(dr_set_evaluation, bits_per_byte)}};
static const measure of_examples[] = {{"held_out_loss", "%.17g", offsetof(dr_set_evaluation, loss)},
                                      {"accuracy", "%.6g", offsetof(dr_set_evaluation, accuracy)},
                                      {"sequence_accuracy", "%.6g", offsetof(dr_set_evaluation, sequence_accuracy)}};

static int measures_of(const dr_set_names *sets) {
    return sets->of_text ? sizeof of_text / sizeof *of_text : sizeof of_examples / sizeof *of_examples;
}

/* That of a column behind those of all sets. */
static const measure *measure_of(const dr_set_names *sets, int column) {
    return (sets->of_text ? of_text : of_examples) + (column - DR_METRICS_COLUMNS) % measures_of(sets);
}

static int set_of(const dr_set_names *sets, int column) {
    return (column - DR_METRICS_COLUMNS) / measures_of(sets);
}

/* How many columns a run of these sets writes: those of sets that fit. */
static int columns_of(const dr_set_names *sets) {
    const int room = (DR_MOST_METRICS_COLUMNS - DR_METRICS_COLUMNS) / measures_of(sets);
    return DR_METRICS_COLUMNS + measures_of(sets) * (sets->count < room ? sets->count : room);
}

static const char *column_name(const dr_set_names *sets, int index, char text[LONGEST_COLUMN]) {
    if (index < DR_METRICS_COLUMNS) return names[index];
    snprintf(text, LONGEST_COLUMN, "%s:%s", measure_of(sets, index)->name, sets->names[set_of(sets, index)]);
    return text;
}

static dr_status fail_io(const dr_metrics *metrics, const char *action) {
    return dr_fail(DR_ERROR_IO, "cannot %s %s: %s", action, metrics->path, dr_system_text(errno));
}

/* ---- what is there -------------------------------------------------------------------------------------------------- */

/* Cuts the line end, "\n" or "\r\n"; false: it had none. *plain becomes false where it was not "\n". */
static bool cut_line_end(char *line, bool *plain) {
    size_t length = strlen(line);
    bool ended = length > 0 && line[length - 1] == '\n';
    if (ended) line[--length] = '\0';
    if (length > 0 && line[length - 1] == '\r') line[--length] = '\0', *plain = false;
    if (!ended) *plain = false;
    return ended;
}

static int cells_of(const char *line) {
    int cells = 1;
    for (; *line; line++) cells += *line == ',';
    return cells;
}

/* The text of a cell; *length: its bytes. */
static const char *cell_at(const char *line, int index, int *length) {
    for (; index > 0; index--) line += strcspn(line, ",") + 1;
    *length = (int)strcspn(line, ",");
    return line;
}

static int column_named(const dr_set_names *sets, const char *name, int length) {
    char text[LONGEST_COLUMN];
    for (int i = 0; i < columns_of(sets); i++) {
        const char *own = column_name(sets, i, text);
        if ((int)strlen(own) == length && memcmp(own, name, (size_t)length) == 0) return i;
    }
    return -1;
}

static dr_status refuse(const dr_metrics *metrics, const char *why) {
    return dr_fail(DR_ERROR_FORMAT, "%s %s; move it away to go on with a new one, or put back what the run wrote",
                   metrics->path, why);
}

static dr_status read_header(dr_metrics *metrics, const char *line) {
    char why[128];
    bool found[DR_MOST_METRICS_COLUMNS] = {false};
    metrics->columns = cells_of(line);
    if (metrics->columns > DR_MOST_METRICS_COLUMNS) return refuse(metrics, "has too many columns");
    for (int i = 0; i < metrics->columns; i++) {
        int length;
        const char *cell = cell_at(line, i, &length);
        metrics->column[i] = column_named(&metrics->sets, cell, length);
        if (metrics->column[i] < 0) continue;
        if (found[metrics->column[i]]) return refuse(metrics, "has a column twice");
        found[metrics->column[i]] = true;
    }
    for (int i = 0; i < ALWAYS_THERE; i++) {
        if (found[i]) continue;
        snprintf(why, sizeof why, "has no column \"%s\" in its first line", names[i]);
        return refuse(metrics, why);
    }
    return DR_OK;
}

static int step_place(const dr_metrics *metrics) {
    int place = 0;
    while (metrics->column[place] != 0) place++;
    return place;
}

/* The step in a line that has a cell for it, or -1 if that is none. */
static int64_t read_step(const dr_metrics *metrics, const char *line) {
    int length;
    const char *cell = cell_at(line, step_place(metrics), &length);
    char *end;
    errno = 0;
    long long step = strtoll(cell, &end, 10);
    return length > 0 && end == cell + length && errno == 0 && step > 0 ? step : -1;
}

/* A walk through the file's lines. */
typedef struct {
    int64_t step;   /* up to which lines are kept */
    int64_t last;   /* step of the line before */
    int64_t number; /* of the line at hand, from 1 */
    bool as_it_is;  /* nothing is to be left out or mended */
    dr_file *copy;  /* what is kept is written here, unless NULL */
} walk;

static dr_status refuse_line(const dr_metrics *metrics, const walk *at, int64_t step) {
    char why[128];
    snprintf(why, sizeof why, "has a line %lld that is %s", (long long)at->number,
             step < 0 ? "no step with all its columns" : "out of order");
    return refuse(metrics, why);
}

/* Whether a kill has left a part of a line. It is of a step after the checkpoint, which the run will make again: the lines
 * before a checkpoint are synced before it. */
static bool is_remainder(const dr_metrics *metrics, const walk *at, const char *line, bool ended) {
    int cells = cells_of(line);
    if (ended || cells >= metrics->columns) return false;
    bool step_is_whole = cells > step_place(metrics) + 1;
    return !step_is_whole || read_step(metrics, line) > at->step;
}

static dr_status visit_line(dr_metrics *metrics, walk *at, char *line) {
    bool ended = cut_line_end(line, &at->as_it_is), kept = true;
    if (at->number == 1) {
        DR_TRY(read_header(metrics, line));
    } else {
        bool remainder = is_remainder(metrics, at, line, ended);
        int64_t step = cells_of(line) == metrics->columns ? read_step(metrics, line) : -1;
        if (!remainder && (step < 0 || step <= at->last)) return refuse_line(metrics, at, step);
        kept = !remainder && step <= at->step;
        at->last = step;
    }
    if (!kept) at->as_it_is = false;
    if (!kept || !at->copy) return DR_OK;
    dr_file_write(at->copy, line, strlen(line));
    return dr_file_write(at->copy, "\n", 1);
}

static dr_status walk_lines(dr_metrics *metrics, FILE *file, walk *at) {
    char line[LONGEST_LINE];
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        at->number++;
        if (strlen(line) == sizeof line - 1) return refuse(metrics, "has a line too long to be a step's");
        DR_TRY(visit_line(metrics, at, line));
    }
    return ferror(file) ? fail_io(metrics, "read") : DR_OK;
}

/* Lines are strings: a zero byte would hide what stands behind it. */
static dr_status check_bytes(const dr_metrics *metrics, FILE *file) {
    char block[LONGEST_LINE];
    for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;)
        if (memchr(block, 0, got)) return refuse(metrics, "is no text: it has bytes that are 0");
    return ferror(file) ? fail_io(metrics, "read") : DR_OK;
}

/* Reads the columns, and replaces the file by what is kept of it, if that is not all. */
static dr_status keep_lines(dr_metrics *metrics, FILE *file, int64_t step) {
    walk look = {.step = step, .as_it_is = true}, write = {.step = step};
    dr_file copy;
    DR_TRY(check_bytes(metrics, file));
    DR_TRY(walk_lines(metrics, file, &look));
    if (look.as_it_is) return DR_OK;
    write.copy = &copy;
    dr_file_create(metrics->path, &copy);
    dr_status status = copy.status == DR_OK ? walk_lines(metrics, file, &write) : copy.status;
    if (copy.status == DR_OK) copy.status = status;
    return dr_file_finish(&copy);
}

/* ---- opening -------------------------------------------------------------------------------------------------------- */

static dr_status write_header(const char *path, const dr_set_names *sets) {
    char text[LONGEST_COLUMN];
    dr_file file;
    dr_file_create(path, &file);
    for (int i = 0; i < columns_of(sets); i++) {
        const char *name = column_name(sets, i, text);
        if (i > 0) dr_file_write(&file, ",", 1);
        dr_file_write(&file, name, strlen(name));
    }
    dr_file_write(&file, "\n", 1);
    return dr_file_finish(&file);
}

dr_status dr_metrics_begin(dr_folder *change, const dr_set_names *sets) {
    return write_header(dr_folder_path(change, FILE_NAME), sets);
}

static dr_status open_at(dr_metrics *metrics, int64_t step) {
    struct stat about;
    bool there = stat(metrics->path, &about) == 0;
    if (there && !S_ISREG(about.st_mode)) return refuse(metrics, "is not a regular file");
    if (!there || about.st_size == 0) DR_TRY(write_header(metrics->path, &metrics->sets));
    FILE *file = fopen(metrics->path, "re");
    if (!file) return fail_io(metrics, "open");
    dr_status status = keep_lines(metrics, file, step);
    fclose(file);
    DR_TRY(status);
    metrics->file = fopen(metrics->path, "ae");
    return metrics->file ? DR_OK : fail_io(metrics, "open");
}

/* To the file, or to what is held. */
static dr_status write_text(dr_metrics *metrics, const char *text, size_t bytes) {
    if (metrics->holds) {
        DR_TRY(dr_resize(&metrics->held, metrics->held_bytes, metrics->held_bytes + bytes, "lines of metrics"));
        memcpy((char *)metrics->held + metrics->held_bytes, text, bytes);
        metrics->held_bytes += bytes;
        return DR_OK;
    }
    if (bytes > 0) fwrite(text, 1, bytes, metrics->file);
    return fflush(metrics->file) != 0 || ferror(metrics->file) ? fail_io(metrics, "write") : DR_OK;
}

static dr_status start(const char *folder, const dr_set_names *sets, dr_metrics *metrics) {
    char path[PATH_MAX];
    *metrics = (dr_metrics){.sets = *sets};
    if (snprintf(path, sizeof path, "%s/%s", folder, FILE_NAME) >= (int)sizeof path)
        return dr_fail(DR_ERROR_ARGUMENT, "the path of the run folder %s is too long", folder);
    return dr_copy_string(path, &metrics->path);
}

dr_status dr_metrics_open(const char *folder, int64_t step, const dr_set_names *sets, dr_metrics *metrics) {
    DR_TRY(start(folder, sets, metrics));
    dr_status status = open_at(metrics, step);
    if (status != DR_OK) dr_metrics_close(metrics);
    return status;
}

dr_status dr_metrics_hold(const char *folder, const dr_set_names *sets, dr_metrics *metrics) {
    DR_TRY(start(folder, sets, metrics));
    metrics->holds = true;
    metrics->columns = columns_of(sets);
    for (int i = 0; i < metrics->columns; i++) metrics->column[i] = i;
    return DR_OK;
}

dr_status dr_metrics_settle(dr_metrics *metrics) {
    if (!metrics->holds) return DR_OK;
    DR_TRY(open_at(metrics, 0));
    metrics->holds = false;
    return write_text(metrics, metrics->held, metrics->held_bytes);
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

enum { LONGEST_CELL = DR_NUMBER_SIZE };

/* A cell's text, or "" where there is nothing to tell. */
static void print_cell(char cell[LONGEST_CELL], bool present, const char *format, double number) {
    cell[0] = '\0';
    if (present) dr_format(cell, LONGEST_CELL, format, number);
}

/* An editor that saved the file, or whoever removed it, has left the run with one that nobody finds: what stands there now is
 * gone on with. */
static dr_status find_again(dr_metrics *metrics, int64_t step) {
    struct stat opened, named;
    bool same = fstat(fileno(metrics->file), &opened) == 0 && stat(metrics->path, &named) == 0 &&
                opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
    if (same) return DR_OK;
    fclose(metrics->file);
    metrics->file = NULL;
    return open_at(metrics, step);
}

dr_status dr_metrics_append(dr_metrics *metrics, const dr_progress *progress, const dr_evaluation *evaluation) {
    char cells[DR_MOST_METRICS_COLUMNS][LONGEST_CELL], line[DR_MOST_METRICS_COLUMNS * (LONGEST_CELL + 1)];
    int used = 0;
    if (!metrics->holds) DR_TRY(find_again(metrics, progress->step - 1));
    snprintf(cells[0], LONGEST_CELL, "%lld", (long long)progress->step);
    print_cell(cells[1], true, "%.17g", progress->loss);
    print_cell(cells[2], !isnan(progress->bits_per_byte), "%.6g", progress->bits_per_byte);
    print_cell(cells[3], true, "%.6g", progress->learning_rate);
    print_cell(cells[4], true, "%.6g", progress->gradient_norm);
    print_cell(cells[5], true, "%.6g", progress->tokens_per_second);
    print_cell(cells[6], true, "%.3f", progress->seconds);
    snprintf(cells[7], LONGEST_CELL, "%lld", (long long)progress->skipped);
    print_cell(cells[8], evaluation != NULL, "%.17g", evaluation ? evaluation->loss : 0);
    print_cell(cells[9], evaluation && !isnan(evaluation->bits_per_byte), "%.6g", evaluation ? evaluation->bits_per_byte : 0);
    print_cell(cells[10], evaluation && !isnan(evaluation->accuracy), "%.6g", evaluation ? evaluation->accuracy : 0);
    print_cell(cells[11], !isnan(progress->balancing_loss), "%.9g", progress->balancing_loss);
    for (int i = DR_METRICS_COLUMNS; i < columns_of(&metrics->sets); i++) {
        const measure *told = measure_of(&metrics->sets, i);
        double number = (double)NAN;
        if (evaluation)
            memcpy(&number, (const char *)&evaluation->sets[set_of(&metrics->sets, i)] + told->offset, sizeof number);
        print_cell(cells[i], !isnan(number), told->format, number);
    }
    for (int i = 0; i < metrics->columns; i++)
        used += snprintf(line + used, sizeof line - (size_t)used, "%s%s", i > 0 ? "," : "",
                         metrics->column[i] < 0 ? "" : cells[metrics->column[i]]);
    line[used++] = '\n';
    return write_text(metrics, line, (size_t)used);
}

dr_status dr_metrics_sync(dr_metrics *metrics) {
    return fsync(fileno(metrics->file)) == 0 ? DR_OK : fail_io(metrics, "sync");
}

void dr_metrics_close(dr_metrics *metrics) {
    if (metrics->file) fclose(metrics->file);
    dr_release(metrics->held);
    dr_release(metrics->path);
    *metrics = (dr_metrics){0};
}
