/* A training loop: a small language model on bytes, trained, stopped, taken up again to its end, and scored on text that it
 * never saw.
 *
 * A run is made from settings (those of `deltarule train`, by the same names) and lives in a folder, which holds the model,
 * metrics.csv and what is needed to go on. Stopping it loses nothing: the losses after resuming are those of a run that was
 * not stopped, bit for bit.
 *
 * Usage: training CORPUS FOLDER [STEPS]      a UTF-8 text file or a folder of them; the run's folder, new or empty; 60 steps */
#include <deltarule/evaluate.h>
#include <deltarule/train.h>
#include <stdio.h>
#include <stdlib.h>

static void require(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "training: %s\n", dr_last_error());
    exit(1);
}

/* Called after each step. context: the step after which to stop, as a program does when it is interrupted. */
static bool tell(void *context, const dr_progress *progress) {
    const int64_t *last = context;
    if (progress->step % 10 == 0 || progress->evaluated)
        printf("step %3lld  %.3f bits a byte\n", (long long)progress->step, progress->bits_per_byte);
    return progress->step < *last;
}

static void line(void *context, const char *text) {
    (void)context;
    printf("%s\n", text);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: training CORPUS FOLDER [STEPS]\n");
        return 2;
    }
    const char *corpus = argv[1], *folder = argv[2], *steps = argc > 3 ? argv[3] : "60";
    dr_backend *backend;
    dr_train_options *options;
    dr_run *run;
    require(dr_backend_open("cpu", NULL, &backend));
    require(dr_train_options_create(&options));

    /* every setting has a default and is set by its name, from text; dr_train_settings lists them all */
    require(dr_train_options_set(options, "rule", "kda"));
    require(dr_train_options_set(options, "corpus", corpus));
    require(dr_train_options_set(options, "steps", steps));
    require(dr_train_options_set(options, "hidden", "64"));
    require(dr_train_options_set(options, "layers", "2"));
    require(dr_train_options_set(options, "held_out", "0.1"));
    require(dr_run_create(backend, options, folder, &run));
    dr_run_describe(run, line, NULL);

    /* the first half: the callback returns false, a checkpoint is written, and the run ends */
    int64_t half = atoll(steps) / 2, never = INT64_MAX;
    dr_status status = dr_run_train(run, tell, &half);
    if (status != DR_ERROR_INTERRUPTED) require(status);
    dr_run_destroy(run);

    /* the second half: no settings are given, the folder has them */
    printf("taken up again\n");
    require(dr_run_resume(backend, folder, NULL, &run));
    require(dr_run_train(run, tell, &never));

    /* the text that was held out of the corpus lies in the folder */
    char held_out[4096];
    dr_score score;
    snprintf(held_out, sizeof held_out, "%s/held_out", folder);
    require(dr_score_corpus(dr_run_model(run), held_out, 1024, NULL, NULL, &score));
    printf("held-out text: %lld bytes, %.3f bits a byte\n", (long long)score.bytes, score.bits_per_byte);

    dr_run_destroy(run);
    dr_train_options_destroy(options);
    dr_backend_close(backend);
    return !(score.bits_per_byte < 8); /* 8: a model that knows nothing */
}
