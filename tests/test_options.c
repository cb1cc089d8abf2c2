/* Every option of `generate` and `score` that --help lists, at a value that is not its default, in the library call that it is
 * for: the functions that open the backend, load the model, generate and score are replaced. An option without a check fails.
 */
#include "cli/commands.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/evaluate.h>
#include <deltarule/generate.h>
#include <deltarule/verify.h>
#include <fcntl.h>
#include <math.h>
#include <termios.h>

/* ---- what the library was called with ---- */

static struct {
    char backend[32], isa[32];
    int threads, device;
    dr_dtype weights, dtype;
    char model[PATH_MAX], prompt[64], corpus[PATH_MAX];
    dr_generate_options generate;
    int32_t ids[3], stop_tokens[2];
    dr_logit_bias bias[2];
    int64_t prompts, samples;
    char stops[2][16];
    dr_score_options score;
    char task[4096]; /* the settings of a task that is scored, "name=value" a line */
    int generated, scored, verified;
    dr_verify_options verify;
    char verify_texts[3][32], path[PATH_MAX]; /* backend, path, isa */
} seen;

static const char *made_text; /* what the model makes instead of "made" */
static size_t made_bytes;

static dr_verify_counts verify_result = {.passed = 1};

static dr_backend *true_backend;
static dr_model *true_model;

dr_status __wrap_dr_backend_open(const char *, const dr_backend_options *, dr_backend **);
dr_status __real_dr_backend_open(const char *, const dr_backend_options *, dr_backend **);
dr_status __wrap_dr_backend_open(const char *name, const dr_backend_options *options, dr_backend **backend) {
    snprintf(seen.backend, sizeof seen.backend, "%s", name);
    snprintf(seen.isa, sizeof seen.isa, "%s", options && options->isa ? options->isa : "");
    seen.threads = options ? options->threads : 0;
    seen.weights = options ? options->weights : DR_F32;
    seen.dtype = options ? options->dtype : DR_F32;
    seen.device = options ? options->device : 0;
    *backend = true_backend;
    return DR_OK;
}

void __real_dr_backend_close(dr_backend *);
void __wrap_dr_backend_close(dr_backend *);
void __wrap_dr_backend_close(dr_backend *backend) {
    if (backend != true_backend) __real_dr_backend_close(backend); /* a run's own, which saves beside it */
}

dr_status __wrap_dr_model_load(dr_backend *, const char *, dr_model **);
dr_status __wrap_dr_model_load(dr_backend *backend, const char *folder, dr_model **model) {
    assert_ptr_equal(backend, true_backend);
    snprintf(seen.model, sizeof seen.model, "%s", folder);
    *model = true_model;
    return DR_OK;
}

void __real_dr_model_destroy(dr_model *);
void __wrap_dr_model_destroy(dr_model *);
void __wrap_dr_model_destroy(dr_model *model) {
    if (model != true_model) __real_dr_model_destroy(model);
}

int64_t __wrap_dr_model_ignored_count(const dr_model *);
int64_t __wrap_dr_model_ignored_count(const dr_model *model) {
    assert_ptr_equal(model, true_model);
    return 1;
}

const char *__wrap_dr_model_ignored_name(const dr_model *, int64_t);
const char *__wrap_dr_model_ignored_name(const dr_model *model, int64_t index) {
    assert_ptr_equal(model, true_model);
    return index == 0 ? "odd\x1b.inv_freq" : NULL;
}

dr_status __wrap_dr_generate_texts(dr_model *, const dr_prompt *, int64_t, int64_t, const dr_generate_options *,
                                   bool (*)(void *, const dr_piece *), void *, dr_generate_speed *);
dr_status __wrap_dr_generate_texts(dr_model *model, const dr_prompt *prompts, int64_t prompt_count, int64_t samples,
                                   const dr_generate_options *options, bool (*emit)(void *context, const dr_piece *piece),
                                   void *context, dr_generate_speed *speed) {
    (void)speed;
    assert_ptr_equal(model, true_model);
    snprintf(seen.prompt, sizeof seen.prompt, "%.*s", (int)prompts->bytes, prompts->text ? prompts->text : "");
    for (int64_t i = 0; i < prompts->count && i < 3; i++) seen.ids[i] = prompts->ids[i];
    seen.generate = *options;
    seen.prompts = prompt_count;
    seen.samples = samples;
    for (int64_t i = 0; i < options->stop_count && i < 2; i++)
        snprintf(seen.stops[i], sizeof seen.stops[i], "%s", options->stop[i]);
    for (int64_t i = 0; i < options->stop_token_count && i < 2; i++) seen.stop_tokens[i] = options->stop_tokens[i];
    for (int64_t i = 0; i < options->sampling.bias_count && i < 2; i++) seen.bias[i] = options->sampling.bias[i];
    seen.generated++;
    const dr_token_logprob top = {.id = 9, .logprob = -0.25};
    const dr_choice choice = {.id = 7, .logprob = -0.5, .top = &top, .top_count = options->sampling.top_logprobs > 0};
    for (int64_t i = prompt_count * samples - 1; i >= 0; i--) { /* the last is over first */
        dr_piece piece = {.prompt = i / samples, .sample = i % samples, .choice = &choice, .bytes = "made", .count = 4};
        for (size_t k = 0; made_bytes > 0 && k < made_bytes; k++) { /* one by one, as a model makes them */
            piece.bytes = made_text + k, piece.count = 1;
            if (!emit(context, &piece)) return DR_ERROR_INTERRUPTED;
        }
        if (made_bytes > 0) piece.count = 0;
        piece.finish = DR_FINISH_STOP;
        if (!emit(context, &piece)) return DR_ERROR_INTERRUPTED;
    }
    return DR_OK;
}

dr_status __wrap_dr_score_files(dr_model *, const char *, const dr_score_options *, dr_score *);
dr_status __wrap_dr_score_files(dr_model *model, const char *path, const dr_score_options *options, dr_score *score) {
    assert_ptr_equal(model, true_model);
    snprintf(seen.corpus, sizeof seen.corpus, "%s", path);
    seen.score = *options;
    seen.scored++;
    *score = (dr_score){.files = 11, .bytes = 22, .tokens = 33, .loss = 0.4375, .perplexity = 1.5488, .bits_per_byte = 0.6312};
    options->file(options->context, "odd\n\"name\" \xff", score);
    return DR_OK;
}

/* Told once for each type of weights. */
dr_status __wrap_dr_compare_text(const dr_model *, const dr_model *, const char *, size_t, const dr_score_options *,
                                 dr_comparison *);
dr_status __wrap_dr_compare_text(const dr_model *model, const dr_model *other, const char *text, size_t bytes,
                                 const dr_score_options *options, dr_comparison *comparison) {
    assert_ptr_equal(model, true_model);
    assert_ptr_equal(other, true_model);
    snprintf(seen.prompt, sizeof seen.prompt, "%.*s", (int)bytes, text);
    seen.score = *options;
    seen.scored = 1;
    *comparison = (dr_comparison){.tokens = 33, .weight_bytes = 44, .other_bits_per_byte = 0.5, .agreement = 0.75};
    return DR_OK;
}

dr_status __wrap_dr_score_task(const dr_model *, const dr_train_options *, const dr_task_score_calls *);
dr_status __wrap_dr_score_task(const dr_model *model, const dr_train_options *options, const dr_task_score_calls *calls) {
    const dr_task_score score = {.set = "64/4",
                                 .sets = 1,
                                 .length = 64,
                                 .pairs = 4,
                                 .examples = 5,
                                 .queries = 15,
                                 .loss = INFINITY,
                                 .accuracy = 0.25,
                                 .sequence_accuracy = 0.125};
    const dr_setting *settings;
    assert_ptr_equal(model, true_model);
    for (int i = dr_train_settings(&settings) - 1, at = snprintf(seen.task, sizeof seen.task, "\n"); i >= 0; i--)
        at += snprintf(seen.task + at, sizeof seen.task - (size_t)at, "%s=%s\n", settings[i].name,
                       dr_train_options_get(options, settings[i].name));
    seen.scored++;
    calls->set(calls->context, &score);
    return DR_OK;
}

dr_status __wrap_dr_verify(const char *, const dr_verify_options *, void (*)(void *, const char *), void *, dr_verify_counts *);
dr_status __wrap_dr_verify(const char *path, const dr_verify_options *options, void (*line)(void *context, const char *text),
                           void *context, dr_verify_counts *counts) {
    const char *const texts[] = {options->backend, options->path, options->isa};
    for (int i = 0; i < 3; i++) snprintf(seen.verify_texts[i], sizeof seen.verify_texts[i], "%s", texts[i] ? texts[i] : "");
    snprintf(seen.path, sizeof seen.path, "%s", path);
    seen.verify = *options;
    seen.verified++;
    line(context, "a line");
    counts->passed += verify_result.passed;
    counts->failed += verify_result.failed;
    counts->skipped += verify_result.skipped;
    return DR_OK;
}

/* ---- calling a command ---- */

static char output[1 << 16]; /* standard output of the last call */

static int call(const cli_command *command, char **words) {
    int argc = 0;
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    const char *path = scratch_write("output", "", 0);
    FILE *file = freopen(path, "w", stdout);
    assert_non_null(file);
    while (words[argc]) argc++;
    memset(&seen, 0, sizeof seen);
    int status = command->run(argc, words);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    size_t bytes = 0;
    char *text = scratch_read_at(path, &bytes);
    snprintf(output, sizeof output, "%s", text);
    free(text);
    return status;
}

#define GENERATE(...) assert_int_equal(call(&cli_generate, (char *[]){"generate", "--model", "m", __VA_ARGS__, NULL}), 0)
#define RECALL(...)                                                                                                            \
    assert_int_equal(call(&cli_score, (char *[]){"score", "--model", "m", "--task", "mqar", __VA_ARGS__, NULL}), 0)
#define GROUP(...)                                                                                                             \
    assert_int_equal(call(&cli_score, (char *[]){"score", "--model", "m", "--task", "group", __VA_ARGS__, NULL}), 0)
#define SCORE(...)                                                                                                             \
    assert_int_equal(call(&cli_score, (char *[]){"score", "--model", "m", "--corpus", "c", __VA_ARGS__, NULL}), 0)

/* ---- the options ---- */

#include "options_of_generate.h"

/* The stored tensors that are passed over stand on standard error. */
static void assert_ignored_are_named(const cli_command *command, bool verbose) {
    char *words[] = {(char *)command->name,        "--model", "m", command == &cli_score ? "--corpus" : "--prompt", "c",
                     verbose ? "--verbose" : NULL, NULL};
    const char *path = scratch_write("errors", "", 0);
    fflush(stderr);
    int kept = dup(STDERR_FILENO), file = open(path, O_WRONLY);
    dup2(file, STDERR_FILENO);
    int status = call(command, words);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(file);
    size_t bytes = 0;
    char *text = scratch_read_at(path, &bytes);
    assert_int_equal(status, 0);
    assert_int_equal(strstr(text, "does not use the stored tensor odd\\x1b.inv_freq\n") != NULL, verbose);
    free(text);
}

static void generate_verbose(void) {
    assert_ignored_are_named(&cli_generate, true);
    assert_ignored_are_named(&cli_generate, false);
}

static void score_verbose(void) {
    assert_ignored_are_named(&cli_score, false);
    assert_ignored_are_named(&cli_score, true);
}

/* Whether this line is among the settings of the task that was scored. */
static void assert_asked(const char *line) {
    char whole[64];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (!strstr(seen.task, whole)) fail_msg("%s is not among the settings\n%s", line, seen.task);
}

static void score_task(void) {
    SCORE("--task", "lm");
    assert_string_equal(seen.corpus, "c");
    RECALL("--pairs", "3");
    assert_asked("pairs=3");
}

static void score_skip_unreadable(void) {
    SCORE("--window", "8");
    assert_false(seen.score.skip_unreadable);
    SCORE("--skip-unreadable");
    assert_true(seen.score.skip_unreadable);
}

static void score_per_file(void) {
    SCORE("--per-file");
    assert_non_null(strstr(output, "          22      0.4375         0.6312  odd\\x0a\"name\" \\xff\n\nfiles          11\n"));
    SCORE("--window", "8");
    assert_null(strstr(output, "odd"));
}

static void score_weights(void) {
    SCORE("--weights", "bf16");
    assert_int_equal(seen.weights, DR_BF16);
}

static void score_compare(void) {
    const char *path = scratch_write("text", "a text\n", 7);
    assert_int_equal(call(&cli_score, (char *[]){"score", "--model", "m", "--corpus", (char *)path, "--compare", NULL}), 0);
    assert_string_equal(seen.prompt, "a text\n");
    assert_int_equal(seen.weights, DR_I8); /* the last of the three */
    for (int i = 0; i < 3; i++) assert_non_null(strstr(output, ((const char *[]){"\nfloat32 ", "\nbf16 ", "\nint8 "})[i]));
}

static void score_json(void) {
    SCORE("--json", "--per-file");
    assert_string_equal(output,
                        "{\"file\": \"odd\\u000a\\\"name\\\" \xef\xbf\xbd\", \"bytes\": 22, \"tokens\": 33, \"loss\": 0.4375, "
                        "\"perplexity\": 1.5488, \"bits_per_byte\": 0.63119999999999998, \"seconds\": 0}\n"
                        "{\"files\": 11, \"bytes\": 22, \"tokens\": 33, \"loss\": 0.4375, "
                        "\"perplexity\": 1.5488, \"bits_per_byte\": 0.63119999999999998, \"seconds\": 0}\n");
    RECALL("--json");
    assert_string_equal(
        output, "{\"task\": \"mqar\", \"set\": \"64/4\", \"seq_len\": 64, \"pairs\": 4, \"examples\": 5, \"queries\": 15, "
                "\"loss\": null, \"accuracy\": 0.25, \"sequence_accuracy\": 0.125, \"seconds\": 0}\n");
}

#include "score_task_options.h"

static void score_model(void) {
    assert_int_equal(call(&cli_score, (char *[]){"score", "--model", "the/model", "--corpus", "c", NULL}), 0);
    assert_string_equal(seen.model, "the/model");
}

static void score_corpus(void) {
    assert_int_equal(call(&cli_score, (char *[]){"score", "--model", "m", "--corpus", "the/corpus", NULL}), 0);
    assert_string_equal(seen.corpus, "the/corpus");
}

static void score_window(void) {
    SCORE("--window", "77");
    assert_int_equal(seen.score.window, 77);
}

static void score_tokenizer(void) {
    SCORE("--tokenizer", "bytes");
    assert_null(seen.score.tokenizer);
    SCORE("--tokenizer", small_tokenizer());
    assert_non_null(seen.score.tokenizer);
}

static void score_backend(void) {
    SCORE("--backend", "reference", "--isa", "portable");
    assert_string_equal(seen.backend, "reference");
    assert_string_equal(seen.isa, "portable");
}

static void score_threads(void) {
    SCORE("--threads", "3");
    assert_int_equal(seen.threads, 3);
}

#define VERIFY(...) assert_int_equal(call(&cli_verify, (char *[]){"verify", "cases", __VA_ARGS__, NULL}), 0)

static void verify_backend(void) {
    VERIFY("--backend", "reference");
    assert_string_equal(seen.verify_texts[0], "reference");
}

static void verify_path(void) {
    VERIFY("--path", "decode", "--isa", "portable");
    assert_string_equal(seen.verify_texts[1], "decode");
    assert_string_equal(seen.verify_texts[2], "portable");
    assert_string_equal(seen.path, "cases");
}

static void verify_dtype(void) {
    VERIFY("--dtype", "bf16");
    assert_int_equal(seen.verify.dtype, DR_BF16);
    VERIFY("--dtype", "fp16");
    assert_int_equal(seen.verify.dtype, DR_F16);
}

static void verify_device(void) {
    VERIFY("--device", "2");
    assert_int_equal(seen.verify.device, 2);
}

static void verify_strict(void) {
    VERIFY("--strict");
    assert_true(seen.verify.strict);
    VERIFY("--device", "0");
    assert_false(seen.verify.strict);
}

static void verify_threads(void) {
    VERIFY("--threads", "3");
    assert_int_equal(seen.verify.threads, 3);
}

static const struct {
    const cli_command *command;
    const char *option;
    void (*check)(void);
} checks[] = {
    {&cli_generate, "model", generate_model},
    {&cli_generate, "prompt", generate_prompt},
    {&cli_generate, "tokens", generate_tokens},
    {&cli_generate, "temperature", generate_temperature},
    {&cli_generate, "top-k", generate_top_k},
    {&cli_generate, "top-p", generate_top_p},
    {&cli_generate, "seed", generate_seed},
    {&cli_generate, "tokenizer", generate_tokenizer},
    {&cli_generate, "ignore-eos", generate_ignore_eos},
    {&cli_generate, "backend", generate_backend},
    {&cli_generate, "dtype", generate_dtype},
    {&cli_generate, "device", generate_dtype},
    {&cli_generate, "draft", generate_draft},
    {&cli_generate, "draft-tokens", generate_draft},
    {&cli_generate, "weights", generate_weights},
    {&cli_score, "weights", score_weights},
    {&cli_score, "compare", score_compare},
    {&cli_generate, "prompt-file", generate_prompt_file},
    {&cli_generate, "no-echo", generate_no_echo},
    {&cli_generate, "stop", generate_stop},
    {&cli_generate, "samples", generate_samples},
    {&cli_generate, "at-once", generate_at_once},
    {&cli_generate, "min-p", generate_min_p},
    {&cli_generate, "repetition-penalty", generate_repetition_penalty},
    {&cli_generate, "presence-penalty", generate_presence_penalty},
    {&cli_generate, "frequency-penalty", generate_frequency_penalty},
    {&cli_generate, "logit-bias", generate_logit_bias},
    {&cli_generate, "stop-token", generate_stop_token},
    {&cli_generate, "prompt-ids", generate_prompt_ids},
    {&cli_generate, "prompts", generate_prompts},
    {&cli_generate, "json", generate_json},
    {&cli_generate, "logprobs", generate_logprobs},
    {&cli_generate, "verbose", generate_verbose},
    {&cli_score, "verbose", score_verbose},
    {&cli_score, "lengths", score_lengths},
    {&cli_score, "updates", score_updates},
    {&cli_score, "group", score_group},
    {&cli_score, "moves", score_moves},
    {&cli_score, "element-tokens", score_element_tokens},
    {&cli_score, "repeat-elements", score_element_tokens},
    {&cli_score, "task", score_task},
    {&cli_score, "skip-unreadable", score_skip_unreadable},
    {&cli_score, "per-file", score_per_file},
    {&cli_score, "json", score_json},
    {&cli_score, "seq-len", score_seq_len},
    {&cli_score, "pairs", score_pairs},
    {&cli_score, "examples", score_examples},
    {&cli_score, "seed", score_seed},
    {&cli_score, "batch", score_batch},
    {&cli_score, "power-a", score_power_a},
    {&cli_score, "random-fillers", score_random_fillers},
    {&cli_generate, "threads", generate_threads},
    {&cli_score, "model", score_model},
    {&cli_score, "corpus", score_corpus},
    {&cli_score, "window", score_window},
    {&cli_score, "tokenizer", score_tokenizer},
    {&cli_score, "backend", score_backend},
    {&cli_score, "dtype", score_dtype},
    {&cli_score, "device", score_dtype},
    {&cli_score, "threads", score_threads},
    {&cli_verify, "backend", verify_backend},
    {&cli_verify, "path", verify_path},
    {&cli_verify, "dtype", verify_dtype},
    {&cli_verify, "device", verify_device},
    {&cli_verify, "strict", verify_strict},
    {&cli_verify, "threads", verify_threads},
};
enum { CHECKS = sizeof checks / sizeof *checks };

static void test_each_option_arrives(void **state) {
    (void)state;
    for (int i = 0; i < CHECKS; i++) {
        checks[i].check();
        assert_int_equal(seen.generated, checks[i].command == &cli_generate);
        assert_int_equal(seen.scored, checks[i].command == &cli_score);
        assert_int_equal(seen.verified, checks[i].command == &cli_verify);
    }
}

/* --help lists an option in a line "  --NAME ...". */
static void test_no_option_is_forgotten(void **state) {
    (void)state;
    static const cli_command *const commands[] = {&cli_generate, &cli_score, &cli_verify};
    for (int c = 0; c < 3; c++) {
        int listed = 0, held = 0;
        assert_int_equal(call(commands[c], (char *[]){(char *)commands[c]->name, "--help", NULL}), 0);
        for (char *line = output; line; line = strchr(line, '\n')) {
            line += *line == '\n';
            if (strncmp(line, "  --", 4) != 0) continue;
            char name[64];
            bool found = false;
            snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 4, " \n"), line + 4);
            if (strcmp(name, "help") == 0) continue;
            for (int i = 0; i < CHECKS; i++) found |= checks[i].command == commands[c] && strcmp(checks[i].option, name) == 0;
            if (!found) fail_msg("nothing here holds --%s of %s where it is used", name, commands[c]->name);
            listed++;
        }
        for (int i = 0; i < CHECKS; i++) held += checks[i].command == commands[c];
        assert_int_equal(listed, held);
    }
}

/* Of train: its settings are held by test_settings.c, these are the command's own. */
static void test_train_opens_what_was_asked_for(void **state) {
    (void)state;
    char out[PATH_MAX];
    snprintf(out, sizeof out, "%s", scratch_path("a run"));
    char *words[] = {"train",     "--task",  "mqar",     "--steps",        "1",  "--batch",    "1", "--seq-len",
                     "8",         "--pairs", "1",        "--vocabulary",   "16", "--hidden",   "4", "--layers",
                     "1",         "--heads", "1",        "--intermediate", "4",  "--held-out", "1", "--backend",
                     "reference", "--isa",   "portable", "--threads",      "3",  "--out",      out, NULL};
    assert_int_equal(call(&cli_train, words), 0);
    assert_string_equal(seen.backend, "reference");
    assert_string_equal(seen.isa, "portable");
    assert_int_equal(seen.threads, 3);
    assert_int_equal(access(scratch_path("a run/model.safetensors"), F_OK), 0);
}

/* What a model made of these bytes, by the time that the command has ended; on a terminal or into a file. */
static const char *print_made(const char *bytes, size_t count, bool terminal) {
    static char shown[4096];
    made_text = bytes, made_bytes = count;
    if (!terminal) {
        GENERATE("--prompt", "p\x1b ");
        snprintf(shown, sizeof shown, "%.4000s", output);
    } else {
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
            print_message("there are no terminals here: is /dev/pts mounted?\n");
            skip();
        }
        int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
        struct termios how;
        assert_true(slave >= 0 && tcgetattr(slave, &how) == 0);
        cfmakeraw(&how);
        assert_int_equal(tcsetattr(slave, TCSANOW, &how), 0);
        fflush(stdout);
        int kept = dup(STDOUT_FILENO);
        dup2(slave, STDOUT_FILENO);
        char *words[] = {"generate", "--model", "m", "--prompt", "p\x1b ", NULL};
        int status = cli_generate.run(5, words);
        fflush(stdout);
        dup2(kept, STDOUT_FILENO);
        close(kept);
        size_t have = 0;
        close(slave);
        for (ssize_t got; (got = read(master, shown + have, sizeof shown - 1 - have)) > 0;) have += (size_t)got;
        shown[have] = '\0';
        close(master);
        assert_int_equal(status, 0);
    }
    made_text = NULL, made_bytes = 0;
    return shown;
}

/* A terminal never gets a control character or a byte that is no text; a file gets all of them; neither half a character. */
static void test_what_a_terminal_gets(void **state) {
    (void)state;
    static const char odd[] =
        "a\tb\n\x1b[31m\r\x07\x7f\xc2\x9b\x9b\xe2\x82\xac\xf0\x9f\x98\x80\xff\xc3(\xe2\x82z\xed\xa0\x80\xe2\x82";
    assert_string_equal(print_made(odd, sizeof odd - 1, true),
                        "p\\x1b a\tb\n\\x1b[31m\\x0d\\x07\\x7f\\xc2\\x9b\\x9b\xe2\x82\xac\xf0\x9f\x98\x80\\xff\\xc3(\\xe2\\x82z"
                        "\\xed\\xa0\\x80\n");
    assert_string_equal(
        print_made(odd, sizeof odd - 1, false),
        "p\x1b a\tb\n\x1b[31m\r\x07\x7f\xc2\x9b\x9b\xe2\x82\xac\xf0\x9f\x98\x80\xff\xc3(\xe2\x82z\xed\xa0\x80\n");
}

/* What is scored is printed under its own name. */
static void test_scores_are_printed(void **state) {
    (void)state;
    SCORE("--window", "8");
    static const char *const lines[] = {"files          11\n",     "bytes          22\n",    "tokens         33\n",
                                        "loss           0.4375\n", "perplexity     1.549\n", "bits_per_byte  0.6312\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(output, lines[i])) fail_msg("'%s' is not in '%s'", lines[i], output);
}

/* The exit status is 0 only if some case passed and none failed; every path is gone through and counted. */
static void test_verify_ends_as_it_counts(void **state) {
    (void)state;
    static const struct {
        dr_verify_counts counts;
        int status;
    } ends[] = {{{.passed = 1}, 0}, {{.passed = 2, .failed = 1}, 1}, {{.skipped = 3}, 1}, {{.passed = 1, .skipped = 1}, 0}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char wanted[64];
        const dr_verify_counts *counts = &ends[i].counts;
        verify_result = *counts;
        assert_int_equal(call(&cli_verify, (char *[]){"verify", "one", "two", NULL}), ends[i].status);
        assert_int_equal(seen.verified, 2);
        snprintf(wanted, sizeof wanted, "a line\na line\n%d passed, %d failed, %d skipped\n", 2 * (int)counts->passed,
                 2 * (int)counts->failed, 2 * (int)counts->skipped);
        assert_string_equal(output, wanted);
    }
    verify_result = (dr_verify_counts){.passed = 1};
}

static int begin(void **state) {
    if (scratch_begin(state) != 0) return -1;
    must(__real_dr_backend_open("reference", NULL, &true_backend));
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 257, config.hidden = 4, config.layers = 1, config.heads = 1, config.intermediate = 4;
    must(dr_model_create(true_backend, &config, 1, &true_model));
    return 0;
}

static int end(void **state) {
    __real_dr_model_destroy(true_model);
    __real_dr_backend_close(true_backend);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_option_arrives),
        cmocka_unit_test(test_no_option_is_forgotten),
        cmocka_unit_test(test_train_opens_what_was_asked_for),
        cmocka_unit_test(test_scores_are_printed),
        cmocka_unit_test(test_verify_ends_as_it_counts),
        cmocka_unit_test(test_what_a_terminal_gets),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
