/* From settings to the generator and the sizes of a task of synthetic examples. */
#include "train/example_task.h"
#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* Of task mqar without a list: 2^i least_pairs pairs in training, up to pairs, one as often as another. */
static dr_status training_of_pairs(const dr_train_options *options, dr_sizes *training) {
    const int64_t length = dr_setting_integer(options, DR_SET_SEQ_LEN), all = dr_setting_integer(options, DR_SET_PAIRS);
    const int64_t least = dr_setting_integer(options, DR_SET_LEAST_PAIRS);
    int64_t pairs = least ? least : all;
    training->count = 0;
    for (; pairs < all; pairs *= 2) DR_TRY(dr_sizes_add(training, length, pairs));
    if (pairs == all) return dr_sizes_add(training, length, all);
    return dr_fail(DR_ERROR_ARGUMENT, "least_pairs is %lld: doubling it must lead to pairs, which is %lld", (long long)least,
                   (long long)all);
}

/* A list of the settings, or the default of the task; "" if there is neither. */
static const char *list_of(const dr_train_options *options, dr_setting_id id, const char *fallback) {
    return dr_setting_is_auto(options, id) ? fallback : dr_setting_text(options, id);
}

static dr_status read_training(const dr_train_options *options, const char *list, int64_t pairs, dr_sizes *training) {
    return *list ? dr_sizes_parse("lengths", list, pairs, true, training) : training_of_pairs(options, training);
}

/* Sets have names where a list says what they are. */
static dr_status read_held_out(const dr_train_options *options, const char *list, const char *training, int64_t pairs,
                               dr_sizes *held_out) {
    if (*list) return dr_sizes_parse("held_out_lengths", list, pairs, false, held_out);
    if (*training) return dr_sizes_parse("lengths", training, pairs, true, held_out);
    held_out->count = 0;
    return dr_sizes_add(held_out, dr_setting_integer(options, DR_SET_SEQ_LEN), pairs);
}

static dr_status read_sizes(const dr_train_options *options, const dr_generator_kind *kind, bool scores,
                            dr_example_task *task) {
    const int64_t pairs = kind->has_pairs ? dr_setting_integer(options, DR_SET_PAIRS) : 0;
    const char *training = list_of(options, DR_SET_LENGTHS, kind->lengths);
    const char *held_out = list_of(options, DR_SET_HELD_OUT_LENGTHS, kind->held_out_lengths);
    task->named = *held_out || *training;
    DR_TRY(read_held_out(options, held_out, training, pairs, &task->held_out));
    if (!scores) return read_training(options, training, pairs, &task->training);
    task->training = task->held_out;
    return DR_OK;
}

/* seq_len would be passed over in silence. */
static dr_status check_seq_len(const dr_train_options *options, const dr_generator_kind *kind) {
    if (kind->has_pairs || dr_setting_is_default(options, DR_SET_SEQ_LEN)) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "seq_len is %s, but task %s has examples of several lengths: give lengths instead",
                   dr_setting_text(options, DR_SET_SEQ_LEN), kind->name);
}

dr_status dr_example_task_open(const dr_train_options *options, int64_t vocabulary, dr_example_task *task) {
    const dr_generator_kind *kind = dr_generator_find(dr_setting_text(options, DR_SET_TASK));
    const dr_generator_options of_generator = {.vocabulary =
                                                   vocabulary ? vocabulary : dr_setting_integer(options, DR_SET_VOCABULARY),
                                               .power = dr_setting_real(options, DR_SET_POWER_A),
                                               .random_fillers = dr_setting_boolean(options, DR_SET_RANDOM_FILLERS),
                                               .updates = dr_setting_integer(options, DR_SET_UPDATES),
                                               .group = dr_setting_text(options, DR_SET_GROUP),
                                               .moves = dr_setting_integer(options, DR_SET_MOVES),
                                               .tokens = dr_setting_integer(options, DR_SET_ELEMENT_TOKENS),
                                               .repeat_elements = dr_setting_boolean(options, DR_SET_REPEAT_ELEMENTS)};
    dr_status status;
    *task = (dr_example_task){.held_out_seed = (uint64_t)dr_setting_integer(options, DR_SET_HELD_OUT_SEED)};
    if (!kind)
        return dr_fail(DR_ERROR_ARGUMENT, "task %s has no examples that are drawn", dr_setting_text(options, DR_SET_TASK));
    DR_TRY(check_seq_len(options, kind));
    DR_TRY(dr_held_out_examples(options, &task->examples));
    DR_TRY(read_sizes(options, kind, vocabulary > 0, task));
    DR_TRY(kind->create(&of_generator, dr_sizes_largest(&task->training, &task->held_out), &task->generator));
    const dr_example_size largest = dr_sizes_largest(&task->training, NULL);
    DR_GO(dr_train_batch(options, task->generator->kind->tokens(task->generator, largest), &task->step, &task->batch));
    DR_GO(dr_sizes_fit(task->generator, "lengths", &task->training));
    DR_GO(dr_sizes_fit(task->generator, "held_out_lengths", &task->held_out));
    return DR_OK;
done:
    dr_example_task_close(task);
    return status;
}

void dr_example_task_close(dr_example_task *task) {
    dr_generator_destroy(task->generator);
    task->generator = NULL;
}

int64_t dr_example_task_rows(const dr_example_task *task) {
    const dr_example_size largest = dr_sizes_largest(&task->training, NULL);
    return task->batch * task->generator->kind->tokens(task->generator, largest);
}
