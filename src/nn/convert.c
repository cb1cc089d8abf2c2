/* A folder for other programs, made as one change of it: what a kill leaves is no model. */
#include <deltarule/convert.h>
#include <deltarule/version.h>

#include "base/error.h"
#include "base/number.h"
#include "formats/file.h"
#include "nn/model.h"
#include "nn/model_files.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FILE = 1 << 28, CARD_BYTES = 1 << 14 };

dr_convert_options dr_convert_defaults(void) {
    return (dr_convert_options){.dtype = DR_BF16, .file_bytes = INT64_C(5000000000)};
}

/* ---- what is copied --------------------------------------------------------------------------------------------------- */

static const char *const copied[] = {"tokenizer.json",
                                     "tokenizer_config.json",
                                     "tokenizer.model",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "chat_template.jinja",
                                     "generation_config.json",
                                     "LICENSE"};

static bool has(const char *folder, const char *name, char path[PATH_MAX]) {
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX && access(path, F_OK) == 0;
}

static dr_status write_file(dr_folder *change, const char *name, const char *data, size_t bytes) {
    dr_file file;
    DR_TRY(dr_file_create(dr_folder_path(change, name), &file));
    dr_file_write(&file, data, bytes);
    return dr_file_finish(&file);
}

static dr_status copy_files(const char *folder, dr_folder *change) {
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++) {
        char path[PATH_MAX], *data;
        size_t bytes;
        if (!has(folder, copied[i], path)) continue;
        DR_TRY(dr_file_read(path, MOST_FILE, &data, &bytes));
        const dr_status status = write_file(change, copied[i], data, bytes);
        dr_release(data);
        DR_TRY(status);
    }
    return DR_OK;
}

/* ---- the card --------------------------------------------------------------------------------------------------------- */

typedef struct {
    char text[CARD_BYTES];
    size_t length;
} card;

static __attribute__((format(printf, 2, 3))) void say(card *of, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = dr_format_list(of->text + of->length, sizeof of->text - of->length, format, arguments);
    va_end(arguments);
    of->length += (size_t)length < sizeof of->text - of->length ? (size_t)length : sizeof of->text - of->length - 1;
}

/* The last part of a path, at most 100 characters of it that stand in a table as they are. */
static void base_name(const char *path, char name[101]) {
    size_t end = strlen(path), length = 0;
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    for (; begin < end && length < 100; begin++)
        name[length++] = path[begin] == '|' || (unsigned char)path[begin] < ' ' ? '?' : path[begin];
    name[length] = '\0';
}

static const char *type_of(const dr_model *model) {
    const char *type = json_string_value(json_object_get(model->published, "model_type"));
    return type ? type : "deltarule";
}

/* The class that config.json names, which reads such a folder, or NULL. */
static const char *class_of(const dr_model *model) {
    return json_string_value(json_array_get(json_object_get(model->published, "architectures"), 0));
}

static void say_rule(card *of, const dr_model *model) {
    const dr_rule *rule = &model->config.rule;
    char equation[2048];
    if (!rule->name && rule->rows == 0) {
        say(of, "| rule | none: softmax attention |\n");
        return;
    }
    if (dr_rule_get_name(rule)) say(of, "| rule | %.100s |\n", dr_rule_get_name(rule));
    if (dr_rule_equation(rule, equation, sizeof equation) > 0) say(of, "| equation | `%s` |\n", equation);
    if (dr_rule_get_source(rule)) say(of, "| source of the rule | %.500s |\n", dr_rule_get_source(rule));
}

static void describe(card *of, const dr_model *model, const char *folder, dr_dtype dtype) {
    char name[101];
    base_name(folder, name);
    say(of, "\n## Weights and type\n\nWritten by deltarule %s from the folder `%s`.\n\n| | |\n|---|---|\n", dr_version(), name);
    say(of, "| type | %.100s |\n", type_of(model));
    if (class_of(model)) say(of, "| class | %.100s |\n", class_of(model));
    say(of, "| parameters | %" PRId64 " |\n| weights | %s |\n", model->count, dr_dtype_name(dtype));
    say(of, "| layers | %" PRId64 " |\n| hidden size | %" PRId64 " |\n| vocabulary | %" PRId64 " |\n", model->description.count,
        model->description.hidden, model->description.vocabulary);
    say_rule(of, model);
    say(of, "\n    deltarule generate --model . --prompt 'Once upon a time'\n");
}

/* The folder's own card, which has its licence and data, comes first. */
static dr_status write_card(const dr_model *model, const char *folder, const char *to, dr_dtype dtype, dr_folder *change) {
    char path[PATH_MAX], name[101], *own = NULL;
    size_t bytes = 0;
    void *memory = NULL;
    dr_status status = DR_OK;
    if (has(folder, "README.md", path)) DR_TRY(dr_file_read(path, MOST_FILE, &own, &bytes));
    DR_GO(dr_allocate_zero(sizeof(card), "a model card", &memory));
    card *of = memory;
    base_name(to, name);
    if (!own) say(of, "---\ntags:\n- deltarule\n---\n\n# %s\n", name);
    describe(of, model, folder, dtype);
    dr_file file;
    DR_GO(dr_file_create(dr_folder_path(change, "README.md"), &file));
    if (own) dr_file_write(&file, own, bytes);
    dr_file_write(&file, of->text, of->length);
    status = dr_file_finish(&file);
done:
    dr_release(memory);
    dr_release(own);
    return status;
}

/* ---- the folder ------------------------------------------------------------------------------------------------------- */

/* *fresh: there is none yet. */
static dr_status check_empty(const char *to, bool *fresh) {
    DIR *listing = opendir(to);
    bool empty = true;
    *fresh = !listing && access(to, F_OK) != 0;
    if (*fresh) return DR_OK;
    if (!listing) return dr_fail(DR_ERROR_ARGUMENT, "%s is no folder: name one that is empty or not there", to);
    for (const struct dirent *item = readdir(listing); item && empty; item = readdir(listing))
        empty = strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0;
    closedir(listing);
    if (empty) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s has files already: nothing is written over, name a folder that is empty or not there",
                   to);
}

static dr_status fill(const dr_model *model, const char *folder, const char *to, const dr_convert_options *options,
                      dr_folder *change) {
    DR_TRY(dr_model_write_as(model, change, options->dtype, options->file_bytes));
    DR_TRY(copy_files(folder, change));
    return write_card(model, folder, to, options->dtype, change);
}

dr_status dr_model_convert(const dr_model *model, const char *folder, const char *to, const dr_convert_options *options) {
    const dr_convert_options defaults = dr_convert_defaults();
    dr_folder *change = NULL;
    bool fresh;
    DR_NEED(model);
    DR_NEED(folder);
    DR_NEED(to);
    if (!options) options = &defaults;
    if (options->dtype != DR_F32 && options->dtype != DR_F64 && options->dtype != DR_F16 && options->dtype != DR_BF16)
        return dr_fail(DR_ERROR_ARGUMENT, "weights cannot be written as %s: only as F32, F64, F16 and BF16",
                       dr_dtype_name(options->dtype));
    if (options->file_bytes < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "files of %" PRId64 " bytes: give 0 for no bound", options->file_bytes);
    DR_TRY(check_empty(to, &fresh));
    DR_TRY(dr_folder_begin(to, &change));
    dr_status status = fill(model, folder, to, options, change);
    if (status == DR_OK) return dr_folder_commit(change);
    dr_folder_abandon(change);
    if (fresh) rmdir(to);
    return status;
}
