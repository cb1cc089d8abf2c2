/* Ids go through the decoder, which gives whole characters, and these through the search for stop texts, which holds back what
 * may be the beginning of one. */
#include "generate/answer.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "data/encode.h"

#include <string.h>

dr_status dr_answer_check(const dr_generate_options *options) {
    if (options->tokens < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "tokens is %lld: it must not be negative", (long long)options->tokens);
    if (options->stop_count < 0 || (options->stop_count > 0 && !options->stop))
        return dr_fail(DR_ERROR_ARGUMENT, "stop_count is %lld: it must be the number of the texts at stop",
                       (long long)options->stop_count);
    for (int64_t i = 0; i < options->stop_count; i++)
        if (!options->stop[i] || !*options->stop[i])
            return dr_fail(DR_ERROR_ARGUMENT, "stop text %lld is empty: it would end every text at once", (long long)i + 1);
    if (options->stop_token_count < 0 || (options->stop_token_count > 0 && !options->stop_tokens))
        return dr_fail(DR_ERROR_ARGUMENT, "stop_token_count is %lld: it must be the number of the ids at stop_tokens",
                       (long long)options->stop_token_count);
    const int64_t ids = options->tokenizer ? dr_tokenizer_size(options->tokenizer) : DR_BYTE_VOCABULARY;
    for (int64_t i = 0; i < options->stop_token_count; i++)
        if (options->stop_tokens[i] < 0 || options->stop_tokens[i] >= ids)
            return dr_fail(DR_ERROR_ARGUMENT, "stop token %lld is %lld: ids are from 0 to %lld", (long long)i + 1,
                           (long long)options->stop_tokens[i], (long long)ids - 1);
    return DR_OK;
}

dr_status dr_answer_create(const dr_generate_options *options, dr_answer *answer) {
    *answer = (dr_answer){.options = options, .start = DR_DOCUMENT_START, .end = -1};
    if (options->tokens == 0) answer->finish = DR_FINISH_LENGTH;
    DR_TRY(dr_stop_create(options, &answer->stop));
    if (!options->tokenizer) return DR_OK;
    DR_TRY(dr_document_start(options->tokenizer, &answer->start));
    answer->end = dr_tokenizer_special(options->tokenizer, DR_TOKEN_EOS);
    return dr_decoder_create(options->tokenizer, DR_DECODE_TEXT | DR_DECODE_NO_SPECIAL, &answer->decoder);
}

void dr_answer_release(dr_answer *answer) {
    dr_decoder_destroy(answer->decoder);
    dr_stop_destroy(&answer->stop);
    dr_release(answer->ready);
    *answer = (dr_answer){0};
}

dr_status dr_answer_read(dr_answer *answer, const int32_t *ids, int64_t count) {
    const char *text;
    size_t bytes;
    for (int64_t i = 0; answer->decoder && i < count; i++) {
        dr_status status = dr_decoder_step(answer->decoder, ids[i], &text, &bytes);
        if (status != DR_OK && status != DR_ERROR_FORMAT) return status; /* the stream goes on from the next id */
    }
    return DR_OK;
}

/* Adds bytes to those that are ready. */
static dr_status make_ready(dr_answer *answer, const char *bytes, size_t count) {
    const size_t needed = answer->ready_bytes + count;
    if (needed > answer->ready_room) {
        void *memory = answer->ready;
        size_t room = 2 * needed;
        DR_TRY(memory ? dr_resize(&memory, answer->ready_room, room, "the text of a token")
                      : dr_allocate(room, "the text of a token", &memory));
        answer->ready = memory;
        answer->ready_room = room;
    }
    if (count > 0) memcpy(answer->ready + answer->ready_bytes, bytes, count);
    answer->ready_bytes = needed;
    return DR_OK;
}

/* Looks for stop texts in more text; what is certain becomes ready. */
static dr_status add_text(dr_answer *answer, const char *text, size_t bytes) {
    dr_stop *stop = &answer->stop;
    for (size_t i = 0; i < bytes && answer->finish != DR_FINISH_STOP; i++) {
        size_t certain;
        if (dr_stop_add(stop, text[i], &certain)) answer->finish = DR_FINISH_STOP;
        DR_TRY(make_ready(answer, stop->held, certain));
        dr_stop_take(stop, certain);
    }
    return DR_OK;
}

/* A document ends, or the answer: no stop text goes on behind it. */
static dr_status give_up_held(dr_answer *answer) {
    dr_stop *stop = &answer->stop;
    DR_TRY(make_ready(answer, stop->held, stop->held_bytes));
    dr_stop_take(stop, stop->held_bytes);
    return DR_OK;
}

/* The text that a token makes certain. */
static dr_status add_token(dr_answer *answer, int32_t id) {
    const char *text;
    size_t bytes;
    if (!answer->decoder) {
        const char byte = (char)id;
        return id == DR_DOCUMENT_START ? give_up_held(answer) : add_text(answer, &byte, 1);
    }
    dr_status status = dr_decoder_step(answer->decoder, id, &text, &bytes);
    if (status == DR_ERROR_FORMAT) return DR_OK; /* the stream goes on from the next id */
    DR_TRY(status);
    return add_text(answer, text, bytes);
}

/* What waits for more, when there is no more. */
static dr_status finish_text(dr_answer *answer) {
    const char *text;
    size_t bytes;
    if (answer->decoder) {
        const dr_finish reason = answer->finish;
        answer->finish = DR_FINISH_NOT;
        DR_TRY(dr_decoder_finish(answer->decoder, &text, &bytes));
        DR_TRY(add_text(answer, text, bytes));
        if (answer->finish == DR_FINISH_STOP) return DR_OK; /* the text is complete with the last character */
        answer->finish = reason;
    }
    return give_up_held(answer);
}

static bool is_stop_token(const dr_generate_options *options, int32_t id) {
    for (int64_t i = 0; i < options->stop_token_count; i++)
        if (options->stop_tokens[i] == id) return true;
    return false;
}

dr_status dr_answer_add(dr_answer *answer, int32_t id) {
    const dr_generate_options *options = answer->options;
    answer->ready_bytes = 0;
    answer->made++;
    if (is_stop_token(options, id)) {
        answer->finish = DR_FINISH_STOP;
        return finish_text(answer);
    }
    if (answer->decoder && !options->ignore_eos && (id == answer->end || id == answer->start)) {
        answer->finish = DR_FINISH_END;
        return finish_text(answer);
    }
    DR_TRY(add_token(answer, id));
    if (answer->finish == DR_FINISH_STOP) return DR_OK;
    if (answer->made < options->tokens) return DR_OK;
    answer->finish = DR_FINISH_LENGTH;
    return finish_text(answer);
}
