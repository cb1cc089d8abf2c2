/* What follows a cell's run: probes of its model, files of tasks that it is asked, times of its recurrence. Each is a command
 * that prints JSON lines; its numbers become measures of the cell, beside the columns of metrics.csv:
 *
 *   a probe      FIGURE: the mean over layers of the figure's mean; FIGURE:layer N: of one layer; FIGURE:median, the mean of
 * the layers' medians; FIGURE:least and FIGURE:most, over all layers a task       TASK:found and what else `deltarule evaluate`
 * computes of the file TASK.jsonl a benchmark  recurrence_forward_ms and recurrence_forward_backward_ms, of the rule, heads and
 * lengths of the run */
#include "check/experiment/follow.h"

#include "base/error.h"
#include "base/json.h"
#include "base/number.h"

#include <deltarule/probe.h>
#include <deltarule/train.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROBE, EVALUATE, BENCH, KINDS, MOST_FIGURES = 64, NAME_SIZE = 160, PATH_SIZE = 4096 };

/* The key that names a kind, and the flags that a follow-up of it may set. */
static const struct {
    const char *key, *numbers[4], *texts[2];
} kinds[KINDS] = {
    [PROBE] = {"probe", {"tokens"}, {NULL}},
    [EVALUATE] = {"evaluate", {"tokens", "limit", "max_length"}, {"format"}},
    [BENCH] = {"bench", {"repeats"}, {NULL}},
};

static int kind_of(const json_t *follow_up) {
    for (int kind = 0; kind < KINDS; kind++)
        if (json_object_get(follow_up, kinds[kind].key)) return kind;
    return -1;
}

static const char *what_of(const json_t *follow_up) {
    return json_string_value(json_object_get(follow_up, kinds[kind_of(follow_up)].key));
}

static dr_status no_memory(void) {
    return dr_fail(DR_ERROR_MEMORY, "there is no memory for what follows a run");
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static dr_status check_what(int kind, const char *what) {
    bool known = false;
    switch (kind) {
    case PROBE:
        for (int i = 0; dr_probe_kind(i); i++) known = known || strcmp(dr_probe_kind(i), what) == 0;
        if (!known) return dr_fail(DR_ERROR_FORMAT, "there is no probe \"%.60s\"", what);
        break;
    case BENCH:
        if (strcmp(what, "op") != 0) return dr_fail(DR_ERROR_FORMAT, "bench is \"%.60s\": it must be op", what);
        break;
    default: /* a task: any name of a file */
        if (!*what || strlen(what) > 60 || strchr(what, '/') || *what == '.')
            return dr_fail(DR_ERROR_FORMAT, "evaluate is \"%.60s\": it must be the name of a file of tasks without .jsonl",
                           what);
    }
    return DR_OK;
}

static dr_status check_one(const json_t *follow_up) {
    const char *keys[8], *what = NULL;
    int count = 0;
    const int kind = kind_of(follow_up);
    if (kind < 0) return dr_fail(DR_ERROR_FORMAT, "it must be an object with the key probe, evaluate or bench");
    keys[count++] = kinds[kind].key;
    for (int i = 0; i < 4 && kinds[kind].numbers[i]; i++) keys[count++] = kinds[kind].numbers[i];
    for (int i = 0; i < 2 && kinds[kind].texts[i]; i++) keys[count++] = kinds[kind].texts[i];
    keys[count] = NULL;
    DR_TRY(dr_json_known(follow_up, keys));
    DR_TRY(dr_json_text(follow_up, kinds[kind].key, &what));
    for (int i = 0; i < 4 && kinds[kind].numbers[i]; i++) {
        int64_t number;
        DR_TRY(dr_json_integer(follow_up, kinds[kind].numbers[i], 1, 1000000000, &number));
    }
    for (int i = 0; i < 2 && kinds[kind].texts[i]; i++) {
        const char *text;
        DR_TRY(dr_json_text(follow_up, kinds[kind].texts[i], &text));
    }
    return check_what(kind, what);
}

dr_status dr_follow_check(const json_t *then) {
    char name[DR_FOLLOW_NAME_SIZE], other[DR_FOLLOW_NAME_SIZE];
    const size_t count = json_array_size(then);
    if (then && !json_is_array(then)) return dr_fail(DR_ERROR_FORMAT, "then must be a list of objects");
    if (count > DR_MOST_FOLLOW_UPS) return dr_fail(DR_ERROR_FORMAT, "then has more than %d objects", DR_MOST_FOLLOW_UPS);
    for (size_t i = 0; i < count; i++) {
        const dr_status status = check_one(json_array_get(then, i));
        if (status != DR_OK) return dr_fail_in(status, "then: number %zu", i + 1);
        dr_follow_name(json_array_get(then, i), name);
        for (size_t j = 0; j < i; j++) {
            dr_follow_name(json_array_get(then, j), other);
            if (strcmp(name, other) == 0) return dr_fail(DR_ERROR_FORMAT, "then: %s stands twice", name);
        }
    }
    return DR_OK;
}

void dr_follow_name(const json_t *follow_up, char name[DR_FOLLOW_NAME_SIZE]) {
    snprintf(name, DR_FOLLOW_NAME_SIZE, "%s-%s", kinds[kind_of(follow_up)].key, what_of(follow_up));
}

/* ---- arguments ------------------------------------------------------------------------------------------------------ */

static dr_status add(json_t *arguments, const char *text) {
    return json_array_append_new(arguments, json_string(text)) ? no_memory() : DR_OK;
}

static dr_status add_flag(json_t *arguments, const char *flag, const char *value) {
    DR_TRY(add(arguments, flag));
    return add(arguments, value);
}

/* The flags that the follow-up sets: "max_length": 512 becomes --max-length 512. */
static dr_status add_own_flags(const json_t *follow_up, json_t *arguments) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)follow_up, key, value) {
        char flag[64], number[32];
        if (strcmp(key, kinds[kind_of(follow_up)].key) == 0) continue;
        snprintf(flag, sizeof flag, "--%s", key);
        for (char *c = flag; *c; c++)
            if (*c == '_') *c = '-';
        if (json_is_integer(value)) snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        DR_TRY(add_flag(arguments, flag, json_is_integer(value) ? number : json_string_value(value)));
    }
    return DR_OK;
}

static dr_status need_place(const dr_experiment *experiment, const char *key, const char *what, const char **place) {
    *place = json_string_value(json_object_get(experiment->places, key));
    return *place ? DR_OK : dr_fail(DR_ERROR_ARGUMENT, "%s: give --%s", what, key);
}

static dr_status probe_arguments(const dr_experiment *experiment, const json_t *follow_up, const char *run, json_t *arguments) {
    const char *text;
    DR_TRY(need_place(experiment, "text", "runs of this experiment are probed on a UTF-8 text file", &text));
    if (access(text, R_OK) != 0)
        return dr_fail(DR_ERROR_IO, "cannot read %s, which runs of this experiment are probed on: %s", text,
                       dr_system_text(errno));
    DR_TRY(add(arguments, "probe"));
    DR_TRY(add(arguments, what_of(follow_up)));
    DR_TRY(add_flag(arguments, "--model", run));
    return add_flag(arguments, "--corpus", text);
}

static dr_status evaluate_arguments(const dr_experiment *experiment, const json_t *follow_up, const char *run,
                                    json_t *arguments) {
    const char *folder;
    char file[PATH_SIZE];
    struct stat facts;
    DR_TRY(need_place(experiment, "tasks", "runs of this experiment are asked tasks of tools/make-tasks", &folder));
    if (snprintf(file, sizeof file, "%s/%s.jsonl", folder, what_of(follow_up)) >= PATH_SIZE)
        return dr_fail(DR_ERROR_ARGUMENT, "the folder of tasks has a name of more than %d bytes", PATH_SIZE - 80);
    if (stat(file, &facts) != 0) return dr_fail(DR_ERROR_IO, "%s is missing: tools/make-tasks makes such files", file);
    DR_TRY(add(arguments, "evaluate"));
    DR_TRY(add(arguments, run));
    return add(arguments, file);
}

/* Adds a flag with the value of a setting of the run, unless that is 0, the value of settings that follow from others. */
static dr_status add_setting(const dr_train_options *options, const char *name, const char *flag, json_t *arguments) {
    const char *value = dr_train_options_get(options, name);
    return strcmp(value, "0") == 0 ? DR_OK : add_flag(arguments, flag, value);
}

/* The recurrence of the run's layers, on a step's sequences. */
static dr_status bench_flags(const dr_train_options *options, json_t *arguments) {
    static const char *const flags[][2] = {{"rule", "--rule"},
                                           {"seq_len", "--tokens"},
                                           {"batch", "--sequences"},
                                           {"heads", "--heads"},
                                           {"value_heads", "--value-heads"},
                                           {"key_size", "--head-size"},
                                           {"value_size", "--value-size"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) DR_TRY(add_setting(options, flags[i][0], flags[i][1], arguments));
    if (strcmp(dr_train_options_get(options, "key_size"), "0") != 0) return DR_OK;
    char size[32];
    double hidden = 0, heads = 1; /* they were checked when they were set */
    dr_number_parse(dr_train_options_get(options, "hidden"), DR_NUMBER_FINITE, &hidden);
    dr_number_parse(dr_train_options_get(options, "heads"), DR_NUMBER_FINITE, &heads);
    snprintf(size, sizeof size, "%" PRId64, (int64_t)hidden / (int64_t)heads);
    return add_flag(arguments, "--head-size", size);
}

static dr_status bench_arguments(const dr_cell *cell, const json_t *follow_up, json_t *arguments) {
    dr_train_options *options = NULL;
    DR_TRY(add(arguments, "bench"));
    DR_TRY(add(arguments, what_of(follow_up)));
    dr_status status = dr_experiment_options_of(cell, &options);
    if (status == DR_OK) status = bench_flags(options, arguments);
    dr_train_options_destroy(options);
    return status;
}

dr_status dr_follow_arguments(const dr_experiment *experiment, const dr_cell *cell, const json_t *follow_up, const char *run,
                              json_t *arguments) {
    dr_status status = DR_OK;
    switch (kind_of(follow_up)) {
    case PROBE:
        status = probe_arguments(experiment, follow_up, run, arguments);
        break;
    case EVALUATE:
        status = evaluate_arguments(experiment, follow_up, run, arguments);
        break;
    default:
        status = bench_arguments(cell, follow_up, arguments);
    }
    if (status == DR_OK) status = add_own_flags(follow_up, arguments);
    return status == DR_OK ? add(arguments, "--json") : status;
}

/* ---- results -------------------------------------------------------------------------------------------------------- */

static dr_status set(json_t *measures, const char *name, const char *end, double value) {
    char text[NAME_SIZE];
    snprintf(text, sizeof text, "%s%s", name, end);
    if (!isfinite(value)) return DR_OK;
    return json_object_set_new(measures, text, json_real(value)) ? no_memory() : DR_OK;
}

static double number_at(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* A figure over the layers that have it. */
typedef struct {
    const char *name;
    double mean, median, least, most;
    int layers;
} figure;

static figure *figure_named(figure figures[MOST_FIGURES], int *count, const char *name) {
    for (int i = 0; i < *count; i++)
        if (strcmp(figures[i].name, name) == 0) return &figures[i];
    if (*count == MOST_FIGURES) return NULL;
    figures[*count] = (figure){.name = name, .least = (double)INFINITY, .most = -(double)INFINITY};
    return &figures[(*count)++];
}

static dr_status add_figure(const json_t *line, figure figures[MOST_FIGURES], int *count, json_t *measures) {
    const char *name = json_string_value(json_object_get(line, "figure"));
    const double layer = number_at(line, "layer"), mean = number_at(line, "mean");
    figure *of = name && isfinite(layer) && isfinite(mean) ? figure_named(figures, count, name) : NULL;
    char end[48];
    if (!of) return dr_fail(DR_ERROR_FORMAT, "the probe printed a line that is no figure of a layer");
    of->mean += mean;
    of->median += number_at(line, "median");
    of->least = fmin(of->least, number_at(line, "least"));
    of->most = fmax(of->most, number_at(line, "most"));
    of->layers++;
    snprintf(end, sizeof end, ":layer %" PRId64, (int64_t)layer);
    return set(measures, name, end, mean);
}

static dr_status probe_measures(const json_t *lines, json_t *measures) {
    figure figures[MOST_FIGURES];
    int count = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) DR_TRY(add_figure(json_array_get(lines, i), figures, &count, measures));
    for (int i = 0; i < count; i++) {
        DR_TRY(set(measures, figures[i].name, "", figures[i].mean / figures[i].layers));
        DR_TRY(set(measures, figures[i].name, ":median", figures[i].median / figures[i].layers));
        DR_TRY(set(measures, figures[i].name, ":least", figures[i].least));
        DR_TRY(set(measures, figures[i].name, ":most", figures[i].most));
    }
    return DR_OK;
}

static dr_status task_measures(const char *task, const json_t *line, json_t *measures) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value) {
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "%.60s:%.60s", task, key);
        if (json_is_number(value)) DR_TRY(set(measures, name, "", json_number_value(value)));
    }
    return DR_OK;
}

static dr_status bench_measures(const json_t *line, json_t *measures) {
    static const char *const parts[] = {"forward", "forward_backward"};
    for (int i = 0; i < 2; i++) {
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "recurrence_%s_ms", parts[i]);
        DR_TRY(set(measures, name, "", 1e3 * number_at(json_object_get(line, parts[i]), "seconds")));
    }
    return DR_OK;
}

static dr_status parse_lines(const char *output, json_t *lines) {
    for (const char *line = output; *line;) {
        const size_t length = strcspn(line, "\n");
        json_t *object = NULL;
        if (length > 0) {
            DR_TRY(dr_json_parse(line, length, "what it printed", &object));
            if (json_array_append_new(lines, object)) return no_memory();
        }
        line += length + (line[length] == '\n');
    }
    return json_array_size(lines) > 0 ? DR_OK : dr_fail(DR_ERROR_FORMAT, "it printed nothing");
}

dr_status dr_follow_measures(const json_t *follow_up, const char *output, json_t **measures, json_t **lines) {
    char name[DR_FOLLOW_NAME_SIZE];
    *measures = json_object();
    *lines = json_array();
    dr_status status = *measures && *lines ? parse_lines(output, *lines) : no_memory();
    if (status == DR_OK) {
        switch (kind_of(follow_up)) {
        case PROBE:
            status = probe_measures(*lines, *measures);
            break;
        case EVALUATE:
            status = task_measures(what_of(follow_up), json_array_get(*lines, 0), *measures);
            break;
        default:
            status = bench_measures(json_array_get(*lines, 0), *measures);
        }
    }
    if (status == DR_OK && json_object_size(*measures) == 0) status = dr_fail(DR_ERROR_FORMAT, "it printed no number");
    if (status == DR_OK) return DR_OK;
    json_decref(*measures);
    json_decref(*lines);
    *measures = *lines = NULL;
    dr_follow_name(follow_up, name);
    return dr_fail_in(status, "%s", name);
}
