/* A request is ids, of which those from some place on are scored. It goes through the model in windows with the state carried
 * along, so that memory does not grow with it. Windows of rolling texts with a bound on a request's length are those of
 * lm-evaluation-harness: each token is predicted once, and the last window begins so early that it is full. */
#include "evaluate/asked.h"

#include "base/error.h"
#include "base/memory.h"

#include <deltarule/generate.h>
#include <math.h>
#include <string.h>
#include <utf8proc.h>

enum { WINDOW = 1024 };

dr_status dr_asker_create(const dr_model *model, const dr_evaluate_options *options, dr_asker *asker) {
    *asker = (dr_asker){.model = model, .options = options, .tokenizer = options->tokenizer};
    DR_TRY(dr_vocabulary_check(dr_model_get_config(model)->vocabulary, options->tokenizer));
    if (!asker->tokenizer) {
        DR_TRY(dr_tokenizer_bytes(&asker->own_tokenizer));
        asker->tokenizer = asker->own_tokenizer;
    }
    DR_TRY(dr_document_start(asker->tokenizer, &asker->start));
    DR_TRY(dr_encoder_create(asker->tokenizer, &asker->encoder));
    DR_TRY(dr_session_create(model, &asker->session));
    return dr_model_state_create(model, 1, &asker->state);
}

void dr_asker_release(dr_asker *asker) {
    dr_model_state_destroy(asker->state);
    dr_session_destroy(asker->session);
    dr_encoder_destroy(asker->encoder);
    dr_tokenizer_destroy(asker->own_tokenizer);
    dr_release(asker->ids);
    dr_release(asker->text);
    *asker = (dr_asker){0};
}

/* White space of the Latin alphabet. */
static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* ---- requests ---- */

static dr_status add_ids(dr_asker *asker, const int32_t *ids, int64_t count) {
    const int64_t needed = asker->count + count;
    if (needed > asker->room) {
        void *memory = asker->ids;
        const size_t bytes = (size_t)(2 * needed) * sizeof(int32_t);
        DR_TRY(memory ? dr_resize(&memory, (size_t)asker->room * sizeof(int32_t), bytes, "the ids of a request")
                      : dr_allocate(bytes, "the ids of a request", &memory));
        asker->ids = memory;
        asker->room = 2 * needed;
    }
    if (count > 0) memcpy(asker->ids + asker->count, ids, (size_t)count * sizeof(int32_t));
    asker->count = needed;
    return DR_OK;
}

/* Adds the ids of bytes of a text. */
static dr_status add_text(dr_asker *asker, const char *text, size_t bytes) {
    const int32_t *ids;
    size_t count;
    DR_TRY(dr_encoder_encode(asker->encoder, text, bytes, false, &ids, &count));
    return add_ids(asker, ids, (int64_t)count);
}

/* Ids [from, from + count) of the request, the first `scored` of which at `first` and later: sum of their log-probabilities,
 * and whether each is the likeliest. ids[0] is never scored. */
static dr_status score_ids(dr_asker *asker, const int32_t *ids, int64_t count, int64_t first, double *sum, bool *greedy) {
    int64_t positions[WINDOW];
    int32_t labels[WINDOW];
    uint8_t hit[WINDOW];
    *sum = 0, *greedy = true;
    dr_model_state_reset(asker->state);
    for (int64_t from = 0; from + 1 < count; from += WINDOW) {
        const int64_t rows = count - 1 - from < WINDOW ? count - 1 - from : WINDOW;
        int64_t targets = 0;
        double loss = 0;
        for (int64_t i = 0; i < rows; i++) {
            if (from + i + 1 < first) continue;
            positions[targets] = i;
            labels[targets++] = ids[from + i + 1];
        }
        const dr_batch batch = {.layout = {.sequences = 1, .rows = rows},
                                .ids = ids + from,
                                .targets = targets,
                                .positions = positions,
                                .labels = labels};
        DR_TRY(dr_session_loss(asker->session, &batch, asker->state, &loss, NULL, NULL, hit));
        *sum -= loss;
        for (int64_t i = 0; i < targets; i++) *greedy &= hit[i] != 0;
    }
    if (isfinite(*sum)) return DR_OK;
    return dr_fail(DR_ERROR_NUMERIC, "the log-probability of an item is not a number");
}

/* Blanks that end the context belong to the continuation; the tokens of the continuation are those behind as many as the
 * context has alone, since it may begin within a token. */
static dr_status score_continuation(dr_asker *asker, const char *context, const char *continuation, double *sum, bool *greedy) {
    size_t length = strlen(context);
    const size_t whole_length = length + strlen(continuation);
    void *memory;
    while (length > 0 && is_blank(context[length - 1])) length--;
    DR_TRY(dr_allocate(whole_length + 1, "an item", &memory));
    char *whole = memory;
    stpcpy(stpcpy(whole, context), continuation);
    dr_status status;
    asker->count = 0;
    const bool starts = !asker->options->no_start || length == 0;
    if (starts) DR_GO(add_ids(asker, &asker->start, 1));
    DR_GO(add_text(asker, whole, length));
    int64_t first = asker->count;
    asker->count = starts;
    DR_GO(add_text(asker, whole, whole_length));
    if (first >= asker->count) first = asker->count - 1; /* the end of the context and all of the continuation are one token */
    if (first < 1) first = 1;
    const int64_t most = asker->options->max_length > 0 ? asker->options->max_length + 1 : INT64_MAX;
    const int64_t cut = asker->count > most ? asker->count - most : 0;
    DR_GO(score_ids(asker, asker->ids + cut, asker->count - cut, first > cut ? first - cut : 1, sum, greedy));
done:
    dr_release(whole);
    return status;
}

static dr_status score_text(dr_asker *asker, const char *text, double *sum) {
    const int64_t most = asker->options->max_length;
    bool greedy;
    asker->count = 0;
    DR_TRY(add_ids(asker, &asker->start, 1));
    DR_TRY(add_text(asker, text, strlen(text)));
    if (most == 0 || asker->count <= most + 1) return score_ids(asker, asker->ids, asker->count, 1, sum, &greedy);
    *sum = 0;
    for (int64_t predicted = 0; predicted + 1 < asker->count;) { /* tokens behind the start */
        double part;
        const int64_t left = asker->count - 1 - predicted, count = left < most ? left : most, end = predicted + count;
        const int64_t begin = end > most ? end - most : 0; /* the id before the first that could be scored */
        DR_TRY(score_ids(asker, asker->ids + begin, end - begin + 1, predicted + 1 - begin, &part, &greedy));
        *sum += part;
        predicted = end;
    }
    return DR_OK;
}

/* ---- answers ---- */

static bool keep_text(void *context, const dr_piece *piece) {
    dr_asker *asker = context;
    if (asker->text_bytes + piece->count + 1 > asker->text_room) {
        void *memory = asker->text;
        const size_t room = 2 * (asker->text_bytes + piece->count + 1);
        const dr_status status =
            memory ? dr_resize(&memory, asker->text_room, room, "an answer") : dr_allocate(room, "an answer", &memory);
        asker->no_memory = status != DR_OK;
        if (asker->no_memory) return false;
        asker->text = memory;
        asker->text_room = room;
    }
    memcpy(asker->text + asker->text_bytes, piece->bytes, piece->count);
    asker->text_bytes += piece->count;
    asker->text[asker->text_bytes] = '\0';
    return true;
}

/* The character at a text, small, and its bytes. */
static utf8proc_int32_t small_character(const char *text, size_t *bytes) {
    utf8proc_int32_t character;
    const utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &character);
    *bytes = length > 0 ? (size_t)length : 1;
    return length > 0 ? utf8proc_tolower(character) : (unsigned char)*text;
}

/* Where a text has another one, of letters of either size; NULL: nowhere. */
static const char *find_text(const char *text, const char *wanted) {
    size_t step, other;
    for (;; text += step) {
        const char *at = text, *of = wanted;
        for (; *of && *at && small_character(at, &step) == small_character(of, &other); at += step, of += other) {
        }
        if (!*of) return text;
        if (!*text) return NULL;
        small_character(text, &step);
    }
}

static bool is_exact(const char *text, const char *wanted) {
    const char *end = text + strlen(text), *wanted_end = wanted + strlen(wanted);
    while (is_blank(*text)) text++;
    while (is_blank(*wanted)) wanted++;
    while (end > text && is_blank(end[-1])) end--;
    while (wanted_end > wanted && is_blank(wanted_end[-1])) wanted_end--;
    return end - text == wanted_end - wanted && memcmp(text, wanted, (size_t)(end - text)) == 0;
}

/* The context's ids [*from, *to) that a cut leaves: so many around the first place of an answer. */
static dr_status cut_context(dr_asker *asker, const dr_item *item, const char *context, int64_t *from, int64_t *to) {
    const int64_t keep = asker->options->cut_context - asker->options->answer_length;
    const char *place = NULL;
    for (int64_t i = 0; i < item->aliases && !place; i++) place = find_text(context, item->alias[i]);
    asker->count = 0;
    DR_TRY(add_text(asker, context, place ? (size_t)(place - context) : 0));
    const int64_t middle = asker->count;
    asker->count = 0;
    DR_TRY(add_text(asker, context, strlen(context)));
    *from = middle > keep / 2 ? middle - keep / 2 : 0;
    *to = *from + keep < asker->count ? *from + keep : asker->count;
    if (*to - *from < keep) *from = *to > keep ? *to - keep : 0;
    return DR_OK;
}

/* The prompt's ids: start, context, question. Without a bound they are those of the whole text. */
static dr_status make_prompt(dr_asker *asker, const dr_item *item) {
    const dr_evaluate_options *options = asker->options;
    const size_t length = strlen(item->context[0]) + strlen(item->question);
    int64_t from = 0, to = 0;
    void *memory;
    DR_TRY(dr_allocate(length + 1, "an item", &memory));
    char *whole = memory;
    memcpy(whole, item->context[0], strlen(item->context[0]));
    memcpy(whole + strlen(item->context[0]), item->question, strlen(item->question) + 1);
    dr_status status = DR_OK;
    asker->count = 0;
    if (options->cut_context > 0) {
        DR_GO(cut_context(asker, item, item->context[0], &from, &to));
        memmove(asker->ids, asker->ids + from, (size_t)(to - from) * sizeof(int32_t));
        asker->count = to - from;
        DR_GO(add_text(asker, item->question, strlen(item->question)));
    } else {
        DR_GO(add_text(asker, whole, length));
        const int64_t most = options->max_length > options->tokens ? options->max_length - options->tokens : INT64_MAX;
        if (asker->count > most) {
            memmove(asker->ids, asker->ids + (asker->count - most), (size_t)most * sizeof(int32_t));
            asker->count = most;
        }
    }
    if (!options->no_start || asker->count == 0) {
        DR_GO(add_ids(asker, &asker->start, 1));
        memmove(asker->ids + 1, asker->ids, (size_t)(asker->count - 1) * sizeof(int32_t));
        asker->ids[0] = asker->start;
    }
done:
    dr_release(whole);
    return status;
}

static bool is_long_enough(const dr_item *item) {
    for (int64_t i = 0; i < item->aliases; i++) {
        size_t bytes;
        if (!item->alias[i][0]) return false;
        small_character(item->alias[i], &bytes);
        if (!item->alias[i][bytes]) return false;
    }
    return true;
}

static dr_status ask_for_answer(dr_asker *asker, const dr_item *item, dr_item_score *score, bool *skipped) {
    *skipped = asker->options->cut_context > 0 && !is_long_enough(item);
    if (*skipped) return DR_OK;
    DR_TRY(make_prompt(asker, item));
    dr_generate_options options = dr_generate_defaults();
    options.tokens = asker->options->tokens;
    options.sampling = dr_sampling_defaults();
    options.sampling.temperature = 0;
    options.tokenizer = asker->tokenizer;
    options.stop = asker->options->stop, options.stop_count = asker->options->stop_count;
    const dr_prompt prompt = {.ids = asker->ids, .count = asker->count};
    asker->text_bytes = 0;
    const dr_status status = dr_generate_texts(asker->model, &prompt, 1, 1, &options, keep_text, asker, NULL);
    if (asker->no_memory) return dr_fail(DR_ERROR_MEMORY, "there is no memory for an answer");
    DR_TRY(status);
    score->text = asker->text;
    int64_t found = 0;
    for (int64_t i = 0; i < item->aliases; i++) {
        score->exact |= is_exact(asker->text, item->alias[i]);
        found += find_text(asker->text, item->alias[i]) != NULL;
    }
    score->contained = found > 0;
    score->found = (double)found / (double)item->aliases;
    return DR_OK;
}

dr_status dr_ask(dr_asker *asker, const dr_item *item, dr_item_score *score, bool *skipped, double *sum) {
    *score = (dr_item_score){.kind = item->kind, .choices = item->count, .logprobs = asker->logprobs, .gold = item->gold};
    *skipped = false;
    *sum = 0;
    if (item->kind == DR_ITEM_ANSWER) {
        score->logprobs = NULL;
        return ask_for_answer(asker, item, score, skipped);
    }
    if (item->kind == DR_ITEM_ROLLING) {
        DR_TRY(score_text(asker, item->continuation[0], sum));
        asker->logprobs[0] = *sum;
        return DR_OK;
    }
    double best = 0, best_normalized = 0;
    for (int64_t i = 0; i < item->count; i++) {
        DR_TRY(score_continuation(asker, item->context[i], item->continuation[i], &asker->logprobs[i], &score->greedy));
        const double normalized = asker->logprobs[i] / (item->length[i] > 0 ? item->length[i] : 1);
        if (i == 0 || asker->logprobs[i] > best) best = asker->logprobs[i], score->chosen = i;
        if (i == 0 || normalized > best_normalized) best_normalized = normalized, score->chosen_normalized = i;
    }
    *sum = asker->logprobs[0];
    return DR_OK;
}
