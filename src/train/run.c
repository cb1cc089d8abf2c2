/* Making a run from settings, or from the folder of an earlier one. All that can be found out about a new run in memory is
 * found out before its folder is made; then its other first files and its first checkpoint become those of the folder in one
 * change. It is written before the first step or, where it can be, beside the first steps; a kill leaves something to resume
 * from then on, and before it nothing. */
#include "train/run.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "formats/folder.h"
#include "nn/session.h"
#include "train/save.h"
#include "train/trial.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A resumed run may stand in another folder than the run that it continues did. */
static dr_status make_path_absolute(dr_train_options *options, dr_setting_id id, const char *path) {
    char *absolute = path && *path ? realpath(path, NULL) : NULL;
    if (!absolute) return DR_OK; /* reading the corpus tells what is wrong */
    dr_status status = dr_train_options_set(options, dr_setting_table[id].name, absolute);
    free(absolute);
    return status;
}

static dr_status make_paths_absolute(dr_train_options *options) {
    DR_TRY(make_path_absolute(options, DR_SET_INIT, dr_setting_text(options, DR_SET_INIT)));
    DR_TRY(make_path_absolute(options, DR_SET_CORPUS, dr_setting_text(options, DR_SET_CORPUS)));
    DR_TRY(make_path_absolute(options, DR_SET_HELD_OUT, dr_held_out_path(options)));
    const char *tokenizer = dr_setting_text(options, DR_SET_TOKENIZER);
    return strcmp(tokenizer, "bytes") == 0 ? DR_OK : make_path_absolute(options, DR_SET_TOKENIZER, tokenizer);
}

static dr_status copy_options(const dr_train_options *options, dr_train_options *copy) {
    for (int id = 0; id < DR_SETTINGS; id++)
        if (dr_setting_is_set(options, (dr_setting_id)id))
            DR_TRY(dr_train_options_set(copy, dr_setting_table[id].name, dr_setting_text(options, (dr_setting_id)id)));
    return DR_OK;
}

/* A run whose options are all at their defaults, and that has no folder; to be filled. */
static dr_status begin(dr_run **run) {
    void *memory;
    *run = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_run), "a run", &memory));
    dr_run *made = memory;
    made->position = (dr_run_position){.held_out = (double)NAN, .accuracy = (double)NAN};
    made->lock = dr_run_lock_none();
    dr_status status = dr_train_options_create(&made->options);
    if (status != DR_OK)
        dr_run_destroy(made);
    else
        *run = made;
    return status;
}

/* Whether a layer has a mixture of experts with a loss of its own. */
static bool balances(const dr_description *description) {
    for (int64_t i = 0; i < description->count; i++) {
        const dr_feed_description *feed = &description->layers[i].feed;
        if (feed->kind == DR_FEED_EXPERTS && feed->of.experts.balance != 0) return true;
    }
    return false;
}

static dr_status make_trainer(dr_run *run) {
    const dr_train_options *options = run->options;
    dr_optimizer_settings settings;
    DR_TRY(dr_train_optimizer_settings(options, &settings));
    DR_TRY(dr_train_schedule(options, &run->schedule));
    run->balances = balances(&run->model->description);
    DR_TRY(dr_session_create(run->model, &run->session));
    DR_TRY(dr_session_keep(run->session, dr_setting_integer(options, DR_SET_KEEP_LEVEL)));
    DR_TRY(dr_step_numbers_create(run->model->backend, dr_setting_integer(options, DR_SET_ACCUMULATE), &run->numbers));
    return dr_optimizer_create(run->model, &settings, &run->optimizer);
}

/* A model of the settings, or that of the folder that they name. */
static dr_status make_model(dr_backend *backend, dr_run *run) {
    const dr_train_options *options = run->options;
    const char *folder = dr_setting_text(options, DR_SET_INIT);
    dr_model_config config;
    if (*folder) {
        DR_TRY(dr_train_check_init(options));
        dr_status status = dr_model_load(backend, folder, &run->model);
        if (status != DR_OK) return dr_fail_in(status, "init");
        return dr_trial_fits_beside(run->model);
    }
    DR_TRY(dr_train_model_config(options, run->task->vocabulary, &config));
    DR_TRY(dr_trial_fits(backend, &config, false));
    return dr_model_create(backend, &config, (uint64_t)dr_setting_integer(options, DR_SET_SEED), &run->model);
}

/* Whether the model has the ids of the data; one that was loaded may have more. */
static dr_status check_vocabulary(const dr_run *run) {
    const int64_t has = dr_model_get_config(run->model)->vocabulary, needs = run->task->vocabulary;
    if (has >= needs) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the model in %s has %lld ids, and the data %lld: encode it with the model's tokenizer",
                   dr_setting_text(run->options, DR_SET_INIT), (long long)has, (long long)needs);
}

dr_status dr_run_prepare(dr_backend *backend, const dr_train_options *options, dr_run **run) {
    DR_NEED(backend);
    DR_NEED(options);
    DR_NEED(run);
    dr_run *made;
    dr_status status;
    *run = NULL;
    DR_TRY(begin(&made));
    DR_GO(copy_options(options, made->options));
    DR_GO(make_paths_absolute(made->options));
    DR_GO(dr_train_init_tokenizer(made->options));
    DR_GO(dr_task_create(made->options, &made->task));
    made->position.fingerprint = made->task->fingerprint;
    DR_GO(make_model(backend, made));
    DR_GO(check_vocabulary(made));
    DR_GO(make_trainer(made));
    DR_GO(dr_trial_run(made));
    *run = made;
    return DR_OK;
done:
    dr_run_destroy(made);
    return status;
}

/* What a new run's folder has beside its checkpoint. */
static dr_status write_first_files(const dr_run *run, dr_folder **change) {
    const dr_task *task = run->task;
    DR_TRY(dr_folder_begin(run->folder, change));
    dr_status status = dr_metrics_begin(*change, &task->sets);
    if (status == DR_OK && task->ops->publish) status = task->ops->publish(task, *change);
    if (status != DR_OK) dr_folder_abandon(*change);
    return status;
}

/* Gives a prepared run its folder. */
static dr_status settle(dr_run *run, const char *folder) {
    DR_TRY(dr_copy_string(folder, &run->folder));
    DR_TRY(dr_run_folder_claim(run->folder, &run->lock));
    dr_folder *change;
    dr_status status = write_first_files(run, &change);
    if (status == DR_OK) status = dr_save_first(run, change);
    if (status != DR_OK) dr_run_folder_give_back(&run->lock);
    return status;
}

dr_status dr_run_create(dr_backend *backend, const dr_train_options *options, const char *folder, dr_run **run) {
    DR_NEED(backend);
    DR_NEED(options);
    DR_NEED(folder);
    DR_NEED(run);
    dr_run *made;
    *run = NULL;
    DR_TRY(dr_run_folder_check(folder));
    DR_TRY(dr_run_prepare(backend, options, &made));
    dr_status status = settle(made, folder);
    if (status == DR_OK)
        *run = made;
    else
        dr_run_destroy(made);
    return status;
}

dr_status dr_run_create_beside(dr_backend *backend, const dr_train_options *options, const char *folder, dr_run **run) {
    DR_NEED(backend);
    DR_NEED(options);
    DR_NEED(folder);
    DR_NEED(run);
    dr_backend *own;
    *run = NULL;
    if (!backend->ops->beside)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend \"%s\" has all processors to itself: nothing runs beside it",
                       dr_backend_name(backend));
    DR_TRY(backend->ops->beside(backend, &own));
    const dr_status status = dr_run_create(own, options, folder, run);
    if (status == DR_OK)
        (*run)->own = own;
    else
        dr_backend_close(own);
    return status;
}

/* Whether both are numbers, and the same one: 1e-3 and 0.001. */
static bool same_number(dr_setting_id id, const char *one, const char *other) {
    double first, second;
    if (dr_setting_table[id].type != DR_SETTING_INTEGER && dr_setting_table[id].type != DR_SETTING_REAL) return false;
    return dr_number_parse(one, DR_NUMBER_FINITE, &first) && dr_number_parse(other, DR_NUMBER_FINITE, &second) &&
           first == second;
}

/* Settings that were given for a resumed run: those that decide its numbers must be as they were, but for steps. */
static dr_status apply_changes(const dr_train_options *changes, dr_train_options *options) {
    for (int id = 0; id < DR_SETTINGS; id++) {
        bool may_change = id == DR_SET_STEPS || id == DR_SET_THREADS || id == DR_SET_KEEP_LEVEL || id == DR_SET_SAVE_EVERY ||
                          id == DR_SET_SAVE_KEEP || id == DR_SET_EVALUATE_EVERY || id == DR_SET_SKIP_UNREADABLE ||
                          id == DR_SET_CORPUS || id == DR_SET_TOKENIZER || /* moved: their content must be the same */
                          (id == DR_SET_HELD_OUT && dr_held_out_path(options) && dr_held_out_path(changes));
        if (!dr_setting_is_set(changes, (dr_setting_id)id)) continue;
        const char *name = dr_setting_table[id].name, *value = dr_setting_text(changes, (dr_setting_id)id);
        const char *old = dr_setting_text(options, (dr_setting_id)id);
        bool same = strcmp(value, old) == 0 || same_number((dr_setting_id)id, value, old);
        if (!may_change && !same)
            return dr_fail(
                DR_ERROR_ARGUMENT,
                "%s cannot be changed from %s to %s when a run is resumed: steps, threads, keep_level, save_every, save_keep, "
                "evaluate_every, skip_unreadable and the places of the corpus, the tokenizer and held-out text can",
                name, old, value);
        if (may_change) DR_TRY(dr_train_options_set(options, name, value));
    }
    return DR_OK;
}

/* The folder must hold a run; nothing is changed in one that does not. */
static dr_status check_holds_run(const char *folder) {
    DR_TRY(dr_run_folder_check_name(folder));
    if (access(folder, F_OK) != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%s holds no run to resume: %s", folder, dr_system_text(errno));
    DR_TRY(dr_folder_recover(folder));
    if (dr_checkpoint_exists(folder)) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s holds no run to resume: it has no settings.json", folder);
}

/* Whether model, optimizer, settings and data are of one run. */
static dr_status check_agreement(const dr_run *run) {
    const dr_model_config *config = dr_model_get_config(run->model);
    const dr_run_position *position = &run->position;
    const bool began_with_model = *dr_setting_text(run->options, DR_SET_INIT) != '\0'; /* whose settings are not the run's */
    if (began_with_model ? config->vocabulary < run->task->vocabulary : config->vocabulary != run->task->vocabulary)
        return dr_fail(DR_ERROR_FORMAT, "%s: the model's vocabulary of %lld ids is not that of its settings, %lld", run->folder,
                       (long long)config->vocabulary, (long long)run->task->vocabulary);
    if (!began_with_model) DR_TRY(dr_train_check_model(run->options, config, run->folder));
    if (position->fingerprint != run->task->fingerprint)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "the corpus %s is not the text that the run began with: put that back, or begin a new run",
                       dr_setting_text(run->options, DR_SET_CORPUS));
    if (position->step > run->schedule.steps)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "steps is %lld, but the run in %s has done %lld already: give more, or leave it as it is",
                       (long long)run->schedule.steps, run->folder, (long long)position->step);
    return DR_OK;
}

dr_status dr_run_resume(dr_backend *backend, const char *folder, const dr_train_options *changes, dr_run **run) {
    DR_NEED(backend);
    DR_NEED(folder);
    DR_NEED(run);
    dr_run *made;
    dr_model_config config;
    dr_status status;
    *run = NULL;
    DR_TRY(check_holds_run(folder));
    DR_TRY(begin(&made));
    DR_GO(dr_copy_string(folder, &made->folder));
    DR_GO(dr_run_lock_take(made->folder, &made->lock));
    DR_GO(check_holds_run(folder)); /* now that nobody writes there */
    DR_GO(dr_train_options_read(made->options, folder));
    int64_t steps = dr_setting_integer(made->options, DR_SET_STEPS);
    if (!dr_setting_is_set(made->options, DR_SET_HELD_OUT_SEED)) /* earlier versions had one seed for all */
        DR_GO(dr_train_options_set(made->options, "held_out_seed", dr_setting_text(made->options, DR_SET_SEED)));
    if (!dr_setting_is_set(made->options, DR_SET_RESET_AT_DOCUMENTS)) /* and carried the state on */
        DR_GO(dr_train_options_set(made->options, "reset_at_documents", "false"));
    if (changes) DR_GO(apply_changes(changes, made->options));
    DR_GO(make_paths_absolute(made->options));
    DR_GO(dr_task_create(made->options, &made->task));
    if (!*dr_setting_text(made->options, DR_SET_INIT)) {
        DR_GO(dr_train_model_config(made->options, made->task->vocabulary, &config));
        DR_GO(dr_trial_fits(backend, &config, true));
    }
    DR_GO(dr_model_load(backend, folder, &made->model));
    DR_GO(make_trainer(made));
    if (steps != made->schedule.steps) made->earlier_steps = steps;
    DR_GO(dr_checkpoint_read(folder, made->optimizer, &made->position));
    DR_GO(check_agreement(made));
    DR_GO(dr_trial_run(made));
    DR_GO(dr_metrics_open(folder, made->position.step, &made->task->sets, &made->metrics));
    *run = made;
    return DR_OK;
done:
    dr_run_destroy(made);
    return status;
}

dr_model *dr_run_model(dr_run *run) {
    return run ? run->model : NULL;
}

/* What other steps than before do to a run that has done some: the schedule is a function of step and steps. */
static void describe_schedule(const dr_run *run, char *text, size_t size) {
    dr_schedule earlier = run->schedule;
    int64_t next = run->position.step + 1;
    earlier.steps = run->earlier_steps;
    const bool falls = earlier.shape == DR_SCHEDULE_COSINE || earlier.shape == DR_SCHEDULE_LINEAR;
    int used = dr_format(text, size, "steps: %lld instead of %lld, so the learning rate %s all %lld: step %lld has %.3g",
                         (long long)run->schedule.steps, (long long)earlier.steps, falls ? "falls over" : "is that of",
                         (long long)run->schedule.steps, (long long)next, dr_schedule_rate(&run->schedule, next));
    if (next <= earlier.steps)
        dr_format(text + used, size - (size_t)used, ", not %.3g", dr_schedule_rate(&earlier, next));
    else
        dr_format(text + used, size - (size_t)used, ", after %.3g at the end of the run before",
                  dr_schedule_rate(&earlier, earlier.steps));
}

void dr_run_describe(const dr_run *run, void (*line)(void *context, const char *text), void *context) {
    if (!run || !line) return;
    const dr_model_config *config = dr_model_get_config(run->model);
    const dr_backend *backend = dr_model_backend(run->model);
    char text[1024];
    snprintf(text, sizeof text, "model: %s, %lld layers of width %lld, %lld heads of %lld x %lld, %lld parameters",
             config->rule.name ? config->rule.name : "composition", (long long)config->layers, (long long)config->hidden,
             (long long)config->value_heads, (long long)config->key_size, (long long)config->value_size,
             (long long)dr_model_parameter_count(run->model));
    line(context, text);
    if (!config->rule.name) {
        dr_rule_equation(&config->rule, text, sizeof text);
        line(context, text);
    }
    snprintf(text, sizeof text, "backend: %s (%s), %d threads", dr_backend_name(backend), dr_backend_isa(backend),
             dr_backend_threads(backend));
    line(context, text);
    run->task->ops->describe(run->task, line, context);
    if (run->position.step > 0) {
        snprintf(text, sizeof text, "resumed after step %lld of %lld", (long long)run->position.step,
                 (long long)run->schedule.steps);
        line(context, text);
    }
    if (run->earlier_steps == 0 || run->position.step == 0 || run->position.step == run->schedule.steps) return;
    describe_schedule(run, text, sizeof text);
    line(context, text);
}

void dr_run_destroy(dr_run *run) {
    if (!run) return;
    dr_save_release(run);
    dr_metrics_close(&run->metrics);
    if (run->is_empty)
        dr_run_folder_give_back(&run->lock);
    else
        dr_run_lock_release(&run->lock);
    dr_step_numbers_release(&run->numbers);
    dr_optimizer_destroy(run->optimizer);
    dr_session_destroy(run->session);
    dr_model_destroy(run->model);
    if (run->task) run->task->ops->destroy(run->task);
    dr_train_options_destroy(run->options);
    dr_backend_close(run->own);
    dr_release(run->folder);
    dr_release(run);
}
