/* Tokenizers do not change, so that any connection's thread may encode and decode; only the scheduler touches the model. */
#include "serve/served.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/encode.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* The last part of a path, without slashes at its end. */
static dr_status last_part(const char *path, char **name) {
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') end--;
    begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    DR_TRY(dr_copy_string(path + begin, name));
    (*name)[end - begin] = 0;
    return DR_OK;
}

static dr_status split_name(const char *model, dr_served *served) {
    const char *equals = strchr(model, '=');
    DR_TRY(dr_copy_string(equals ? equals + 1 : model, &served->folder));
    DR_TRY(equals ? dr_copy_string(model, &served->name) : last_part(model, &served->name));
    if (equals) served->name[equals - model] = 0;
    if (*served->name && *served->folder) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the model \"%s\" must be a folder, or a name and a folder: NAME=FOLDER", model);
}

static dr_status load_tokenizer(const dr_serve_options *options, dr_served *served) {
    char path[4096];
    const char *given = options->tokenizer;
    snprintf(path, sizeof path, "%s/tokenizer.json", served->folder);
    const bool bytes = given ? strcmp(given, "bytes") == 0 : access(path, F_OK) != 0;
    DR_TRY(bytes ? dr_tokenizer_bytes(&served->tokenizer)
                 : dr_tokenizer_load(given ? given : served->folder, &served->tokenizer));
    return dr_vocabulary_check(dr_model_get_config(served->model)->vocabulary, bytes ? NULL : served->tokenizer);
}

static dr_status load(const dr_serve_options *options, const char *model, dr_metrics *metrics, dr_served *served) {
    DR_TRY(split_name(model, served));
    DR_TRY(dr_model_load(options->backend, served->folder, &served->model));
    DR_TRY(load_tokenizer(options, served));
    const bool beside = options->tokenizer && strcmp(options->tokenizer, "bytes") != 0;
    dr_status status = dr_chat_load(beside ? options->tokenizer : served->folder, &served->chat);
    if (status != DR_OK && status != DR_ERROR_UNSUPPORTED && status != DR_ERROR_IO) return status;
    if (served->chat) DR_TRY(dr_call_form_learn(served->chat, served->tokenizer, &served->calls));
    served->created = (int64_t)time(NULL);
    dr_scheduler_options scheduler = {.model = served->model,
                                      .tokenizer = served->tokenizer,
                                      .slots = options->slots,
                                      .queue = options->queue,
                                      .context = options->context,
                                      .store = {.bytes = (size_t)options->store_bytes,
                                                .folder = options->state_folder,
                                                .folder_bytes = (size_t)options->folder_bytes},
                                      .metrics = metrics};
    return dr_scheduler_create(&scheduler, &served->scheduler);
}

dr_status dr_served_load(const dr_serve_options *options, const char *model, dr_metrics *metrics, dr_served **served) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_served), "a model that is served", &memory));
    dr_status status = load(options, model, metrics, memory);
    if (status != DR_OK)
        dr_served_destroy(memory);
    else
        *served = memory;
    return status;
}

void dr_served_destroy(dr_served *served) {
    if (!served) return;
    dr_scheduler_destroy(served->scheduler);
    dr_chat_destroy(served->chat);
    dr_call_form_destroy(served->calls);
    dr_tokenizer_destroy(served->tokenizer);
    dr_model_destroy(served->model);
    dr_release(served->name);
    dr_release(served->folder);
    dr_release(served);
}

dr_status dr_served_check_ids(const dr_served *served, const int32_t *ids, int64_t count) {
    const int64_t vocabulary = dr_model_get_config(served->model)->vocabulary;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return dr_fail(DR_ERROR_FORMAT, "token %lld is %lld: ids of this model are from 0 to %lld", (long long)i,
                           (long long)ids[i], (long long)vocabulary - 1);
    return DR_OK;
}

dr_status dr_served_decode(const dr_served *served, const int32_t *ids, int64_t count, char **text, size_t *bytes) {
    dr_decoder *decoder;
    const char *found;
    void *memory;
    dr_status status;
    DR_TRY(dr_decoder_create(served->tokenizer, DR_DECODE_TEXT, &decoder));
    DR_GO(dr_decoder_decode(decoder, ids, (size_t)count, &found, bytes));
    DR_GO(dr_allocate(*bytes + 1, "a text", &memory));
    if (*bytes > 0) memcpy(memory, found, *bytes);
    *text = memory;
    (*text)[*bytes] = 0;
done:
    dr_decoder_destroy(decoder);
    return status;
}
