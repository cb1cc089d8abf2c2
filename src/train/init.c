/* Runs that go on from a model: what the settings may say beside it. */
#include "base/error.h"
#include "shards/tokenizer_files.h"
#include "train/settings.h"

#include <string.h>

dr_status dr_train_check_init(const dr_train_options *options) {
    for (int id = 0; id < DR_SETTINGS; id++) {
        const dr_setting *setting = &dr_setting_table[id];
        const bool of_model = id == DR_SET_RULE || strcmp(setting->group, dr_setting_table[DR_SET_HIDDEN].group) == 0;
        if (of_model && dr_setting_is_set(options, (dr_setting_id)id) && !dr_setting_is_default(options, (dr_setting_id)id))
            return dr_fail(DR_ERROR_ARGUMENT,
                           "%s is set, but it is that of the model in %s, which init goes on from: leave it out", setting->name,
                           dr_setting_text(options, DR_SET_INIT));
    }
    return DR_OK;
}

dr_status dr_train_init_tokenizer(dr_train_options *options) {
    const char *folder = dr_setting_text(options, DR_SET_INIT);
    if (!*folder || dr_setting_is_set(options, DR_SET_TOKENIZER) || !dr_tokenizer_is_in(folder)) return DR_OK;
    return dr_train_options_set(options, dr_setting_table[DR_SET_TOKENIZER].name, folder);
}
