/* An experiment from its file: axes, then the cells of the grid with the settings of each. Every setting goes through
 * dr_train_options, and all of a point through dr_run_plan_make, so that what no run takes is refused before the first begins.
 */
#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "check/experiment/follow.h"
#include "formats/json.h"

#include <deltarule/train.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CELLS = 100000 };

static const char *const keys[] = {"title",   "source", "about", "settings", "grid",  "seeds", "measures",
                                   "best_of", "claims", "jobs",  "curves",   "small", NULL};
static const char *const small_keys[] = {"settings", "grid", "seeds", NULL};

/* ---- values --------------------------------------------------------------------------------------------------------- */

static dr_status no_memory(void) {
    return dr_fail(DR_ERROR_MEMORY, "there is no memory for the experiment");
}

dr_status dr_experiment_text(const json_t *value, char **text) {
    char buffer[DR_NUMBER_SIZE];
    int64_t whole;
    *text = NULL;
    if (json_is_object(value)) {
        char *of_object = dr_json_format(value, JSON_COMPACT);
        const dr_status status = of_object ? dr_copy_string(of_object, text) : no_memory();
        free(of_object);
        return status;
    }
    if (json_is_string(value)) return dr_copy_string(json_string_value(value), text);
    if (json_is_boolean(value)) return dr_copy_string(json_is_true(value) ? "true" : "false", text);
    if (!json_is_number(value)) return DR_OK;
    if (dr_json_whole(value, &whole))
        snprintf(buffer, sizeof buffer, "%" PRId64, whole);
    else
        dr_number_write(json_real_value(value), buffer);
    return dr_copy_string(buffer, text);
}

/* A member that must be an object, or NULL where there is none. */
static dr_status object_at(const json_t *from, const char *key, const json_t **object) {
    *object = json_object_get(from, key);
    if (!*object || json_is_object(*object)) return DR_OK;
    char found[96];
    dr_json_describe(*object, found, sizeof found);
    return dr_fail(DR_ERROR_FORMAT, "%s must be an object, not %s", key, found);
}

static dr_status list_at(const json_t *from, const char *key, const json_t **list) {
    *list = json_object_get(from, key);
    if (!*list || json_is_array(*list)) return DR_OK;
    char found[96];
    dr_json_describe(*list, found, sizeof found);
    return dr_fail(DR_ERROR_FORMAT, "%s must be a list, not %s", key, found);
}

/* ---- axes ----------------------------------------------------------------------------------------------------------- */

int dr_axis_find(const dr_experiment *experiment, const char *name) {
    for (int a = 0; a < experiment->axes; a++)
        if (strcmp(experiment->axis[a].name, name) == 0) return a;
    return -1;
}

int dr_label_find(const dr_axis *axis, const char *label) {
    for (int v = 0; v < axis->count; v++)
        if (strcmp(axis->value[v].label, label) == 0) return v;
    return -1;
}

static dr_status add_value(dr_axis *axis, const char *label, json_t *settings) {
    if (!settings) return no_memory();
    dr_axis_value *value = &axis->value[axis->count];
    value->settings = settings;
    axis->count++; /* so that it is released */
    int length = snprintf(value->label, sizeof value->label, "%s", label);
    if (length == 0 || length >= DR_LABEL_SIZE)
        return dr_fail(DR_ERROR_FORMAT, "the value \"%.80s\" has a name of %d bytes: 1 to %d will do", label, length,
                       DR_LABEL_SIZE - 1);
    if (dr_label_find(axis, value->label) < axis->count - 1)
        return dr_fail(DR_ERROR_FORMAT, "the value \"%s\" stands twice", label);
    return DR_OK;
}

/* An axis over one setting: a list of its values. */
static dr_status add_setting_value(dr_axis *axis, json_t *value) {
    char *label;
    DR_TRY(dr_experiment_text(value, &label));
    if (!label) {
        char found[96];
        dr_json_describe(value, found, sizeof found);
        return dr_fail(DR_ERROR_FORMAT, "%s is no value of a setting", found);
    }
    dr_status status =
        json_is_object(value)
            ? dr_fail(DR_ERROR_FORMAT, "a value that is an object needs a name: write {\"NAME\": {\"%s\": ..}}", axis->name)
            : add_value(axis, label, json_pack("{s:O}", axis->name, value));
    dr_release(label);
    return status;
}

/* values: a list of one setting's values, or an object of names with the settings of each. */
static dr_status add_axis(dr_experiment *experiment, const char *name, const json_t *values) {
    if (experiment->axes == DR_MOST_AXES) return dr_fail(DR_ERROR_FORMAT, "there are more than %d axes", DR_MOST_AXES);
    if (strcmp(name, "seed") == 0) return dr_fail(DR_ERROR_FORMAT, "seeds are no axis: \"seeds\" says how many there are");
    dr_axis *axis = &experiment->axis[experiment->axes];
    size_t count = json_is_object(values) ? json_object_size(values) : json_array_size(values);
    if (count < 1 || count > DR_MOST_VALUES)
        return dr_fail(
            DR_ERROR_FORMAT,
            "an axis is a list of a setting's values or an object of names, each with an object of settings; 1 to %d",
            DR_MOST_VALUES);
    void *memory;
    DR_TRY(dr_allocate_zero(count * sizeof *axis->value, "the axes", &memory));
    *axis = (dr_axis){.name = name, .value = memory};
    experiment->axes++;
    if (json_is_array(values)) {
        for (size_t i = 0; i < count; i++) DR_TRY(add_setting_value(axis, json_array_get(values, i)));
        return DR_OK;
    }
    const char *label;
    json_t *settings;
    json_object_foreach((json_t *)values, label, settings) {
        if (!json_is_object(settings)) return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be an object of settings", label);
        DR_TRY(add_value(axis, label, json_incref(settings)));
    }
    return DR_OK;
}

/* Leaves out the values that a list of labels does not name. */
static dr_status keep_values(dr_axis *axis, const json_t *labels) {
    bool kept[DR_MOST_VALUES] = {false};
    if (json_array_size(labels) == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%s must be a list of values of that axis, such as [\"%s\"]", axis->name,
                       axis->value[0].label);
    for (size_t i = 0; i < json_array_size(labels); i++) {
        char *label;
        DR_TRY(dr_experiment_text(json_array_get(labels, i), &label));
        const int value = label ? dr_label_find(axis, label) : -1;
        dr_status status = value >= 0 ? DR_OK
                                      : dr_fail(DR_ERROR_ARGUMENT, "axis %s has no value \"%.80s\"; its first is \"%s\"",
                                                axis->name, label ? label : "", axis->value[0].label);
        dr_release(label);
        if (status != DR_OK) return status;
        kept[value] = true;
    }
    int count = 0;
    for (int v = 0; v < axis->count; v++) {
        if (kept[v])
            axis->value[count++] = axis->value[v];
        else
            json_decref(axis->value[v].settings);
    }
    axis->count = count;
    return DR_OK;
}

static dr_status keep_axes(dr_experiment *experiment, const json_t *only) {
    const char *name;
    json_t *labels;
    json_object_foreach((json_t *)only, name, labels) {
        const int axis = dr_axis_find(experiment, name);
        dr_status status = axis >= 0 ? keep_values(&experiment->axis[axis], labels)
                                     : dr_fail(DR_ERROR_ARGUMENT, "\"%s\" is no axis of the grid", name);
        if (status != DR_OK) return dr_fail_in(status, "only");
    }
    return DR_OK;
}

static dr_status read_axes(dr_experiment *experiment, const json_t *small, const json_t *only) {
    const json_t *grid, *of_small = NULL;
    DR_TRY(object_at(experiment->file, "grid", &grid));
    if (small) DR_TRY(object_at(small, "grid", &of_small));
    const char *name;
    json_t *values;
    json_object_foreach((json_t *)of_small, name, values) {
        if (!json_object_get(grid, name))
            return dr_fail(DR_ERROR_FORMAT, "small: grid: the grid has no axis \"%s\" to replace", name);
    }
    json_object_foreach((json_t *)grid, name, values) {
        const json_t *instead = json_object_get(of_small, name);
        dr_status status = add_axis(experiment, name, instead ? instead : values);
        if (status != DR_OK) return dr_fail_in(status, "grid: %s", name);
    }
    DR_TRY(keep_axes(experiment, only));
    int rows = 1;
    for (int a = experiment->axes - 1; a >= 0; a--) {
        experiment->axis[a].stride = rows;
        rows *= experiment->axis[a].count;
        if (rows > MOST_CELLS) return dr_fail(DR_ERROR_FORMAT, "the grid has more than %d points", MOST_CELLS);
    }
    experiment->rows = rows;
    return DR_OK;
}

static dr_status read_best(dr_experiment *experiment) {
    const json_t *list;
    DR_TRY(list_at(experiment->file, "best_of", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        int axis = name ? dr_axis_find(experiment, name) : -1;
        if (axis < 0) return dr_fail(DR_ERROR_FORMAT, "best_of: \"%s\" is no axis of the grid", name ? name : "");
        experiment->axis[axis].best = true;
    }
    return DR_OK;
}

/* ---- cells ---------------------------------------------------------------------------------------------------------- */

/* A name that is the name of a folder too: "rule=pdn,learning_rate=0.004,seed=1". */
static dr_status name_cell(const dr_experiment *experiment, int row, int seed, char name[DR_CELL_NAME_SIZE]) {
    static const char of_names[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-=,";
    char text[DR_MOST_AXES * 2 * DR_LABEL_SIZE];
    int used = 0;
    for (int a = 0; a < experiment->axes; a++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%.60s=%s,", experiment->axis[a].name,
                         experiment->axis[a].value[dr_row_value(experiment, row, a)].label);
    used += snprintf(text + used, sizeof text - (size_t)used, "seed=%d", seed);
    if (used >= DR_CELL_NAME_SIZE)
        return dr_fail(DR_ERROR_FORMAT, "the cell %s has a name of %d bytes: %d will do; shorten the names of its values", text,
                       used, DR_CELL_NAME_SIZE - 1);
    for (char *c = text; *c; c++)
        if (!strchr(of_names, *c)) *c = '-';
    memcpy(name, text, (size_t)used + 1);
    return DR_OK;
}

dr_status dr_experiment_options_of(const dr_cell *cell, dr_train_options **made) {
    dr_train_options *options;
    DR_TRY(dr_train_options_create(&options));
    dr_status status = DR_OK;
    const char *name;
    json_t *value;
    json_object_foreach(cell->settings, name, value) {
        char *text;
        status = dr_experiment_text(value, &text);
        if (status == DR_OK && !text) {
            char found[96];
            dr_json_describe(value, found, sizeof found);
            status = dr_fail(DR_ERROR_FORMAT, "%s is no value of setting %s", found, name);
        } else if (status == DR_OK) {
            status = dr_train_options_set(options, name, text);
        }
        dr_release(text);
        if (status != DR_OK) break;
    }
    if (status == DR_OK)
        *made = options;
    else
        dr_train_options_destroy(options);
    return status;
}

/* Values that a setting takes and a run does not, such as a width that its heads do not divide. A run that goes on from a model
 * finds out by itself, since the model would have to be read. */
static dr_status check_together(const dr_train_options *options) {
    const dr_backend_options one = {.threads = 1};
    dr_run_plan plan;
    dr_backend *backend = NULL;
    if (*dr_train_options_get(options, "init")) return DR_OK;
    DR_TRY(dr_backend_open("cpu", &one, &backend));
    const dr_status status = dr_run_plan_make(backend, options, 0, &plan);
    dr_backend_close(backend);
    return status;
}

static dr_status check_settings(const dr_cell *cell) {
    dr_train_options *options = NULL;
    DR_TRY(dr_experiment_options_of(cell, &options));
    const dr_status status = check_together(options);
    dr_train_options_destroy(options);
    return status == DR_OK ? dr_follow_check(cell->then) : status;
}

/* What the command sets itself would be passed over in silence. */
static dr_status check_own(const json_t *settings) {
    if (json_object_get(settings, "seed"))
        return dr_fail(DR_ERROR_ARGUMENT, "seed is no setting of an experiment: \"seeds\" says how many there are");
    if (json_object_get(settings, "threads"))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "threads is no setting of an experiment: results do not depend on it; the command takes it");
    return DR_OK;
}

static dr_status make_cell(const dr_experiment *experiment, const json_t *base, int row, int seed, dr_cell *cell) {
    DR_TRY(name_cell(experiment, row, seed, cell->name));
    cell->settings = json_copy((json_t *)base);
    int failed = !cell->settings;
    for (int a = 0; a < experiment->axes && !failed; a++)
        failed = json_object_update(cell->settings, experiment->axis[a].value[dr_row_value(experiment, row, a)].settings);
    if (failed) return no_memory();
    DR_TRY(check_own(cell->settings));
    if (json_object_set_new(cell->settings, "seed", json_integer(seed))) return no_memory();
    cell->then = json_incref(json_object_get(cell->settings, "then"));
    json_object_del(cell->settings, "then");
    if (seed > 1) return DR_OK; /* as the first of its row */
    dr_status status = check_settings(cell);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", cell->name);
}

/* Labels that differ only in characters that names of folders do not have would share a folder. */
static int by_name(const void *one, const void *other) {
    return strcmp(((const dr_cell *)one)->name, ((const dr_cell *)other)->name);
}

static dr_status check_names(const dr_experiment *experiment) {
    const size_t count = (size_t)dr_experiment_cells(experiment);
    void *memory;
    DR_TRY(dr_allocate(count * sizeof(dr_cell), "the names of cells", &memory));
    dr_cell *sorted = memory;
    dr_status status = DR_OK;
    memcpy(sorted, experiment->cell, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_name);
    for (size_t i = 1; i < count && status == DR_OK; i++)
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0)
            status = dr_fail(DR_ERROR_FORMAT, "two cells have the name %s: give their values names that differ in letters",
                             sorted[i].name);
    dr_release(sorted);
    return status;
}

static dr_status make_cells(dr_experiment *experiment, const json_t *base) {
    const int64_t count = (int64_t)experiment->rows * experiment->seeds;
    if (count > MOST_CELLS)
        return dr_fail(DR_ERROR_FORMAT, "the experiment has %lld cells: at most %d will do", (long long)count, MOST_CELLS);
    void *memory;
    DR_TRY(dr_allocate_zero((size_t)count * sizeof(dr_cell), "the cells", &memory));
    experiment->cell = memory;
    for (int i = 0; i < (int)count; i++)
        DR_TRY(make_cell(experiment, base, i / experiment->seeds, i % experiment->seeds + 1, &experiment->cell[i]));
    return check_names(experiment);
}

/* A setting of the caller that an axis sets too would be passed over in silence. */
static dr_status check_given(const dr_experiment *experiment, const json_t *given) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)given, name, value) {
        for (int a = 0; a < experiment->axes; a++)
            for (int v = 0; v < experiment->axis[a].count; v++)
                if (json_object_get(experiment->axis[a].value[v].settings, name))
                    return dr_fail(DR_ERROR_ARGUMENT, "settings: axis %s sets %s: choose among its values with only",
                                   experiment->axis[a].name, name);
    }
    return DR_OK;
}

/* The settings that all cells share; the caller's go before the file's. *base is the caller's to release. */
static dr_status read_base(const dr_experiment *experiment, const json_t *small, const dr_experiment_options *options,
                           const json_t *given, json_t **base) {
    const json_t *settings, *of_small = NULL;
    DR_TRY(object_at(experiment->file, "settings", &settings));
    if (small) DR_TRY(object_at(small, "settings", &of_small));
    *base = settings ? json_copy((json_t *)settings) : json_object();
    int failed = !*base || (of_small && json_object_update(*base, (json_t *)of_small)) ||
                 (given && json_object_update(*base, (json_t *)given));
    if (!failed && options->corpus) failed = json_object_set_new(*base, "corpus", json_string(options->corpus));
    if (!failed && options->tokenizer) failed = json_object_set_new(*base, "tokenizer", json_string(options->tokenizer));
    return failed ? no_memory() : DR_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

static dr_status check_texts(const dr_experiment *experiment) {
    static const char *const texts[] = {"title", "source", NULL};
    const json_t *list;
    DR_TRY(dr_json_required(experiment->file, texts));
    for (int i = 0; texts[i]; i++) {
        const char *text;
        DR_TRY(dr_json_text(experiment->file, texts[i], &text));
    }
    DR_TRY(list_at(experiment->file, "measures", &list));
    if (json_array_size(list) == 0)
        return dr_fail(DR_ERROR_FORMAT, "measures must be a list of columns of metrics.csv, such as [\"accuracy\"]");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i))) return dr_fail(DR_ERROR_FORMAT, "measures: each must be a string");
    const char *curves;
    int64_t jobs;
    DR_TRY(dr_json_text(experiment->file, "curves", &curves));
    return dr_json_integer(experiment->file, "jobs", 1, 256, &jobs);
}

static dr_status check_claims(const dr_experiment *experiment) {
    const json_t *list;
    DR_TRY(list_at(experiment->file, "claims", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        dr_claim claim;
        dr_status status = dr_claim_read(experiment, json_array_get(list, i), &claim);
        if (status != DR_OK) return dr_fail_in(status, "claims: number %zu", i + 1);
    }
    return DR_OK;
}

/* An option that is the text of a JSON object; *object is the caller's to release, NULL where there is no text. */
static dr_status parse_option(const char *text, const char *name, json_t **object) {
    *object = NULL;
    if (!text) return DR_OK;
    const dr_status status = dr_json_parse(text, strlen(text), name, object);
    return status == DR_ERROR_FORMAT ? DR_ERROR_ARGUMENT : status;
}

/* Axes and cells. only, given: of the options. */
static dr_status read_grid(dr_experiment *experiment, const json_t *small, const dr_experiment_options *options,
                           const json_t *only, const json_t *given) {
    json_t *base = NULL;
    DR_TRY(read_axes(experiment, small, only));
    DR_TRY(read_best(experiment));
    DR_TRY(check_given(experiment, given));
    dr_status status = read_base(experiment, small, options, given, &base);
    if (status == DR_OK) status = make_cells(experiment, base);
    json_decref(base);
    return status;
}

static dr_status keep_places(dr_experiment *experiment, const dr_experiment_options *options) {
    const struct {
        const char *key, *value;
    } places[] = {
        {"text", options->text}, {"tasks", options->tasks}, {"results", options->results}, {"machine", options->machine}};
    experiment->places = json_object();
    if (!experiment->places) return no_memory();
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i].value && json_object_set_new(experiment->places, places[i].key, json_string(places[i].value)))
            return no_memory();
    return DR_OK;
}

static dr_status read_file(dr_experiment *experiment, const dr_experiment_options *options) {
    const json_t *small = NULL;
    json_t *only = NULL, *given = NULL;
    int64_t seeds = 3;
    DR_TRY(dr_json_known(experiment->file, keys));
    DR_TRY(check_texts(experiment));
    DR_TRY(dr_json_integer(experiment->file, "seeds", 1, DR_MOST_SEEDS, &seeds));
    DR_TRY(object_at(experiment->file, "small", &small));
    if (small) {
        dr_status status = dr_json_known(small, small_keys);
        if (status != DR_OK) return dr_fail_in(status, "small");
    }
    if (options->small && !small) return dr_fail(DR_ERROR_ARGUMENT, "this experiment has no small form");
    if (!options->small) small = NULL;
    if (small) DR_TRY(dr_json_integer(small, "seeds", 1, DR_MOST_SEEDS, &seeds));
    if (options->seeds < 0 || options->seeds > DR_MOST_SEEDS)
        return dr_fail(DR_ERROR_ARGUMENT, "seeds is %lld: it must be from 1 to %d", (long long)options->seeds, DR_MOST_SEEDS);
    experiment->seeds = (int)(options->seeds ? options->seeds : seeds);
    DR_TRY(keep_places(experiment, options));
    experiment->partial = options->partial;
    dr_status status = parse_option(options->only, "only", &only);
    if (status == DR_OK) status = parse_option(options->settings, "settings", &given);
    if (status == DR_OK) status = read_grid(experiment, small, options, only, given);
    json_decref(only);
    json_decref(given);
    return status == DR_OK ? check_claims(experiment) : status;
}

dr_status dr_experiment_open(const char *file, const dr_experiment_options *options, dr_experiment **experiment) {
    DR_NEED(file);
    DR_NEED(experiment);
    const dr_experiment_options as_it_is = {0};
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_experiment), "the experiment", &memory));
    dr_experiment *made = memory;
    dr_status status = dr_json_read(file, &made->file);
    if (status == DR_OK) {
        status = read_file(made, options ? options : &as_it_is);
        if (status != DR_OK) dr_fail_in(status, "%s", file);
    }
    if (status == DR_OK)
        *experiment = made;
    else
        dr_experiment_close(made);
    return status;
}

void dr_experiment_close(dr_experiment *experiment) {
    if (!experiment) return;
    for (int a = 0; a < experiment->axes; a++) {
        for (int v = 0; v < experiment->axis[a].count; v++) json_decref(experiment->axis[a].value[v].settings);
        dr_release(experiment->axis[a].value);
    }
    for (int i = 0; experiment->cell && i < dr_experiment_cells(experiment); i++) {
        json_decref(experiment->cell[i].settings);
        json_decref(experiment->cell[i].then);
        json_decref(experiment->cell[i].measures);
        json_decref(experiment->cell[i].record);
    }
    dr_release(experiment->cell);
    json_decref(experiment->file);
    json_decref(experiment->places);
    json_decref(experiment->command);
    dr_release(experiment);
}

const char *dr_experiment_title(const dr_experiment *experiment) {
    return experiment ? json_string_value(json_object_get(experiment->file, "title")) : NULL;
}

const char *dr_experiment_source(const dr_experiment *experiment) {
    return experiment ? json_string_value(json_object_get(experiment->file, "source")) : NULL;
}

int dr_experiment_jobs(const dr_experiment *experiment) {
    return experiment ? (int)json_integer_value(json_object_get(experiment->file, "jobs")) : 0;
}

int dr_experiment_cells(const dr_experiment *experiment) {
    return experiment ? experiment->rows * experiment->seeds : 0;
}

const char *dr_experiment_cell(const dr_experiment *experiment, int cell) {
    return cell >= 0 && cell < dr_experiment_cells(experiment) ? experiment->cell[cell].name : NULL;
}

int dr_experiment_turn(const dr_experiment *experiment, int place) {
    if (!dr_experiment_cell(experiment, place)) return -1;
    return place % experiment->rows * experiment->seeds + place / experiment->rows;
}
