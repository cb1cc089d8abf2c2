/* The sequences of a step from the settings that say how many there are. */
#include "base/error.h"
#include "train/settings.h"

dr_status dr_train_batch(const dr_train_options *options, int64_t longest, int64_t *step, int64_t *part) {
    const int64_t tokens = dr_setting_integer(options, DR_SET_TOKENS_PER_STEP);
    const int64_t parts = dr_setting_integer(options, DR_SET_ACCUMULATE);
    int64_t sequences = dr_setting_integer(options, DR_SET_BATCH);
    if (tokens > 0) {
        const int64_t said = dr_setting_is_default(options, DR_SET_BATCH) ? tokens / longest : sequences;
        sequences = tokens / longest;
        if (tokens % longest != 0)
            return dr_fail(
                DR_ERROR_ARGUMENT,
                "tokens_per_step is %lld: it must be a multiple of the tokens of a sequence, of which there are %lld",
                (long long)tokens, (long long)longest);
        if (said != sequences)
            return dr_fail(DR_ERROR_ARGUMENT,
                           "batch is %lld, but tokens_per_step has %lld sequences of %lld tokens: leave out one of the two",
                           (long long)said, (long long)sequences, (long long)longest);
    }
    if (sequences % parts != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "accumulate is %lld: it must divide the %lld sequences of a step", (long long)parts,
                       (long long)sequences);
    *step = sequences;
    *part = sequences / parts;
    return DR_OK;
}
