/* Rounding rows of weights, and reading them. */
#include "base/weight_row.h"

#include "base/half.h"

#include <math.h>

static double element(const void *from, dr_dtype type, int64_t i) {
    return type == DR_F64 ? ((const double *)from)[i] : (double)((const float *)from)[i];
}

/* To the nearest, ties to even, for magnitudes below 2^51: adding 1.5 2^52 leaves no bits for a fraction. */
static double nearest(double x) {
    return x + 0x1.8p52 - 0x1.8p52;
}

static void store_bytes(int64_t columns, const void *from, dr_dtype type, char *row) {
    double largest = 0;
    for (int64_t i = 0; i < columns; i++) {
        const double size = fabs(element(from, type, i));
        if (size > largest) largest = size;
    }
    const float scale = (float)(largest / DR_WEIGHT_MOST);
    memset(row, 0, dr_weight_row_bytes(DR_I8, columns));
    memcpy(row, &scale, sizeof scale);
    if (scale <= 0) return;
    int8_t *to = (int8_t *)(row + DR_WEIGHT_SCALE_BYTES);
    for (int64_t i = 0; i < columns; i++) {
        double x = nearest(element(from, type, i) / (double)scale); /* a subnormal scale may be far from largest / 127 */
        x = x > DR_WEIGHT_MOST ? DR_WEIGHT_MOST : x;
        to[i] = (int8_t)(x < -DR_WEIGHT_MOST ? -DR_WEIGHT_MOST : x);
    }
}

void dr_weight_row_store(dr_dtype type, int64_t columns, const void *from, dr_dtype from_type, void *row) {
    uint16_t *to = row;
    if (type == DR_I8)
        store_bytes(columns, from, from_type, row);
    else if (from_type == DR_F64)
        for (int64_t i = 0; i < columns; i++) to[i] = dr_bf16_from_double(((const double *)from)[i]);
    else
        for (int64_t i = 0; i < columns; i++) to[i] = dr_bf16_from_float(((const float *)from)[i]);
}

void dr_weight_row_load(dr_dtype type, const void *row, int64_t first, int64_t count, double *to) {
    if (type == DR_I8) {
        const int8_t *from = (const int8_t *)row + DR_WEIGHT_SCALE_BYTES + first;
        float scale;
        memcpy(&scale, row, sizeof scale);
        for (int64_t i = 0; i < count; i++) to[i] = (double)scale * from[i];
    } else {
        const uint16_t *from = (const uint16_t *)row + first;
        for (int64_t i = 0; i < count; i++) to[i] = (double)dr_bf16_to_float(from[i]);
    }
}
