/* Results of cells in a file of JSON lines, so that what one machine has done counts on every other, and the forms that take
 * hours complete over several visits. A line is one cell:
 *
 *   cell, settings   its name, and the settings of its run that are not the defaults, without those that change no result
 *   then             what followed the run, as the experiment's file says it
 *   measures         as in result.json, without those of single layers that the experiment's file does not name
 *   curve            the column that the experiment's file draws, [step, value]
 *   machine, version, data   where it was run; data is the fingerprint of the text that a model learned from
 *
 * A cell is done by a line of its name, the same settings and the same list of what follows; of several the last counts. So
 * lines of other forms, such as shorter ones, stand in the same file. */
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "check/experiment/experiment.h"
#include "formats/file.h"
#include "formats/folder.h"
#include "formats/safetensors.h"

#include <deltarule/version.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_BYTES = 1 << 28, CURVE_POINTS = 100, PATH_SIZE = 4096 };

static dr_status no_memory(void) {
    return dr_fail(DR_ERROR_MEMORY, "there is no memory for recorded results");
}

static const char *place(const dr_experiment *experiment, const char *key) {
    return json_string_value(json_object_get(experiment->places, key));
}

/* The settings of a cell's run that are not the defaults and may change a result. */
static dr_status identify(const dr_cell *cell, json_t **settings) {
    const dr_setting *rows;
    const int count = dr_train_settings(&rows);
    dr_train_options *options = NULL;
    DR_TRY(dr_experiment_options_of(cell, &options));
    *settings = json_object();
    int failed = !*settings;
    for (int i = 0; i < count && !failed; i++) {
        const char *value = dr_train_options_get(options, rows[i].name), *usual = rows[i].fallback;
        double number;
        if (dr_experiment_free_setting(rows[i].name) || dr_experiment_same_value(&rows[i], value, usual ? usual : "")) continue;
        json_t *kept = rows[i].type == DR_SETTING_REAL && dr_number_parse(value, DR_NUMBER_FINITE, &number)
                           ? json_real(number)
                           : json_string(value);
        failed = json_object_set_new(*settings, rows[i].name, kept);
    }
    dr_train_options_destroy(options);
    if (!failed) return DR_OK;
    json_decref(*settings);
    *settings = NULL;
    return no_memory();
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static bool is_record_of(const json_t *record, const dr_cell *cell, const json_t *settings) {
    const json_t *then = json_object_get(record, "then");
    if (strcmp(json_string_value(json_object_get(record, "cell")), cell->name) != 0) return false;
    if (json_array_size(then) != json_array_size(cell->then) || (cell->then && !json_equal(then, cell->then))) return false;
    return json_equal(json_object_get(record, "settings"), settings);
}

static dr_status take(dr_cell *cell, const json_t *records) {
    json_t *settings;
    DR_TRY(identify(cell, &settings));
    for (size_t i = json_array_size(records); i-- > 0 && !cell->record;) {
        json_t *record = json_array_get(records, i);
        if (is_record_of(record, cell, settings)) cell->record = json_incref(record);
    }
    json_decref(settings);
    if (!cell->record || cell->state == DR_CELL_DONE) return DR_OK;
    json_decref(cell->measures);
    cell->measures = json_incref(json_object_get(cell->record, "measures"));
    cell->state = DR_CELL_DONE;
    cell->left = 0;
    return DR_OK;
}

static dr_status check_record(const json_t *record) {
    static const char *const needed[] = {"cell", "settings", "measures", NULL};
    const char *name = NULL;
    DR_TRY(dr_json_required(record, needed));
    DR_TRY(dr_json_text(record, "cell", &name));
    if (json_is_object(json_object_get(record, "measures")) && json_is_object(json_object_get(record, "settings")))
        return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "measures and settings must be objects");
}

static dr_status read_records(const char *text, const char *file, json_t *records) {
    for (int number = 1; *text; number++) {
        const size_t length = strcspn(text, "\n");
        json_t *record = NULL;
        dr_status status = DR_OK;
        if (length > 0) {
            status = dr_json_parse(text, length, "what it says", &record);
            if (status == DR_OK) status = check_record(record);
            if (status == DR_OK && json_array_append(records, record)) status = no_memory();
            json_decref(record);
        }
        if (status != DR_OK) return dr_fail_in(status, "%s, line %d", file, number);
        text += length + (text[length] == '\n');
    }
    return DR_OK;
}

dr_status dr_recorded_load(dr_experiment *experiment) {
    const char *file = place(experiment, "results");
    struct stat facts;
    char *text;
    size_t bytes;
    if (!file || (stat(file, &facts) != 0 && errno == ENOENT)) return DR_OK;
    DR_TRY(dr_file_read(file, MOST_BYTES, &text, &bytes));
    json_t *records = json_array();
    dr_status status = records ? read_records(text, file, records) : no_memory();
    for (int i = 0; i < dr_experiment_cells(experiment) && status == DR_OK; i++) status = take(&experiment->cell[i], records);
    json_decref(records);
    dr_release(text);
    return status;
}

void dr_recorded_origin(const json_t *record, char *text, size_t size) {
    const char *machine = json_string_value(json_object_get(record, "machine"));
    const char *version = json_string_value(json_object_get(record, "version"));
    const char *data = json_string_value(json_object_get(record, "data"));
    snprintf(text, size, "%.200s; deltarule %.40s%s%.40s", machine ? machine : "a machine without a name",
             version ? version : "of no version", data ? "; text " : "", data ? data : "");
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

static bool names(const json_t *list, const char *measure) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *name = json_string_value(json_is_object(one) ? json_object_get(one, "measure") : one);
        if (name && strcmp(name, measure) == 0) return true;
    }
    return false;
}

/* A measure with eight digits, which keeps lines short. */
static json_t *rounded(const json_t *measure) {
    char text[DR_NUMBER_SIZE];
    double value = json_number_value(measure);
    dr_format(text, sizeof text, "%.8g", value);
    dr_number_parse(text, DR_NUMBER_FINITE, &value);
    return json_real(value);
}

static dr_status keep_measures(const dr_experiment *experiment, const dr_cell *cell, json_t *record) {
    json_t *measures = json_object(), *value;
    const char *name;
    int failed = !measures;
    json_object_foreach(cell->measures, name, value) {
        const bool named = names(json_object_get(experiment->file, "measures"), name) ||
                           names(json_object_get(experiment->file, "claims"), name);
        if (!failed && (named || !strstr(name, ":layer "))) failed = json_object_set_new(measures, name, rounded(value));
    }
    if (!failed) failed = json_object_set(record, "measures", measures);
    json_decref(measures);
    return failed ? no_memory() : DR_OK;
}

static dr_status set_text(json_t *record, const char *key, const char *text) {
    return text && json_object_set_new(record, key, json_string(text)) ? no_memory() : DR_OK;
}

/* What the run's folder knows: a curve, and the fingerprint of its text. A run without a checkpoint has no fingerprint. */
static dr_status keep_run(const dr_experiment *experiment, const dr_cell *cell, const char *folder, json_t *record) {
    const char *column = json_string_value(json_object_get(experiment->file, "curves"));
    const char *task = json_string_value(json_object_get(cell->settings, "task"));
    char path[PATH_SIZE];
    if (column) {
        json_t *points;
        snprintf(path, sizeof path, "%s/%s/metrics.csv", folder, cell->name);
        DR_TRY(dr_metrics_curve(path, column, CURVE_POINTS, &points));
        if (json_object_set_new(record, "curve", points)) return no_memory();
    }
    if (!task || strcmp(task, "lm") != 0) return DR_OK;
    dr_safetensors *file;
    snprintf(path, sizeof path, "%s/%s/optimizer.safetensors", folder, cell->name);
    if (dr_safetensors_open(path, &file) != DR_OK) return DR_OK;
    const dr_status status = set_text(record, "data", dr_safetensors_metadata(file, "fingerprint"));
    dr_safetensors_close(file);
    return status;
}

static dr_status fill(const dr_experiment *experiment, const dr_cell *cell, const char *folder, json_t *record) {
    json_t *settings;
    DR_TRY(set_text(record, "cell", cell->name));
    DR_TRY(identify(cell, &settings));
    if (json_object_set_new(record, "settings", settings)) return no_memory();
    if (cell->then && json_object_set(record, "then", cell->then)) return no_memory();
    DR_TRY(keep_measures(experiment, cell, record));
    DR_TRY(set_text(record, "machine", place(experiment, "machine")));
    DR_TRY(set_text(record, "version", dr_version()));
    return keep_run(experiment, cell, folder, record);
}

static dr_status record_cell(const dr_experiment *experiment, dr_cell *cell, const char *folder) {
    json_t *record = json_object();
    char *text = NULL;
    void *line = NULL;
    dr_status status = record ? fill(experiment, cell, folder, record) : no_memory();
    if (status == DR_OK && !(text = dr_json_format(record, JSON_COMPACT))) status = no_memory();
    if (status == DR_OK) status = dr_allocate(strlen(text) + 2, "a line of results", &line);
    if (status == DR_OK) {
        const int length = snprintf(line, strlen(text) + 2, "%s\n", text);
        status = dr_file_append(place(experiment, "results"), line, (size_t)length);
    }
    dr_release(line);
    free(text);
    if (status == DR_OK) cell->record = json_incref(record);
    json_decref(record);
    return status;
}

/* Makes the folder that the file is to lie in. */
static dr_status make_parent(const char *file) {
    char folder[PATH_SIZE];
    if (snprintf(folder, sizeof folder, "%s", file) >= PATH_SIZE)
        return dr_fail(DR_ERROR_ARGUMENT, "the name of the file of results has more than %d bytes", PATH_SIZE - 1);
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder) return DR_OK;
    *slash = '\0';
    return dr_folder_make(folder);
}

dr_status dr_experiment_record(dr_experiment *experiment, const char *folder) {
    DR_NEED(experiment);
    DR_NEED(folder);
    const char *file = place(experiment, "results");
    if (!file) return DR_OK;
    DR_TRY(make_parent(file));
    for (int i = 0; i < dr_experiment_cells(experiment); i++) {
        dr_cell *cell = &experiment->cell[i];
        if (cell->state == DR_CELL_DONE && !cell->record) DR_TRY(record_cell(experiment, cell, folder));
    }
    return DR_OK;
}
