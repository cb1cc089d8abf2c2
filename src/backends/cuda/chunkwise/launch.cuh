/* The chunkwise kernels of one storage type: included by one file a type, which is compiled on its own. */
#ifndef DR_CUDA_CHUNKWISE_LAUNCH_CUH
#define DR_CUDA_CHUNKWISE_LAUNCH_CUH

#include "backends/cuda/chunkwise/carry_linear.cuh"
#include "backends/cuda/chunkwise/one_pass_narrow.cuh"
#include "backends/cuda/chunkwise/parts.cuh"
#include "backends/cuda/chunkwise/prepare_beside.cuh"
#include "backends/cuda/chunkwise/scan.cuh"
#include "backends/cuda/chunkwise/trim_parts.cuh"
#include "backends/cuda/device/launch.cuh"

typedef void (*dr_prepare_kernel)(dr_prepare_call);

/* Prepare before the scan, or beside it; of each form the kernels that it may come to. */
template <typename T, dr_prepare_form form>
static dr_prepare_kernel dr_choose_prepare(const dr_cuda_chunk_plan &plan, bool beside) {
    constexpr bool paired = form == DR_PREPARE_ANY || form == DR_PREPARE_PLAIN;
    constexpr int groups = dr_prepare_scans(form) ? 3 : 2; /* by channel, one row a token: dr_cuda_chunk_plan_beside */
    const bool channel = plan.rows.channel_decay, pairs = plan.rows.steps == 2;
    if constexpr (form != DR_PREPARE_LINEAR)
        if (!channel) {
            if constexpr (sizeof(T) == 2)
                if (beside) return prepare_beside<T, 4, false, false, form>;
            return prepare<T, form>;
        }
    if constexpr (sizeof(T) == 2)
        if (beside) {
            if constexpr (paired)
                if (pairs) return prepare_beside<T, 3, true, true, form>;
            return prepare_beside<T, groups, true, false, form>;
        }
    if constexpr (paired)
        if (pairs) return prepare_channel<T, true, form>;
    return prepare_channel<T, false, form>;
}

template <typename T>
static dr_prepare_kernel dr_choose_prepare(const dr_cuda_chunk_plan &plan, dr_prepare_form form, bool beside) {
    if constexpr (sizeof(T) == 2) switch (form) {
#define DR_PREPARE_FORM(name)                                                                                                  \
    case DR_PREPARE_##name:                                                                                                    \
        return dr_choose_prepare<T, DR_PREPARE_##name>(plan, beside);
#include "backends/cuda/rows/instances.def"
        case DR_PREPARE_ANY:
            break;
        }
    return dr_choose_prepare<T, DR_PREPARE_ANY>(plan, beside);
}

template <typename T>
static dr_prepare_call dr_prepare_call_of(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                          dr_prepare_form form) {
    const bool channel = plan.rows.channel_decay;
    const dr_prepare_room room = channel ? dr_channel_lay(plan, sizeof(T)) : dr_prepare_lay(plan, sizeof(T));
    return {plan, tensors, dr_prepare_facts_of(plan, form, room, sizeof(T), channel)};
}

template <typename T>
static dr_status dr_launch_prepare(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors,
                                   dr_cuda_stream stream) {
    const dr_prepare_form form = sizeof(T) == 2 ? dr_prepare_form_of(*plan) : DR_PREPARE_ANY;
    const dr_prepare_call call = dr_prepare_call_of<T>(*plan, *tensors, form);
    const bool beside = tensors->made != NULL;
    /* beside what comes before the diagonal scan, or one_pass, which tells of heads that it makes */
    const bool soon = plan->scan_inside || tensors->early;
    const dr_prepare_kernel kernel = dr_choose_prepare<T>(*plan, form, beside);
    if (beside) {
        const int groups = plan->beside.groups;
        return dr_cuda_launch_when(soon, "prepare_beside", kernel,
                                   {plan->beside.rounds ? plan->processors : plan->beside.processors}, groups * PREPARE_THREADS,
                                   groups * dr_beside_bytes(call), stream, call);
    }
    return dr_cuda_launch_when(soon, "prepare", kernel, {plan->slots, plan->value_heads}, PREPARE_THREADS,
                               call.facts.room.bytes, stream, call);
}

template <typename T> static dr_status dr_launch_scan_kernel(const dr_scan_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    const int boxes = plan->key_width / 64, units = call->summary && plan->reads ? boxes : 0;
    void (*kernel)(dr_scan_call) = boxes == 1 ? scan<T, 1> : boxes == 2 ? scan<T, 2> : scan<T, 4>;
    return dr_cuda_launch("scan", kernel,
                          {plan->sequences, plan->value_heads, plan->parts, plan->value_width / DR_CUDA_COLUMNS + units},
                          SCAN_THREADS, call->room.bytes, stream, *call);
}

typedef void (*dr_group_scan_kernel)(dr_group_scan_call);

template <typename T, int boxes, int reading, bool channel>
static dr_group_scan_kernel dr_group_scan_choose_rows(const dr_scan_call *call, int groups) {
    if constexpr (reading != DR_SCAN_SUMS)
        if (call->summary) return scan_warpgroups<T, boxes, 2, 0, reading, channel>;
    return groups == 1 ? scan_warpgroups<T, boxes, 1, 64, reading, channel>
                       : scan_warpgroups<T, boxes, 2, 64, reading, channel>;
}

template <typename T, int boxes> static dr_group_scan_kernel dr_group_scan_choose(const dr_scan_call *call, int groups) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    if (dr_cuda_scan_wide(plan))
        return plan->rows.channel_decay ? scan_warpgroups<T, 4, 2, 64, DR_SCAN_READS, true>
                                        : scan_warpgroups<T, 4, 2, 64, DR_SCAN_READS, false>;
    if (plan->reader_sum) return dr_group_scan_choose_rows<T, boxes, DR_SCAN_SUMS, false>(call, groups);
    if (!plan->reads) return dr_group_scan_choose_rows<T, boxes, DR_SCAN_BLIND, true>(call, groups);
    if (!call->summary && plan->query_rows <= 32)
        return groups == 1 ? scan_warpgroups<T, boxes, 1, 32, DR_SCAN_READS, true>
                           : scan_warpgroups<T, boxes, 2, 32, DR_SCAN_READS, true>;
    return plan->rows.channel_decay ? dr_group_scan_choose_rows<T, boxes, DR_SCAN_READS, true>(call, groups)
                                    : dr_group_scan_choose_rows<T, boxes, DR_SCAN_READS, false>(call, groups);
}

typedef void (*dr_linear_kernel)(dr_linear_call);

template <typename T, int boxes> static dr_linear_kernel dr_linear_choose(const dr_cuda_chunk_plan &plan, int groups) {
    if constexpr (boxes == 2)
        if (dr_linear_plain(plan, groups)) return groups == 1 ? scan_linear<T, boxes, 1, true> : scan_linear<T, boxes, 2, true>;
    return groups == 1 ? scan_linear<T, boxes, 1, false> : scan_linear<T, boxes, 2, false>;
}

template <typename T> static dr_status dr_launch_linear(const dr_scan_call &call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const bool gated = plan.rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    const int columns = dr_scan_groups(call), groups = dr_group_scan_groups(plan), beside = dr_linear_beside(groups);
    const dr_group_scan_call scan = dr_group_scan_lay(call, groups, gated, false, beside);
    return dr_cuda_launch("scan_linear",
                          plan.key_width == 64 ? dr_linear_choose<T, 1>(plan, groups) : dr_linear_choose<T, 2>(plan, groups),
                          {dr_group_scan_chains(plan), (columns + groups - 1) / groups}, DR_LINEAR_THREADS,
                          dr_group_scan_bytes(scan) + beside, stream, dr_linear_call_of(scan, groups));
}

typedef void (*dr_one_pass_kernel)(dr_one_pass_call);

template <typename T, dr_one_kind kind> static dr_one_pass_kernel dr_one_pass_choose(const dr_one_pass_call &one) {
    if (one.scan.saved) return one_pass<T, kind, true, true>; /* what a backward wants goes as boxes (engine.c) */
    if constexpr (dr_one_reads_apart(kind))
        return one_pass<T, kind, true, false>; /* rows read a tensor that they do not write: boxes bring it, too */
    else
        return one.boxed ? one_pass<T, kind, true, false> : one_pass<T, kind, false, false>;
}

template <typename T> static dr_status dr_launch_one_pass(const dr_scan_call &call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan &plan = call.plan;
    dr_one_pass_call one = {};
    DR_TRY(dr_one_pass_make(call, &one));
    if (plan.key_width == 64)
        return dr_cuda_launch("one_pass_narrow", call.saved ? one_pass_narrow<T, true> : one_pass_narrow<T, false>,
                              {plan.sequences, plan.value_heads}, NARROW_THREADS, NARROW_BYTES, stream, one);
    dr_one_pass_kernel kernel = NULL;
    switch (dr_one_kind_of(plan)) {
#define DR_ONE_PASS_FORM(name)                                                                                                 \
    case DR_ONE_##name:                                                                                                        \
        kernel = dr_one_pass_choose<T, DR_ONE_##name>(one);                                                                    \
        break;
#include "backends/cuda/rows/instances.def"
    }
    return dr_cuda_launch_when(plan.early.parts, "one_pass", kernel,
                               {plan.sequences * plan.value_heads, plan.early.parts ? plan.early.parts : 1}, ONE_PASS_THREADS,
                               ONE_PASS_BYTES, stream, one);
}

template <typename T> static dr_status dr_launch_find_early(const dr_scan_call &call, bool never, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_early_call early = {plan, call.tensors.early, never};
    return dr_cuda_launch("find_early", plan.reader_sum ? find_early<T, true> : find_early<T, false>,
                          {plan.sequences, plan.value_heads, dr_cuda_early_count(&plan)}, EARLY_THREADS, 0, stream, early);
}

template <typename T> static dr_status dr_launch_group_scan(const dr_scan_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    if (plan->one_pass) return dr_launch_one_pass<T>(*call, stream);
    if (plan->linear) return dr_launch_linear<T>(*call, stream);
    const int columns = dr_scan_groups(*call), groups = call->summary ? 2 : dr_group_scan_groups(*plan);
    const dr_group_scan_kernel kernel =
        plan->key_width == 64 ? dr_group_scan_choose<T, 1>(call, groups) : dr_group_scan_choose<T, 2>(call, groups);
    const bool gated = plan->rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    const int beside = groups == 1 ? DR_LEAVE_BYTES : 0;
    const dr_group_scan_call group_call = dr_group_scan_lay(*call, groups, gated, true, beside);
    return dr_cuda_launch_when(call->tensors.made || call->tensors.early, "scan_warpgroups", kernel,
                               {dr_group_scan_chains(*plan), (columns + groups - 1) / groups}, 128 + 128 * groups,
                               dr_group_scan_bytes(group_call) + beside, stream, group_call);
}

template <typename T> static dr_status dr_launch_trim(const dr_scan_call &call, dr_cuda_stream stream) {
    return dr_cuda_launch("trim_parts", call.plan.key_width == 64 ? trim_parts<T, 64> : trim_parts<T, 128>,
                          {call.plan.sequences, call.plan.value_heads, call.plan.parts, 2}, TRIM_THREADS, 0, stream, call);
}

template <typename T>
static dr_scan_call dr_scan_call_of(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, const float *initial,
                                    void *o, float *final, void *saved) {
    const bool gated = plan->rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    return {*plan, *tensors, initial, final, o, saved, dr_scan_lay(*plan, sizeof(T), gated), false};
}

template <typename T>
static dr_status dr_launch_scan(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, const float *initial,
                                void *o, float *final, void *saved, dr_cuda_stream stream) {
    const dr_scan_call call = dr_scan_call_of<T>(plan, tensors, initial, o, final, saved);
    const auto launch = [=](const dr_scan_call *which) {
        if constexpr (sizeof(T) == 2)
            if (plan->warpgroups || (dr_cuda_scan_wide(plan) && !which->summary)) return dr_launch_group_scan<T>(which, stream);
        return dr_launch_scan_kernel<T>(which, stream);
    };
    if (plan->parts > 1) {
        dr_scan_call summary = call;
        summary.summary = true;
        summary.o = summary.saved = NULL;
        summary.plan.reader_sum = false; /* prepare has stored them */
        if constexpr (sizeof(T) == 2)
            if (plan->linear) {
                DR_TRY((dr_launch_linear_parts<T, false>(summary, tensors->local, tensors->entry, tensors->passage, stream)));
                return launch(&call);
            }
        if constexpr (sizeof(T) == 2)
            if (plan->trims) DR_TRY(dr_launch_trim<T>(call, stream));
        DR_TRY(launch(&summary));
        const dr_join_call join = {*plan, *tensors, tensors->local, tensors->entry};
        DR_TRY(dr_launch_join<false>(join, stream));
    }
    return launch(&call);
}

#define DR_CHUNKWISE_KERNELS(T, suffix)                                                                                        \
    dr_status dr_cuda_chunk_prepare_##suffix(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors,             \
                                             dr_cuda_stream stream) {                                                          \
        return dr_launch_prepare<T>(plan, tensors, stream);                                                                    \
    }                                                                                                                          \
    dr_status dr_cuda_chunk_scan_##suffix(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors,                \
                                          const float *initial, void *o, float *final, void *saved, dr_cuda_stream stream) {   \
        return dr_launch_scan<T>(plan, tensors, initial, o, final, saved, stream);                                             \
    }

#endif
