/* A checkpoint that is written beside the run is that of a second run, whose model and optimizer are those of the first but for
 * where their numbers lie: in the copy, and read by a backend whose work waits for none of the run's. */
#include "train/save.h"

#include "base/error.h"
#include "base/memory.h"
#include "nn/model.h"
#include "train/kept.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { BLOCKS = 3 }; /* parameters, the two means of AdamW */
static const int64_t LEFT_FREE = (int64_t)1 << 30;

struct dr_saver {
    dr_backend *beside;
    char *block;  /* [BLOCKS] in the backend's memory */
    size_t bytes; /* of one */
    dr_model model;
    dr_optimizer optimizer;
    dr_run run;
    dr_folder *first; /* with the other files of a new run; NULL: the checkpoint is no first one */
    pthread_t thread;
    bool under_way;
    atomic_bool ended;
    dr_status status;
    char message[1024]; /* where it failed */
};

dr_status dr_save_written(const dr_run *run, dr_status status) {
    if (status == DR_ERROR_IO) DR_TRY(dr_run_lock_check(&run->lock));
    return status;
}

static dr_status write_checkpoint(const dr_run *run) {
    DR_TRY(dr_run_lock_check(&run->lock));
    DR_TRY(dr_save_written(run, dr_checkpoint_write(run->folder, run->options, run->optimizer, &run->position)));
    return dr_save_written(run, dr_kept_write(run, true));
}

static dr_status write_first(const dr_run *run, dr_folder *change) {
    return dr_save_written(run, dr_checkpoint_finish(change, run->options, run->optimizer, &run->position));
}

/* ---- beside the run ------------------------------------------------------------------------------------------------- */

static void *write_beside(void *context) {
    struct dr_saver *saver = context;
    saver->status = saver->first ? write_first(&saver->run, saver->first) : write_checkpoint(&saver->run);
    if (saver->status != DR_OK) snprintf(saver->message, sizeof saver->message, "%s", dr_last_error());
    atomic_store(&saver->ended, true);
    return NULL;
}

static void release(struct dr_saver *saver) {
    if (!saver) return;
    if (saver->beside) dr_backend_free(saver->beside, saver->block);
    dr_backend_close(saver->beside);
    dr_release(saver);
}

static void forget(dr_run *run) {
    release(run->saver);
    run->saver = NULL;
}

static dr_status make(const dr_run *run, struct dr_saver **made) {
    dr_backend *backend = run->model->backend;
    void *memory;
    dr_status status;
    DR_TRY(dr_allocate_zero(sizeof(struct dr_saver), "what saves beside a run", &memory));
    struct dr_saver *saver = memory;
    saver->bytes = dr_kind_bytes(backend, DR_NUMBER, run->optimizer->count);
    DR_GO(backend->ops->beside(backend, &saver->beside));
    DR_GO(dr_backend_allocate(saver->beside, BLOCKS * saver->bytes, &memory));
    saver->block = memory;
    *made = saver;
    return DR_OK;
done:
    release(saver);
    return status;
}

/* Without room for the copy nothing is made, and each checkpoint is written before the next step. */
static bool can_save_beside(dr_run *run) {
    const dr_backend *backend = run->model->backend;
    if (run->saver) return true;
    if (!backend->ops->beside || run->saves_alone) return false;
    const int64_t needed = BLOCKS * (int64_t)dr_kind_bytes(backend, DR_NUMBER, run->optimizer->count);
    const int64_t available = backend->ops->available ? backend->ops->available(run->model->backend) : dr_memory_available();
    run->saves_alone = needed + LEFT_FREE > available || make(run, &run->saver) != DR_OK;
    return !run->saves_alone;
}

static dr_status copy_numbers(const dr_run *run, struct dr_saver *saver) {
    dr_backend *backend = run->model->backend;
    const void *const from[BLOCKS] = {run->model->values, run->optimizer->mean, run->optimizer->square};
    for (int i = 0; i < BLOCKS; i++)
        DR_TRY(backend->ops->copy(backend, saver->block + (size_t)i * saver->bytes, from[i], saver->bytes));
    return dr_backend_wait(backend);
}

/* The second run. */
static void describe_copy(const dr_run *run, struct dr_saver *saver) {
    saver->model = *run->model;
    saver->model.backend = saver->beside;
    saver->model.values = saver->block;
    saver->optimizer = *run->optimizer;
    saver->optimizer.model = &saver->model;
    saver->optimizer.mean = saver->block + saver->bytes;
    saver->optimizer.square = saver->block + 2 * saver->bytes;
    saver->run = *run;
    saver->run.model = &saver->model;
    saver->run.optimizer = &saver->optimizer;
}

/* Whether a thread could be made, `under_way` tells. */
static dr_status begin_beside(const dr_run *run, dr_folder *first) {
    struct dr_saver *saver = run->saver;
    DR_TRY(copy_numbers(run, saver));
    describe_copy(run, saver);
    saver->first = first;
    atomic_store(&saver->ended, false);
    saver->under_way = pthread_create(&saver->thread, NULL, write_beside, saver) == 0;
    return DR_OK;
}

dr_status dr_save(dr_run *run, bool last) {
    DR_TRY(dr_save_end(run));
    DR_TRY(dr_save_written(run, dr_metrics_sync(&run->metrics)));
    DR_TRY(dr_run_lock_check(&run->lock));
    if (last || !can_save_beside(run)) return write_checkpoint(run);
    DR_TRY(begin_beside(run, NULL));
    return run->saver->under_way ? DR_OK : write_checkpoint(run);
}

dr_status dr_save_first(dr_run *run, dr_folder *change) {
    const dr_set_names *sets = &run->task->sets;
    if (can_save_beside(run)) {
        dr_status status = dr_metrics_hold(run->folder, sets, &run->metrics);
        if (status == DR_OK) status = begin_beside(run, change);
        if (status != DR_OK) {
            dr_folder_abandon(change);
            return status;
        }
        run->is_empty = run->saver->under_way;
        if (run->is_empty) return DR_OK;
        dr_metrics_close(&run->metrics);
    }
    DR_TRY(write_first(run, change));
    return dr_metrics_open(run->folder, 0, sets, &run->metrics);
}

dr_status dr_save_check(dr_run *run) {
    struct dr_saver *saver = run->saver;
    return saver && saver->under_way && atomic_load(&saver->ended) ? dr_save_end(run) : DR_OK;
}

dr_status dr_save_end(dr_run *run) {
    struct dr_saver *saver = run->saver;
    if (!saver || !saver->under_way) return DR_OK;
    pthread_join(saver->thread, NULL);
    saver->under_way = false;
    DR_TRY(saver->status == DR_OK ? DR_OK : dr_fail(saver->status, "%s", saver->message));
    if (!saver->first) return DR_OK;
    forget(run); /* the next checkpoint may be far, or never */
    run->is_empty = false;
    return dr_metrics_settle(&run->metrics);
}

void dr_save_release(dr_run *run) {
    dr_save_end(run);
    forget(run);
}
