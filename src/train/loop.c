/* The training loop. Each step: batch, gradient of the mean loss, clipped AdamW step, evaluation when due, a line of metrics,
 * the caller's callback, a checkpoint when due. Everything a step does follows from the checkpoint before it, so a resumed run
 * makes the numbers of an uninterrupted one. */
#include "base/clock.h"
#include "base/error.h"
#include "train/run.h"
#include "train/trial.h"

#include <math.h>

enum { MOST_SKIPPED_IN_ROW = 50 };

/* One step: moves the position and tells loss, bits per byte, learning rate, norm and the tokens it read. */
static dr_status take_step(dr_run *run, dr_progress *progress, int64_t *tokens) {
    dr_run_position *position = &run->position;
    dr_batch batch;
    int64_t step = position->step + 1, bytes;
    double sum;
    bool skipped;
    DR_TRY(run->task->ops->batch(run->task, step, &batch, &bytes));
    dr_optimizer_zero(run->optimizer);
    double mean = batch.targets > 0 ? 1.0 / (double)batch.targets : 0; /* a mask may leave nothing to learn */
    DR_TRY(dr_session_gradient(run->session, &batch, mean, run->optimizer->gradient, NULL, NULL));
    progress->learning_rate = dr_schedule_rate(&run->schedule, step);
    DR_TRY(dr_optimizer_update(run->optimizer, progress->learning_rate));
    /* the only time in a step at which the host waits */
    DR_TRY(dr_session_result(run->session, &sum, NULL));
    DR_TRY(dr_optimizer_result(run->optimizer, &progress->gradient_norm, &skipped));
    progress->loss = sum * mean;
    progress->bits_per_byte = bytes > 0 ? sum / (double)bytes / 0.693147180559945309417 : (double)NAN; /* ln 2 */
    *tokens = batch.layout.rows;
    position->step = step;
    position->skipped += skipped;
    position->skipped_in_row = skipped ? position->skipped_in_row + 1 : 0;
    if (position->skipped_in_row < MOST_SKIPPED_IN_ROW) return DR_OK;
    return dr_fail(
        DR_ERROR_NUMERIC,
        "the gradients of %d steps in a row, up to step %lld, were not finite: begin again with a learning_rate below %g",
        MOST_SKIPPED_IN_ROW, (long long)step, run->schedule.peak);
}

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

/* What a write into the run folder came to. One that failed because the folder or its lock went meanwhile says so. */
static dr_status written(const dr_run *run, dr_status status) {
    if (status == DR_ERROR_IO) DR_TRY(dr_run_lock_check(&run->lock));
    return status;
}

static dr_status save(dr_run *run) {
    DR_TRY(written(run, dr_metrics_sync(&run->metrics)));
    DR_TRY(dr_run_lock_check(&run->lock));
    return written(run, dr_checkpoint_write(run->folder, run->options, run->optimizer, &run->position, NULL, NULL));
}

/* What is saved whole may be worthless all the same. evaluation: of the last step, or NULL. */
static dr_status check_finite(const dr_run *run, double loss, const dr_evaluation *evaluation) {
    bool trained = isfinite(loss), held_out = !evaluation || isfinite(evaluation->loss);
    if (trained && held_out) return DR_OK;
    return dr_fail(DR_ERROR_NUMERIC, "the run ended after step %lld with a %s of %g: begin again with a learning_rate below %g",
                   (long long)run->position.step, trained ? "held-out loss" : "loss", trained ? evaluation->loss : loss,
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
        double start = dr_clock_now();
        DR_TRY(take_step(run, &progress, &costs->tokens));
        double seconds = dr_clock_now() - start;
        if (seconds < best) best = seconds;
    }
    costs->step_seconds = best;
    return DR_OK;
}

dr_status dr_run_train(dr_run *run, dr_progress_callback callback, void *context) {
    DR_NEED(run);
    dr_run_position *position = &run->position;
    int64_t save_every = dr_setting_integer(run->options, DR_SET_SAVE_EVERY);
    int64_t evaluate_every = dr_setting_integer(run->options, DR_SET_EVALUATE_EVERY);
    if (!run->folder) return dr_fail(DR_ERROR_ARGUMENT, "a run from dr_run_prepare has no folder: it cannot be trained");
    if (run->task->ops->prepare) run->task->ops->prepare(run->task, position->step + 1);
    double start = dr_clock_now() - position->seconds, mean_seconds = 0; /* of a step without evaluation, exponential */
    while (!is_over(run)) {
        dr_progress progress = {.steps = run->schedule.steps};
        dr_evaluation evaluation = {0};
        int64_t tokens;
        double step_start = dr_clock_now();
        DR_TRY(take_step(run, &progress, &tokens));
        double step_seconds = dr_clock_now() - step_start;
        mean_seconds = mean_seconds == 0 ? step_seconds : 0.9 * mean_seconds + 0.1 * step_seconds;
        bool is_last = position->step == run->schedule.steps;
        progress.evaluated = is_last || is_due(position->step, evaluate_every);
        if (progress.evaluated) DR_TRY(evaluate(run, &evaluation));
        position->seconds = dr_clock_now() - start;
        progress.step = position->step;
        progress.held_out = position->held_out;
        progress.accuracy = position->accuracy;
        progress.skipped = position->skipped;
        progress.seconds = position->seconds;
        progress.tokens_per_second = (double)tokens / mean_seconds;
        progress.seconds_left = (double)(run->schedule.steps - position->step) * position->seconds / (double)position->step;
        DR_TRY(dr_run_lock_check(&run->lock));
        DR_TRY(written(run, dr_metrics_append(&run->metrics, &progress, progress.evaluated ? &evaluation : NULL)));
        bool stops = callback && !callback(context, &progress);
        if (stops || is_over(run) || is_due(position->step, save_every)) DR_TRY(save(run));
        if (stops && !is_over(run))
            return dr_fail(DR_ERROR_INTERRUPTED, "stopped after step %lld of %lld", (long long)position->step,
                           (long long)run->schedule.steps);
        if (is_over(run)) DR_TRY(check_finite(run, progress.loss, progress.evaluated ? &evaluation : NULL));
    }
    return DR_OK;
}
