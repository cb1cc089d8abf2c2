/* Random inputs of a recurrence, of the sizes that layers make them. */
#ifndef DR_BENCH_INPUTS_H
#define DR_BENCH_INPUTS_H

#include <deltarule/bench.h>

enum { DR_BENCH_BLOCKS = 64 };

/* Blocks of a backend's memory that are freed together. */
typedef struct {
    dr_backend *backend;
    int count;
    void *block[DR_BENCH_BLOCKS];
} dr_bench_memory;

dr_status dr_bench_take(dr_bench_memory *memory, size_t bytes, void **block);
void dr_bench_free(dr_bench_memory *memory);
/* count standard normal numbers, stored as dtype */
dr_status dr_bench_normals(dr_bench_memory *memory, dr_dtype dtype, int64_t count, uint64_t seed, void **block);

int64_t dr_bench_input_count(const dr_recurrence *recurrence, dr_input input);
/* Every input that the rule uses, others NULL. A tensor of more than 2^22 elements repeats what it begins with. Of the options
 * seed, log_decay and weak_heads are read. */
dr_status dr_bench_inputs(dr_bench_memory *memory, const dr_recurrence *recurrence, const dr_bench_options *options,
                          dr_inputs *inputs);

/* DR_ERROR_NUMERIC unless the elements are finite, or the last 2^22 of them: what was measured must have computed something. */
dr_status dr_bench_check_finite(dr_backend *backend, const void *block, dr_dtype dtype, int64_t count, const char *what);

#endif
