/* The reference's own sources with float in the place of double: a plain loop over tokens in float32. Everything they include
 * is read before the word changes its meaning; their external names change with it. */
#include "base/error.h"
#include "base/memory.h"
#include "ops/operations.h"
#include "ops/shapes.h"
#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define dr_reference_input                 plain_float_input
#define dr_reference_gradient              plain_float_gradient
#define dr_reference_has_matrix            plain_float_has_matrix
#define dr_reference_matrix_start          plain_float_matrix_start
#define dr_reference_matrix_start_backward plain_float_matrix_start_backward
#define dr_reference_matrix_forward        plain_float_matrix_forward
#define dr_reference_matrix_backward       plain_float_matrix_backward
#define dr_reference_scan_forward          plain_float_scan_forward
#define dr_reference_scan_backward         plain_float_scan_backward
#define dr_reference_decay_forward         plain_float_decay_forward
#define dr_reference_decay_backward        plain_float_decay_backward
#define dr_reference_row_forward           plain_float_row_forward
#define dr_reference_row_backward          plain_float_row_backward
#define dr_reference_rows_forward          plain_float_rows_forward
#define dr_reference_rows_backward         plain_float_rows_backward
#define dr_reference_query_forward         plain_float_query_forward
#define dr_reference_query_backward        plain_float_query_backward
#define dr_reference_recurrence_plan       plain_float_plan
#define dr_reference_recurrence_forward    plain_float_forward
#define dr_reference_recurrence_backward   plain_float_backward
#define dr_reference_recurrence_decode     plain_float_decode
#define dr_reference_recurrence_kernel     plain_float_kernel
#define dr_reference_recurrence_path       plain_float_path
#define double float

#include "backends/reference/recurrence.c"
#include "backends/reference/recurrence_maps.c"
#include "backends/reference/recurrence_matrix.c"
#include "backends/reference/recurrence_rows.c"
#include "backends/reference/recurrence_scan.c"

#undef double

dr_backend *plain_float_backend(void) {
    static const dr_operations table = {
        .name = "plain float",
        .dtype = DR_F32,
        .recurrence_plan = plain_float_plan,
        .recurrence_forward = plain_float_forward,
        .recurrence_backward = plain_float_backward,
        .recurrence_decode = plain_float_decode,
        .recurrence_kernel = plain_float_kernel,
        .recurrence_path = plain_float_path,
    };
    static dr_backend backend = {.ops = &table, .isa = "float", .threads = 1};
    return &backend;
}
