/* The load stage of prepare and of keys.cu: the rows of a chunk as tiles of write keys, read keys and queries, and their gains.
 *
 * All that can comes by asynchronous copies. Keys that are made of two tensors are made in place once these have come
 * (dr_finish_rows) if the other one has a tile as well; what is left is made from memory, eight channels at a time. A query
 * stands in the last row of its token, other rows of its tile are zero: so scores of erase rows and of queries have the same
 * decay factors and the same shape. */
#ifndef DR_CUDA_PREPARE_LOAD_CUH
#define DR_CUDA_PREPARE_LOAD_CUH

#include "backends/cuda/device/bulk.cuh"
#include "backends/cuda/device/tiles.cuh"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/plan/chunkwise.h"
#include "backends/cuda/plan/find.cuh"
#include "backends/cuda/rows/rows.cuh"
#include "backends/cuda/rows/source.cuh"

enum { PREPARE_THREADS = 128 };

/* What a kernel of prepare provides for; by channel: with a decay of each. A block runs once through tens of kilobytes of code
 * and waits for instructions: what lies between them for other rules costs a tenth and more of its time. */
typedef enum {
    DR_PREPARE_ANY,
#define DR_PREPARE_FORM(name) DR_PREPARE_##name,
#include "backends/cuda/rows/instances.def"
} dr_prepare_form;

static __host__ __device__ constexpr bool dr_prepare_scans(dr_prepare_form form) {
    return form == DR_PREPARE_SCANS || form == DR_PREPARE_NARROW_SCANS;
}

/* Channels of the scan that a lane takes. */
static __host__ __device__ constexpr int dr_prepare_scan_channels(dr_prepare_form form) {
    return form == DR_PREPARE_SCANS ? 4 : 2;
}

/* Vectors that fill rows of a tile as they are. Strides in bytes. */
typedef struct {
    const char *at;
    uint32_t token, head;
} dr_plain_rows;

/* An input that fills rows of a tile as it is, one of every token; first: the first token's row. */
typedef struct {
    int input, tile, first;
} dr_prepare_part;

/* Where everything of a chunk lies in shared memory. */
typedef struct {
    int writer, reader, query; /* tiles; reader: that of the writers, where these serve or nothing reads */
    int leaving;               /* the tile of decayed write keys (prepare_channel.cuh) */
    int made;                  /* the matrix, with a decay of each channel tables before it */
    int halves, rows, scan;    /* of the inverse; numbers of rows; what the diagonal scan needs */
    int bytes;
} dr_prepare_room;

/* What all chunks of a launch have in common and no thread need find out. */
typedef struct {
    dr_prepare_room room;
    dr_block_dividers by;
    dr_divider group;         /* value heads of a key head */
    bool plain;               /* one row a token, a tile for read and write keys, and whole chunks are copied as they lie: */
    dr_plain_rows key, query; /* keys are write keys or, with plan.scan_inside, what these are made of */
    dr_prepare_part part[3];  /* what the tiles come from; not of DR_PREPARE_ANY */
    dr_plain_rows asked[4];   /* tensors of which the second-level cache is asked for a later chunk's tokens: so many blocks */
    unsigned ahead, share;    /* on, 0: of none; each head for a share of these */
    int sums;                 /* so many of a sequence's first chunks have their key + lambda query stored */
    bool late;                /* dr_finish_rows has something to do */
    bool dots;                /* a gain is made of r . w */
} dr_prepare_facts;

typedef struct {
    dr_cuda_chunk_plan plan;
    dr_cuda_chunk_tensors tensors;
    dr_prepare_facts facts;
} dr_prepare_call;

/* What 128 threads work on: one chunk of one value head. */
typedef struct {
    int64_t block;
    dr_chunk_place place;
    int head, key_head;
    int alive;          /* rows that are there */
    int channel, boxes; /* the tiles' first channel, and how many times 64 of them */
    unsigned slot;      /* in prepare: of the chunk */
    unsigned before;    /* in prepare: chunks of the sequence before it */
} dr_prepare_block;

/* index: of the block or, in_turn, as dr_block_find has it. equal: all sequences are equally long, which is known. */
template <bool equal = false>
static __device__ inline dr_prepare_block dr_prepare_find(const dr_prepare_call &call, unsigned index, bool in_turn) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_prepare_facts &facts = call.facts;
    dr_prepare_block x;
    dr_block_place at = dr_block_find(facts.by, index, in_turn);
    x.block = dr_block_number(facts.by, at);
    x.head = (int)at.head;
    x.key_head = (int)dr_divide(at.head, facts.group);
    x.place = dr_block_chunk<equal>(plan, call.tensors.cu, at);
    x.slot = at.slot, x.before = at.before;
    x.alive = x.place.tokens * plan.rows.steps;
    x.channel = 0;
    x.boxes = (int)((unsigned)plan.key_width / 64);
    return x;
}

/* Where one of the float inputs is at a token of the chunk. Their elements are counted in 32 bits (dr_cuda_chunk_make_plan). */
static __device__ inline const float *dr_chunk_scalar_at(const dr_cuda_input &input, const dr_prepare_block &x, int token,
                                                         int step, int head) {
    const int at = ((int)x.place.first + token) * (int)input.token + step * (int)input.step + head * (int)input.head;
    return (const float *)input.at + at;
}

/* The input there; 0 where the rule does not read it. */
static __device__ inline float dr_chunk_scalar(const dr_cuda_rows &rows, int which, const dr_prepare_block &x, int token,
                                               int step, int head) {
    const dr_cuda_input &input = rows.input[which];
    return input.at ? *dr_chunk_scalar_at(input, x, token, step, head) : 0.0f;
}

/* Row i of a chunk as token and step of it. */
static __device__ inline int dr_row_token(const dr_cuda_rows &rows, int i) {
    return rows.steps == 1 ? i : i / rows.steps;
}

/* Of a log decay of a channel: for 16-bit types two instructions, good to 2^-22 of the number for each power of two in it. */
template <typename T> static __device__ inline float dr_channel_alpha(float log_decay) {
    return sizeof(T) == 4 ? expf(log_decay) : lanes_exp_near(log_decay);
}

/* Whole tokens of 64 rows, which is more than a shorter chunk has; nearly always without a division. */
static __device__ inline int dr_whole_tokens(const dr_cuda_rows &rows) {
    return rows.steps <= 2 ? 64 >> (rows.steps - 1) : 64 / rows.steps;
}

/* A vector of the chunk's tokens, or of their steps where it has an axis of these. */
template <typename T> static __device__ inline dr_strided<T> dr_rows_at(const dr_prepare_block &x, const dr_cuda_input &input) {
    dr_strided<T> rows;
    rows.at =
        (const T *)input.at + x.place.first * input.token + (input.per_value ? x.head : x.key_head) * input.head + x.channel;
    rows.stride = input.step ? input.step : input.token; /* a token's steps lie one after another */
    rows.alive = input.step ? x.alive : x.place.tokens;
    return rows;
}

/* How the read keys of a row are made of tiles that have come: of their own, which holds a gate or the negative, of that of
 * the write keys, where a product or a sum begins with these, and of that of the queries. DR_FORM_COPY: not at all. */
static __host__ __device__ inline dr_form dr_late_reads(const dr_cuda_rows &rows, const dr_cuda_row &row) {
    switch (row.reads) {
    case DR_READS_NONE:
    case DR_READS_TIED:
        break;
    case DR_READS_TENSOR:
        return row.negative ? DR_FORM_NEGATIVE : DR_FORM_COPY;
    case DR_READS_PRODUCT:
        return row.written == row.read ? DR_FORM_TIMES : DR_FORM_COPY;
    case DR_READS_AFFINE:
        return row.written == row.read && rows.asks == DR_ASKS_TENSOR && rows.asked == row.read_other ? DR_FORM_PLUS
                                                                                                      : DR_FORM_COPY;
    }
    return DR_FORM_COPY;
}

/* Whether dr_finish_rows has anything to do. */
static __host__ __device__ inline bool dr_rows_late(const dr_cuda_rows &rows) {
    for (int i = 0; i < rows.kinds; i++)
        if (rows.row[i].writes == DR_WRITES_PRODUCT || dr_late_reads(rows, rows.row[i]) != DR_FORM_COPY) return true;
    return false;
}

/* A factor of the chunk's tokens, or of all tokens. */
static __device__ inline dr_form_factor dr_factor_at(const dr_cuda_rows &rows, const dr_prepare_block &x, int source,
                                                     float sign) {
    const dr_cuda_input &input = rows.input[source];
    const int head = input.per_value ? x.head : x.key_head;
    return {(const float *)input.at + x.place.first * input.token + head * input.head, input.token, sign};
}

/* Read keys of the rows first, first + spacing, .. of the chunk, or what they will be made of. */
template <typename T>
static __device__ inline void dr_load_reads(char *tile, const dr_cuda_chunk_plan &plan, const dr_prepare_block &x,
                                            const dr_cuda_row &row, int count, int first, int spacing) {
    const dr_cuda_rows &rows = plan.rows;
    const int boxes = x.boxes, size = rows.key_size - x.channel;
    const dr_form late = dr_late_reads(rows, row);
    dr_strided<T> from = {NULL, 0, 0};
    dr_form form = DR_FORM_COPY;
    dr_form_factor factor = {NULL, 0, 1.0f};
    switch (row.reads) {
    case DR_READS_NONE:
        break;
    case DR_READS_TIED:
    case DR_READS_TENSOR:
        from = dr_rows_at<T>(x, rows.input[row.read]);
        break;
    case DR_READS_PRODUCT:
        from = dr_rows_at<T>(x, rows.input[row.read_other]);
        if (late != DR_FORM_TIMES) form = DR_FORM_TIMES;
        break;
    case DR_READS_AFFINE:
        if (late == DR_FORM_PLUS) return;
        from = dr_rows_at<T>(x, rows.input[row.read_other]);
        factor = dr_factor_at(rows, x, row.read_factor, 1);
        form = DR_FORM_PLUS;
        break;
    }
    if (form == DR_FORM_COPY)
        dr_copy_rows<T>(tile, 64, boxes, size, rows.aligned, count, first, spacing, from);
    else
        dr_form_rows<T>(tile, boxes, size, rows.aligned, count, first, spacing, form, dr_rows_at<T>(x, rows.input[row.read]),
                        from, factor);
}

/* Queries, in the last row of each token. */
template <typename T>
static __device__ inline void dr_load_queries(char *tile, const dr_cuda_chunk_plan &plan, const dr_prepare_block &x) {
    const dr_cuda_rows &rows = plan.rows;
    const int boxes = x.boxes, size = rows.key_size - x.channel, first = rows.steps - 1, count = dr_whole_tokens(rows);
    const dr_strided<T> q = dr_rows_at<T>(x, rows.input[rows.asked]);
    dr_clear_rows<T>(tile, 64, boxes, first, rows.steps);
    if (rows.asks == DR_ASKS_AFFINE)
        dr_form_rows<T>(tile, boxes, size, rows.aligned, count, first, rows.steps, DR_FORM_PLUS, q,
                        dr_rows_at<T>(x, rows.input[rows.ask_other]), dr_factor_at(rows, x, rows.ask_factor, -1));
    else
        dr_copy_rows<T>(tile, 64, boxes, size, rows.aligned, count, first, rows.steps, q);
}

/* Whole rows, to all rows of a tile or to the rows first, first + 2, .. */
template <typename T, int spacing>
static __device__ inline void dr_load_whole(char *tile, const dr_prepare_block &x, const dr_source &source, int first) {
    constexpr int row_bytes = 64 * (int)sizeof(T), units = row_bytes / 16, step = PREPARE_THREADS / units;
    const int thread = dr_copy_thread(), row = thread / units, within = thread % units, place = first + spacing * row;
    const int64_t stride = source.token * (int)sizeof(T);
    const char *at = (const char *)((const T *)source.at + x.place.first * source.token + x.key_head * source.head + x.channel);
    at += row * stride + within * 16;
    unsigned to = dr_shared_address(tile) + (unsigned)(place * row_bytes + ((within ^ place % 8) << 4));
#pragma unroll 1
    for (int box = 0; box < x.boxes; box++) {
        const char *from = at + box * row_bytes;
        DR_UNROLL_BY (j, 64, step * spacing) {
            dr_copy_whole(to + j * row_bytes, from);
            from += step * stride;
        }
        to += 64 * row_bytes;
    }
}

/* Boxes of a tile of 64 rows side by side: their addresses differ by constants. */
template <typename T, int boxes> static __device__ inline void dr_load_boxes(unsigned to, const char *from, uint32_t token) {
    constexpr int row_bytes = 64 * (int)sizeof(T), step = PREPARE_THREADS * 16 / row_bytes;
    DR_UNROLL_BY (j, 64, step) {
        DR_UNROLL (box, boxes) dr_copy_whole(to + (box * 64 + j) * row_bytes, from + box * row_bytes);
        from += (uint64_t)token * step;
    }
}

/* The so many-th 16 bytes of a token's row. */
static __device__ inline const char *dr_plain_unit(const dr_plain_rows &rows, unsigned token, unsigned head, unsigned unit) {
    return rows.at + ((uint64_t)token * rows.token + (head * rows.head + unit * 16));
}

/* Tiles of 64 rows of a token each, of keys and of queries. apart: each a group of copies. */
template <typename T>
static __device__ inline void dr_load_plain(unsigned keys, unsigned queries, const dr_prepare_block &x,
                                            const dr_plain_rows &key, const dr_plain_rows &query, bool apart) {
    constexpr int row_bytes = 64 * (int)sizeof(T), units = row_bytes / 16;
    const unsigned thread = (unsigned)dr_copy_thread(), row = thread / units, within = thread % units;
    const unsigned first = (unsigned)x.place.first + row, place = thread * 16 ^ row % 8 * 16;
    const char *key_at = dr_plain_unit(key, first, (unsigned)x.key_head, within);
    const char *query_at = dr_plain_unit(query, first, (unsigned)x.key_head, within);
    keys += place, queries += place;
    if (x.boxes == 2) { /* most often */
        dr_load_boxes<T, 2>(keys, key_at, key.token);
        if (apart) dr_copy_commit();
        dr_load_boxes<T, 2>(queries, query_at, query.token);
    } else {
#pragma unroll 1
        for (int box = 0; box < x.boxes; box++)
            dr_load_boxes<T, 1>(keys + box * 64 * row_bytes, key_at + box * row_bytes, key.token);
        if (apart) dr_copy_commit();
#pragma unroll 1
        for (int box = 0; box < x.boxes; box++)
            dr_load_boxes<T, 1>(queries + box * 64 * row_bytes, query_at + box * row_bytes, query.token);
    }
    dr_copy_commit();
}

/* Both tiles of a chunk of so many rows a token, if all of its rows are there and stand in tensors as they are. */
template <typename T, int steps>
static __device__ inline bool dr_load_rows_whole(const dr_cuda_rows &rows, const dr_prepare_block &x, char *writer,
                                                 char *query) {
    if (rows.steps != steps || x.alive < 64 || !rows.aligned || rows.key_size - x.channel < x.boxes * 64) return false;
    const dr_source write = dr_write_source(rows), asked = dr_query_source(rows);
    if (!write.at || !asked.at) return false;
    if constexpr (steps == 2) {
        const dr_source second = dr_write_source(rows, 1);
        if (rows.step_axis || !second.at) return false;
        dr_load_whole<T, 2>(writer, x, second, 1);
        dr_clear_rows<T>(query, 64, x.boxes, 1, 2);
    }
    dr_load_whole<T, steps>(writer, x, write, 0);
    dr_load_whole<T, steps>(query, x, asked, steps - 1);
    return true;
}

/* All three tiles of a chunk; the copies are one group. reader NULL: the write keys serve, or nothing reads. steps: rows a
 * token that are provided for, as the caller's rules mostly have them; 0: the caller has seen to it. */
template <typename T, int steps = 1>
static __device__ inline void dr_load_rows(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, char *writer,
                                           char *reader, char *query) {
    const dr_cuda_rows &rows = plan.rows;
    if constexpr (steps > 0)
        if (!reader && dr_load_rows_whole<T, steps>(rows, x, writer, query)) { /* most often */
            dr_copy_commit();
            return;
        }
    const int parts = rows.kinds, count = rows.step_axis ? 64 : dr_whole_tokens(rows), size = rows.key_size - x.channel;
    for (int i = 0; i < parts && reader; i++) dr_load_reads<T>(reader, plan, x, rows.row[i], count, i, parts);
    for (int i = 0; i < parts; i++) /* rates, where write keys are made of these */
        dr_copy_rows<T>(writer, 64, x.boxes, size, rows.aligned, count, i, parts,
                        dr_rows_at<T>(x, rows.input[rows.row[i].write]));
    dr_load_queries<T>(query, plan, x);
    dr_copy_commit();
}

/* Tiles of nothing but inputs (dr_prepare_facts), each of these a group of copies. */
template <typename T, bool pairs, bool apart>
static __device__ inline void dr_load_parts(const dr_prepare_call &call, const dr_prepare_block &x, char *shared) {
    const dr_cuda_rows &rows = call.plan.rows;
    if constexpr (pairs) dr_clear_rows<T>(shared + call.facts.room.query, 64, x.boxes, 1, 2);
#pragma unroll 1
    for (int i = 0; i < (pairs || apart ? 3 : 2); i++) {
        const dr_prepare_part &part = call.facts.part[i];
        dr_copy_rows<T>(shared + part.tile, 64, x.boxes, rows.key_size, rows.aligned, pairs ? 32 : 64, pairs ? part.first : 0,
                        pairs ? 2 : 1, dr_rows_at<T>(x, rows.input[part.input]));
        dr_copy_commit();
    }
}

/* The tiles that prepare begins with. With dr_prepare_scans keys are in the tile of the readers, and their copies a group of
 * their own before that of the queries. pairs: two rows a token. */
template <typename T, bool pairs, dr_prepare_form form>
static __device__ inline void dr_prepare_load(const dr_prepare_call &call, const dr_prepare_block &x, char *shared) {
    constexpr bool scans = dr_prepare_scans(form);
    const dr_prepare_room &room = call.facts.room;
    char *writer = shared + room.writer, *reader = shared + room.reader, *query = shared + room.query;
    if (!pairs && form != DR_PREPARE_APART && call.facts.plain && x.alive == 64) /* most often */
        dr_load_plain<T>(dr_shared_address(scans ? reader : writer), dr_shared_address(query), x, call.facts.key,
                         call.facts.query, scans);
    else if constexpr (form != DR_PREPARE_ANY)
        dr_load_parts<T, pairs, form == DR_PREPARE_APART>(call, x, shared);
    else
        dr_load_rows<T, pairs ? 2 : 0>(call.plan, x, writer, room.reader ? reader : NULL, query);
}

/* Asks the second-level cache for what a chunk is made of that begins a little later: of its tokens, which lie one behind the
 * other, each head for as many. index: as dr_prepare_find has it. */
template <typename T>
static __device__ inline void dr_prepare_expect(const dr_prepare_call &call, unsigned index, bool in_turn) {
#ifdef DR_CUDA_WARPGROUPS
    const dr_prepare_facts &facts = call.facts;
    index += facts.ahead;
    if (facts.ahead == 0 || index >= (unsigned)call.plan.blocks || dr_copy_thread() != 0) return;
    const dr_prepare_block x = dr_prepare_find<true>(call, index, in_turn);
    if (x.place.tokens < call.plan.chunk) return;
    const unsigned first = (unsigned)x.place.first + (unsigned)x.head * facts.share;
#pragma unroll
    for (const dr_plain_rows &rows : facts.asked)
        if (rows.at) dr_bulk_prefetch(rows.at + (uint64_t)first * rows.token, facts.share * rows.token);
#endif
}

/* What dr_load_rows left to do, after the barrier behind its copies; a barrier follows if there is any. All threads of the
 * block, or each of its groups with tiles of its own. */
template <typename T, int groups = 1>
static __device__ inline void dr_finish_rows(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, char *writer,
                                             char *reader, const char *query) {
    const dr_cuda_rows &rows = plan.rows;
    const int parts = rows.kinds, count = 64 / parts;
    if (!reader || !dr_rows_late(rows)) return;
#pragma unroll 1
    for (int i = 0; i < 2 * parts; i++) { /* what is read, then what is written, of each row */
        const dr_cuda_row &row = rows.row[i / 2];
        dr_form form = dr_late_reads(rows, row);
        if (i % 2) form = row.writes == DR_WRITES_PRODUCT ? DR_FORM_TIMES : DR_FORM_COPY;
        if (form == DR_FORM_COPY) continue;
        const bool sum = form == DR_FORM_PLUS;
        dr_form_factor factor = {NULL, 0, 1.0f};
        if (sum) factor = dr_factor_at(rows, x, row.read_factor, 1);
        char *tile = i % 2 ? writer : reader;
        dr_form_tiles<T, groups>(tile, x.boxes, count, i / 2, parts, form, sum ? writer : tile,
                                 sum              ? query
                                 : tile == reader ? writer
                                                  : reader,
                                 sum ? rows.steps - 1 - i / 2 : 0, factor, x.place.tokens);
    }
    dr_shared_fence();
    dr_meet<groups>();
}

/* The same of DR_PREPARE_APART: gates are multiplied by the write keys, or the sign turns. */
template <typename T, int groups>
static __device__ inline void dr_finish_apart(const dr_cuda_rows &rows, const dr_prepare_block &x, const char *writer,
                                              char *reader) {
    const dr_form_factor none = {NULL, 0, 1.0f};
    dr_form_tiles<T, groups>(reader, x.boxes, 64, 0, 1, rows.row[0].negative ? DR_FORM_NEGATIVE : DR_FORM_TIMES, reader, writer,
                             0, none, x.place.tokens);
    dr_shared_fence();
    dr_meet<groups>();
}

/* Rows of a tile to memory as they are: [64][Kp], or one in `spacing` from `first` on to [query_rows][Kp] and zeros behind. */
template <typename T>
static __device__ inline void dr_put_tile(const dr_cuda_chunk_plan &plan, const char *tile, T *to, int rows, int first,
                                          int spacing) {
    const int lanes = plan.key_width / 8;
    for (int i = dr_copy_thread(); i < rows * lanes; i += PREPARE_THREADS) {
        const int row = i / lanes, column = i % lanes * 8;
        constexpr int unit = 16 / (int)sizeof(T);
        DR_UNROLL_BY (e, 8, unit) {
            const int place = first + spacing * row;
            uint4 word = make_uint4(0, 0, 0, 0);
            if (place < 64) word = *(const uint4 *)(tile + dr_tile_at<T>(0, 64, place, column + e));
            *(uint4 *)(to + row * plan.key_width + column + e) = word;
        }
    }
}

/* The one that provides for the rule and the least beside it. */
static inline dr_prepare_form dr_prepare_form_of(const dr_cuda_chunk_plan &plan) {
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_row &first = rows.row[0];
    if (plan.scan_inside) return plan.key_width == 128 ? DR_PREPARE_SCANS : DR_PREPARE_NARROW_SCANS;
    if (rows.step_axis || rows.steps > 1 + rows.channel_decay || rows.asks == DR_ASKS_AFFINE) return DR_PREPARE_ANY;
    for (int i = 0; i < rows.steps; i++) {
        const dr_cuda_row &row = rows.row[i];
        const bool early = row.undecayed && !rows.channel_decay;
        if (row.writes == DR_WRITES_PRODUCT || early || row.gains == DR_GAINS_OF_DOT) return DR_PREPARE_ANY;
    }
    if (plan.reads && (rows.tied || plan.reader_sum)) return DR_PREPARE_PLAIN;
    if (rows.steps > 1) return DR_PREPARE_ANY;
    if (!plan.reads) return rows.channel_decay ? DR_PREPARE_LINEAR : DR_PREPARE_ANY;
    const bool gated = first.reads == DR_READS_PRODUCT && first.written == first.read;
    return gated || first.reads == DR_READS_TENSOR ? DR_PREPARE_APART : DR_PREPARE_ANY;
}

/* Returns how many parts there are. */
static inline int dr_prepare_find_parts(const dr_cuda_rows &rows, dr_prepare_form form, dr_prepare_facts *facts) {
    const dr_prepare_room &room = facts->room;
    int parts = 0;
    const auto add = [&](int input, int tile, int first) { facts->part[parts++] = {input, tile, first}; };
    if (form == DR_PREPARE_ANY) return 0;
    if (dr_prepare_scans(form))
        add(rows.row[0].read, room.reader, 0);
    else
        for (int i = 0; i < rows.steps; i++) add(rows.row[i].write, room.writer, i);
    if (form == DR_PREPARE_APART) add(rows.row[0].led, room.reader, 0);
    add(rows.asked, room.query, rows.steps - 1);
    return parts;
}

static inline dr_plain_rows dr_plain_rows_of(const dr_source &source, int element) {
    return {(const char *)source.at, (uint32_t)(source.token * element), (uint32_t)(source.head * element)};
}

/* Of inputs whose tokens lie one behind the other. A chunk begins some 3 us after one that is half as many blocks before it as
 * there are multiprocessors; asked for much earlier, it is often no longer there. */
static inline void dr_prepare_find_asked(const dr_cuda_chunk_plan &plan, int element, int parts, dr_prepare_facts *facts) {
    const dr_cuda_rows &rows = plan.rows;
    facts->ahead = (unsigned)plan.processors / 2, facts->share = (unsigned)(plan.chunk / plan.value_heads);
    for (int i = 0; i <= parts; i++) {
        const bool decay = i == parts;
        const dr_cuda_input &input = rows.input[decay ? DR_INPUT_LOG_DECAY : facts->part[i].input];
        const int width = (decay ? rows.value_heads : rows.key_heads) * rows.key_size;
        if (input.token == width)
            facts->asked[i] = {(const char *)input.at, (uint32_t)(width * (decay ? (int)sizeof(float) : element)), 0};
    }
}

/* channel: with a decay of each. */
static inline dr_prepare_facts dr_prepare_facts_of(const dr_cuda_chunk_plan &plan, dr_prepare_form form,
                                                   const dr_prepare_room &room, int element, bool channel) {
    const dr_cuda_rows &rows = plan.rows;
    const bool scans = plan.scan_inside;
    const dr_source key = scans ? dr_source_of(rows.input[rows.row[0].read]) : dr_write_source(rows);
    const dr_source query = dr_query_source(rows);
    dr_prepare_facts facts = {};
    facts.room = room;
    facts.by = dr_block_dividers_of(plan), facts.group = dr_divider_of(rows.group);
    facts.plain =
        rows.steps == 1 && (scans || !room.reader) && rows.aligned && rows.key_size == plan.key_width && key.at && query.at;
    const int parts = dr_prepare_find_parts(rows, form, &facts);
    if (facts.plain) facts.key = dr_plain_rows_of(key, element), facts.query = dr_plain_rows_of(query, element);
    if (channel && form != DR_PREPARE_ANY && plan.length && rows.aligned && plan.chunk % plan.value_heads == 0)
        dr_prepare_find_asked(plan, element, parts, &facts);
    if (plan.reader_sum && plan.parts > 1) /* the first pass leaves out the last part, whose first chunks trim_parts looks at */
        facts.sums = plan.length && !plan.trims ? (plan.sequence_parts - 1) * plan.part_chunks : INT32_MAX;
    facts.late = !scans && room.reader && dr_rows_late(rows);
    facts.dots = plan.reads && rows.dots;
    return facts;
}

/* What the gain of row i is made of, a thread each: asked for long before it is needed. pairs: two rows a token, which forms
 * other than DR_PREPARE_ANY want to know. */
template <dr_prepare_form form = DR_PREPARE_ANY, bool pairs = false>
static __device__ inline dr_map_gain_inputs dr_prepare_gain_inputs(const dr_cuda_rows &rows, const dr_prepare_block &x, int i) {
    dr_map_gain_inputs inputs = {};
    if (i >= x.alive) return inputs;
    if (form != DR_PREPARE_ANY) { /* one of the two is made use of */
        const int which = rows.row[pairs ? i % 2 : 0].gain;
        inputs.beta = inputs.erase_gain = dr_chunk_scalar(rows, which, x, pairs ? i / 2 : i, 0, x.head);
        return inputs;
    }
    const int token = dr_row_token(rows, i), step = i - token * rows.steps;
    const int beta = rows.gains_made ? (int)DR_SOURCE_GAIN : (int)DR_INPUT_BETA;
    inputs.beta = dr_chunk_scalar(rows, beta, x, token, dr_step_index(rows, step), x.head);
    inputs.erase_gain = dr_chunk_scalar(rows, DR_INPUT_ERASE_GAIN, x, token, 0, x.head);
    if (!rows.normalized) return inputs;
    if (rows.discounted) inputs.alpha = dr_row_alpha(rows, x.place.first + token, x.head);
    inputs.key_dot = rows.key_dot[(x.place.first + token) * rows.key_heads + x.key_head];
    return inputs;
}

template <dr_prepare_form form = DR_PREPARE_ANY, bool pairs = false>
static __device__ inline dr_row_gains dr_prepare_gain(const dr_cuda_rows &rows, const dr_prepare_block &x, int i,
                                                      dr_map_gain_inputs inputs, float dot) {
    dr_row_gains gains = {0, 0, 0};
    if (i >= x.alive) return gains;
    inputs.dot = dot;
    if (form == DR_PREPARE_ANY) return dr_row_gain_of(rows, i - dr_row_token(rows, i) * rows.steps, inputs);
    gains.factor = 1;
    gains.gain = gains.base = rows.row[pairs ? i % 2 : 0].gains == DR_GAINS_ONE ? 1 : inputs.beta;
    return gains;
}

/* What becomes of a row's factors (dr_cuda_factors); reader: of R~. */
typedef struct {
    float gain, reader, value, query;
} dr_row_factors;

static __device__ inline void dr_put_factors(dr_cuda_factors &to, int i, const dr_row_factors &factors) {
    to.value[i] = factors.value;
    to.erase[i] = factors.gain * factors.reader;
    to.query[i] = factors.query;
    to.gain[i] = factors.gain;
}

/* gain and value of row i's factors. */
template <dr_prepare_form form = DR_PREPARE_ANY, bool pairs = false>
static __device__ inline dr_row_factors dr_prepare_factors(const dr_cuda_rows &rows, const dr_prepare_block &x, int i,
                                                           const dr_row_gains &gains) {
    dr_row_factors factors = {0, 0, 0, 0};
    if (i >= x.alive) return factors;
    const dr_cuda_row &row =
        form != DR_PREPARE_ANY ? rows.row[pairs ? i % 2 : 0] : dr_rule_row(rows, i - dr_row_token(rows, i) * rows.steps);
    factors.gain = row.reads == DR_READS_NONE ? 0.0f : gains.gain;
    factors.value = row.values == DR_VALUES_NONE ? 0.0f : row.values == DR_VALUES_GAINED ? gains.gain : gains.factor;
    return factors;
}

#endif
