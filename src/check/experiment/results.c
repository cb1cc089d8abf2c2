/* What the runs of cells measured, and files about it.
 *
 * A cell is done once result.json stands in its run folder, which is written after its run is over; until then the run can be
 * resumed. What follows the run has a file each there (follow.h); a cell with such is done once all are. So a kill at any
 * moment loses no more than the steps since the last checkpoint of the runs at hand. Cells that are done nowhere else may be
 * recorded (recorded.c). */
#include "base/clock.h"
#include "base/error.h"
#include "base/number.h"
#include "check/experiment/follow.h"
#include "formats/file.h"
#include "formats/folder.h"
#include "formats/json.h"
#include "formats/lock.h"

#include <deltarule/train.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

static dr_status path_in(char path[PATH_SIZE], const char *folder, const char *cell, const char *name) {
    if (snprintf(path, PATH_SIZE, "%s/%s%s", folder, cell, name) < PATH_SIZE) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the folder's name has more than %d bytes", PATH_SIZE - DR_CELL_NAME_SIZE);
}

static bool is_there(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0;
}

/* ---- settings of a run that is there -------------------------------------------------------------------------------- */

bool dr_experiment_free_setting(const char *name) {
    static const char *const names[] = {"threads", "save_every", "save_keep", "corpus", "tokenizer", NULL};
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

bool dr_experiment_same_value(const dr_setting *setting, const char *one, const char *other) {
    double a, b;
    if (strcmp(one, other) == 0) return true;
    return setting->type == DR_SETTING_REAL && dr_number_parse(one, DR_NUMBER_FINITE, &a) &&
           dr_number_parse(other, DR_NUMBER_FINITE, &b) && !(a < b) && !(a > b);
}

static dr_status compare_settings(const dr_train_options *cell, const dr_train_options *run, const char *folder) {
    const dr_setting *settings;
    const int count = dr_train_settings(&settings);
    for (int i = 0; i < count; i++) {
        const char *wanted = dr_train_options_get(cell, settings[i].name), *is = dr_train_options_get(run, settings[i].name);
        if (dr_experiment_free_setting(settings[i].name) || dr_experiment_same_value(&settings[i], wanted, is)) continue;
        return dr_fail(DR_ERROR_ARGUMENT,
                       "%s holds a run with %s %.60s, and the experiment has %.60s: choose another folder, or remove this one",
                       folder, settings[i].name, is, wanted);
    }
    return DR_OK;
}

/* Refuses a run of other settings than the cell's. */
static dr_status check_run(const dr_cell *cell, const char *folder) {
    char path[PATH_SIZE];
    DR_TRY(path_in(path, folder, cell->name, ""));
    dr_train_options *wanted = NULL, *is = NULL;
    dr_status status;
    DR_GO(dr_experiment_options_of(cell, &wanted));
    DR_GO(dr_train_options_create(&is));
    DR_GO(dr_train_options_read(is, path));
    DR_GO(compare_settings(wanted, is, path));
done:
    dr_train_options_destroy(wanted);
    dr_train_options_destroy(is);
    return status;
}

/* ---- what follows a run --------------------------------------------------------------------------------------------- */

static dr_status path_of_follow_up(const dr_cell *cell, size_t index, const char *folder, char path[PATH_SIZE]) {
    char name[DR_FOLLOW_NAME_SIZE], file[DR_FOLLOW_NAME_SIZE + 8];
    dr_follow_name(json_array_get(cell->then, index), name);
    snprintf(file, sizeof file, "/%s.json", name);
    return path_in(path, folder, cell->name, file);
}

static void leave_all(dr_cell *cell) {
    cell->left = 0;
    for (size_t i = 0; i < json_array_size(cell->then); i++) cell->left |= 1ull << i;
}

static dr_status add_measures(dr_cell *cell, const json_t *measures) {
    return json_object_update(cell->measures, (json_t *)measures)
               ? dr_fail(DR_ERROR_MEMORY, "there is no memory for the measures of %s", cell->name)
               : DR_OK;
}

/* Takes the result of a follow-up that is there; one of other flags than the file now has is made again. */
static dr_status load_follow_up(dr_cell *cell, size_t index, const char *folder) {
    char path[PATH_SIZE];
    DR_TRY(path_of_follow_up(cell, index, folder, path));
    if (!is_there(path)) return DR_OK;
    json_t *object;
    DR_TRY(dr_json_read(path, &object));
    dr_status status = DR_OK;
    const json_t *measures = json_object_get(object, "measures");
    if (!json_is_object(measures))
        status = dr_fail(DR_ERROR_FORMAT, "%s has no object \"measures\"", path);
    else if (json_equal(json_object_get(object, "then"), json_array_get(cell->then, index))) {
        status = add_measures(cell, measures);
        cell->left &= ~(1ull << index);
    }
    json_decref(object);
    return status;
}

static dr_status load_cell(dr_cell *cell, const char *folder) {
    char settings[PATH_SIZE], result[PATH_SIZE];
    DR_TRY(path_in(settings, folder, cell->name, "/settings.json"));
    DR_TRY(path_in(result, folder, cell->name, "/result.json"));
    json_decref(cell->measures);
    json_decref(cell->record);
    cell->measures = cell->record = NULL;
    cell->state = DR_CELL_MISSING;
    if (!is_there(settings)) return DR_OK;
    DR_TRY(check_run(cell, folder));
    cell->state = DR_CELL_BEGUN;
    if (!is_there(result)) return DR_OK;
    json_t *object;
    DR_TRY(dr_json_read(result, &object));
    json_t *measures = json_object_get(object, "measures");
    dr_status status = json_is_object(measures) ? DR_OK : dr_fail(DR_ERROR_FORMAT, "%s has no object \"measures\"", result);
    cell->measures = json_incref(status == DR_OK ? measures : NULL);
    json_decref(object);
    leave_all(cell);
    for (size_t i = 0; i < json_array_size(cell->then) && status == DR_OK; i++) status = load_follow_up(cell, i, folder);
    if (status == DR_OK) cell->state = cell->left ? DR_CELL_TRAINED : DR_CELL_DONE;
    return status;
}

dr_status dr_experiment_hold(const char *folder, double seconds, int *descriptor) {
    DR_NEED(folder);
    DR_NEED(descriptor);
    char path[PATH_SIZE];
    DR_TRY(path_in(path, folder, "lock", ""));
    DR_TRY(dr_folder_make(folder));
    const double until = dr_clock_now() + seconds;
    int held;
    while ((held = dr_lock_take(path)) < 0 && errno == EWOULDBLOCK && dr_clock_now() < until)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    if (held < 0 && errno == EWOULDBLOCK)
        return dr_fail(DR_ERROR_IO, "another process runs the experiment in %s: wait for it, or choose another folder", folder);
    if (held < 0) return dr_fail(DR_ERROR_IO, "%s cannot be locked: %s", path, dr_system_text(errno));
    *descriptor = held;
    return DR_OK;
}

dr_status dr_experiment_load(dr_experiment *experiment, const char *folder) {
    DR_NEED(experiment);
    DR_NEED(folder);
    for (int i = 0; i < dr_experiment_cells(experiment); i++) DR_TRY(load_cell(&experiment->cell[i], folder));
    return dr_recorded_load(experiment);
}

dr_cell_state dr_experiment_state(const dr_experiment *experiment, int cell) {
    return dr_experiment_cell(experiment, cell) ? experiment->cell[cell].state : DR_CELL_MISSING;
}

static dr_status check_index(const dr_experiment *experiment, int cell) {
    if (dr_experiment_cell(experiment, cell)) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "cell is %d: the experiment has %d, from 0 on", cell, dr_experiment_cells(experiment));
}

static dr_status write_text(const char *path, const char *text) {
    dr_file file;
    dr_file_create(path, &file);
    dr_file_write(&file, text, strlen(text));
    dr_file_write(&file, "\n", 1);
    return dr_file_finish(&file);
}

static dr_status write_object(const char *path, const json_t *object) {
    char *text = dr_json_format(object, JSON_INDENT(2));
    if (!text) return dr_fail(DR_ERROR_MEMORY, "%s: there is no memory for its JSON", path);
    dr_status status = write_text(path, text);
    free(text);
    return status;
}

/* A place that all runs read from, where one is named. */
static dr_status check_place(const dr_train_options *options, const char *key) {
    const char *place = dr_train_options_get(options, key);
    if (!*place || access(place, R_OK) == 0) return DR_OK;
    return dr_fail(DR_ERROR_IO, "cannot read the %s %s: %s", key, place, dr_system_text(errno));
}

/* Runs that learn from text need one: said once, not by each of them. */
static dr_status check_text(const dr_cell *cell) {
    dr_train_options *options = NULL;
    DR_TRY(dr_experiment_options_of(cell, &options));
    dr_status status = DR_OK;
    if (strcmp(dr_train_options_get(options, "task"), "lm") == 0) {
        status = *dr_train_options_get(options, "corpus")
                     ? check_place(options, "corpus")
                     : dr_fail(DR_ERROR_ARGUMENT, "runs of this experiment learn from text: give --corpus");
        if (status == DR_OK) status = check_place(options, "tokenizer");
    }
    dr_train_options_destroy(options);
    return status;
}

dr_status dr_experiment_prepare(const dr_experiment *experiment, const char *folder, int cell) {
    DR_NEED(experiment);
    DR_NEED(folder);
    DR_TRY(check_index(experiment, cell));
    char path[PATH_SIZE];
    DR_TRY(check_text(&experiment->cell[cell]));
    DR_TRY(path_in(path, folder, experiment->cell[cell].name, ".json"));
    DR_TRY(dr_folder_make(folder));
    return write_object(path, experiment->cell[cell].settings);
}

/* ---- a run that is over ----------------------------------------------------------------------------------------------- */

dr_status dr_experiment_finish(dr_experiment *experiment, const char *folder, int cell) {
    DR_NEED(experiment);
    DR_NEED(folder);
    DR_TRY(check_index(experiment, cell));
    dr_cell *of = &experiment->cell[cell];
    char metrics[PATH_SIZE], result[PATH_SIZE];
    json_t *measures;
    DR_TRY(path_in(metrics, folder, of->name, "/metrics.csv"));
    DR_TRY(path_in(result, folder, of->name, "/result.json"));
    DR_TRY(check_run(of, folder));
    DR_TRY(dr_metrics_measures(metrics, &measures));
    json_t *object = json_pack("{s:O}", "measures", measures);
    dr_status status = object ? write_object(result, object) : dr_fail(DR_ERROR_MEMORY, "there is no memory for %s", result);
    json_decref(object);
    if (status != DR_OK) {
        json_decref(measures);
        return status;
    }
    json_decref(of->measures);
    of->measures = measures;
    leave_all(of);
    of->state = of->left ? DR_CELL_TRAINED : DR_CELL_DONE;
    return DR_OK;
}

/* The index of the next follow-up of a cell, of one whose run is not over the first; -1: none is left. */
static int next_follow_up(const dr_cell *cell) {
    const uint64_t left = cell->measures ? cell->left : json_array_size(cell->then) ? 1 : 0;
    for (int i = 0; i < DR_MOST_FOLLOW_UPS; i++)
        if (left >> i & 1) return i;
    return -1;
}

static dr_status make_command(dr_experiment *experiment, const dr_cell *cell, int index, const char *run) {
    json_decref(experiment->command);
    experiment->command = json_array();
    if (!experiment->command) return dr_fail(DR_ERROR_MEMORY, "there is no memory for a command");
    DR_TRY(dr_follow_arguments(experiment, cell, json_array_get(cell->then, (size_t)index), run, experiment->command));
    const size_t count = json_array_size(experiment->command);
    if (count >= DR_MOST_ARGUMENTS) return dr_fail(DR_ERROR_ARGUMENT, "%s: a command has too many arguments", cell->name);
    for (size_t i = 0; i < count; i++) experiment->argument[i] = json_string_value(json_array_get(experiment->command, i));
    experiment->argument[count] = NULL;
    return DR_OK;
}

dr_status dr_experiment_next(dr_experiment *experiment, const char *folder, int cell, const char *const **arguments) {
    DR_NEED(experiment);
    DR_NEED(folder);
    DR_NEED(arguments);
    DR_TRY(check_index(experiment, cell));
    const dr_cell *of = &experiment->cell[cell];
    const int index = next_follow_up(of);
    char run[PATH_SIZE];
    *arguments = NULL;
    if (index < 0) return DR_OK;
    DR_TRY(path_in(run, folder, of->name, ""));
    for (int i = (int)json_array_size(of->then) - 1; i >= index; i--) DR_TRY(make_command(experiment, of, i, run));
    *arguments = experiment->argument;
    return DR_OK;
}

dr_status dr_experiment_keep(dr_experiment *experiment, const char *folder, int cell, const char *output) {
    DR_NEED(experiment);
    DR_NEED(folder);
    DR_NEED(output);
    DR_TRY(check_index(experiment, cell));
    dr_cell *of = &experiment->cell[cell];
    const int index = next_follow_up(of);
    if (index < 0 || !of->measures) return dr_fail(DR_ERROR_ARGUMENT, "%s waits for nothing that follows its run", of->name);
    json_t *const follow_up = json_array_get(of->then, (size_t)index), *measures, *lines;
    char path[PATH_SIZE];
    DR_TRY(path_of_follow_up(of, (size_t)index, folder, path));
    DR_TRY(dr_follow_measures(follow_up, output, &measures, &lines));
    json_t *object = json_pack("{s:O, s:O, s:O}", "then", follow_up, "measures", measures, "output", lines);
    dr_status status = object ? write_object(path, object) : dr_fail(DR_ERROR_MEMORY, "there is no memory for %s", path);
    if (status == DR_OK) status = add_measures(of, measures);
    json_decref(object);
    json_decref(measures);
    json_decref(lines);
    if (status != DR_OK) return status;
    of->left &= ~(1ull << index);
    if (!of->left) of->state = DR_CELL_DONE;
    return DR_OK;
}

/* ---- reports as files ----------------------------------------------------------------------------------------------- */

static void write_line(void *context, const char *text) {
    dr_file *file = context;
    dr_file_write(file, text, strlen(text));
    dr_file_write(file, "\n", 1);
}

dr_status dr_experiment_write(const dr_experiment *experiment, const char *folder) {
    static const struct {
        const char *name;
        dr_report report;
    } files[] = {{"table.txt", DR_REPORT_TABLE},
                 {"table.csv", DR_REPORT_CSV},
                 {"cells.jsonl", DR_REPORT_JSON},
                 {"picture.gp", DR_REPORT_PLOT}};
    DR_NEED(experiment);
    DR_NEED(folder);
    DR_TRY(dr_folder_make(folder));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[PATH_SIZE];
        dr_file file;
        DR_TRY(path_in(path, folder, files[i].name, ""));
        dr_file_create(path, &file);
        dr_status status = dr_experiment_report(experiment, files[i].report, write_line, &file);
        if (status != DR_OK) file.status = status;
        DR_TRY(dr_file_finish(&file));
    }
    return DR_OK;
}
