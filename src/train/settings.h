/* The settings of a run: one table (settings_table.c), values as text in dr_train_options, typed access for the rest of train/.
 */
#ifndef DR_TRAIN_SETTINGS_H
#define DR_TRAIN_SETTINGS_H

#include "base/for_check.h"
#include "train/optimizer.h"
#include "train/schedule.h"

#include <deltarule/train.h>
#include <jansson.h>

/* One for each row of the table, in its order. */
typedef enum {
    DR_SET_TASK,
    DR_SET_RULE,
    DR_SET_INIT,
    DR_SET_CORPUS,
    DR_SET_TOKENIZER,
    DR_SET_SKIP_UNREADABLE,
    DR_SET_HELD_OUT,
    DR_SET_HELD_OUT_SEED,
    DR_SET_STEPS,
    DR_SET_SEED,
    DR_SET_THREADS,
    DR_SET_SAVE_EVERY,
    DR_SET_SAVE_KEEP,
    DR_SET_EVALUATE_EVERY,
    DR_SET_EVALUATE_TOKENS,
    DR_SET_BATCH,
    DR_SET_SEQ_LEN,
    DR_SET_TOKENS_PER_STEP,
    DR_SET_ACCUMULATE,
    DR_SET_KEEP_LEVEL,
    DR_SET_RESET_AT_DOCUMENTS,
    DR_SET_LEARNING_RATE,
    DR_SET_MIN_LEARNING_RATE_RATIO,
    DR_SET_WARMUP,
    DR_SET_WARMUP_STEPS,
    DR_SET_SCHEDULE,
    DR_SET_DECAY,
    DR_SET_DECAY_SHAPE,
    DR_SET_OPTIMIZER,
    DR_SET_MUON_MOMENTUM,
    DR_SET_GROUPS,
    DR_SET_WEIGHT_DECAY,
    DR_SET_BETA1,
    DR_SET_BETA2,
    DR_SET_EPS,
    DR_SET_CLIP,
    DR_SET_HIDDEN,
    DR_SET_LAYERS,
    DR_SET_LAYER_LIST,
    DR_SET_HEADS,
    DR_SET_VALUE_HEADS,
    DR_SET_KEY_SIZE,
    DR_SET_VALUE_SIZE,
    DR_SET_INTERMEDIATE,
    DR_SET_CONV_SIZE,
    DR_SET_TIED,
    DR_SET_OUTPUT_GATE,
    DR_SET_NEGATIVE_EIGENVALUES,
    DR_SET_FORCE,
    DR_SET_GATE,
    DR_SET_LOWER_BOUND,
    DR_SET_LAMBDA_BIAS,
    DR_SET_INITIALIZER_RANGE,
    DR_SET_CONV_INITIALIZER_RANGE,
    DR_SET_VOCABULARY,
    DR_SET_PAIRS,
    DR_SET_LEAST_PAIRS,
    DR_SET_POWER_A,
    DR_SET_RANDOM_FILLERS,
    DR_SET_UPDATES,
    DR_SET_GROUP,
    DR_SET_MOVES,
    DR_SET_ELEMENT_TOKENS,
    DR_SET_REPEAT_ELEMENTS,
    DR_SET_LENGTHS,
    DR_SET_HELD_OUT_LENGTHS,
    DR_SET_STOP_ACCURACY,
    DR_SETTINGS
} dr_setting_id;

extern const dr_setting dr_setting_table[DR_SETTINGS];

/* The value of a setting, set or default. Of the type that the table says, and not "auto". */
DR_FOR_CHECK int64_t dr_setting_integer(const dr_train_options *options, dr_setting_id id);
double dr_setting_real(const dr_train_options *options, dr_setting_id id);
bool dr_setting_boolean(const dr_train_options *options, dr_setting_id id);
const char *dr_setting_text(const dr_train_options *options, dr_setting_id id);
/* Whether it is left to the rule's family. */
bool dr_setting_is_auto(const dr_train_options *options, dr_setting_id id);
/* Whether it has the value that it has where nobody sets it. */
bool dr_setting_is_default(const dr_train_options *options, dr_setting_id id);
/* Whether it was set, to whatever value. */
DR_FOR_CHECK bool dr_setting_is_set(const dr_train_options *options, dr_setting_id id);

/* What the setting held_out says, which is a number or a path. The path, or NULL if it is auto or a number. */
const char *dr_held_out_path(const dr_train_options *options);
/* The share of the corpus in (0, 1), or 0 for auto. DR_ERROR_ARGUMENT for other numbers. */
dr_status dr_held_out_share(const dr_train_options *options, double *share);
/* The number of examples. DR_ERROR_ARGUMENT unless it is whole and from 1 to 1e6. */
dr_status dr_held_out_examples(const dr_train_options *options, int64_t *examples);

/* How many sequences a step has, and how many of them are computed at a time: batch, or tokens_per_step over the tokens of the
 * longest sequence, and that over accumulate. DR_ERROR_ARGUMENT if they cannot be divided so. */
dr_status dr_train_batch(const dr_train_options *options, int64_t longest, int64_t *step, int64_t *part);

/* What the settings say of the optimizer and of learning rates; text in it lives as long as the options. DR_ERROR_ARGUMENT if
 * warm-up and decay are more than all steps. */
DR_FOR_CHECK dr_status dr_train_optimizer_settings(const dr_train_options *options, dr_optimizer_settings *settings);
dr_status dr_train_schedule(const dr_train_options *options, dr_schedule *schedule);

/* All settings but threads, on which results do not depend, as an object that dr_train_options_read takes. */
dr_status dr_train_options_to_json(const dr_train_options *options, json_t **object);

/* The model that the settings describe, with a vocabulary of so many ids. */
DR_FOR_CHECK dr_status dr_train_model_config(const dr_train_options *options, int64_t vocabulary, dr_model_config *config);
/* The same, where a rule that names no base and no family has this family's layers; DR_FAMILY_AUTO: those of the named rule
 * with its axes, or of compositions. */
dr_status dr_train_model_config_of(const dr_train_options *options, dr_family unsaid, int64_t vocabulary,
                                   dr_model_config *config);
/* With init: DR_ERROR_ARGUMENT names a setting that the folder's model has already; and the folder's tokenizer becomes that of
 * the run, where the setting says none. */
dr_status dr_train_check_init(const dr_train_options *options);
dr_status dr_train_init_tokenizer(dr_train_options *options);
/* DR_ERROR_ARGUMENT names a setting that contradicts the resolved configuration of the run's model; folder: for the message. */
dr_status dr_train_check_model(const dr_train_options *options, const dr_model_config *is, const char *folder);

#endif
