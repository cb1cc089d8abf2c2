/* Reports on the cells that are done: a table for readers, the same as CSV, cells and claims as JSON lines, and commands of
 * gnuplot. Each can be made while other cells still run. */
#include "base/error.h"
#include "base/json.h"
#include "base/number.h"
#include "check/experiment/experiment.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, ORIGIN = 320, MEASURE_WIDTH = 32, PANELS_A_LINE = 3 };

typedef struct {
    const dr_experiment *experiment;
    const json_t *measures;
    void (*line)(void *context, const char *text);
    void *context;
} reporter;

static const char *measure_at(const reporter *self, size_t index) {
    return json_string_value(json_array_get(self->measures, index));
}

static int done_of_row(const dr_experiment *experiment, int row) {
    int done = 0;
    for (int s = 0; s < experiment->seeds; s++) done += experiment->cell[row * experiment->seeds + s].state == DR_CELL_DONE;
    return done;
}

static dr_spread spread_of_row(const reporter *self, int row, size_t measure) {
    double values[DR_MOST_SEEDS];
    int count = dr_row_values(self->experiment, row, measure_at(self, measure), values, NULL);
    return dr_spread_of(values, count);
}

/* Columns that a text takes on a terminal, one a character. */
static int width_of(const char *text) {
    int width = 0;
    for (; *text; text++) width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

static int pad(char *text, int used, const char *what, int width) {
    return used + snprintf(text + used, (size_t)(LINE - used), "%s%*s  ", what,
                           width > width_of(what) ? width - width_of(what) : 0, "");
}

/* ---- the table ------------------------------------------------------------------------------------------------------ */

static int axis_width(const dr_axis *axis) {
    int width = width_of(axis->name);
    for (int v = 0; v < axis->count; v++)
        if (width_of(axis->value[v].label) > width) width = width_of(axis->value[v].label);
    return width;
}

static int measure_width(const reporter *self, size_t measure) {
    const int width = width_of(measure_at(self, measure));
    return width > MEASURE_WIDTH ? width : MEASURE_WIDTH;
}

static void table_row(const reporter *self, int row) {
    const dr_experiment *experiment = self->experiment;
    char text[LINE], cell[64];
    int used = 0;
    for (int a = 0; a < experiment->axes; a++)
        used = pad(text, used, experiment->axis[a].value[dr_row_value(experiment, row, a)].label,
                   axis_width(&experiment->axis[a]));
    snprintf(cell, sizeof cell, "%d/%d", done_of_row(experiment, row), experiment->seeds);
    used = pad(text, used, cell, 5);
    for (size_t m = 0; m < json_array_size(self->measures) && used < LINE - 256; m++) {
        dr_spread spread = spread_of_row(self, row, m);
        if (spread.count > 0)
            dr_format(cell, sizeof cell, "%.4g [%.4g, %.4g]", spread.median, spread.low, spread.high);
        else
            snprintf(cell, sizeof cell, "-");
        used = pad(text, used, cell, measure_width(self, m));
    }
    while (used > 0 && text[used - 1] == ' ') used--;
    text[used] = '\0';
    self->line(self->context, text);
}

static void table_head(const reporter *self) {
    const dr_experiment *experiment = self->experiment;
    char text[LINE];
    int used = 0;
    for (int a = 0; a < experiment->axes; a++)
        used = pad(text, used, experiment->axis[a].name, axis_width(&experiment->axis[a]));
    used = pad(text, used, "seeds", 5);
    for (size_t m = 0; m < json_array_size(self->measures) && used < LINE - 256; m++)
        used = pad(text, used, measure_at(self, m), measure_width(self, m));
    while (used > 0 && text[used - 1] == ' ') used--;
    text[used] = '\0';
    self->line(self->context, text);
}

/* What the intervals of so many seeds are. */
static void tell_interval(const reporter *self) {
    char text[LINE];
    double values[DR_MOST_SEEDS];
    for (int s = 0; s < self->experiment->seeds; s++) values[s] = s;
    const dr_spread spread = dr_spread_of(values, self->experiment->seeds);
    if (self->experiment->seeds == 1) {
        self->line(self->context, "one seed: no interval, and what is below the difference of seeds is noise");
        return;
    }
    dr_format(text, sizeof text, "median of the seeds [interval that covers the median with %.3g%%, of %d seeds%s]",
              100 * spread.coverage, self->experiment->seeds, spread.low > 0 ? "" : ": from the least to the greatest");
    self->line(self->context, text);
}

/* How many runs are recorded of the place of this one; 0: it is not recorded, or one before it is of that place too. */
static int count_of_origin(const dr_experiment *experiment, int cell, char origin[ORIGIN]) {
    int count = 0;
    if (!experiment->cell[cell].record) return 0;
    dr_recorded_origin(experiment->cell[cell].record, origin, ORIGIN);
    for (int i = 0; i < dr_experiment_cells(experiment); i++) {
        char other[ORIGIN];
        if (!experiment->cell[i].record) continue;
        dr_recorded_origin(experiment->cell[i].record, other, sizeof other);
        const bool same = strcmp(origin, other) == 0;
        if (same && i < cell) return 0;
        count += same;
    }
    return count;
}

static void tell_origins(const reporter *self) {
    const int cells = dr_experiment_cells(self->experiment);
    for (int i = 0; i < cells; i++) {
        char origin[ORIGIN], text[LINE];
        const int count = count_of_origin(self->experiment, i, origin);
        if (count == 0) continue;
        snprintf(text, sizeof text, "recorded: %d of %d runs, %s", count, cells, origin);
        self->line(self->context, text);
    }
}

static void nobody(void *context, const char *text) {
    (void)context;
    (void)text;
}

static dr_status table_claims(const reporter *self) {
    const json_t *claims = json_object_get(self->experiment->file, "claims");
    for (size_t i = 0; i < json_array_size(claims); i++) {
        dr_claim claim;
        char text[LINE];
        DR_TRY(dr_claim_read(self->experiment, json_array_get(claims, i), &claim));
        const dr_judgement judgement = dr_claim_judge(self->experiment, &claim, nobody, NULL);
        self->line(self->context, "");
        int used = snprintf(text, sizeof text, "%s: %s (%s)", dr_verdict_name(judgement.verdict), claim.text, claim.measure);
        if (judgement.judged > 0 &&
            (judgement.judged < judgement.comparisons || judgement.least_seeds < self->experiment->seeds))
            snprintf(text + used, sizeof text - (size_t)used, "; so far %d of %d comparisons, by %d or more of %d seeds",
                     judgement.judged, judgement.comparisons, judgement.least_seeds, self->experiment->seeds);
        self->line(self->context, text);
        dr_claim_judge(self->experiment, &claim, self->line, self->context);
    }
    return DR_OK;
}

static dr_status report_table(const reporter *self) {
    char text[LINE];
    snprintf(text, sizeof text, "%s", dr_experiment_title(self->experiment));
    self->line(self->context, text);
    snprintf(text, sizeof text, "%s", dr_experiment_source(self->experiment));
    self->line(self->context, text);
    self->line(self->context, "");
    table_head(self);
    for (int row = 0; row < self->experiment->rows; row++) table_row(self, row);
    self->line(self->context, "");
    tell_interval(self);
    tell_origins(self);
    return table_claims(self);
}

/* ---- CSV ------------------------------------------------------------------------------------------------------------ */

/* A text as a cell: quoted where it has a comma or a quote. */
static int csv_cell(char *text, int used, const char *what) {
    const bool quoted = strpbrk(what, ",\"\n") != NULL;
    if (quoted && used < LINE - 1) text[used++] = '"';
    for (; *what && used < LINE - 4; what++) {
        if (*what == '"') text[used++] = '"';
        text[used++] = *what;
    }
    if (quoted) text[used++] = '"';
    text[used] = '\0';
    return used;
}

static dr_status report_csv(const reporter *self) {
    const dr_experiment *experiment = self->experiment;
    char text[LINE], label[256];
    int used = 0;
    for (int a = 0; a < experiment->axes; a++) {
        used = csv_cell(text, used, experiment->axis[a].name);
        text[used++] = ',';
    }
    used += snprintf(text + used, (size_t)(LINE - used), "done,seeds");
    for (size_t m = 0; m < json_array_size(self->measures) && used < LINE - 512; m++)
        for (int k = 0; k < 3; k++) {
            static const char *const parts[] = {"", ":low", ":high"};
            snprintf(label, sizeof label, "%.120s%s", measure_at(self, m), parts[k]);
            text[used++] = ',';
            used = csv_cell(text, used, label);
        }
    self->line(self->context, text);
    for (int row = 0; row < experiment->rows; row++) {
        used = 0;
        for (int a = 0; a < experiment->axes; a++) {
            used = csv_cell(text, used, experiment->axis[a].value[dr_row_value(experiment, row, a)].label);
            text[used++] = ',';
        }
        used += snprintf(text + used, (size_t)(LINE - used), "%d,%d", done_of_row(experiment, row), experiment->seeds);
        for (size_t m = 0; m < json_array_size(self->measures) && used < LINE - 256; m++) {
            const dr_spread spread = spread_of_row(self, row, m);
            used += spread.count > 0 ? dr_format(text + used, (size_t)(LINE - used), ",%.9g,%.9g,%.9g", spread.median,
                                                 spread.low, spread.high)
                                     : snprintf(text + used, (size_t)(LINE - used), ",,,");
        }
        self->line(self->context, text);
    }
    return DR_OK;
}

/* ---- JSON lines ----------------------------------------------------------------------------------------------------- */

static dr_status json_line(const reporter *self, json_t *object) {
    char *text = object ? dr_json_format(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text) return dr_fail(DR_ERROR_MEMORY, "there is no memory for a line of JSON");
    self->line(self->context, text);
    free(text);
    return DR_OK;
}

static dr_status report_json(const reporter *self) {
    const dr_experiment *experiment = self->experiment;
    for (int i = 0; i < dr_experiment_cells(experiment); i++) {
        const dr_cell *cell = &experiment->cell[i];
        if (cell->state != DR_CELL_DONE) continue;
        json_t *labels = json_object();
        for (int a = 0; labels && a < experiment->axes; a++)
            json_object_set_new(
                labels, experiment->axis[a].name,
                json_string(experiment->axis[a].value[dr_row_value(experiment, i / experiment->seeds, a)].label));
        DR_TRY(json_line(self, json_pack("{s:s, s:o, s:i, s:O, s:O}", "cell", cell->name, "grid", labels, "seed",
                                         i % experiment->seeds + 1, "measures", cell->measures, "settings", cell->settings)));
    }
    const json_t *claims = json_object_get(experiment->file, "claims");
    for (size_t i = 0; i < json_array_size(claims); i++) {
        dr_claim claim;
        DR_TRY(dr_claim_read(experiment, json_array_get(claims, i), &claim));
        const dr_judgement judgement = dr_claim_judge(experiment, &claim, nobody, NULL);
        static const char *const names[] = {[DR_CLAIM_NOT_RUN] = "not_run",
                                            [DR_CLAIM_HOLDS] = "holds",
                                            [DR_CLAIM_EVEN] = "even",
                                            [DR_CLAIM_IN_MEDIAN] = "in_median",
                                            [DR_CLAIM_FAILS] = "fails"};
        DR_TRY(json_line(self, json_pack("{s:s, s:s, s:s, s:i, s:i, s:i}", "claim", claim.text, "measure", claim.measure,
                                         "verdict", names[judgement.verdict], "comparisons", judgement.comparisons, "judged",
                                         judgement.judged, "least_seeds", judgement.least_seeds)));
    }
    return DR_OK;
}

/* ---- gnuplot -------------------------------------------------------------------------------------------------------- */

/* In single quotes as gnuplot reads them: a quote is doubled, a line end would end the command. */
static int quote(char *text, int used, const char *what) {
    text[used++] = '\'';
    for (; *what && used < LINE - 4; what++) {
        if (*what == '\'') text[used++] = '\'';
        text[used++] = *what == '\n' ? ' ' : *what;
    }
    text[used++] = '\'';
    text[used] = '\0';
    return used;
}

/* "pdn 0.004": the labels of a row, in double quotes within a data block. */
static int row_label(const dr_experiment *experiment, int row, char *text, int used) {
    text[used++] = '"';
    for (int a = 0; a < experiment->axes; a++) {
        const char *label = experiment->axis[a].value[dr_row_value(experiment, row, a)].label;
        if (a > 0) text[used++] = ' ';
        for (; *label && used < LINE - 8; label++) text[used++] = *label == '"' || *label == '\\' ? '\'' : *label;
    }
    text[used++] = '"';
    text[used] = '\0';
    return used;
}

/* A step of 1, 2 or 5 times a power of ten that has a width in four parts or fewer, so that the numbers below a panel stand
 * apart. */
static double step_of_tics(double width) {
    const double power = pow(10, floor(log10(width / 4))), parts = width / 4 / power;
    return power * (parts <= 1 ? 1 : parts <= 2 ? 2 : parts <= 5 ? 5 : 10);
}

/* Rows from top to bottom, a point with its interval each; a panel a measure. */
static void plot_panel(const reporter *self, int panel) {
    char text[LINE];
    double low = (double)INFINITY, high = -(double)INFINITY;
    for (int row = 0; row < self->experiment->rows; row++) {
        const dr_spread spread = spread_of_row(self, row, (size_t)panel);
        if (spread.low < low) low = spread.low;
        if (spread.high > high) high = spread.high;
    }
    const double margin = high > low ? 0.05 * (high - low) : 0.5;
    quote(text, snprintf(text, sizeof text, "set title "), measure_at(self, (size_t)panel));
    self->line(self->context, text);
    if (low <= high)
        dr_format(text, sizeof text, "set xrange [%.9g:%.9g]\nset xtics %.3g", low - margin, high + margin,
                  step_of_tics(high - low + 2 * margin));
    else
        snprintf(text, sizeof text, "set xrange [0:1]\nset xtics 0.5"); /* nothing is done yet */
    self->line(self->context, text);
    snprintf(text, sizeof text, "plot $measure%d using 2:1:3:4:yticlabels(5) with xerrorbars pointtype 7", panel);
    self->line(self->context, text);
}

/* A column of metrics.csv over the steps of every run that has begun, a colour a row of the grid. */
static void plot_curves(const reporter *self, const char *column) {
    const dr_experiment *experiment = self->experiment;
    char text[LINE];
    bool any = false;
    self->line(self->context,
               "set datafile separator ','\nset xrange [*:*]\nset xtics auto\nset yrange [*:*]\nset key on\nset xlabel 'step'");
    quote(text, snprintf(text, sizeof text, "set title "), column);
    self->line(self->context, text);
    for (int i = 0; i < dr_experiment_cells(experiment); i++) {
        const int row = i / experiment->seeds;
        if (experiment->cell[i].state == DR_CELL_MISSING) continue;
        int used = snprintf(text, sizeof text, "%s ", any ? "    ," : "plot");
        if (json_object_get(experiment->cell[i].record, "curve")) {
            used += snprintf(text + used, sizeof text - (size_t)used, "$curve%d using 1:2", i);
        } else {
            used +=
                snprintf(text + used, sizeof text - (size_t)used, "'%s/metrics.csv' using 'step':", experiment->cell[i].name);
            used = quote(text, used, column);
        }
        used += snprintf(text + used, sizeof text - (size_t)used, " with lines linetype %d ", row + 1);
        if (i % experiment->seeds == 0)
            row_label(experiment, row, text, used + snprintf(text + used, sizeof text - (size_t)used, "title "));
        else
            snprintf(text + used, sizeof text - (size_t)used, "notitle");
        const size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, " \\");
        self->line(self->context, text);
        any = true;
    }
    self->line(self->context, any ? "" : "plot [0:1] NaN notitle");
}

/* The curves that are recorded, a data block each. */
static void plot_recorded(const reporter *self) {
    char text[LINE];
    for (int i = 0; i < dr_experiment_cells(self->experiment); i++) {
        const json_t *points = json_object_get(self->experiment->cell[i].record, "curve");
        if (!points) continue;
        snprintf(text, sizeof text, "$curve%d << END", i);
        self->line(self->context, text);
        for (size_t p = 0; p < json_array_size(points); p++) {
            const json_t *point = json_array_get(points, p);
            dr_format(text, sizeof text, "%.9g,%.9g", json_number_value(json_array_get(point, 0)),
                      json_number_value(json_array_get(point, 1)));
            self->line(self->context, text);
        }
        self->line(self->context, "END");
    }
}

static dr_status report_plot(const reporter *self) {
    const dr_experiment *experiment = self->experiment;
    const int panels = (int)json_array_size(self->measures);
    const char *curves = json_string_value(json_object_get(experiment->file, "curves"));
    char text[LINE];
    for (int m = 0; m < panels; m++) {
        snprintf(text, sizeof text, "$measure%d << END", m);
        self->line(self->context, text);
        for (int row = 0; row < experiment->rows; row++) {
            const dr_spread spread = spread_of_row(self, row, (size_t)m);
            int used = spread.count > 0
                           ? dr_format(text, sizeof text, "%d %.9g %.9g %.9g ", row, spread.median, spread.low, spread.high)
                           : snprintf(text, sizeof text, "%d NaN NaN NaN ", row);
            row_label(experiment, row, text, used);
            self->line(self->context, text);
        }
        self->line(self->context, "END");
    }
    if (curves) plot_recorded(self);
    self->line(self->context, "set encoding utf8");
    const int rows = experiment->rows < 20 && curves ? 20 : experiment->rows; /* curves need their height */
    const int all = panels + (curves != NULL), across = all > PANELS_A_LINE ? PANELS_A_LINE : all > 0 ? all : 1;
    const int down = (all + across - 1) / across;
    snprintf(text, sizeof text, "set terminal pngcairo size %d,%d noenhanced font 'Sans,9'", 60 + 480 * across,
             down * (110 + 17 * rows));
    self->line(self->context, text);
    self->line(self->context, "set output 'picture.png'");
    int used = snprintf(text, sizeof text, "set multiplot layout %d,%d title ", down, across);
    quote(text, used, dr_experiment_title(experiment));
    self->line(self->context, text);
    snprintf(text, sizeof text, "set grid\nset key off\nset yrange [%d.5:-0.5]", experiment->rows - 1);
    self->line(self->context, text);
    for (int m = 0; m < panels; m++) plot_panel(self, m);
    if (curves) plot_curves(self, curves);
    self->line(self->context, "unset multiplot");
    return DR_OK;
}

dr_status dr_experiment_report(const dr_experiment *experiment, dr_report report, void (*line)(void *context, const char *text),
                               void *context) {
    DR_NEED(experiment);
    DR_NEED(line);
    const reporter self = {experiment, json_object_get(experiment->file, "measures"), line, context};
    switch (report) {
    case DR_REPORT_TABLE:
        return report_table(&self);
    case DR_REPORT_CSV:
        return report_csv(&self);
    case DR_REPORT_JSON:
        return report_json(&self);
    case DR_REPORT_PLOT:
        return report_plot(&self);
    }
    return dr_fail(DR_ERROR_ARGUMENT, "report is %d: there is no such report", (int)report);
}
