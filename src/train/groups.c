/* Reading groups of parameters, and finding the group of each. */
#include "train/groups.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"

#include <string.h>

static const char BLANKS[] = " \t\n";

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static dr_status read_number(const char *key, const char *value, double most, double *number) {
    if (dr_number_parse(value, DR_NUMBER_FINITE, number) && *number >= 0 && *number <= most) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "groups: %s is \"%s\": it must be a number from 0 to %g", key, value, most);
}

/* word: "key=value". */
static dr_status read_key(char *word, dr_group *group) {
    char *value = strchr(word, '=');
    if (value) *value++ = '\0';
    if (value && strcmp(word, "rate") == 0) {
        group->has_rate = true;
        return read_number(word, value, 1000, &group->rate);
    }
    if (value && strcmp(word, "decay") == 0) {
        group->has_decay = true;
        return read_number(word, value, 10, &group->decay);
    }
    if (value && strcmp(word, "optimizer") == 0) {
        group->has_optimizer = true;
        group->muon = strcmp(value, "muon") == 0;
        if (group->muon || strcmp(value, "adamw") == 0) return DR_OK;
        return dr_fail(DR_ERROR_ARGUMENT, "groups: optimizer is \"%s\": it must be adamw or muon", value);
    }
    return dr_fail(DR_ERROR_ARGUMENT, "groups: \"%s\" of pattern %s is none of rate=X, decay=X and optimizer=NAME", word,
                   group->pattern);
}

static dr_status read_group(char *text, dr_groups *groups) {
    char *rest = NULL, *word = strtok_r(text, BLANKS, &rest);
    if (!word) return DR_OK; /* nothing between two semicolons, or behind the last */
    if (groups->count == DR_MOST_GROUPS) return dr_fail(DR_ERROR_ARGUMENT, "groups has more than %d patterns", DR_MOST_GROUPS);
    dr_group *group = &groups->at[groups->count++];
    *group = (dr_group){.pattern = word};
    word = strtok_r(NULL, BLANKS, &rest);
    if (!word)
        return dr_fail(DR_ERROR_ARGUMENT, "groups: pattern %s says nothing: add rate=X, decay=X or optimizer=NAME",
                       group->pattern);
    for (; word; word = strtok_r(NULL, BLANKS, &rest)) DR_TRY(read_key(word, group));
    return DR_OK;
}

dr_status dr_groups_parse(const char *text, dr_groups *groups) {
    *groups = (dr_groups){0};
    DR_TRY(dr_copy_string(text, &groups->text));
    char *rest = NULL;
    for (char *part = strtok_r(groups->text, ";", &rest); part; part = strtok_r(NULL, ";", &rest))
        DR_TRY(read_group(part, groups));
    return DR_OK;
}

void dr_groups_release(dr_groups *groups) {
    dr_release(groups->text);
    *groups = (dr_groups){0};
}

/* ---- finding -------------------------------------------------------------------------------------------------------- */

/* * fits any characters, all others themselves. */
static bool fits(const char *pattern, const char *name) {
    const char *star = NULL, *again = NULL; /* the last star, and where what it stands for ends */
    while (*name) {
        if (*pattern == '*') {
            star = pattern++, again = name;
        } else if (*pattern == *name) {
            pattern++, name++;
        } else if (star) {
            pattern = star + 1, name = ++again;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

bool dr_is_matrix(const dr_parameter *parameter, int64_t *rows, int64_t *columns) {
    if (!parameter->decays || parameter->rank < 2) return false;
    *rows = parameter->shape[parameter->rank - 2];
    *columns = parameter->shape[parameter->rank - 1];
    return *rows > 1 && *columns > 1;
}

/* Whether it is the table of embeddings or the head: their rows are looked up or compared one by one. */
static bool is_of_tokens(const dr_model *model, const dr_parameter *parameter) {
    const dr_layer_parameter *trunk = model->trunk.at;
    return parameter->offset == trunk[model->embedding].offset || parameter->offset == trunk[model->head].offset;
}

static dr_status apply(const dr_group *group, const dr_model *model, dr_treatment *treatments) {
    const dr_parameter *parameters;
    const int64_t count = dr_model_parameters(model, &parameters);
    int64_t found = 0, matrices = 0, rows, columns;
    for (int64_t i = 0; i < count; i++) {
        if (!fits(group->pattern, parameters[i].name)) continue;
        const bool matrix = dr_is_matrix(&parameters[i], &rows, &columns);
        found++, matrices += matrix;
        if (group->has_rate) treatments[i].rate = group->rate;
        if (group->has_decay) treatments[i].decay = group->decay;
        if (group->has_optimizer) treatments[i].muon = group->muon && matrix;
    }
    if (found == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "groups: no parameter of the model has a name like \"%s\"; one is %s", group->pattern,
                       parameters[0].name);
    if (group->has_optimizer && group->muon && matrices == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "groups: none of the parameters like \"%s\" is a matrix, and Muon is for matrices",
                       group->pattern);
    return DR_OK;
}

dr_status dr_groups_treat(const dr_groups *groups, const dr_model *model, double decay, bool muon, dr_treatment *treatments) {
    const dr_parameter *parameters;
    const int64_t count = dr_model_parameters(model, &parameters);
    int64_t rows, columns;
    for (int64_t i = 0; i < count; i++)
        treatments[i] = (dr_treatment){.rate = 1,
                                       .decay = parameters[i].decays ? decay : 0,
                                       .muon = muon && dr_is_matrix(&parameters[i], &rows, &columns) &&
                                               !is_of_tokens(model, &parameters[i])};
    for (int i = 0; i < groups->count; i++) DR_TRY(apply(&groups->at[i], model, treatments));
    return DR_OK;
}
