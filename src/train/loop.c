/* The training loop. Each step: batch, gradient of the mean loss, clipped update, evaluation when due, a line of metrics, the
 * caller's callback, a checkpoint when due. Everything a step does follows from the checkpoint before it, so a resumed run
 * makes the numbers of an uninterrupted one.
 *
 * On a backend whose work goes on beside the host's, the line and the callback of a step come while the next one is under way.
 * Before an evaluation, a checkpoint and the end every step that was asked for is finished, so that what they see is the same
 * on every backend. */
#include "base/clock.h"
#include "base/error.h"
#include "train/kept.h"
#include "train/run.h"
#include "train/save.h"
#include "train/trial.h"

#include <math.h>
#include <string.h>

/* On a GPU the first step opens libraries and the third records a graph. */
enum { SETTING_UP = 4 };

static bool is_due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

/* Whether the last evaluation is as good as the user wanted. */
static bool is_good_enough(const dr_run *run) {
    double wanted = dr_setting_real(run->options, DR_SET_STOP_ACCURACY);
    return wanted > 0 && run->position.accuracy >= wanted; /* false where there is no accuracy, NaN */
}

static bool is_over(const dr_run *run) {
    return run->position.step >= run->schedule.steps || is_good_enough(run);
}

static dr_status evaluate(dr_run *run, dr_evaluation *evaluation) {
    DR_TRY(run->task->ops->evaluate(run->task, run->session, evaluation));
    run->position.held_out = evaluation->loss;
    run->position.accuracy = evaluation->accuracy;
    return DR_OK;
}

/* What is saved whole may be worthless all the same. held_out: of the last step, or 0. */
static dr_status check_finite(const dr_run *run, double loss, double held_out) {
    if (isfinite(loss) && isfinite(held_out)) return DR_OK;
    return dr_fail(DR_ERROR_NUMERIC, "the run ended after step %lld with a %s of %g: begin again with a learning_rate below %g",
                   (long long)run->position.step, isfinite(loss) ? "held-out loss" : "loss", isfinite(loss) ? held_out : loss,
                   run->schedule.peak);
}

dr_status dr_run_measure(dr_run *run, dr_run_costs *costs) {
    DR_NEED(run);
    DR_NEED(costs);
    enum { MOST_STEPS = 5 };
    const double enough_seconds = 2;
    double best = (double)INFINITY;
    *costs = (dr_run_costs){
        .parameters = dr_model_parameter_count(run->model), .steps = run->schedule.steps, .bytes = dr_trial_bytes(run)};
    if (run->folder) return dr_fail(DR_ERROR_ARGUMENT, "only a run from dr_run_prepare can be measured: its steps are lost");
    double begin = dr_clock_now();
    for (int i = 0; i < MOST_STEPS && (i == 0 || dr_clock_now() - begin < enough_seconds); i++) {
        dr_progress progress;
        dr_step asked;
        double start = dr_clock_now();
        DR_TRY(dr_step_ask(run, run->position.step + 1, &asked));
        DR_TRY(dr_step_finish(run, &asked, &progress));
        costs->tokens = asked.tokens;
        double seconds = dr_clock_now() - start;
        if (seconds < best) best = seconds;
    }
    costs->step_seconds = best;
    return DR_OK;
}

/* What goes through a call of dr_run_train. */
typedef struct {
    dr_run *run;
    dr_progress_callback callback;
    void *context;
    int64_t save_every, evaluate_every;
    double start;          /* of the run's seconds, on the clock */
    double last;           /* when the step before was finished */
    double mean_seconds;   /* of a step without evaluation, exponential; the first steps set things up and leave it nothing */
    int timed;             /* steps that it has seen */
    double operations;     /* 6 a parameter that a token goes through */
    double peak;           /* of the backend a second; 0: not known */
    double loss, held_out; /* of the last step; held_out 0: it was not evaluated */
    bool stops;            /* the callback wants no more */
} training;

static bool evaluates_after(const training *t, int64_t step) {
    return step == t->run->schedule.steps || is_due(step, t->evaluate_every);
}

/* Fills in what does not come from the step itself. */
static void tell_times(training *t, const dr_step *asked, dr_progress *progress) {
    dr_run_position *position = &t->run->position;
    const int64_t left = t->run->schedule.steps - position->step;
    position->seconds = dr_clock_now() - t->start;
    progress->step = position->step;
    progress->held_out = position->held_out;
    progress->accuracy = position->accuracy;
    progress->skipped = position->skipped;
    progress->seconds = position->seconds;
    progress->tokens_per_second = (double)asked->tokens / t->mean_seconds;
    progress->seconds_left = (double)left * position->seconds / (double)position->step;
    progress->utilization = t->peak > 0 ? t->operations * progress->tokens_per_second / t->peak : (double)NAN;
    progress->bytes = dr_trial_bytes(t->run);
}

/* Reads the numbers of a step, evaluates when due, and tells of it. */
static dr_status finish(training *t, const dr_step *asked) {
    dr_run *run = t->run;
    dr_progress progress = {.steps = run->schedule.steps};
    dr_evaluation evaluation = {0};
    DR_TRY(dr_step_finish(run, asked, &progress));
    const double seconds = dr_clock_now() - t->last;
    t->mean_seconds = t->timed++ < SETTING_UP ? seconds : 0.9 * t->mean_seconds + 0.1 * seconds;
    progress.evaluated = evaluates_after(t, asked->step);
    if (progress.evaluated) DR_TRY(evaluate(run, &evaluation));
    const dr_evaluation *told = progress.evaluated ? &evaluation : NULL;
    tell_times(t, asked, &progress);
    DR_TRY(dr_run_lock_check(&run->lock));
    DR_TRY(dr_save_written(run, dr_metrics_append(&run->metrics, &progress, told)));
    DR_TRY(dr_save_check(run));
    t->stops = (t->callback && !t->callback(t->context, &progress)) || t->stops;
    t->loss = progress.loss;
    t->held_out = told ? told->loss : 0;
    t->last = dr_clock_now();
    return DR_OK;
}

/* Asks for steps until one must be finished at once, and finishes all of them. */
static dr_status advance(training *t) {
    const dr_run *run = t->run;
    const bool late = dr_step_is_read_late(run->numbers.backend);
    dr_step asked[DR_STEPS_UNDER_WAY];
    int64_t step = run->position.step, finished = step;
    bool waits = false;
    t->last = dr_clock_now();
    while (!waits) {
        dr_step *next = &asked[++step % DR_STEPS_UNDER_WAY];
        DR_TRY(dr_step_ask(t->run, step, next));
        if (step - finished == DR_STEPS_UNDER_WAY) DR_TRY(finish(t, &asked[++finished % DR_STEPS_UNDER_WAY]));
        waits = !late || t->stops || evaluates_after(t, step) || is_due(step, t->save_every);
    }
    return finish(t, &asked[step % DR_STEPS_UNDER_WAY]);
}

/* Operations a second that are published of H100 and H200 in bf16, without sparsity; 0 of other devices. */
static double peak_of(const dr_backend *backend) {
    const bool known = backend->storage == DR_BF16 && strcmp(dr_backend_isa(backend), "sm_90a") == 0;
    return known ? 989.4e12 : 0;
}

static dr_status go_on(training *t) {
    dr_run *run = t->run;
    while (!is_over(run)) {
        DR_TRY(advance(t));
        const bool last = t->stops || is_over(run);
        if (last || is_due(run->position.step, t->save_every)) DR_TRY(dr_save(run, last));
        if (t->stops && !is_over(run))
            return dr_fail(DR_ERROR_INTERRUPTED, "stopped after step %lld of %lld", (long long)run->position.step,
                           (long long)run->schedule.steps);
        if (is_over(run)) DR_TRY(check_finite(run, t->loss, t->held_out));
    }
    return DR_OK;
}

dr_status dr_run_train(dr_run *run, dr_progress_callback callback, void *context) {
    DR_NEED(run);
    const dr_run_position *position = &run->position;
    training t = {.run = run,
                  .callback = callback,
                  .context = context,
                  .save_every = dr_setting_integer(run->options, DR_SET_SAVE_EVERY),
                  .evaluate_every = dr_setting_integer(run->options, DR_SET_EVALUATE_EVERY)};
    if (!run->folder) return dr_fail(DR_ERROR_ARGUMENT, "a run from dr_run_prepare has no folder: it cannot be trained");
    t.operations = 6.0 * (double)dr_plan_active(run->model);
    t.peak = peak_of(run->numbers.backend);
    if (position->step > 0) DR_TRY(dr_save_written(run, dr_kept_write(run, false))); /* which a kill may have prevented */
    if (run->task->ops->prepare) run->task->ops->prepare(run->task, position->step * run->numbers.parts + 1);
    t.start = dr_clock_now() - position->seconds;
    const dr_status status = go_on(&t);
    return status == DR_OK ? dr_save_end(run) : status; /* which dr_run_destroy waits for else */
}
