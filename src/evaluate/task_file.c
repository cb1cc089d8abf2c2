/* Files of tasks: lines as items, items as scores, scores as means. */
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "evaluate/asked.h"
#include "formats/file.h"

#include <math.h>
#include <string.h>

enum { MOST_BYTES = 1 << 30, ANSWER_TOKENS = 48, ANSWER_LENGTH = 50 };

static const char *const line_end[] = {"\n"};

dr_evaluate_options dr_evaluate_defaults(void) {
    return (dr_evaluate_options){.tokens = ANSWER_TOKENS, .stop = line_end, .stop_count = 1, .answer_length = ANSWER_LENGTH};
}

static dr_status check_options(const dr_evaluate_options *options) {
    if (options->max_length < 0 || options->max_length > INT32_MAX)
        return dr_fail(DR_ERROR_ARGUMENT, "max_length is %lld: it must be 0 (no bound) or more",
                       (long long)options->max_length);
    if (options->limit < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "limit is %lld: it must be 0 (all) or more", (long long)options->limit);
    if (options->tokens < 1)
        return dr_fail(DR_ERROR_ARGUMENT, "tokens is %lld: it must be 1 or more", (long long)options->tokens);
    if (options->stop_count < 0 || (options->stop_count > 0 && !options->stop))
        return dr_fail(DR_ERROR_ARGUMENT, "stop_count is %lld: it must be the number of the texts at stop",
                       (long long)options->stop_count);
    if (options->answer_length < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "answer_length is %lld: it must not be negative", (long long)options->answer_length);
    if (options->cut_context != 0 && options->cut_context <= options->answer_length)
        return dr_fail(DR_ERROR_ARGUMENT, "cut_context is %lld: it must be 0, or more than answer_length, %lld",
                       (long long)options->cut_context, (long long)options->answer_length);
    return DR_OK;
}

typedef struct {
    dr_asker asker;
    const dr_evaluate_options *options;
    const char *format;
    dr_evaluate_result *result;
    int64_t hits, normalized_hits, exact, contained, words, bytes;
    double found;
    double sum; /* log-probabilities of last words, or texts */
} evaluator;

/* ---- items ---- */

static void count_item(evaluator *self, const dr_item *item, const dr_item_score *score, double sum) {
    self->result->kind = item->kind;
    self->result->items++;
    self->result->normalizes = item->kind == DR_ITEM_CHOICES && item->length[0] > 0;
    if (item->kind == DR_ITEM_CHOICES) {
        self->hits += score->chosen == item->gold;
        self->normalized_hits += score->chosen_normalized == item->gold;
    }
    if (item->kind == DR_ITEM_LAST_WORD) self->hits += score->greedy;
    self->exact += score->exact;
    self->contained += score->contained;
    self->found += score->found;
    self->words += item->words;
    self->bytes += item->bytes;
    self->sum += sum;
}

static dr_status ask_line(evaluator *self, const char *line, size_t bytes, int64_t number) {
    json_t *object = NULL;
    dr_item item = {0};
    dr_item_score score;
    bool skipped;
    double sum;
    char source[32];
    snprintf(source, sizeof source, "line %lld", (long long)number);
    dr_status status = dr_json_parse(line, bytes, source, &object);
    if (status != DR_OK) return status;
    if (!self->format) self->format = self->options->format ? self->options->format : dr_item_format(object);
    if (!self->format)
        status = dr_fail(DR_ERROR_FORMAT, "its keys are those of no format, or of several: name the format, one of %s",
                         dr_item_formats());
    if (status == DR_OK) status = dr_item_read(object, self->format, &item);
    if (status == DR_OK) status = dr_ask(&self->asker, &item, &score, &skipped, &sum);
    if (status != DR_OK) {
        status = dr_fail_in(status, "%s", source);
    } else if (skipped) {
        self->result->skipped++;
    } else {
        count_item(self, &item, &score, sum);
        score.line = number;
        if (self->options->item) self->options->item(self->options->context, &score);
    }
    dr_item_release(&item);
    json_decref(object);
    return status;
}

static bool is_empty(const char *line, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

static dr_status ask_lines(evaluator *self, const char *text, size_t bytes) {
    const dr_evaluate_options *options = self->options;
    const char *const end = text + bytes;
    int64_t number = 1;
    for (const char *line = text; line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        if (options->limit > 0 && self->result->items + self->result->skipped == options->limit) break;
        if (!is_empty(line, (size_t)(stop - line))) DR_TRY(ask_line(self, line, (size_t)(stop - line), number));
        line = stop < end ? stop + 1 : end;
        if (options->progress && !options->progress(options->context, line - text, (int64_t)bytes))
            return dr_fail(DR_ERROR_INTERRUPTED, "evaluation was stopped after %lld items", (long long)self->result->items);
    }
    if (self->result->items + self->result->skipped > 0) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "it has no items: a line must be a JSON object");
}

/* ---- means ---- */

static void fill_result(const evaluator *self, dr_evaluate_result *result) {
    const double items = (double)result->items;
    result->format = dr_item_format_named(self->format); /* whatever the caller's text becomes */
    if (result->items == 0) return;
    if (result->kind == DR_ITEM_CHOICES || result->kind == DR_ITEM_LAST_WORD) {
        result->accuracy = (double)self->hits / items;
        const double p = result->accuracy;
        result->accuracy_error = result->items > 1 ? sqrt(p * (1 - p) / (items - 1)) : 0;
    }
    if (result->normalizes) result->accuracy_normalized = (double)self->normalized_hits / items;
    if (result->kind == DR_ITEM_LAST_WORD) result->perplexity = exp(-self->sum / items);
    if (result->kind == DR_ITEM_ROLLING) {
        result->word_perplexity = exp(-self->sum / (double)self->words);
        result->byte_perplexity = exp(-self->sum / (double)self->bytes);
        result->bits_per_byte = -self->sum / (double)self->bytes / 0.693147180559945309417; /* ln 2 */
    }
    result->exact = (double)self->exact / items;
    result->contained = (double)self->contained / items;
    result->found = self->found / items;
}

dr_status dr_evaluate_file(const dr_model *model, const char *path, const dr_evaluate_options *options,
                           dr_evaluate_result *evaluation) {
    DR_NEED(model);
    DR_NEED(path);
    DR_NEED(evaluation);
    const dr_evaluate_options defaults = dr_evaluate_defaults();
    if (!options) options = &defaults;
    DR_TRY(check_options(options));
    const double start = dr_clock_now();
    dr_evaluate_result result = {0};
    evaluator self = {.options = options, .result = &result};
    char *text = NULL;
    size_t bytes;
    dr_status status;
    DR_GO(dr_asker_create(model, options, &self.asker));
    DR_GO(dr_file_read(path, MOST_BYTES, &text, &bytes));
    status = ask_lines(&self, text, bytes);
    if (status != DR_OK) {
        if (status != DR_ERROR_INTERRUPTED) status = dr_fail_in(status, "%s", path);
        goto done;
    }
    fill_result(&self, &result);
    result.seconds = dr_clock_now() - start;
    *evaluation = result;
done:
    dr_asker_release(&self.asker);
    dr_release(text);
    return status;
}
