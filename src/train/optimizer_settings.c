/* From settings to the optimizer and the schedule of its learning rate. */
#include "base/error.h"
#include "train/settings.h"

#include <string.h>

dr_status dr_train_optimizer_settings(const dr_train_options *options, dr_optimizer_settings *settings) {
    *settings = (dr_optimizer_settings){.beta1 = dr_setting_real(options, DR_SET_BETA1),
                                        .beta2 = dr_setting_real(options, DR_SET_BETA2),
                                        .eps = dr_setting_real(options, DR_SET_EPS),
                                        .weight_decay = dr_setting_real(options, DR_SET_WEIGHT_DECAY),
                                        .clip = dr_setting_real(options, DR_SET_CLIP),
                                        .muon = strcmp(dr_setting_text(options, DR_SET_OPTIMIZER), "muon") == 0,
                                        .momentum = dr_setting_real(options, DR_SET_MUON_MOMENTUM),
                                        .groups = dr_setting_text(options, DR_SET_GROUPS)};
    return DR_OK;
}

/* The place of a word among those of a setting's choices, which are in the order of its enumeration. */
static int choice_of(const dr_train_options *options, dr_setting_id id) {
    const char *value = dr_setting_text(options, id);
    const size_t length = strlen(value);
    int place = 0;
    for (const char *word = dr_setting_table[id].choices; *word; word += strspn(word, " "), place++) {
        const size_t size = strcspn(word, " ");
        if (size == length && strncmp(word, value, size) == 0) break;
        word += size;
    }
    return place;
}

dr_status dr_train_schedule(const dr_train_options *options, dr_schedule *schedule) {
    *schedule = (dr_schedule){.shape = (dr_schedule_shape)choice_of(options, DR_SET_SCHEDULE),
                              .decay_shape = (dr_decay_shape)choice_of(options, DR_SET_DECAY_SHAPE),
                              .peak = dr_setting_real(options, DR_SET_LEARNING_RATE),
                              .last_ratio = dr_setting_real(options, DR_SET_MIN_LEARNING_RATE_RATIO),
                              .warmup = dr_setting_real(options, DR_SET_WARMUP),
                              .warmup_steps = dr_setting_integer(options, DR_SET_WARMUP_STEPS),
                              .decay = dr_setting_real(options, DR_SET_DECAY),
                              .steps = dr_setting_integer(options, DR_SET_STEPS)};
    const double all = (double)schedule->steps;
    const double rising = schedule->warmup_steps > 0 ? (double)schedule->warmup_steps : schedule->warmup * all;
    if (schedule->shape != DR_SCHEDULE_STABLE || rising + schedule->decay * all <= all) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT,
                   "the warm-up takes %.0f of %.0f steps and decay %g of them: they must fit one behind the other", rising, all,
                   schedule->decay);
}
