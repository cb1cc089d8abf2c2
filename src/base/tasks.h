/* Tasks on several threads that live for one call. */
#ifndef DR_BASE_TASKS_H
#define DR_BASE_TASKS_H

#include <deltarule/status.h>
#include <stdint.h>

typedef dr_status (*dr_task)(void *context, int64_t index);

/* Runs task(context, i) for i from 0 to count - 1, taken in this order by at most `threads` threads, of which the caller is
 * one, and returns when all have ended. Where some fail, the status and message are those of the least i, and tasks behind it
 * may not have run. Fewer threads do where the system makes no more. */
dr_status dr_run_tasks(int threads, int64_t count, void *context, dr_task task);

#endif
