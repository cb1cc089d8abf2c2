/* Finding the files of corpora. A writer that goes on must find the same files, or its shards would be of no one text: names,
 * sizes and times tell, without reading. */
#include "shards/corpora.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/mapping.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

dr_status dr_corpora_check(const dr_shards_options *options) {
    if (options->size != sizeof *options)
        return dr_fail(DR_ERROR_ARGUMENT, "the options say that they have %zu bytes: dr_shards_options of this library has %zu",
                       options->size, sizeof *options);
    DR_NEED(options->field);
    if (options->corpus_count < 0 || (options->corpus_count > 0 && !options->corpora))
        return dr_fail(DR_ERROR_ARGUMENT, "corpus_count is %lld: it must be the number of the paths at corpora",
                       (long long)options->corpus_count);
    if (options->validation_count < 0 || (options->validation_count > 0 && !options->validation))
        return dr_fail(DR_ERROR_ARGUMENT, "validation_count is %lld: it must be the number of the texts at validation",
                       (long long)options->validation_count);
    if (options->longest_document >= 1 && options->longest_document <= INT64_C(1) << 30) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "longest_document is %lld bytes: it must be from 1 to 1073741824",
                   (long long)options->longest_document);
}

dr_status dr_corpora_judge(const dr_shards_options *options, dr_status status, bool *left_out) {
    *left_out = options->skip_unreadable && status != DR_OK && status != DR_ERROR_MEMORY;
    if (*left_out && options->left_out) options->left_out(options->context, dr_last_error());
    return *left_out ? DR_OK : status;
}

static dr_status find_corpus(const char *path, const char *set, dr_shard_corpora *corpora) {
    dr_shard_corpus *corpus = &corpora->at[corpora->count++];
    corpus->path = path;
    snprintf(corpus->set, sizeof corpus->set, "%s", set);
    DR_TRY(dr_files_find(path, &corpus->files));
    const size_t root = strlen(path);
    uint64_t hash = dr_hash_bytes(corpora->contents, set, (int64_t)strlen(set));
    for (int64_t i = 0; i < corpus->files.count; i++) {
        const char *name = corpus->files.at[i].path;
        struct stat facts;
        int64_t about[3] = {0};
        if (stat(name, &facts) == 0) {
            about[0] = facts.st_size, about[1] = facts.st_mtim.tv_sec, about[2] = facts.st_mtim.tv_nsec;
            corpora->bytes += facts.st_size;
        }
        if (strlen(name) >= root) name += root; /* the corpus may have moved */
        hash = dr_hash_bytes(hash, name, (int64_t)strlen(name));
        hash = dr_hash_bytes(hash, about, sizeof about);
    }
    corpora->files += corpus->files.count;
    corpora->contents = hash;
    return DR_OK;
}

/* NAME=PATH */
static dr_status find_validation(const char *text, dr_shard_corpora *corpora) {
    char name[DR_SET_NAME], set[DR_SET_NAME + 8];
    const char *equal = strchr(text, '=');
    snprintf(name, sizeof name, "%.*s", equal && equal - text < DR_SET_NAME ? (int)(equal - text) : 0, text);
    snprintf(set, sizeof set, "val_%s", name);
    if (!equal || !*name || !equal[1] || !dr_set_name_fits(set))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "the validation set \"%.200s\" must be NAME=PATH, the name of letters, digits, _ and -, at most 44",
                       text);
    for (int64_t i = 0; i < corpora->count; i++)
        if (strcmp(corpora->at[i].set, set) == 0)
            return dr_fail(DR_ERROR_ARGUMENT, "the validation set %s is given twice", name);
    return find_corpus(equal + 1, set, corpora);
}

dr_status dr_shard_corpora_find(const dr_shards_options *options, dr_shard_corpora *corpora) {
    void *memory;
    const size_t count = (size_t)(options->corpus_count + options->validation_count);
    *corpora = (dr_shard_corpora){0};
    if (count == 0) return dr_fail(DR_ERROR_ARGUMENT, "there is no corpus: give a text file or a folder of them");
    DR_TRY(dr_allocate_zero(count * sizeof(dr_shard_corpus), "the corpora", &memory));
    corpora->at = memory;
    for (int64_t i = 0; i < options->corpus_count; i++) DR_TRY(find_corpus(options->corpora[i], "", corpora));
    for (int64_t i = 0; i < options->validation_count; i++) DR_TRY(find_validation(options->validation[i], corpora));
    return DR_OK;
}

void dr_shard_corpora_release(dr_shard_corpora *corpora) {
    for (int64_t i = 0; i < corpora->count; i++) dr_files_release(&corpora->at[i].files);
    dr_release(corpora->at);
    *corpora = (dr_shard_corpora){0};
}
