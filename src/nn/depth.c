/* The sums of blocks of parts, and what reads them. */
#include "nn/depth.h"
#include "base/error.h"

#include <inttypes.h>

dr_status dr_depth_query_create(const dr_norm_description *norm, int64_t dim, const char *prefix, dr_layer_parameters *list,
                                dr_depth_query *query) {
    const dr_initial even = {DR_INITIAL_CONSTANT, 0}, one = {DR_INITIAL_CONSTANT, 1};
    query->eps = norm->eps;
    DR_TRY(dr_add_numbers(list, prefix, "proj.weight", even, 1, dim, 0, &query->query));
    return dr_add_vector(list, prefix, "norm.weight", one, dim, 0, &query->weight);
}

/* How many tensors part j reads, the last of which is S_j. */
static int64_t read_by(const dr_depth_sums *sums, int64_t part) {
    return (part + sums->block - 1) / sums->block + 1;
}

/* Whether part j is the first of its block. */
static bool begins_block(const dr_depth_sums *sums, int64_t part) {
    return part % sums->block == 0;
}

dr_status dr_depth_sums_create(int64_t block, int64_t parts, dr_depth_sums *sums) {
    void *memory = NULL;
    *sums = (dr_depth_sums){.block = block, .parts = parts};
    if (read_by(sums, parts) > DR_DEPTH_MOST)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "the head would read %" PRId64 " sums of earlier outputs; at most %d are possible: make the blocks of "
                       "%" PRId64 " longer",
                       read_by(sums, parts), DR_DEPTH_MOST, block);
    DR_TRY(dr_allocate_zero((size_t)(parts + 1 + read_by(sums, parts)) * sizeof(void *), "sums of outputs", &memory));
    sums->sum = memory;
    sums->d_sum = sums->sum + parts + 1;
    return DR_OK;
}

void dr_depth_sums_release(dr_depth_sums *sums) {
    dr_release(sums->sum);
    *sums = (dr_depth_sums){0};
}

void dr_depth_sums_place(const dr_depth_sums *sums, size_t bytes, bool keep, dr_arena *arena) {
    sums->sum[0] = dr_arena_take(arena, bytes);
    for (int64_t j = 0; j < sums->parts; j++)
        sums->sum[j + 1] = keep || begins_block(sums, j) ? dr_arena_take(arena, bytes) : sums->sum[j];
    for (int64_t l = 0; keep && l < read_by(sums, sums->parts); l++) sums->d_sum[l] = dr_arena_take(arena, bytes);
}

void dr_depth_sums_zero(const dr_depth_sums *sums, dr_backend *backend, size_t bytes) {
    for (int64_t l = 0; l < read_by(sums, sums->parts); l++) backend->ops->zero(backend, sums->d_sum[l], bytes);
}

const void *dr_depth_base(const dr_depth_sums *sums, int64_t part) {
    return begins_block(sums, part) ? NULL : sums->sum[part];
}

void *dr_depth_gradient(const dr_depth_sums *sums, int64_t part) {
    return sums->d_sum[read_by(sums, part) - 1];
}

/* The descriptor of what part j reads, and the tensors. */
static dr_depth list_of(const dr_depth_query *query, const dr_module_call *call, const dr_depth_sums *sums, int64_t part,
                        int64_t hidden, const void *x[DR_DEPTH_MOST]) {
    const dr_depth depth = {call->layout.rows, hidden, read_by(sums, part), query->eps};
    for (int64_t l = 0; l < depth.count; l++) x[l] = sums->sum[l + 1 < depth.count ? l * sums->block : part];
    return depth;
}

dr_status dr_depth_read(const dr_depth_query *query, const dr_module_call *call, const dr_depth_sums *sums, int64_t part,
                        int64_t hidden, void *x) {
    const void *list[DR_DEPTH_MOST];
    const dr_depth depth = list_of(query, call, sums, part, hidden, list);
    return call->backend->ops->depth_forward(call->backend, &depth, list, dr_module_parameter(call, query->weight),
                                             dr_module_parameter(call, query->query), x);
}

dr_status dr_depth_read_back(const dr_depth_query *query, const dr_module_call *call, const dr_depth_sums *sums, int64_t part,
                             int64_t hidden, const void *d_x) {
    const void *list[DR_DEPTH_MOST];
    const dr_depth depth = list_of(query, call, sums, part, hidden, list);
    return call->backend->ops->depth_backward(call->backend, &depth, list, dr_module_parameter(call, query->weight),
                                              dr_module_parameter(call, query->query), d_x, sums->d_sum,
                                              dr_module_gradient(call, query->weight), dr_module_gradient(call, query->query));
}
