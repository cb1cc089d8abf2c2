/* Training windows of several rows of tokens, each with its share. */
#ifndef DR_DATA_MIXTURE_H
#define DR_DATA_MIXTURE_H

#include "data/windows.h"

typedef struct dr_mixture dr_mixture;

/* Of every DR_MIXTURE_BLOCK windows each member gives its part of the weights' sum, to the nearest whole window. */
enum { DR_MIXTURE_BLOCK = 4096 };

/* windows [count] and weights [count] > 0; all windows of one length. The windows must outlive the mixture.
 * DR_ERROR_ARGUMENT names the first member whose weight is so small that it would never come up, from 0. */
dr_status dr_mixture_create(dr_windows *const *windows, const double *weights, int64_t count, uint64_t seed,
                            dr_mixture **mixture);
void dr_mixture_destroy(dr_mixture *mixture); /* NULL is allowed */

/* As dr_windows_prepare and dr_windows_get. The answer depends on the members, seed and index alone. */
void dr_mixture_prepare(dr_mixture *mixture, int64_t index);
dr_status dr_mixture_get(dr_mixture *mixture, int64_t index, int32_t *ids, int32_t *labels, uint8_t *marks);

#endif
