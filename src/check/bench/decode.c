/* One token for many sequences, again and again on the same states, against a pass over as much memory, or a copy. */
#include "base/error.h"
#include "base/memory.h"
#include "check/bench/device.h"
#include "check/bench/limit.h"

/* A rule with a number of threads, and all that its runs read and write. */
typedef struct {
    const dr_recurrence *recurrence;
    dr_bench_memory memory; /* memory.backend: its own */
    dr_inputs inputs;
    int64_t sets, next; /* of the states, and which is next */
    dr_mutable_states states;
    size_t set_bytes[DR_STATES];
    void *o, *workspace;
    size_t bytes;           /* of the states of a set */
    dr_bench_stream stream; /* on the CPU */
} decode_case;

static dr_status run_token(void *context) {
    decode_case *c = context;
    dr_mutable_states states = {{NULL}};
    for (int i = 0; i < DR_STATES; i++)
        if (c->states.at[i]) states.at[i] = (char *)c->states.at[i] + (size_t)c->next * c->set_bytes[i];
    c->next = (c->next + 1) % c->sets;
    return dr_recurrence_decode(c->memory.backend, c->recurrence, &c->inputs, &states, c->o, c->workspace);
}

static int64_t state_count(const dr_recurrence *recurrence, dr_state_kind kind) {
    int64_t shape[DR_MAX_RANK], count = 0;
    dr_product(shape, dr_recurrence_state_shape(recurrence, kind, shape), &count);
    return count;
}

/* Bytes of an element of a state. */
static size_t element_of(const decode_case *c, dr_state_kind kind) {
    bool is_half = kind == DR_STATE_S && c->recurrence->bf16_state;
    return dr_dtype_size(is_half ? DR_BF16 : dr_backend_dtype(c->memory.backend));
}

static dr_status prepare(const dr_bench_options *options, int threads, decode_case *c) {
    DR_TRY(dr_bench_open(options, threads, &c->memory.backend));
    size_t element = dr_dtype_size(dr_recurrence_output_dtype(c->memory.backend));
    dr_recurrence_memory bytes;
    DR_TRY(dr_recurrence_plan(c->memory.backend, c->recurrence, &bytes));
    DR_TRY(dr_bench_inputs(&c->memory, c->recurrence, options, &c->inputs));
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(c->recurrence->rule, (dr_state_kind)i)) continue;
        c->set_bytes[i] = (size_t)state_count(c->recurrence, (dr_state_kind)i) * element_of(c, (dr_state_kind)i);
        c->bytes += c->set_bytes[i];
    }
    c->sets = dr_bench_sets(c->memory.backend, c->bytes);
    for (int i = 0; i < DR_STATES; i++)
        if (c->set_bytes[i]) DR_TRY(dr_bench_take(&c->memory, (size_t)c->sets * c->set_bytes[i], &c->states.at[i]));
    int64_t outputs = c->recurrence->layout.rows * c->recurrence->value_heads * c->recurrence->value_size;
    DR_TRY(dr_bench_take(&c->memory, (size_t)outputs * element, &c->o));
    DR_TRY(dr_bench_take(&c->memory, bytes.decode, &c->workspace));
    if (dr_bench_device_of(c->memory.backend)) return DR_OK;
    return dr_bench_stream_create(threads, (int64_t)(c->bytes / sizeof(float)), &c->stream);
}

static void destroy(decode_case *c) {
    dr_bench_stream_destroy(&c->stream);
    dr_bench_free(&c->memory);
    dr_backend_close(c->memory.backend);
}

static dr_status check(const decode_case *c) {
    int64_t outputs = c->recurrence->layout.rows * c->recurrence->value_heads * c->recurrence->value_size;
    dr_backend *backend = c->memory.backend;
    DR_TRY(dr_bench_check_finite(backend, c->o, dr_recurrence_output_dtype(backend), outputs, "the output"));
    for (int i = 0; i < DR_STATES; i++)
        if (c->states.at[i] && !(i == DR_STATE_S && c->recurrence->bf16_state)) /* of those the output tells */
            DR_TRY(dr_bench_check_finite(backend, c->states.at[i], dr_backend_dtype(backend),
                                         state_count(c->recurrence, (dr_state_kind)i), "a state"));
    return DR_OK;
}

/* cases: [thread_counts, count] */
static dr_status measure(const dr_bench_options *options, int count, const dr_recurrence *recurrences, decode_case *cases,
                         dr_bench_limits *limits, dr_bench_grid *grid, dr_bench_decode_result *results) {
    int all = options->thread_counts * count;
    for (int i = 0; i < all; i++) {
        decode_case *c = &cases[i];
        c->recurrence = &recurrences[i % count];
        DR_TRY(prepare(options, options->threads[i / count], c));
        if (i == 0 && (limits->memory.backend = dr_bench_device_of(c->memory.backend)))
            DR_TRY(dr_bench_limits_create(false, options->seed, limits));
        dr_bench_pair *pair = dr_bench_grid_at(grid, i / count, i % count, 0);
        pair->work.device = dr_bench_device_of(c->memory.backend);
        pair->work.replayed = true;
        if (pair->work.device)
            dr_bench_copy_item(limits, &pair->limit);
        else
            dr_bench_stream_item(&c->stream, &pair->limit);
        pair->work.run = run_token;
        pair->work.context = c;
        pair->work.amount = 2.0 * (double)c->bytes;
    }
    DR_TRY(dr_bench_grid_measure(grid));
    for (int i = 0; i < all; i++) DR_TRY(check(&cases[i]));
    for (int i = 0; i < all; i++) {
        results[i] = (dr_bench_decode_result){.threads = options->threads[i / count],
                                              .token = dr_bench_grid_work(grid, i / count, i % count, 0)};
        dr_recurrence_kernel(cases[i].memory.backend, cases[i].recurrence, true, results[i].kernel, sizeof results[i].kernel);
    }
    return DR_OK;
}

dr_status dr_bench_decode(const dr_bench_options *options, int count, const dr_recurrence *recurrences,
                          dr_bench_decode_result *results) {
    DR_NEED(options);
    DR_NEED(recurrences);
    DR_NEED(results);
    DR_TRY(dr_bench_check(options, count));
    int all = options->thread_counts * count;
    dr_bench_grid grid = {0};
    dr_bench_limits limits = {.from = NULL};
    void *cases = NULL;
    dr_status status;
    DR_GO(dr_bench_grid_create(options, count, 1, &grid));
    DR_GO(dr_allocate_zero((size_t)all * sizeof(decode_case), "cases", &cases));
    DR_GO(measure(options, count, recurrences, cases, &limits, &grid, results));
done:
    dr_bench_limits_destroy(&limits);
    for (int i = 0; cases && i < all; i++) destroy((decode_case *)cases + i);
    dr_release(cases);
    dr_bench_grid_destroy(&grid);
    return status;
}
