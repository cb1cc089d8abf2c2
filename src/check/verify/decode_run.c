/* Running a recorded recurrence token by token through the decode engine, forward only.
 *
 * Every call advances all sequences that have a token left. The sequences are sorted by falling length first, so those still
 * running are always the first of the state's block, and dropping the ones that ended is a smaller count. The streams are kept
 * in host memory, the tokens of one step are gathered there and uploaded. */
#include "base/error.h"
#include "base/memory.h"
#include "check/verify/recurrence_run.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t begin, length, place; /* place: its number in the file */
} sequence;

typedef struct {
    dr_recurrence_run run;
    sequence *sequences;        /* [N], sorted */
    double *streams[DR_INPUTS]; /* [rows, width]; NULL: not read, or a parameter */
    int64_t width[DR_INPUTS];   /* elements a token; 0 there */
    dr_inputs step;             /* [N, width] in the backend's memory, or the parameter */
    dr_mutable_states states;   /* in the order of the sorted sequences */
    void *o;                    /* [N, HV, V] in the backend's memory */
    double *gather;             /* N tokens of the widest stream or of o */
    double *output;             /* [rows, HV, V] */
} decoding;

static int longer_first(const void *left, const void *right) {
    const sequence *a = left, *b = right;
    if (a->length != b->length) return a->length > b->length ? -1 : 1;
    return (a->place > b->place) - (a->place < b->place);
}

static dr_status sort_sequences(decoding *d) {
    const dr_layout *layout = &d->run.recurrence.layout;
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)layout->sequences * sizeof(sequence), "sequences", &memory));
    d->sequences = memory;
    for (int64_t i = 0; i < layout->sequences; i++) {
        int64_t begin = dr_layout_begin(layout, i);
        d->sequences[i] = (sequence){.begin = begin, .length = dr_layout_begin(layout, i + 1) - begin, .place = i};
    }
    qsort(d->sequences, (size_t)layout->sequences, sizeof(sequence), longer_first);
    return DR_OK;
}

static dr_status allocate_doubles(int64_t count, double **block) {
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "a stream of tokens", &memory));
    *block = memory;
    return DR_OK;
}

/* Elements of one token, or 0 for a parameter. */
static int64_t stream_width(const dr_recurrence *recurrence, dr_input input) {
    dr_recurrence longer = *recurrence;
    longer.layout.rows++;
    return dr_recurrence_run_inputs(&longer, input) - dr_recurrence_run_inputs(recurrence, input);
}

/* The streams back from the backend, where they may have been normalised, and blocks for one step of them. */
static dr_status prepare_streams(decoding *d) {
    dr_recurrence_run *run = &d->run;
    const dr_recurrence *recurrence = &run->recurrence;
    int64_t sequences = recurrence->layout.sequences, rows = recurrence->layout.rows;
    int64_t values = recurrence->value_heads * recurrence->value_size, widest = values;
    void *block = NULL;
    d->step = run->inputs;
    for (int i = 0; i < DR_INPUTS; i++) {
        int64_t width = run->inputs.at[i] ? stream_width(recurrence, (dr_input)i) : 0;
        if (width == 0) continue;
        d->width[i] = width;
        if (width > widest) widest = width;
        DR_TRY(allocate_doubles(rows * width, &d->streams[i]));
        const dr_dtype dtype = dr_recurrence_input_dtype(run->backend, (dr_input)i);
        DR_TRY(dr_device_get_as(run->backend, dtype, run->inputs.at[i], rows * width, d->streams[i]));
        DR_TRY(dr_device_unset_as(&run->memory, dtype, sequences * width, &block));
        d->step.at[i] = block;
    }
    DR_TRY(dr_device_unset_as(&run->memory, dr_recurrence_output_dtype(run->backend), sequences * values, &d->o));
    DR_TRY(allocate_doubles(rows * values, &d->output));
    return allocate_doubles(sequences * widest, &d->gather);
}

/* Reorders a state: sorted[i] is recorded[place of i], or with back the other way. Both in the backend's memory. */
static dr_status permute(const decoding *d, int64_t count, const void *from, void *to, bool back) {
    int64_t sequences = d->run.recurrence.layout.sequences, width = count / sequences;
    double *source = NULL, *target = NULL;
    dr_status status;
    DR_GO(allocate_doubles(count, &source));
    DR_GO(allocate_doubles(count, &target));
    DR_GO(dr_backend_download(d->run.backend, source, DR_F64, from, count));
    for (int64_t i = 0; i < sequences; i++) {
        int64_t place = d->sequences[i].place;
        memcpy(target + (back ? place : i) * width, source + (back ? i : place) * width, (size_t)width * sizeof(double));
    }
    DR_GO(dr_backend_upload(d->run.backend, to, target, DR_F64, count));
done:
    dr_release(source);
    dr_release(target);
    return status;
}

static dr_status prepare_states(decoding *d) {
    for (int i = 0; i < DR_STATES; i++) {
        int64_t count = dr_recurrence_run_states(&d->run.recurrence, (dr_state_kind)i);
        if (!dr_rule_carries(&d->run.read->rule, (dr_state_kind)i)) continue;
        DR_TRY(dr_device_zero(&d->run.memory, count, &d->states.at[i]));
        if (d->run.initial.at[i]) DR_TRY(permute(d, count, d->run.initial.at[i], d->states.at[i], false));
    }
    return DR_OK;
}

/* Token t of the first sequences, as many as the recurrence has. */
static dr_status decode_token(decoding *d, const dr_recurrence *recurrence, int64_t t, void *workspace) {
    int64_t active = recurrence->layout.sequences, values = recurrence->value_heads * recurrence->value_size;
    dr_backend *backend = d->run.backend;
    for (int i = 0; i < DR_INPUTS; i++) {
        int64_t width = d->width[i];
        if (width == 0) continue;
        for (int64_t s = 0; s < active; s++)
            memcpy(d->gather + s * width, d->streams[i] + (d->sequences[s].begin + t) * width, (size_t)width * sizeof(double));
        DR_TRY(dr_device_put_as(backend, dr_recurrence_input_dtype(backend, (dr_input)i), d->gather, active * width,
                                (void *)d->step.at[i]));
    }
    DR_TRY(dr_recurrence_decode(backend, recurrence, &d->step, &d->states, d->o, workspace));
    DR_TRY(dr_device_get_as(backend, dr_recurrence_output_dtype(backend), d->o, active * values, d->gather));
    for (int64_t s = 0; s < active; s++)
        memcpy(d->output + (d->sequences[s].begin + t) * values, d->gather + s * values, (size_t)values * sizeof(double));
    return DR_OK;
}

/* The longest sequence sets how many calls there are; the workspace is planned again whenever sequences drop out. */
static dr_status decode_tokens(decoding *d) {
    dr_backend *backend = d->run.backend;
    dr_recurrence recurrence = d->run.recurrence;
    int64_t active = recurrence.layout.sequences, planned = 0;
    void *workspace = NULL;
    dr_status status = DR_OK;
    recurrence.layout.cu_seqlens = NULL;
    for (int64_t t = 0; t < d->sequences[0].length; t++) {
        while (d->sequences[active - 1].length <= t) active--;
        recurrence.layout.sequences = recurrence.layout.rows = active;
        if (active != planned) {
            dr_recurrence_memory bytes;
            dr_backend_free(backend, workspace);
            workspace = NULL;
            DR_GO(dr_recurrence_plan(backend, &recurrence, &bytes));
            DR_GO(dr_backend_allocate(backend, bytes.decode, &workspace));
            planned = active;
        }
        DR_GO(decode_token(d, &recurrence, t, workspace));
    }
done:
    dr_backend_free(backend, workspace);
    return status;
}

static dr_status measure(decoding *d, dr_worst *worst) {
    const dr_recurrence_case *read = d->run.read;
    if (read->has_output) dr_measure(d->output, &read->output, "out.", "o", worst);
    for (int i = 0; i < DR_STATES; i++) {
        int64_t count = dr_recurrence_run_states(&d->run.recurrence, (dr_state_kind)i);
        if (!read->state[i].has_final) continue;
        DR_TRY(permute(d, count, d->states.at[i], d->states.at[i], true));
        DR_TRY(
            dr_measure_block(d->run.backend, d->states.at[i], &read->state[i].final, "out.", read->state[i].final_name, worst));
    }
    return DR_OK;
}

dr_status dr_recurrence_case_decode(const dr_recurrence_case *read, dr_backend *backend, dr_measurement *result) {
    dr_recurrence one = read->recurrence;
    dr_recurrence_memory bytes;
    one.layout = (dr_layout){.sequences = one.layout.sequences, .rows = one.layout.sequences};
    DR_TRY(dr_recurrence_plan(backend, &one, &bytes));
    dr_recurrence_kernel(backend, &one, true, result->kernel, sizeof result->kernel);
    decoding d = {0};
    dr_status status;
    DR_GO(dr_recurrence_run_start(read, backend, backend, DR_PATH_BEST, &d.run));
    DR_GO(sort_sequences(&d));
    DR_GO(prepare_streams(&d));
    DR_GO(prepare_states(&d));
    DR_GO(decode_tokens(&d));
    DR_GO(measure(&d, &result->forward));
done:
    for (int i = 0; i < DR_INPUTS; i++) dr_release(d.streams[i]);
    dr_release(d.sequences);
    dr_release(d.gather);
    dr_release(d.output);
    dr_recurrence_run_end(&d.run);
    return status;
}
