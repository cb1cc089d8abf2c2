/* Several mixers that read the same x, each scaled on its way in and out: y = sum_i output_scale_i module_i(input_scale_i x).
 * (Falcon-H1 has attention beside Mamba-2.) */
#ifndef DR_NN_MODULES_SUM_H
#define DR_NN_MODULES_SUM_H

#include "nn/module.h"

enum { DR_SUM_MOST = 2 };

typedef struct {
    dr_module *module; /* of the same hidden size */
    double input_scale, output_scale;
} dr_summand;

/* count: 1 to DR_SUM_MOST. Takes the modules over if it succeeds. */
dr_status dr_sum_create(int count, const dr_summand *summands, dr_module **module);

#endif
