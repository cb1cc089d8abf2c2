/* Formats of published tasks, as lm-evaluation-harness asks them without examples: a row of a table each, with the keys by
 * which an object is known, and what makes an item of it. A choice is scored behind one blank. */
#include "evaluate/item.h"

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts ---- */

static dr_status text_of(const json_t *object, const char *key, const char **text) {
    *text = NULL;
    DR_TRY(dr_json_text(object, key, text));
    return *text ? DR_OK : dr_fail(DR_ERROR_FORMAT, "\"%s\" is missing", key);
}

/* a, b and c behind each other. */
static dr_status join(char **joined, const char *a, const char *b, const char *c) {
    const size_t size = strlen(a) + strlen(b) + strlen(c) + 1;
    void *memory;
    DR_TRY(dr_allocate(size, "the text of an item", &memory));
    snprintf(memory, size, "%s%s%s", a, b, c);
    *joined = memory;
    return DR_OK;
}

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static const char *skip_blanks(const char *text) {
    while (is_blank(*text)) text++;
    return text;
}

static void cut_blanks(char *text) {
    size_t length = strlen(text);
    while (length > 0 && is_blank(text[length - 1])) text[--length] = '\0';
}

static double characters(const char *text) {
    double count = 0;
    for (; *text; text++) count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

/* Whether white space begins at text, as Python's \s has it, and its bytes. */
static size_t white_space(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    if (is_blank(text[0]) || (c[0] >= 0x1c && c[0] <= 0x1f)) return 1;
    if (c[0] == 0xc2 && (c[1] == 0x85 || c[1] == 0xa0)) return 2;
    if (c[0] == 0xe1 && c[1] == 0x9a && c[2] == 0x80) return 3;
    if (c[0] == 0xe2 && c[1] == 0x80 && ((c[2] >= 0x80 && c[2] <= 0x8a) || c[2] == 0xa8 || c[2] == 0xa9 || c[2] == 0xaf))
        return 3;
    if (c[0] == 0xe2 && c[1] == 0x81 && c[2] == 0x9f) return 3;
    return c[0] == 0xe3 && c[1] == 0x80 && c[2] == 0x80 ? 3 : 0;
}

/* The parts that runs of white space divide a text into, empty ones at its ends too. */
static int64_t count_words(const char *text) {
    int64_t words = 1;
    while (*text) {
        size_t bytes = white_space(text);
        if (bytes == 0) {
            text++;
            continue;
        }
        words++;
        for (; bytes > 0; bytes = white_space(text)) text += bytes;
    }
    return words;
}

/* ---- choices ---- */

/* One more choice: context, and behind a blank the text; measured: by its characters. */
static dr_status add_choice(dr_item *item, const char *context, const char *choice, bool measured) {
    if (item->count == DR_MOST_CHOICES) return dr_fail(DR_ERROR_FORMAT, "it has more than %d choices", DR_MOST_CHOICES);
    const int64_t i = item->count++;
    item->length[i] = measured ? characters(choice) : 0;
    DR_TRY(join(&item->context[i], context, "", ""));
    return join(&item->continuation[i], " ", choice, "");
}

static dr_status add_choices(dr_item *item, const char *context, const json_t *list, const char *key) {
    if (!json_is_array(list) || json_array_size(list) < 2)
        return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be a list of two texts at least", key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *choice = json_string_value(json_array_get(list, i));
        if (!choice) return dr_fail(DR_ERROR_FORMAT, "choice %zu of \"%s\" is no text", i + 1, key);
        DR_TRY(add_choice(item, context, choice, true));
    }
    return DR_OK;
}

/* A number from `first` on, also as a text. */
static dr_status read_gold(dr_item *item, const json_t *object, const char *key, int64_t first) {
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    int64_t number = -1;
    if (text && text[0] >= '0' && text[0] <= '9' && (!text[1] || (text[1] >= '0' && text[1] <= '9' && !text[2])))
        number = text[1] ? 10 * (text[0] - '0') + text[1] - '0' : text[0] - '0';
    else if (!text && !dr_json_whole(value, &number))
        number = -1;
    item->gold = number - first;
    if (item->gold >= 0 && item->gold < item->count) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be the number of the right choice, from %lld to %lld", key, (long long)first,
                   (long long)(item->count - 1 + first));
}

static dr_status read_choices(const json_t *object, dr_item *item) {
    const char *context;
    DR_TRY(text_of(object, "context", &context));
    const json_t *choices = json_object_get(object, "choices");
    DR_TRY(add_choices(item, context, choices, "choices"));
    const char *answer = json_string_value(json_object_get(object, "answer"));
    for (int64_t i = 0; answer && i < item->count; i++)
        if (strcmp(answer, json_string_value(json_array_get(choices, (size_t)i))) == 0) {
            item->gold = i;
            return DR_OK;
        }
    return read_gold(item, object, "answer", 0);
}

static dr_status read_piqa(const json_t *object, dr_item *item) {
    const char *goal, *first, *second;
    char *context;
    DR_TRY(text_of(object, "goal", &goal));
    DR_TRY(text_of(object, "sol1", &first));
    DR_TRY(text_of(object, "sol2", &second));
    DR_TRY(join(&context, "Question: ", goal, "\nAnswer:"));
    dr_status status = add_choice(item, context, first, true);
    if (status == DR_OK) status = add_choice(item, context, second, true);
    dr_release(context);
    return status == DR_OK ? read_gold(item, object, "label", 0) : status;
}

/* Without blanks around it; " [title]" becomes ". ", what else stands in brackets goes, two blanks become one. */
static void clean(char *text) {
    static const char title[] = " [title]";
    char *to = text;
    memmove(text, skip_blanks(text), strlen(skip_blanks(text)) + 1);
    cut_blanks(text);
    for (const char *at = text; *at;) {
        const char *end;
        if (strncmp(at, title, sizeof title - 1) == 0) {
            *to++ = '.', *to++ = ' ';
            at += sizeof title - 1;
        } else if (*at == '[' && (end = strchr(at, ']')) && !memchr(at, '\n', (size_t)(end - at))) {
            at = end + 1;
        } else {
            *to++ = *at++;
        }
    }
    *to = '\0';
    to = text;
    for (const char *at = text; *at; at++) {
        *to++ = *at;
        if (at[0] == ' ' && at[1] == ' ') at++;
    }
    *to = '\0';
}

/* The first letter large, the others small, of the Latin alphabet. */
static void capitalize(char *text) {
    for (char *c = text; *c; c++) {
        if (c == text && *c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
        if (c > text && *c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
    }
}

static dr_status read_hellaswag(const json_t *object, dr_item *item) {
    const char *activity, *first, *second;
    const json_t *endings = json_object_get(object, "endings");
    char *capital = NULL, *label = NULL, *context = NULL;
    dr_status status;
    DR_TRY(text_of(object, "activity_label", &activity));
    DR_TRY(text_of(object, "ctx_a", &first));
    DR_TRY(text_of(object, "ctx_b", &second));
    DR_GO(join(&capital, second, "", ""));
    capitalize(capital);
    DR_GO(join(&label, activity, ": ", first));
    DR_GO(join(&context, label, " ", capital));
    clean(context);
    DR_GO(add_choices(item, context, endings, "endings"));
    for (int64_t i = 0; i < item->count; i++) {
        clean(item->continuation[i] + 1);
        item->length[i] = characters(item->continuation[i] + 1);
    }
    DR_GO(read_gold(item, object, "label", 0));
done:
    dr_release(capital);
    dr_release(label);
    dr_release(context);
    return status;
}

/* The same end behind two beginnings. */
static dr_status read_winogrande(const json_t *object, dr_item *item) {
    static const char *const keys[] = {"option1", "option2"};
    const char *sentence;
    DR_TRY(text_of(object, "sentence", &sentence));
    const char *gap = strchr(sentence, '_');
    if (!gap) return dr_fail(DR_ERROR_FORMAT, "\"sentence\" has no _ where an option would stand");
    char *begin = NULL, *rest = NULL;
    dr_status status;
    DR_GO(join(&begin, sentence, "", ""));
    begin[gap - sentence] = '\0';
    DR_GO(join(&rest, skip_blanks(gap + 1), "", ""));
    cut_blanks(rest);
    for (int i = 0; i < 2; i++) {
        const char *option;
        char *context;
        DR_GO(text_of(object, keys[i], &option));
        DR_GO(join(&context, begin, option, ""));
        status = add_choice(item, context, rest, false);
        dr_release(context);
        if (status != DR_OK) goto done;
    }
    DR_GO(read_gold(item, object, "answer", 1));
done:
    dr_release(begin);
    dr_release(rest);
    return status;
}

/* {"choices": {"text": [..], "label": [..]}, "answerKey": ".."} */
static dr_status read_labelled(const json_t *object, dr_item *item, const char *context) {
    const json_t *choices = json_object_get(object, "choices"), *labels = json_object_get(choices, "label");
    const char *key;
    DR_TRY(text_of(object, "answerKey", &key));
    DR_TRY(add_choices(item, context, json_object_get(choices, "text"), "choices.text"));
    for (size_t i = 0; i < json_array_size(labels) && (int64_t)i < item->count; i++) {
        const char *label = json_string_value(json_array_get(labels, i));
        if (!label || strcmp(label, key) != 0) continue;
        item->gold = (int64_t)i;
        return DR_OK;
    }
    return dr_fail(DR_ERROR_FORMAT, "\"answerKey\" is \"%s\", which is none of \"choices.label\"", key);
}

static dr_status read_arc(const json_t *object, dr_item *item) {
    const char *question;
    char *context;
    DR_TRY(text_of(object, "question", &question));
    DR_TRY(join(&context, "Question: ", question, "\nAnswer:"));
    const dr_status status = read_labelled(object, item, context);
    dr_release(context);
    return status;
}

static dr_status read_openbookqa(const json_t *object, dr_item *item) {
    const char *stem;
    DR_TRY(text_of(object, "question_stem", &stem));
    return read_labelled(object, item, stem);
}

/* "{passage}\nQuestion: {question}?\nAnswer:", and of sciq without the question mark. */
static dr_status ask_of_text(char **context, const char *passage, const char *question, const char *end) {
    char *begin;
    DR_TRY(join(&begin, passage, "\nQuestion: ", question));
    const dr_status status = join(context, begin, end, "\nAnswer:");
    dr_release(begin);
    return status;
}

static dr_status read_boolq(const json_t *object, dr_item *item) {
    const char *passage, *question;
    char *context;
    DR_TRY(text_of(object, "passage", &passage));
    DR_TRY(text_of(object, "question", &question));
    DR_TRY(ask_of_text(&context, passage, question, "?"));
    dr_status status = add_choice(item, context, "no", true);
    if (status == DR_OK) status = add_choice(item, context, "yes", true);
    dr_release(context);
    const json_t *answer = json_object_get(object, "answer");
    item->gold = json_is_true(answer);
    if (status != DR_OK || json_is_boolean(answer)) return status;
    return read_gold(item, object, "label", 0);
}

static dr_status read_sciq(const json_t *object, dr_item *item) {
    static const char *const keys[] = {"distractor1", "distractor2", "distractor3", "correct_answer"};
    const char *support, *question, *choice;
    char *context;
    DR_TRY(text_of(object, "support", &support));
    DR_TRY(text_of(object, "question", &question));
    DR_TRY(ask_of_text(&context, skip_blanks(support), question, ""));
    dr_status status = DR_OK;
    for (int i = 0; i < 4 && status == DR_OK; i++) {
        status = text_of(object, keys[i], &choice);
        if (status == DR_OK) status = add_choice(item, context, choice, true);
    }
    dr_release(context);
    item->gold = 3;
    return status;
}

/* ---- texts and answers ---- */

static dr_status read_lambada(const json_t *object, dr_item *item) {
    const char *text;
    DR_TRY(text_of(object, "text", &text));
    const char *last = strrchr(text, ' ');
    item->kind = DR_ITEM_LAST_WORD;
    if (!last || !last[1]) return dr_fail(DR_ERROR_FORMAT, "\"text\" has no last word behind a blank");
    DR_TRY(add_choice(item, text, last + 1, false));
    item->context[0][last - text] = '\0';
    return DR_OK;
}

static dr_status read_rolling(const json_t *object, dr_item *item) {
    const char *text = NULL, *original = NULL;
    DR_TRY(dr_json_text(object, "page", &original));
    DR_TRY(dr_json_text(object, "text", &text));
    if (!text) text = original;
    if (!original) original = text;
    if (!text || !*text) return dr_fail(DR_ERROR_FORMAT, "\"text\" is missing or empty");
    if (!*original) return dr_fail(DR_ERROR_FORMAT, "\"page\" is empty: its words and bytes are what is counted by");
    item->kind = DR_ITEM_ROLLING;
    item->count = 1;
    item->words = count_words(original);
    item->bytes = (int64_t)strlen(original);
    return join(&item->continuation[0], text, "", "");
}

static dr_status add_alias(dr_item *item, const json_t *value) {
    const char *text = json_string_value(value);
    if (!text) return dr_fail(DR_ERROR_FORMAT, "an answer must be a text, or a list of texts");
    if (strspn(text, " \t\r\n") == strlen(text)) return dr_fail(DR_ERROR_FORMAT, "an answer is empty: any text would hold it");
    if (item->aliases == DR_MOST_CHOICES) return dr_fail(DR_ERROR_FORMAT, "it has more than %d answers", DR_MOST_CHOICES);
    return join(&item->alias[item->aliases++], text, "", "");
}

/* Prompt and question: what `question` holds stands behind the context; else it is the last line of the prompt. */
static dr_status read_answer(const json_t *object, dr_item *item, const char *prompt_key, const char *answer_key) {
    const char *prompt, *question = NULL;
    const json_t *answers = json_object_get(object, answer_key);
    DR_TRY(text_of(object, prompt_key, &prompt));
    DR_TRY(dr_json_text(object, "question", &question));
    item->kind = DR_ITEM_ANSWER;
    item->count = 1;
    const char *line = strrchr(prompt, '\n');
    DR_TRY(join(&item->context[0], prompt, "", ""));
    DR_TRY(join(&item->question, question ? question : line ? line : "", "", ""));
    if (!question && line) item->context[0][line - prompt] = '\0';
    if (!json_is_array(answers)) return add_alias(item, answers);
    for (size_t i = 0; i < json_array_size(answers); i++) DR_TRY(add_alias(item, json_array_get(answers, i)));
    return item->aliases > 0 ? DR_OK : dr_fail(DR_ERROR_FORMAT, "\"%s\" has no answer", answer_key);
}

static dr_status read_cloze(const json_t *object, dr_item *item) {
    return read_answer(object, item, "text", "value");
}

static dr_status read_generate(const json_t *object, dr_item *item) {
    return read_answer(object, item, "prompt", "answer");
}

/* ---- the table ---- */

typedef struct {
    const char *name;
    const char *keys[4]; /* that an object of it has, up to NULL; none: it is known by its name alone */
    dr_status (*read)(const json_t *object, dr_item *item);
} format;

static const format formats[] = {
    {"choices", {"context", "choices", NULL}, read_choices},
    {"piqa", {"goal", "sol1", "sol2", NULL}, read_piqa},
    {"hellaswag", {"ctx_a", "endings", NULL}, read_hellaswag},
    {"winogrande", {"sentence", "option1", NULL}, read_winogrande},
    {"arc", {"question", "answerKey", NULL}, read_arc},
    {"openbookqa", {"question_stem", "answerKey", NULL}, read_openbookqa},
    {"boolq", {"passage", "question", NULL}, read_boolq},
    {"sciq", {"support", "correct_answer", NULL}, read_sciq},
    {"lambada", {NULL}, read_lambada},
    {"rolling", {NULL}, read_rolling},
    {"cloze", {"text", "value", NULL}, read_cloze},
    {"generate", {"prompt", "answer", NULL}, read_generate},
};
enum { FORMATS = sizeof formats / sizeof *formats };

const char *dr_item_formats(void) {
    return "choices piqa hellaswag winogrande arc openbookqa boolq sciq lambada rolling cloze generate";
}

static bool has_keys(const json_t *object, const format *of) {
    for (int i = 0; of->keys[i]; i++)
        if (!json_object_get(object, of->keys[i])) return false;
    return of->keys[0] != NULL;
}

const char *dr_item_format(const json_t *object) {
    const char *found = NULL;
    for (int i = 0; i < FORMATS; i++) {
        if (!has_keys(object, &formats[i])) continue;
        if (found) return NULL;
        found = formats[i].name;
    }
    return found;
}

static const format *find_format(const char *name) {
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

const char *dr_item_format_named(const char *name) {
    const format *found = find_format(name);
    return found ? found->name : NULL;
}

dr_status dr_item_read(const json_t *object, const char *name, dr_item *item) {
    const format *found = find_format(name);
    *item = (dr_item){.kind = DR_ITEM_CHOICES};
    if (found) return found->read(object, item);
    return dr_fail(DR_ERROR_ARGUMENT, "there is no format '%s' of tasks; there are: %s", name, dr_item_formats());
}

void dr_item_release(dr_item *item) {
    for (int i = 0; i < DR_MOST_CHOICES; i++) {
        dr_release(item->context[i]);
        dr_release(item->continuation[i]);
        dr_release(item->alias[i]);
    }
    dr_release(item->question);
    *item = (dr_item){0};
}
