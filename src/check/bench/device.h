/* What measuring on a device needs beside what measuring on the host needs: its limits, and copies of what a run reads and
 * writes, taken in turn, so that no run finds them in a cache. */
#ifndef DR_BENCH_DEVICE_H
#define DR_BENCH_DEVICE_H

#include "check/bench/grid.h"
#include "check/bench/inputs.h"

/* Opens the backend of the options, with so many threads if it is the CPU. */
dr_status dr_bench_open(const dr_bench_options *options, int threads, dr_backend **backend);
/* The backend, if its own clock tells the time of its runs, else NULL. */
dr_backend *dr_bench_device_of(dr_backend *backend);

/* Copies of what takes so many bytes: 1 on the host. */
int64_t dr_bench_sets(dr_backend *backend, size_t bytes);

/* A recurrence over so many sets: inputs of one after those of another. */
dr_recurrence dr_bench_widened(const dr_recurrence *recurrence, int64_t sets);
/* Elements of an input from one set to the next: 0 for a parameter. */
int64_t dr_bench_set_elements(const dr_recurrence *recurrence, dr_input input);
size_t dr_bench_set_bytes(dr_backend *backend, const dr_recurrence *recurrence);

/* Limits of a device: a copy, and a product of matrices of bf16. One is enough for all that runs on it. */
typedef struct {
    dr_bench_memory memory; /* memory.backend is not owned */
    void *from, *to, *a, *b, *c;
    char lacking[192]; /* why there is no product; empty: there is one */
} dr_bench_limits;

/* memory.backend is set; product: whether it is wanted. */
dr_status dr_bench_limits_create(bool product, uint64_t seed, dr_bench_limits *limits);
void dr_bench_limits_destroy(dr_bench_limits *limits);
/* Fill in run, context, device and amount (bytes read and written; operations). */
void dr_bench_copy_item(dr_bench_limits *limits, dr_bench_item *item);
void dr_bench_product_item(dr_bench_limits *limits, dr_bench_item *item);

#endif
