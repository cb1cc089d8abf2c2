/* Compiling and searching with PCRE2: just-in-time compiled where the machine can, with bounds on time and memory, so that no
 * expression and no text holds a program up for long. */
#include "tokenize/pattern.h"

#include "base/error.h"
#include "base/memory.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>
#include <time.h>

enum {
    LONGEST_EXPRESSION = 1 << 16,
    DEEPEST_GROUPS = 100,
    LEAST_STEPS = 1000000, /* of one match, and so many more for each byte of the text */
    STEPS_A_BYTE = 32,
    MOST_STEPS = 2000000000,
    HEAP_KILOBYTES = 1 << 18, /* of a search without the compiler */
    FIRST_STACK = 1 << 15,
    LARGEST_STACK = 64 << 20, /* of a search with it: grows as needed */
    SEARCHES_A_LOOK = 64      /* so many between two looks at the clock */
};

/* What all searches in one text may take: some fifty times what well-behaved expressions do. */
static const double MOST_SECONDS = 2, SECONDS_A_BYTE = 4e-6;

struct dr_pattern {
    pcre2_code *code;
    bool compiled; /* to machine code */
};

struct dr_searcher {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    size_t bytes;      /* of the whole text */
    uint64_t searches; /* in it so far */
    double begun;      /* processor seconds of the thread at the first look at the clock */
};

static dr_status no_memory(void) {
    return dr_fail(DR_ERROR_MEMORY, "there is no memory for a regular expression");
}

static dr_status compile(const dr_text *translated, const char *expression, size_t bytes, pcre2_code **code) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return no_memory();
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 2 * DEEPEST_GROUPS + 50);
    int error = 0;
    size_t place = 0;
    *code = pcre2_compile((PCRE2_SPTR)translated->bytes, translated->count, PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE,
                          &error, &place, context);
    pcre2_compile_context_free(context);
    if (*code) return DR_OK;
    char reason[160] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
    return dr_fail(DR_ERROR_UNSUPPORTED, "the regular expression '%.*s' cannot be used: %s", (int)(bytes < 200 ? bytes : 200),
                   expression, reason);
}

dr_status dr_pattern_compile(const char *expression, size_t bytes, dr_pattern **pattern) {
    dr_text translated = {0};
    pcre2_code *code = NULL;
    void *memory = NULL;
    dr_status status;
    if (bytes > LONGEST_EXPRESSION)
        return dr_fail(DR_ERROR_UNSUPPORTED, "a regular expression of %zu bytes is too long: at most %d", bytes,
                       LONGEST_EXPRESSION);
    DR_GO(dr_text_reserve(&translated, 1));
    DR_GO(dr_pattern_translate(expression, bytes, &translated));
    DR_GO(compile(&translated, expression, bytes, &code));
    DR_GO(dr_allocate_zero(sizeof **pattern, "a regular expression", &memory));
    *pattern = memory;
    (*pattern)->code = code;
    (*pattern)->compiled = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    code = NULL;
done:
    pcre2_code_free(code);
    dr_text_release(&translated);
    return status;
}

void dr_pattern_destroy(dr_pattern *pattern) {
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    dr_release(pattern);
}

dr_status dr_searcher_create(dr_searcher **searcher) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof **searcher, "a search", &memory));
    dr_searcher *made = memory;
    made->match = pcre2_match_data_create(1, NULL);
    made->context = pcre2_match_context_create(NULL);
    made->stack = pcre2_jit_stack_create(FIRST_STACK, LARGEST_STACK, NULL);
    if (!made->match || !made->context) {
        dr_searcher_destroy(made);
        return no_memory();
    }
    if (made->stack) pcre2_jit_stack_assign(made->context, NULL, made->stack);
    pcre2_set_heap_limit(made->context, HEAP_KILOBYTES);
    *searcher = made;
    return DR_OK;
}

void dr_searcher_destroy(dr_searcher *searcher) {
    if (!searcher) return;
    pcre2_match_data_free(searcher->match);
    pcre2_match_context_free(searcher->context);
    if (searcher->stack) pcre2_jit_stack_free(searcher->stack);
    dr_release(searcher);
}

void dr_searcher_begin(dr_searcher *searcher, size_t bytes) {
    searcher->bytes = bytes;
    searcher->searches = 0;
}

/* Each search may be short, and all together may take the square of the text. Processor time, so that a busy machine refuses
 * nothing. */
static dr_status check_time(dr_searcher *searcher) {
    struct timespec now;
    if (++searcher->searches % SEARCHES_A_LOOK != 0 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) return DR_OK;
    const double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (searcher->searches == SEARCHES_A_LOOK) searcher->begun = seconds;
    if (seconds - searcher->begun <= MOST_SECONDS + SECONDS_A_BYTE * (double)searcher->bytes) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "the regular expressions of the tokenizer take too long on this text of %zu bytes",
                   searcher->bytes);
}

dr_status dr_pattern_search(const dr_pattern *pattern, dr_searcher *searcher, const char *text, size_t bytes, size_t from,
                            bool *found, size_t *start, size_t *end) {
    size_t steps = LEAST_STEPS + (bytes < MOST_STEPS / STEPS_A_BYTE / 2 ? STEPS_A_BYTE * bytes : MOST_STEPS / 2);
    pcre2_set_match_limit(searcher->context, (uint32_t)steps);
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    DR_TRY(check_time(searcher));
    int result = pattern->compiled
                     ? pcre2_jit_match(pattern->code, subject, bytes, from, 0, searcher->match, searcher->context)
                     : pcre2_match(pattern->code, subject, bytes, from, PCRE2_NO_UTF_CHECK, searcher->match, searcher->context);
    *found = result >= 0;
    if (result == PCRE2_ERROR_NOMATCH) return DR_OK;
    if (result == PCRE2_ERROR_NOMEMORY) return no_memory();
    if (result < 0)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "a regular expression of the tokenizer takes too many steps on this text (at byte %zu of %zu)", from,
                       bytes);
    const size_t *places = pcre2_get_ovector_pointer(searcher->match);
    *start = places[0];
    *end = places[1];
    return DR_OK;
}
