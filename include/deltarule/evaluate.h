/* Scoring: loss, perplexity and bits per byte of text, accuracy of associative recall.
 *
 * Threads. Scoring only reads the model: any number of threads may score, and generate from, one model at once, while nothing
 * writes its parameters. Functions of the caller's are called on the thread that scores. */
#ifndef DELTARULE_EVALUATE_H
#define DELTARULE_EVALUATE_H

#include <deltarule/model.h>
#include <deltarule/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t files, bytes, tokens; /* scored; the first token of a file is predicted from the separator */
    double loss;                  /* nats a token, mean */
    double perplexity;            /* exp(loss) */
    double bits_per_byte;
    double seconds;
} dr_score;

/* Scores a file, or all files of a folder and its subfolders, links followed and each file once, with a byte-level model:
 * window tokens a call, state carried from window to window and reset at each file. progress may be NULL; it returns false to
 * stop. DR_ERROR_NUMERIC if a loss is not finite. Large files are mapped: one that is written to meanwhile gives DR_ERROR_IO.
 */
DR_API dr_status dr_score_corpus(const dr_model *model, const char *path, int64_t window,
                                 bool (*progress)(void *context, int64_t done, int64_t total), void *context, dr_score *score);

/* How text is scored, and who is told. Functions may be NULL and get `context`. Take dr_score_defaults() and change fields. */
typedef struct {
    int64_t window;       /* tokens a call, >= 1; 1024 */
    bool skip_unreadable; /* leave out the files of a folder that cannot be read or are no text; false: refuse them */
    bool (*progress)(void *context, int64_t done, int64_t total);         /* bytes; false to stop */
    void (*file)(void *context, const char *name, const dr_score *score); /* each file, when it has been scored */
    void (*left_out)(void *context, const char *sentence);                /* each file that is left out, before the first */
    void *context;
    const dr_tokenizer *tokenizer; /* that of the model; NULL: its ids are bytes */
} dr_score_options;

DR_API dr_score_options dr_score_defaults(void);

/* As dr_score_corpus. options NULL: the defaults. DR_ERROR_NUMERIC names the first file whose loss is not finite; it was told
 * to options->file. */
DR_API dr_status dr_score_files(const dr_model *model, const char *path, const dr_score_options *options, dr_score *score);

/* The same of a text in memory, which counts as one file of this name. DR_ERROR_FORMAT if it is not UTF-8 or has a byte 0,
 * DR_ERROR_ARGUMENT if it is empty. */
DR_API dr_status dr_score_text(const dr_model *model, const char *name, const char *text, size_t bytes,
                               const dr_score_options *options, dr_score *score);

/* What another model says of a text against a model, such as the same one with weights in fewer bits. */
typedef struct {
    int64_t bytes, tokens;                     /* of the text; predicted */
    double loss, other_loss;                   /* nats a token, of the model and of the other */
    double bits_per_byte, other_bits_per_byte; /* likewise */
    double divergence, largest_divergence;     /* Kullback and Leibler's, of the other from the model, nats: mean and most */
    double agreement;                          /* share of tokens at which both have the same likeliest next token */
    int64_t weight_bytes;                      /* of the other's parameters in memory */
    double tokens_per_second;                  /* of the other, decoding one text */
} dr_comparison;

/* A text is read by both as dr_generate reads a prompt. Of options the tokenizer, progress (of tokens) and context count; NULL:
 * the defaults. DR_ERROR_ARGUMENT if the two have vocabularies of different sizes, or the text has fewer than two tokens. */
DR_API dr_status dr_compare_text(const dr_model *model, const dr_model *other, const char *text, size_t bytes,
                                 const dr_score_options *options, dr_comparison *comparison);

/* Multi-query associative recall, the task mqar of training runs: examples of seq_len tokens show `pairs` keys with their
 * values, then ask for each key's value. Sizes may be others than the model was trained with. */
typedef struct {
    int64_t seq_len, pairs; /* even, 4 tokens a pair or more; 64, 4 */
    int64_t examples;       /* 1000 */
    int64_t batch;          /* examples a call; 64 */
    double power_a;         /* slot g of the queries has weight (g + 1)^(power_a - 1); 0.01 */
    bool random_fillers;    /* other tokens are random, not 0; true */
    uint64_t seed;          /* of the examples: the held_out_seed of a run gives those that it evaluates on; 1 */
} dr_recall_options;

typedef struct {
    int64_t examples, queries;
    double loss;     /* nats a query, mean */
    double accuracy; /* share of the queries whose likeliest token is the value */
    double seconds;
} dr_recall_score;

DR_API dr_recall_options dr_recall_defaults(void);

/* options NULL: the defaults. DR_ERROR_ARGUMENT names a size that cannot be, the model's vocabulary among them;
 * DR_ERROR_NUMERIC if the loss is not finite. progress counts examples. */
DR_API dr_status dr_score_recall(const dr_model *model, const dr_recall_options *options,
                                 bool (*progress)(void *context, int64_t done, int64_t total), void *context,
                                 dr_recall_score *score);

/* ---- files of tasks ---- */

/* How an item is asked. */
typedef enum {
    DR_ITEM_CHOICES,   /* which of several continuations is the likeliest */
    DR_ITEM_LAST_WORD, /* whether the last word is what the model would write */
    DR_ITEM_ROLLING,   /* how likely a text is */
    DR_ITEM_ANSWER,    /* whether what the model writes is, or contains, the answer */
} dr_item_kind;

/* An item that was scored. */
typedef struct {
    int64_t line; /* of the file, from 1 */
    dr_item_kind kind;
    int64_t choices;        /* 1 where there are none */
    const double *logprobs; /* [choices] natural logarithms; of DR_ITEM_ANSWER none */
    int64_t chosen, chosen_normalized, gold;
    bool greedy;      /* of a last word: each of its tokens is the likeliest */
    const char *text; /* of DR_ITEM_ANSWER: what was written, else NULL */
    bool exact, contained;
    double found; /* share of the item's answers that the text contains */
} dr_item_score;

typedef struct {
    const char *format;            /* docs/evaluation.md lists them; NULL: that of the keys of the first item */
    const dr_tokenizer *tokenizer; /* that of the model; NULL: its ids are bytes */
    bool no_start;                 /* put nothing before a text; false: the token that begins a document */
    int64_t max_length;            /* tokens of a request: contexts lose their beginnings; 0: no bound */
    int64_t limit;                 /* items; 0: all */
    int64_t tokens;                /* of an answer at most; 48 */
    const char *const *stop;       /* [stop_count] that end an answer; the end of a line */
    int64_t stop_count;
    int64_t cut_context;   /* 0, or of an answer's context so many tokens less answer_length, around the answer's first place */
    int64_t answer_length; /* 50 */
    bool (*progress)(void *context, int64_t done, int64_t total); /* bytes of the file; false to stop. NULL: none */
    void (*item)(void *context, const dr_item_score *score);      /* each item, once it is scored. NULL: none */
    void *context;
} dr_evaluate_options;

/* Means over items; 0 where the kind has none. */
typedef struct {
    const char *format; /* lives as long as the program */
    dr_item_kind kind;
    int64_t items, skipped;          /* scored; left out by a cut that needs an answer of two characters */
    double accuracy, accuracy_error; /* of choices; of last words all tokens of which are the likeliest; and the
                                      * standard error of the mean */
    bool normalizes;                 /* whether choices have lengths */
    double accuracy_normalized;      /* by log-probability a character of the choice */
    double perplexity;               /* of last words: exp(-mean of the words' log-probabilities) */
    double word_perplexity, byte_perplexity, bits_per_byte; /* of texts: of all log-probabilities and words, or bytes */
    double exact, contained;                                /* shares of answers */
    double found;                                           /* mean share of an item's answers that its text contains */
    double seconds;
} dr_evaluate_result;

DR_API dr_evaluate_options dr_evaluate_defaults(void);

/* Asks the items of a file of JSON objects, one a line. A continuation's tokens are those of context and continuation together
 * behind as many as the context has alone. DR_ERROR_FORMAT names the line and what is wrong with it, DR_ERROR_ARGUMENT an
 * option; nothing is scored in either case before the line. options NULL: the defaults. */
DR_API dr_status dr_evaluate_file(const dr_model *model, const char *path, const dr_evaluate_options *options,
                                  dr_evaluate_result *evaluation);

#ifdef __cplusplus
}
#endif
#endif
