/* The memory of a command that reads a prompt of 100,000 tokens beside that of one that reads 4,096: what grows is the text and
 * its token ids, as recurrences and windows of attention remember no more of a long prompt than of a short one. Small models
 * whose layers would need some hundred megabytes for what all tokens of the long prompt make at once. */
#include "scratch.h"

#include <deltarule/deltarule.h>

#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum {
    SHORT = 4096,
    LONG = 100000,
    BYTES_A_TOKEN = 16, /* the text, of a byte a token, and its ids, each in a buffer that doubles as it grows */
    PAGES = 512 << 10   /* bytes by which two runs of one command differ */
};

static void must(dr_status status) {
    if (status != DR_OK) fail_msg("%s", dr_last_error());
}

/* The most memory in bytes that the command holds at once. */
static int64_t peak_of(char *const arguments[]) {
    char *const environment[] = {"OMP_WAIT_POLICY=passive", NULL};
    posix_spawn_file_actions_t actions;
    struct rusage use;
    pid_t child;
    int status;
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0), 0);
    assert_int_equal(posix_spawn(&child, arguments[0], &actions, NULL, arguments, environment), 0);
    assert_int_equal(wait4(child, &status, 0, &use), child);
    assert_int_equal(status, 0);
    posix_spawn_file_actions_destroy(&actions);
    return (int64_t)use.ru_maxrss * 1024;
}

/* A model of bytes with these layers, all of which its tokens pass. */
static const char *make_model(const char *name, const char *layers) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    const char *folder = scratch_path(name);
    dr_backend *backend;
    dr_model *model;
    config.vocabulary = 257, config.hidden = 64, config.heads = 2, config.key_size = 32, config.intermediate = 64;
    config.layer_list = layers;
    must(dr_backend_open("cpu", NULL, &backend));
    must(dr_model_create(backend, &config, 1, &model));
    must(dr_model_save(model, folder));
    dr_model_destroy(model);
    dr_backend_close(backend);
    return folder;
}

static const char *write_text(const char *name, size_t count) {
    char *text = malloc(count);
    assert_non_null(text);
    for (size_t i = 0; i < count; i++) text[i] = (char)('a' + (i * 7 + i / 11) % 26);
    const char *path = scratch_write(name, text, count);
    free(text);
    return path;
}

static void check(const char *model, const char *command, const char *option, const char *short_text, const char *long_text) {
    int64_t peaks[2];
    for (int i = 0; i < 2; i++) {
        char *const arguments[] = {DELTARULE,
                                   (char *)command,
                                   "--model",
                                   (char *)model,
                                   (char *)option,
                                   (char *)(i == 0 ? short_text : long_text),
                                   "--threads",
                                   "1",
                                   strcmp(command, "generate") == 0 ? "--tokens" : NULL,
                                   "4",
                                   NULL};
        peaks[i] = peak_of(arguments);
    }
    printf("%s %s: %.2f MB for %d tokens, %.2f MB for %d\n", strrchr(model, '/') + 1, command, (double)peaks[0] / 1e6, SHORT,
           (double)peaks[1] / 1e6, LONG);
    assert_true(peaks[1] - peaks[0] <= (int64_t)(LONG - SHORT) * BYTES_A_TOKEN + PAGES);
}

static void test_memory(void **state) {
    (void)state;
    char short_text[PATH_MAX], long_text[PATH_MAX];
    snprintf(short_text, sizeof short_text, "%s", write_text("short", SHORT));
    snprintf(long_text, sizeof long_text, "%s", write_text("long", LONG));
    const char *const models[] = {
        make_model("gdn", "gdn*2"),
        make_model("hybrid", "[{\"mixer\": \"gdn\", \"repeat\": 3}, {\"mixer\": \"attention\", \"window\": 64}]")};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check(models[i], "score", "--corpus", short_text, long_text);
        check(models[i], "generate", "--prompt-file", short_text, long_text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
