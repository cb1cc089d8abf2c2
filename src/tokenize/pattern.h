/* Regular expressions of tokenizer.json: those of Oniguruma (Ruby's syntax), run by PCRE2. */
#ifndef DR_TOKENIZE_PATTERN_H
#define DR_TOKENIZE_PATTERN_H

#include "tokenize/text.h"

#include <stdbool.h>

/* The expression that means to PCRE2 (UTF, UCP) what the given one means to Oniguruma. Expressions that have no translation are
 * refused with the place and what stands there (DR_ERROR_UNSUPPORTED), broken ones too (DR_ERROR_FORMAT). Appends to
 * *translated. */
dr_status dr_pattern_translate(const char *expression, size_t bytes, dr_text *translated);

typedef struct dr_pattern dr_pattern; /* compiled; immutable, for any number of threads */

dr_status dr_pattern_compile(const char *expression, size_t bytes, dr_pattern **pattern);
void dr_pattern_destroy(dr_pattern *pattern); /* NULL is allowed */

/* Working memory of searches: one a thread. */
typedef struct dr_searcher dr_searcher;
dr_status dr_searcher_create(dr_searcher **searcher);
void dr_searcher_destroy(dr_searcher *searcher);
/* A text of so many bytes is begun: from here on its searches together have a bound on their time. */
void dr_searcher_begin(dr_searcher *searcher, size_t bytes);

/* The first match in text[from .. bytes - 1] of valid UTF-8; what stands before `from` is seen by lookbehind. *found false:
 * there is none. DR_ERROR_UNSUPPORTED if the expression takes more steps than a well-behaved one can, or all of this text too
 * much time. */
dr_status dr_pattern_search(const dr_pattern *pattern, dr_searcher *searcher, const char *text, size_t bytes, size_t from,
                            bool *found, size_t *start, size_t *end);

#endif
