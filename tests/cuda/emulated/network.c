/* cuda_emulated_network: the operations of networks of backend cuda on the host, where there need be no GPU (block.h), in both
 * types against the reference (../network/calls.h), and models without recurrences (../network/models.h). Kernels, launches and
 * memory between kernels are the project's own; of matrix products, which cuBLASLt makes on a GPU, plain loops stand for the
 * library (products.c). Threads of a block take turns in other orders in every second run, which must give the same bits.
 *
 *     cuda_emulated_network [ROUNDS [SEED]] */
#include "backends/cuda/network/network.h"
#include "../network/calls.h"
#include "../network/models.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/transfer.h"
#include "backends/reference/reference.h"
#include "base/clock.h"
#include "runtime.h"

#include <deltarule/deltarule.h>
#include <stdio.h>
#include <stdlib.h>

static const dr_operations operations = {
    .name = "cuda, emulated",
    .dtype = DR_F32,
    .panels = 8,
    .sums = true,
    .chains = true,
    .allocate = dr_cuda_allocate,
    .free = dr_cuda_free,
    .zero = dr_cuda_zero,
    .upload = dr_cuda_upload,
    .download = dr_cuda_download,
    .upload_as = dr_cuda_upload_as,
    .download_as = dr_cuda_download_as,
    .copy = dr_cuda_copy,
    .put = dr_cuda_put,
    .get = dr_cuda_get,
    .fetch = dr_cuda_fetch,
    .fetched = dr_cuda_fetched,
    DR_CUDA_NETWORK_OPERATIONS,
};

static bool run(dr_dtype dtype, int rounds, uint64_t seed) {
    const dr_backend_options stored = {.dtype = DR_BF16};
    dr_cuda gpu = {.major = 9, .hopper = true, .processors = 4, .shared_limit = 232448};
    dr_backend tested = {.ops = &operations, .isa = "host", .threads = 1, .storage = dtype, .state = &gpu};
    trials t = {.tested = &tested, .random = dr_random_start(seed, 1), .vary = emulate_manner, .worst_call = "none"};
    const double start = dr_clock_now();
    if (dr_reference_open(NULL, &t.exact) != DR_OK || dr_cuda_network_open(&gpu) != DR_OK ||
        dr_cuda_transfers_open(&gpu) != DR_OK)
        return false;
    if (dtype == DR_BF16 && dr_reference_open(&stored, &t.rounded) != DR_OK) return false;
    bool right = network_cases(&t, rounds);
    printf("%-5s %6ld checks %6.1f s  %s%s; largest error %.2f of what is allowed, of %s\n", dr_dtype_name(dtype), t.checks,
           dr_clock_now() - start, right ? "all right" : "FAIL: ", t.wrong, t.worst, t.worst_call);
    fflush(stdout);
    release_draws(&t);
    right = right && models_hold(&tested, models_to_hold(false), 2, &t.checks);
    dr_cuda_transfers_close(&gpu);
    dr_cuda_network_close(&gpu);
    dr_reference_close(t.exact);
    if (t.rounded) dr_reference_close(t.rounded);
    return right;
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 4;
    const uint64_t seed = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
    return !run(DR_F32, rounds, seed) || !run(DR_BF16, rounds, seed);
}
