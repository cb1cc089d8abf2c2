/* Operations that are the same on every backend whose memory is the host's: what handles bytes, and the numbers of a step,
 * which are double there whatever the backend computes in. Their contracts stand in ops/operations.h. */
#ifndef DR_OPS_HOST_H
#define DR_OPS_HOST_H

#include "ops/operations.h"

void dr_host_free(dr_backend *, void *memory);
void dr_host_zero(dr_backend *, void *memory, size_t bytes);
dr_status dr_host_copy(dr_backend *, void *to, const void *from, size_t bytes); /* also put and get */
dr_status dr_host_sum_losses(dr_backend *, int64_t count, const double *loss, const uint8_t *hit, dr_loss_sum *sum);
dr_status dr_host_weights_store(dr_backend *, int64_t rows, int64_t columns, const void *from, void *weight);
dr_status dr_host_weights_load(dr_backend *, int64_t columns, int64_t first, int64_t count, const void *weight, void *to,
                               dr_dtype to_dtype);
dr_status dr_host_clip(dr_backend *, double clip, dr_control *control);

#endif
