/* A step: batch, gradient of the mean loss over its targets, clipped update. The batch may be computed in parts, one after
 * another, whose gradients add up; each is scaled by the targets of the whole batch, so the sum is the gradient that one call
 * would give, up to the order in which numbers are added. The sums that the host wants to know are copied within the backend's
 * memory to a place that the next step leaves alone, and from there to the host. */
#include "train/step.h"

#include "base/error.h"
#include "base/memory.h"
#include "nn/session.h"
#include "train/run.h"

#include <math.h>
#include <string.h>

enum { MOST_SKIPPED_IN_ROW = 50 };

/* What one part of a step leaves. */
typedef struct {
    dr_loss_sum sum;
    double balancing; /* its first bytes are a number of the backend */
} part_numbers;

/* ---- the places of numbers ------------------------------------------------------------------------------------------ */

dr_status dr_step_numbers_create(dr_backend *backend, int64_t parts, dr_step_numbers *numbers) {
    void *memory;
    *numbers = (dr_step_numbers){
        .backend = backend, .parts = parts, .bytes = (size_t)parts * sizeof(part_numbers) + sizeof(dr_control)};
    dr_status status;
    DR_GO(dr_backend_allocate(backend, DR_STEPS_UNDER_WAY * numbers->bytes, &memory));
    numbers->block = memory;
    dr_backend_zero(backend, memory, DR_STEPS_UNDER_WAY * numbers->bytes);
    DR_GO(dr_allocate(numbers->bytes, "the numbers of a step", &memory));
    numbers->host = memory;
    for (int i = 0; i < DR_STEPS_UNDER_WAY; i++) {
        DR_GO(dr_allocate((size_t)parts * sizeof(double), "the numbers of a step", &memory));
        numbers->share[i] = memory;
    }
    return DR_OK;
done:
    dr_step_numbers_release(numbers);
    return status;
}

void dr_step_numbers_release(dr_step_numbers *numbers) {
    if (!numbers->backend) return;
    for (int i = 0; i < DR_STEPS_UNDER_WAY; i++) {
        if (numbers->transfer[i]) numbers->backend->ops->fetched(numbers->backend, numbers->transfer[i], NULL);
        dr_release(numbers->share[i]);
    }
    dr_backend_free(numbers->backend, numbers->block);
    dr_release(numbers->host);
    *numbers = (dr_step_numbers){0};
}

bool dr_step_is_read_late(const dr_backend *backend) {
    return backend->ops->fetch != NULL;
}

static int place_of(int64_t step) {
    return (int)(step % DR_STEPS_UNDER_WAY);
}

static char *block_of(const dr_step_numbers *numbers, int64_t step) {
    return numbers->block + (size_t)place_of(step) * numbers->bytes;
}

/* Keeps the sums of the part that the session has computed last. */
static dr_status keep_part(const dr_run *run, int64_t step, int64_t part) {
    const dr_step_numbers *numbers = &run->numbers;
    const dr_operations *ops = numbers->backend->ops;
    char *to = block_of(numbers, step) + (size_t)part * sizeof(part_numbers);
    DR_TRY(ops->copy(numbers->backend, to, run->session->sum, sizeof(dr_loss_sum)));
    return ops->copy(numbers->backend, to + offsetof(part_numbers, balancing), run->session->extra,
                     dr_kind_bytes(numbers->backend, DR_NUMBER, 1));
}

/* Keeps what the optimizer decided, and begins to bring all of the step to the host. */
static dr_status send(dr_run *run, int64_t step) {
    dr_step_numbers *numbers = &run->numbers;
    const dr_operations *ops = numbers->backend->ops;
    char *from = block_of(numbers, step);
    void **transfer = &numbers->transfer[place_of(step)];
    if (*transfer) DR_TRY(ops->fetched(numbers->backend, *transfer, NULL)); /* of a call that failed */
    *transfer = NULL;
    DR_TRY(ops->copy(numbers->backend, from + (size_t)numbers->parts * sizeof(part_numbers), run->optimizer->control,
                     sizeof(dr_control)));
    return ops->fetch ? ops->fetch(numbers->backend, from, numbers->bytes, transfer) : DR_OK;
}

static dr_status receive(dr_step_numbers *numbers, int64_t step) {
    const dr_operations *ops = numbers->backend->ops;
    void *transfer = numbers->transfer[place_of(step)];
    if (!transfer) return ops->get(numbers->backend, numbers->host, block_of(numbers, step), numbers->bytes);
    numbers->transfer[place_of(step)] = NULL;
    return ops->fetched(numbers->backend, transfer, numbers->host);
}

/* ---- a step --------------------------------------------------------------------------------------------------------- */

/* Tasks count parts: batch number (step - 1) parts + part + 1 is that part of a step. */
static dr_status read_part(const dr_run *run, int64_t step, int64_t part, dr_batch *batch, int64_t *bytes) {
    return run->task->ops->batch(run->task, (step - 1) * run->numbers.parts + part + 1, batch, bytes);
}

/* Of all parts: the gradient of the first is scaled by it before the others are computed. */
static dr_status count_targets(const dr_run *run, int64_t step, int64_t *targets) {
    *targets = 0;
    for (int64_t part = 0; part < run->numbers.parts; part++) {
        dr_batch batch;
        int64_t bytes;
        DR_TRY(read_part(run, step, part, &batch, &bytes));
        *targets += batch.targets;
    }
    return DR_OK;
}

dr_status dr_step_ask(dr_run *run, int64_t step, dr_step *asked) {
    const int64_t parts = run->numbers.parts;
    int64_t targets = 0, bytes;
    dr_batch batch;
    *asked = (dr_step){.step = step, .learning_rate = dr_schedule_rate(&run->schedule, step)};
    if (parts > 1) DR_TRY(count_targets(run, step, &targets));
    dr_optimizer_zero(run->optimizer);
    for (int64_t part = 0; part < parts; part++) {
        DR_TRY(read_part(run, step, part, &batch, &bytes));
        if (parts == 1) targets = batch.targets;
        asked->mean = targets > 0 ? 1.0 / (double)targets : 0; /* a mask may leave nothing to learn */
        DR_TRY(dr_session_gradient(run->session, &batch, asked->mean, run->optimizer->gradient, NULL, NULL));
        run->numbers.share[place_of(step)][part] = targets > 0 ? (double)batch.targets / (double)targets : 0;
        DR_TRY(keep_part(run, step, part));
        asked->tokens += batch.layout.rows;
        asked->bytes += bytes;
    }
    DR_TRY(dr_optimizer_update(run->optimizer, asked->learning_rate));
    return send(run, step);
}

/* The number of the backend in the first bytes. */
static double number_of(const dr_backend *backend, const double *bytes) {
    float single;
    if (backend->ops->dtype == DR_F64) return *bytes;
    memcpy(&single, bytes, sizeof single);
    return (double)single;
}

/* Moves the position, and tells the optimizer how often it has changed the parameters. */
static dr_status count_step(dr_run *run, const dr_step *asked, const dr_control *control) {
    dr_run_position *position = &run->position;
    const bool skipped = control->skipped_in_row > 0;
    run->optimizer->updates = control->updates;
    position->step = asked->step;
    position->skipped += skipped;
    position->skipped_in_row = skipped ? position->skipped_in_row + 1 : 0;
    if (position->skipped_in_row < MOST_SKIPPED_IN_ROW) return DR_OK;
    return dr_fail(
        DR_ERROR_NUMERIC,
        "the gradients of %d steps in a row, up to step %lld, were not finite: begin again with a learning_rate below %g",
        MOST_SKIPPED_IN_ROW, (long long)asked->step, run->schedule.peak);
}

dr_status dr_step_finish(dr_run *run, const dr_step *asked, dr_progress *progress) {
    dr_step_numbers *numbers = &run->numbers;
    const double *share = numbers->share[place_of(asked->step)];
    double sum = 0, balancing = 0;
    dr_control control;
    DR_TRY(receive(numbers, asked->step));
    for (int64_t part = 0; part < numbers->parts; part++) {
        part_numbers made;
        memcpy(&made, numbers->host + (size_t)part * sizeof made, sizeof made);
        sum += made.sum.loss;
        balancing += share[part] * number_of(numbers->backend, &made.balancing);
    }
    memcpy(&control, numbers->host + (size_t)numbers->parts * sizeof(part_numbers), sizeof control);
    progress->loss = sum * asked->mean;
    progress->bits_per_byte = asked->bytes > 0 ? sum / (double)asked->bytes / 0.693147180559945309417 : (double)NAN; /* ln 2 */
    progress->balancing_loss = run->balances ? balancing : (double)NAN;
    progress->learning_rate = asked->learning_rate;
    progress->gradient_norm = control.norm;
    return count_step(run, asked, &control);
}
