/* Values of settings: kept as text, checked against the table when they are set, so that every later reading succeeds. */
#include "train/settings.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/near.h"
#include "base/number.h"
#include "base/utf8.h"
#include "formats/folder.h"
#include "formats/json.h"
#include "rules/json.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LONGEST_FALLBACK = 24, LONGEST_RULE = 2048 };

struct dr_train_options {
    char *value[DR_SETTINGS];                          /* NULL: not set */
    char task_fallback[DR_SETTINGS][LONGEST_FALLBACK]; /* the default where it depends on the task, else "" */
};

/* From "lm 1, mqar 2, else 3" what stands after a word; NULL if that word is not there. */
static const char *behind_word(const char *fallback, const char *name) {
    const size_t length = strlen(name);
    for (const char *word = fallback; word; word = strchr(word, ' ')) {
        word += strspn(word, " ");
        if (strncmp(word, name, length) == 0 && word[length] == ' ') return word + length + 1;
    }
    return NULL;
}

/* The defaults that depend on the task; "" if the default is the same for all. */
static void fill_task_fallbacks(dr_train_options *options) {
    const char *task = dr_setting_text(options, DR_SET_TASK);
    for (int id = 0; id < DR_SETTINGS; id++) {
        const char *value = id == DR_SET_TASK ? NULL : behind_word(dr_setting_table[id].fallback, task);
        if (!value && id != DR_SET_TASK) value = behind_word(dr_setting_table[id].fallback, "else");
        snprintf(options->task_fallback[id], LONGEST_FALLBACK, "%.*s", value ? (int)strcspn(value, ",") : 0,
                 value ? value : "");
    }
}

dr_status dr_train_options_create(dr_train_options **options) {
    DR_NEED(options);
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_train_options), "the settings", &memory));
    *options = memory;
    fill_task_fallbacks(*options);
    return DR_OK;
}

void dr_train_options_destroy(dr_train_options *options) {
    if (!options) return;
    for (int id = 0; id < DR_SETTINGS; id++) dr_release(options->value[id]);
    dr_release(options);
}

static int find_setting(const char *name) {
    for (int id = 0; id < DR_SETTINGS; id++)
        if (strcmp(dr_setting_table[id].name, name) == 0) return id;
    return -1;
}

static dr_status fail_unknown(const char *name) {
    int nearest = 0, least = INT_MAX;
    for (int id = 0; id < DR_SETTINGS; id++) {
        int distance = dr_edit_distance(name, dr_setting_table[id].name);
        if (distance < least) least = distance, nearest = id;
    }
    if (least <= 3)
        return dr_fail(DR_ERROR_ARGUMENT, "no setting is named \"%s\"; did you mean \"%s\"?", name,
                       dr_setting_table[nearest].name);
    return dr_fail(DR_ERROR_ARGUMENT, "no setting is named \"%s\"; `deltarule train --help` lists them", name);
}

static bool is_word_of(const char *words, const char *value) {
    size_t length = strlen(value);
    for (const char *word = words; word; word = strchr(word, ' ')) {
        word += strspn(word, " ");
        if (length > 0 && strncmp(word, value, length) == 0 && (word[length] == ' ' || word[length] == '\0')) return true;
    }
    return false;
}

/* Whether the rule's family can choose. */
static bool may_be_auto(const dr_setting *setting) {
    return strstr(setting->fallback, "auto") != NULL;
}

static dr_status check_number(const dr_setting *setting, const char *value) {
    double number = 0;
    int64_t integer = 0;
    bool whole = setting->type == DR_SETTING_INTEGER,
         is_read = whole ? dr_integer_parse(value, &integer) : dr_number_parse(value, DR_NUMBER_FINITE, &number);
    if (whole) number = (double)integer;
    if (is_read && number >= setting->least && number <= setting->most) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s is \"%s\": it must be a%s number from %.10g to %.10g", setting->name, value,
                   whole ? " whole" : "", setting->least, setting->most);
}

static dr_status check_value(const dr_setting *setting, const char *value) {
    if (strcmp(value, "auto") == 0 && may_be_auto(setting)) return DR_OK;
    switch (setting->type) {
    case DR_SETTING_INTEGER:
    case DR_SETTING_REAL:
        return check_number(setting, value);
    case DR_SETTING_BOOLEAN:
        if (is_word_of("true false", value)) return DR_OK;
        return dr_fail(DR_ERROR_ARGUMENT, "%s is \"%s\": it must be true or false", setting->name, value);
    case DR_SETTING_TEXT:
        if (dr_utf8_valid((const uint8_t *)value, (int64_t)strlen(value)) < (int64_t)strlen(value))
            return dr_fail(DR_ERROR_ARGUMENT,
                           "%s is \"%s\", which is not UTF-8: settings are kept as JSON, which cannot hold it; give it another "
                           "name, or a link",
                           setting->name, value);
        if (!setting->choices || is_word_of(setting->choices, value)) return DR_OK;
        return dr_fail(DR_ERROR_ARGUMENT, "%s is \"%s\": it must be one of: %s", setting->name, value, setting->choices);
    }
    return DR_OK;
}

static dr_status keep(dr_train_options *options, int id, const char *value) {
    char *copy;
    DR_TRY(dr_copy_string(value, &copy));
    dr_release(options->value[id]);
    options->value[id] = copy;
    return DR_OK;
}

/* A rule is kept as its name, or as JSON whole: a run does not depend on a file that may change. */
static dr_status keep_rule(dr_train_options *options, const dr_rule *rule, const dr_gates *gates) {
    char text[LONGEST_RULE];
    int length = dr_rule_write_text(rule, gates, text, sizeof text);
    if (length < 0 || length >= LONGEST_RULE) return dr_fail(DR_ERROR_MEMORY, "there is no memory for the rule as JSON");
    return keep(options, DR_SET_RULE, text);
}

/* From a name, the text of an object, or a file. */
static dr_status set_rule(dr_train_options *options, const char *value) {
    dr_rule rule;
    dr_gates gates;
    size_t length = strlen(value);
    bool is_object = value[strspn(value, " \t\n")] == '{';
    bool is_file = length > 5 && strcmp(value + length - 5, ".json") == 0;
    if (!is_object && !is_file) return dr_rule_find(value) ? keep(options, DR_SET_RULE, value) : DR_ERROR_ARGUMENT;
    DR_TRY(is_object ? dr_rule_read_text(value, &rule, &gates) : dr_rule_read_file(value, &rule, &gates));
    return keep_rule(options, &rule, &gates);
}

dr_status dr_train_options_set(dr_train_options *options, const char *name, const char *value) {
    DR_NEED(options);
    DR_NEED(name);
    DR_NEED(value);
    int id = find_setting(name);
    if (id < 0) return fail_unknown(name);
    DR_TRY(check_value(&dr_setting_table[id], value));
    if (id == DR_SET_RULE) return set_rule(options, value);
    DR_TRY(keep(options, id, value));
    if (id == DR_SET_TASK) fill_task_fallbacks(options);
    return DR_OK;
}

/* A JSON value as the text that dr_train_options_set takes, in buffer unless it is a string. */
static dr_status text_of(const dr_setting *setting, const json_t *value, char buffer[DR_NUMBER_SIZE], const char **text) {
    static const char *const wanted[] = {[DR_SETTING_INTEGER] = "a whole number",
                                         [DR_SETTING_REAL] = "a number",
                                         [DR_SETTING_BOOLEAN] = "true or false",
                                         [DR_SETTING_TEXT] = "a string"};
    int64_t whole = 0;
    bool is_held_out = setting == &dr_setting_table[DR_SET_HELD_OUT]; /* a number or a path */
    bool fits = setting->type == DR_SETTING_INTEGER   ? dr_json_whole(value, &whole)
                : setting->type == DR_SETTING_REAL    ? json_is_number(value)
                : setting->type == DR_SETTING_BOOLEAN ? json_is_boolean(value)
                                                      : json_is_string(value) || (is_held_out && json_is_number(value));
    bool is_auto = json_is_string(value) && strcmp(json_string_value(value), "auto") == 0;
    if (!fits && !(is_auto && may_be_auto(setting))) {
        char found[96];
        dr_json_describe(value, found, sizeof found);
        return dr_fail(DR_ERROR_ARGUMENT, "%s must be %s, not %s", setting->name, wanted[setting->type], found);
    }
    *text = buffer;
    if (json_is_string(value))
        *text = json_string_value(value);
    else if (json_is_boolean(value))
        *text = json_is_true(value) ? "true" : "false";
    else if (dr_json_whole(value, &whole))
        snprintf(buffer, DR_NUMBER_SIZE, "%" PRId64, whole);
    else
        dr_number_write(json_real_value(value), buffer);
    return DR_OK;
}

static dr_status set_from_json(dr_train_options *options, const char *name, const json_t *value) {
    char buffer[DR_NUMBER_SIZE];
    const char *text = NULL;
    int id = find_setting(name);
    if (strcmp(name, "comment") == 0 && json_is_string(value)) return DR_OK; /* for people */
    if (id < 0) return fail_unknown(name);
    if (id == DR_SET_RULE && json_is_object(value)) {
        dr_rule rule;
        dr_gates gates;
        dr_status status = dr_rule_from_json(value, &rule, &gates);
        return status == DR_OK ? keep_rule(options, &rule, &gates) : dr_fail_in(status, "rule");
    }
    DR_TRY(text_of(&dr_setting_table[id], value, buffer, &text));
    return dr_train_options_set(options, name, text);
}

/* Earlier versions wrote the number of held-out examples, of task mqar, into the settings of every run. */
static bool is_held_out_of_other_task(const json_t *object, const char *name) {
    const char *task = json_string_value(json_object_get(object, "task"));
    return strcmp(name, "held_out") == 0 && json_is_integer(json_object_get(object, name)) && task && strcmp(task, "lm") == 0 &&
           !json_object_get(object, "held_out_seed");
}

dr_status dr_train_options_read(dr_train_options *options, const char *file) {
    DR_NEED(options);
    DR_NEED(file);
    char path[PATH_MAX];
    struct stat facts;
    if (stat(file, &facts) == 0 && S_ISDIR(facts.st_mode)) {
        DR_TRY(dr_folder_recover(file));
        snprintf(path, sizeof path, "%s/settings.json", file);
        file = path;
    }
    json_t *object, *value;
    const char *name;
    DR_TRY(dr_json_read(file, &object));
    dr_status status = DR_OK;
    json_object_foreach(object, name, value) {
        if (is_held_out_of_other_task(object, name)) continue;
        status = set_from_json(options, name, value);
        if (status != DR_OK) {
            dr_fail_in(status, "%s", file);
            break;
        }
    }
    json_decref(object);
    return status;
}

const char *dr_train_options_get(const dr_train_options *options, const char *name) {
    if (!options || !name) return NULL;
    int id = find_setting(name);
    return id < 0 ? NULL : dr_setting_text(options, (dr_setting_id)id);
}

const char *dr_setting_text(const dr_train_options *options, dr_setting_id id) {
    if (options->value[id]) return options->value[id];
    return options->task_fallback[id][0] ? options->task_fallback[id] : dr_setting_table[id].fallback;
}

int64_t dr_setting_integer(const dr_train_options *options, dr_setting_id id) {
    int64_t value = 0;
    dr_integer_parse(dr_setting_text(options, id), &value); /* it was checked when it was set, or is "auto" */
    return value;
}

double dr_setting_real(const dr_train_options *options, dr_setting_id id) {
    double value = 0;
    dr_number_parse(dr_setting_text(options, id), DR_NUMBER_FINITE, &value); /* likewise */
    return value;
}

bool dr_setting_boolean(const dr_train_options *options, dr_setting_id id) {
    return strcmp(dr_setting_text(options, id), "true") == 0;
}

bool dr_setting_is_auto(const dr_train_options *options, dr_setting_id id) {
    return strcmp(dr_setting_text(options, id), "auto") == 0;
}

bool dr_setting_is_set(const dr_train_options *options, dr_setting_id id) {
    return options->value[id] != NULL;
}

bool dr_setting_is_default(const dr_train_options *options, dr_setting_id id) {
    const char *fallback = options->task_fallback[id][0] ? options->task_fallback[id] : dr_setting_table[id].fallback;
    return !options->value[id] || strcmp(options->value[id], fallback) == 0;
}

const char *dr_held_out_path(const dr_train_options *options) {
    double number;
    const char *text = dr_setting_text(options, DR_SET_HELD_OUT);
    return dr_setting_is_auto(options, DR_SET_HELD_OUT) || dr_number_parse(text, DR_NUMBER_FINITE, &number) ? NULL : text;
}

dr_status dr_held_out_share(const dr_train_options *options, double *share) {
    const char *text = dr_setting_text(options, DR_SET_HELD_OUT);
    *share = 0;
    if (dr_setting_is_auto(options, DR_SET_HELD_OUT) ||
        (dr_number_parse(text, DR_NUMBER_FINITE, share) && *share > 0 && *share < 1))
        return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT,
                   "held_out is %s: in task lm it must be a share above 0 and below 1, such as 0.1, or the path of other text "
                   "(./%s if that is a path)",
                   text, text);
}

dr_status dr_held_out_examples(const dr_train_options *options, int64_t *examples) {
    double number = 1000;
    const char *text = dr_setting_text(options, DR_SET_HELD_OUT);
    bool fits = dr_setting_is_auto(options, DR_SET_HELD_OUT) || dr_number_parse(text, DR_NUMBER_FINITE, &number);
    *examples = fits && number >= 1 && number <= 1e6 ? (int64_t)number : 0;
    if (*examples > 0 && (double)*examples == number) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "held_out is \"%s\": in task %s it must be a whole number from 1 to 1000000 of examples",
                   text, dr_setting_text(options, DR_SET_TASK));
}

static json_t *value_to_json(const dr_train_options *options, dr_setting_id id) {
    if (dr_setting_is_auto(options, id)) return json_string("auto");
    if (id == DR_SET_RULE && *dr_setting_text(options, id) == '{') return dr_json_value(dr_setting_text(options, id));
    switch (dr_setting_table[id].type) {
    case DR_SETTING_INTEGER:
        return json_integer(dr_setting_integer(options, id));
    case DR_SETTING_REAL:
        return json_real(dr_setting_real(options, id));
    case DR_SETTING_BOOLEAN:
        return json_boolean(dr_setting_boolean(options, id));
    case DR_SETTING_TEXT:
        return json_string(dr_setting_text(options, id));
    }
    return NULL;
}

dr_status dr_train_options_to_json(const dr_train_options *options, json_t **object) {
    json_t *made = json_object();
    int failed = made == NULL;
    for (int id = 0; id < DR_SETTINGS && !failed; id++)
        if (id != DR_SET_THREADS)
            failed = json_object_set_new(made, dr_setting_table[id].name, value_to_json(options, (dr_setting_id)id));
    if (failed) {
        json_decref(made);
        return dr_fail(DR_ERROR_MEMORY, "there is no memory for the settings as JSON");
    }
    *object = made;
    return DR_OK;
}

/* The rule, and what its object says about gates. */
static dr_status rule_of(const dr_train_options *options, dr_rule *rule, dr_gates *gates) {
    const char *text = dr_setting_text(options, DR_SET_RULE);
    if (*text == '{') return dr_rule_read_text(text, rule, gates);
    const dr_rule *named = dr_rule_find(text);
    if (!named) return DR_ERROR_ARGUMENT;
    *rule = *named;
    *gates = dr_gates_default();
    return DR_OK;
}

/* Settings that are not auto go before the rule's object. */
static void override_gates(const dr_train_options *options, dr_gates *gates) {
    static const struct {
        const char *name;
        dr_gate_form form;
    } forms[] = {
        {"log", DR_GATE_FORM_LOG}, {"kda_bounded", DR_GATE_FORM_KDA_BOUNDED}, {"eda_bounded", DR_GATE_FORM_EDA_BOUNDED}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, dr_setting_text(options, DR_SET_GATE)) == 0) gates->gate = forms[i].form;
    if (!dr_setting_is_auto(options, DR_SET_NEGATIVE_EIGENVALUES))
        gates->negative_eigenvalues = dr_setting_boolean(options, DR_SET_NEGATIVE_EIGENVALUES);
    if (!dr_setting_is_auto(options, DR_SET_LOWER_BOUND)) gates->lower_bound = dr_setting_real(options, DR_SET_LOWER_BOUND);
}

dr_status dr_train_model_config_of(const dr_train_options *options, dr_family unsaid, int64_t vocabulary,
                                   dr_model_config *config) {
    dr_rule rule;
    dr_gates gates;
    DR_TRY(rule_of(options, &rule, &gates));
    if (rule.family == DR_FAMILY_AUTO) rule.family = unsaid;
    override_gates(options, &gates);
    *config = dr_model_config_default(&rule);
    config->gates = gates;
    config->vocabulary = vocabulary;
    config->hidden = dr_setting_integer(options, DR_SET_HIDDEN);
    config->layers = dr_setting_integer(options, DR_SET_LAYERS);
    if (*dr_setting_text(options, DR_SET_LAYER_LIST)) config->layer_list = dr_setting_text(options, DR_SET_LAYER_LIST);
    config->heads = dr_setting_integer(options, DR_SET_HEADS);
    config->value_heads = dr_setting_integer(options, DR_SET_VALUE_HEADS);
    config->key_size = dr_setting_integer(options, DR_SET_KEY_SIZE);
    config->value_size = dr_setting_integer(options, DR_SET_VALUE_SIZE);
    config->intermediate = dr_setting_integer(options, DR_SET_INTERMEDIATE);
    config->tied = dr_setting_boolean(options, DR_SET_TIED);
    config->force = dr_setting_boolean(options, DR_SET_FORCE);
    if (!dr_setting_is_auto(options, DR_SET_CONV_SIZE)) config->conv_size = dr_setting_integer(options, DR_SET_CONV_SIZE);
    if (!dr_setting_is_auto(options, DR_SET_OUTPUT_GATE)) config->output_gate = dr_setting_boolean(options, DR_SET_OUTPUT_GATE);
    if (!dr_setting_is_auto(options, DR_SET_LAMBDA_BIAS)) config->lambda_bias = dr_setting_real(options, DR_SET_LAMBDA_BIAS);
    if (!dr_setting_is_auto(options, DR_SET_INITIALIZER_RANGE))
        config->initializer_range = dr_setting_real(options, DR_SET_INITIALIZER_RANGE);
    config->conv_initializer_range = dr_setting_real(options, DR_SET_CONV_INITIALIZER_RANGE);
    return DR_OK;
}

dr_status dr_train_model_config(const dr_train_options *options, int64_t vocabulary, dr_model_config *config) {
    return dr_train_model_config_of(options, DR_FAMILY_AUTO, vocabulary, config);
}
