/* Each run is what it is alone, in every bit: it has a backend of its own, and the others share no memory with it. A small run
 * leaves most of a GPU idle, so that several take little longer than one. */
#include "cli/train_runs.h"

#include "base/number.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct group;

typedef struct {
    struct group *group;
    const dr_train_options *options;
    const char *seed;
    dr_run *run;
    pthread_t thread;
    bool started;
    dr_progress last; /* as it was told; step 0: nothing was */
    dr_status status;
    char folder[PATH_MAX], message[512];
} one_run;

typedef struct group {
    pthread_mutex_t lock; /* of progress and of what runs told last */
    cli_progress progress;
    int count;
    one_run run[CLI_MOST_RUNS];
} group;

/* What all runs come to at the moment. */
static void format_all(const group *all, char *line, size_t size) {
    int64_t least = INT64_MAX, steps = 0;
    double tokens = 0, left = 0;
    char rate[32], time[32];
    for (int i = 0; i < all->count; i++) {
        const dr_progress *last = &all->run[i].last;
        if (last->step < least) least = last->step;
        if (last->steps > steps) steps = last->steps;
        if (last->step < last->steps) tokens += last->tokens_per_second;
        if (last->seconds_left > left) left = last->seconds_left;
    }
    dr_format(line, size, "%d runs  step %lld/%lld  %s tokens/s in all  %s left", all->count, (long long)least,
              (long long)steps, cli_format_count(tokens, rate), cli_format_seconds(left, time));
}

static void format_one(const one_run *run, char *line, size_t size) {
    const dr_progress *p = &run->last;
    int used = dr_format(line, size, "seed %s  step %lld/%lld  loss %.4f", run->seed, (long long)p->step, (long long)p->steps,
                         p->loss);
    if (isfinite(p->accuracy)) used += dr_format(line + used, size - (size_t)used, "  accuracy %.2f%%", 100 * p->accuracy);
    if (isfinite(p->held_out)) dr_format(line + used, size - (size_t)used, "  held-out loss %.4f", p->held_out);
}

static bool report(void *context, const dr_progress *p) {
    one_run *run = context;
    group *all = run->group;
    char line[256];
    pthread_mutex_lock(&all->lock);
    run->last = *p;
    const bool lasting = p->evaluated || p->step == p->steps;
    if (lasting) format_one(run, line, sizeof line);
    if (!lasting && cli_progress_due(&all->progress))
        format_all(all, line, sizeof line);
    else if (!lasting)
        line[0] = '\0';
    if (line[0]) cli_progress_show(&all->progress, lasting, line);
    const bool goes_on = !cli_interrupted() && !cli_progress_lost(&all->progress);
    pthread_mutex_unlock(&all->lock);
    return goes_on;
}

static void *train(void *context) {
    one_run *run = context;
    run->status = dr_run_train(run->run, report, run);
    if (run->status != DR_OK) snprintf(run->message, sizeof run->message, "%s", dr_last_error());
    return NULL;
}

static dr_status open_run(dr_backend *backend, const char *folder, one_run *run) {
    run->seed = dr_train_options_get(run->options, "seed");
    if (snprintf(run->folder, sizeof run->folder, "%s/seed-%s", folder, run->seed) >= (int)sizeof run->folder)
        run->folder[0] = '\0'; /* which no run may have */
    const dr_status status = dr_run_create_beside(backend, run->options, run->folder, &run->run);
    if (status != DR_OK) snprintf(run->message, sizeof run->message, "%s", dr_last_error());
    return status;
}

static void start(group *all) {
    for (int i = 0; i < all->count; i++) {
        one_run *run = &all->run[i];
        run->started = pthread_create(&run->thread, NULL, train, run) == 0;
        if (!run->started) train(run);
    }
    for (int i = 0; i < all->count; i++)
        if (all->run[i].started) pthread_join(all->run[i].thread, NULL);
}

/* Says how each run ended that did not end well. */
static int tell_ends(const cli_command *command, const group *all) {
    int exit_status = 0;
    for (int i = 0; i < all->count; i++) {
        const one_run *run = &all->run[i];
        if (run->status == DR_OK) continue;
        fprintf(stderr, "deltarule %s: seed %s: %s", command->name, run->seed, run->message);
        if (run->status == DR_ERROR_INTERRUPTED) fprintf(stderr, "; continue with: deltarule train --resume %s", run->folder);
        fputc('\n', stderr);
        if (exit_status == 0)
            exit_status = run->status == DR_ERROR_INTERRUPTED && cli_interrupted() ? CLI_STATUS_INTERRUPTED : 1;
    }
    return exit_status;
}

int cli_train_runs(const cli_command *command, dr_backend *backend, dr_train_options *const *options, int count,
                   const char *folder) {
    group *all = calloc(1, sizeof *all);
    dr_status status = DR_OK;
    int exit_status = 1;
    if (!all) {
        fprintf(stderr, "deltarule %s: out of memory\n", command->name);
        return 1;
    }
    pthread_mutex_init(&all->lock, NULL);
    all->count = count;
    for (int i = 0; i < count && status == DR_OK; i++) {
        all->run[i].group = all;
        all->run[i].options = options[i];
        status = all->run[i].status = open_run(backend, folder, &all->run[i]);
    }
    if (status == DR_OK) {
        printf("%d runs side by side: %s/seed-%s to seed-%s\n", count, folder, all->run[0].seed, all->run[count - 1].seed);
        cli_interrupt_catch("\nfinishing these steps and writing checkpoints; once more to leave at once\n");
        all->progress = cli_progress_begin(stdout);
        start(all);
        cli_progress_end(&all->progress);
    }
    exit_status = tell_ends(command, all);
    for (int i = 0; i < count; i++) {
        dr_run_destroy(all->run[i].run);
    }
    pthread_mutex_destroy(&all->lock);
    free(all);
    return exit_status;
}
