/* metrics.csv of a run: its columns as measures, and one column as a curve. Columns of an evaluation count as their last line
 * has them, those of every step as the mean of the last twentieth of the steps, which says more of a noisy loss than one step.
 */
#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "check/experiment/experiment.h"
#include "formats/file.h"

#include <math.h>
#include <string.h>

enum { MOST_COLUMNS = 64, MOST_METRICS_BYTES = 1 << 28 };

typedef struct {
    char *name[MOST_COLUMNS];
    int columns, step;
} header;

/* Cuts a line at its commas. */
static int split(char *line, char *cell[MOST_COLUMNS]) {
    int count = 0;
    line[strcspn(line, "\r")] = '\0';
    for (char *next = line; next && count < MOST_COLUMNS;) {
        cell[count++] = next;
        next = strchr(next, ',');
        if (next) *next++ = '\0';
    }
    return count;
}

/* The share of the steps behind which a column of every step counts, as a mean; 1: the last one counts. */
static double counted_behind(const char *name) {
    if (strcmp(name, "loss") == 0 || strcmp(name, "bits_per_byte") == 0) return 0.95;
    return strcmp(name, "tokens_per_second") == 0 ? 0.5 : 1;
}

typedef struct {
    double last[MOST_COLUMNS], sum[MOST_COLUMNS];
    int64_t count[MOST_COLUMNS];
    double steps;
} totals;

static void add_line(const header *of, char *line, double steps, totals *into) {
    char *cell[MOST_COLUMNS];
    double step = 0, value;
    const int count = split(line, cell);
    if (count <= of->step || !dr_number_parse(cell[of->step], DR_NUMBER_FINITE, &step)) return;
    into->steps = step;
    for (int c = 0; c < count && c < of->columns; c++) {
        if (!dr_number_parse(cell[c], DR_NUMBER_FINITE, &value)) continue;
        into->last[c] = value;
        if (step <= counted_behind(of->name[c]) * steps) continue;
        into->sum[c] += value;
        into->count[c]++;
    }
}

/* The last step of a text of lines. */
static double last_step(const char *text, int column) {
    const size_t length = strlen(text);
    const char *line = text + (length && text[length - 1] == '\n' ? length - 1 : length);
    double step = 0;
    while (line > text && line[-1] != '\n') line--;
    for (; column > 0 && *line; column--) line += strcspn(line, ",") + 1;
    dr_number_read(line, strcspn(line, ",\n"), DR_NUMBER_FINITE, &step);
    return step;
}

/* Reads the header, over which it writes. *body: the lines behind it; DR_ERROR_FORMAT if there is none. */
static dr_status read_header(char *text, header *of, char **body) {
    *of = (header){.step = -1};
    *body = strchr(text, '\n');
    if (*body) *(*body)++ = '\0';
    of->columns = split(text, of->name);
    for (int c = 0; c < of->columns; c++)
        if (strcmp(of->name[c], "step") == 0) of->step = c;
    return of->step < 0 || !*body || !**body ? dr_fail(DR_ERROR_FORMAT, "it has no steps") : DR_OK;
}

/* Ends a line with a zero byte; returns the next one, or NULL. */
static char *cut_line(char *line) {
    char *next = strchr(line, '\n');
    if (next) *next++ = '\0';
    return next;
}

static dr_status no_memory(void) {
    return dr_fail(DR_ERROR_MEMORY, "there is no memory for what it says");
}

static dr_status read_measures(char *text, json_t *measures) {
    header of;
    totals found = {.steps = 0};
    char *body;
    DR_TRY(read_header(text, &of, &body));
    for (int c = 0; c < of.columns; c++) found.last[c] = (double)NAN;
    const double steps = last_step(body, of.step);
    for (char *line = body, *next; line && *line; line = next) {
        next = cut_line(line);
        add_line(&of, line, steps, &found);
    }
    int failed = json_object_set_new(measures, "steps", json_real(found.steps));
    for (int c = 0; c < of.columns && !failed; c++) {
        const double value = found.count[c] ? found.sum[c] / (double)found.count[c] : found.last[c];
        if (c != of.step && isfinite(value)) failed = json_object_set_new(measures, of.name[c], json_real(value));
    }
    return failed ? no_memory() : DR_OK;
}

dr_status dr_metrics_measures(const char *path, json_t **measures) {
    char *text;
    size_t bytes;
    DR_TRY(dr_file_read(path, MOST_METRICS_BYTES, &text, &bytes));
    *measures = json_object();
    dr_status status = *measures ? read_measures(text, *measures) : no_memory();
    dr_release(text);
    if (status == DR_OK) return DR_OK;
    json_decref(*measures);
    *measures = NULL;
    return dr_fail_in(status, "%s", path);
}

/* ---- a curve -------------------------------------------------------------------------------------------------------- */

/* The mean of some steps of a column. */
typedef struct {
    double sum, step;
    int64_t count;
} bin;

/* Appends [step, mean] and empties the bin. */
static dr_status end_bin(bin *of, json_t *points) {
    char text[DR_NUMBER_SIZE];
    double rounded = 0;
    if (of->count == 0) return DR_OK;
    dr_format(text, sizeof text, "%.6g", of->sum / (double)of->count);
    dr_number_parse(text, DR_NUMBER_FINITE, &rounded);
    json_t *point = json_pack("[I, f]", (json_int_t)of->step, rounded);
    *of = (bin){0};
    return !point || json_array_append_new(points, point) ? no_memory() : DR_OK;
}

static dr_status read_curve(char *text, const char *column, int most, json_t *points) {
    header of;
    bin now = {0};
    char *body, *cell[MOST_COLUMNS];
    int at = -1;
    DR_TRY(read_header(text, &of, &body));
    for (int c = 0; c < of.columns; c++)
        if (strcmp(of.name[c], column) == 0) at = c;
    const double width = last_step(body, of.step) / most;
    double end = width;
    for (char *line = body, *next; line && *line; line = next) {
        next = cut_line(line);
        double step, value;
        const int count = split(line, cell);
        if (at < 0 || count <= at || count <= of.step || !dr_number_parse(cell[of.step], DR_NUMBER_FINITE, &step) ||
            !dr_number_parse(cell[at], DR_NUMBER_FINITE, &value))
            continue;
        now = (bin){.sum = now.sum + value, .step = step, .count = now.count + 1};
        if (step < end) continue;
        DR_TRY(end_bin(&now, points));
        while (end <= step) end += width;
    }
    return end_bin(&now, points);
}

dr_status dr_metrics_curve(const char *path, const char *column, int most, json_t **points) {
    char *text;
    size_t bytes;
    DR_TRY(dr_file_read(path, MOST_METRICS_BYTES, &text, &bytes));
    *points = json_array();
    dr_status status = *points ? read_curve(text, column, most, *points) : no_memory();
    dr_release(text);
    if (status == DR_OK) return DR_OK;
    json_decref(*points);
    *points = NULL;
    return dr_fail_in(status, "%s", path);
}
