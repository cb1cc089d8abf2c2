/* What the two forms of the reverse scan share (reverse.cu): the call, its tiles, and where parts begin and end. */
#ifndef DR_CUDA_REVERSE_CUH
#define DR_CUDA_REVERSE_CUH

#include "backends/cuda/backward/backward.h"
#include "backends/cuda/chunkwise/scan.cuh"

/* scan: with d_final as its initial state, d_initial as the final one, d_o as o and d_exit as the saved states. */
typedef struct {
    dr_scan_call scan;
    void *d_update;
    float *local;   /* the gradient before a part that ended with zero, [part slots][HV][Vp][Kp] */
    float *between; /* after a part, likewise */
    float *passage; /* of parts, where rows read nothing: their decays */
    bool summary;   /* local, and nothing else */
    bool full;      /* dr_cuda_rows_step_fully: diag(c) dY goes through its product with R~ in two parts of 16 bits */
} reverse_call;

/* ---- tiles ------------------------------------------------------------------------------------------------------------- */

/* 64 columns of dO, to the tile at `offset` */
template <typename T>
static __device__ inline void load_outputs(const dr_scan_block &x, const dr_chunk_place &place, int offset) {
    const dr_cuda_rows &rows = x.call.plan.rows;
    const int queries = x.call.plan.query_rows;
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    const dr_strided<T> d_o = {(const T *)x.call.o + place.first * stride + (int64_t)x.head * rows.value_size + x.columns,
                               stride, place.tokens};
    dr_copy_rows<T>(x.shared + offset, queries, 1, rows.value_size - x.columns, rows.aligned, queries, 0, 1, d_o);
}

/* What rounding to T takes from x. */
template <typename T> static __device__ inline float reverse_lost(float x) {
    return x - dr_to_float(dr_from_float<T>(x));
}

/* 16 rows of -(diag(c) dY)^T times the factors of R~, as operand A; lost: what rounding takes from them. */
template <typename T>
static __device__ inline void reverse_erased(dr_operand_a<T> &a, const float *erase, const float (&first)[4],
                                             const float (&second)[4], bool lost) {
    float erased[2][4];
    DR_UNROLL (h, 2)
        DR_UNROLL (i, 4) {
            const float x = -erase[h * 8 + i % 2] * (h ? second : first)[i];
            erased[h][i] = lost ? reverse_lost<T>(x) : x;
        }
    dr_operand_from<T>(a, erased[0], erased[1]);
}

/* ---- parts ------------------------------------------------------------------------------------------------------------- */

/* What a part makes. Where parts of a head begin early in the forward (early.cuh), here they end late: chunks of the next
 * parts come first, and nothing of them is stored; a summary but puts the gradient of the final state where parts take it. */
typedef struct {
    dr_scan_place place; /* end: behind all that it makes; place, parts: as dr_scan_enter is to have them */
    int own;             /* chunks that are its own, the last of them */
    bool edge;           /* it begins with the gradient of the final state */
    bool idle;           /* there is nothing to do: no such part, or the summary's first, before which there is none */
} reverse_part;

static __device__ inline reverse_part reverse_find(const reverse_call &call, unsigned group, unsigned rest) {
    const dr_cuda_chunk_plan &plan = call.scan.plan;
    const dr_cuda_chunk_tensors &tensors = call.scan.tensors;
    reverse_part part = {dr_scan_find(call.scan, group, rest), 0, false, false};
    dr_scan_place &place = part.place;
    part.own = place.end - place.begin;
    part.edge = place.part == place.parts - 1;
    part.idle = place.part >= place.parts || (call.summary && place.part == 0);
    const int trim = call.summary && !part.idle ? dr_trim_of(tensors, place.place).first : -1;
    if (trim >= 0) place.end = place.begin + trim;
    if (place.parts == 1 || !dr_begins_early(plan, tensors, place.sequence, place.head)) return part;
    const bool given = call.scan.initial;
    if (call.summary) {
        part.idle = part.idle || !part.edge || !given;
        place.end = place.begin;
    } else if (!part.idle) {
        if (!part.edge) {
            const int boundary = plan.early.parts - 1 + place.part;
            place.end += tensors.early[place.chain * dr_cuda_early_count(&plan) + boundary];
            part.edge = place.end == dr_sequence_chunks(plan, tensors.cu, place.sequence);
        }
        if (part.edge && given)
            place.place += (place.parts - 1 - place.part) * plan.value_heads;
        else
            place.parts = 1; /* from zero */
    }
    return part;
}

/* The gradient that a part ends with. */
template <int tiles>
static __device__ inline void begin_back(const reverse_call &call, const dr_scan_block &x, const reverse_part &part,
                                         float (&s)[tiles][4]) {
    dr_scan_enter<tiles>(x, part.place, part.edge, call.summary, call.scan.initial, call.between, s);
}

template <int tiles>
static __device__ inline void end_back(const reverse_call &call, const dr_scan_block &x, const dr_scan_place &place,
                                       float (&s)[tiles][4]) {
    const dr_cuda_chunk_plan &plan = call.scan.plan;
    if (call.summary) {
        dr_scan_pass<tiles, true>(x, s, call.local + place.place * plan.value_width * plan.key_width);
    } else if (call.scan.final && place.part == 0) {
        float *d_initial = call.scan.final + place.chain * plan.rows.key_size * plan.rows.value_size;
        dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { d_initial[at] = element; });
    }
}

#endif
