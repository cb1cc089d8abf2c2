#include "checks.h"

#include "base/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the backends --------------------------------------------------------------------------------------------------- */

static dr_backend *opened(const char *name, const char *isa, int threads) {
    dr_backend *backend;
    if (dr_backend_open(name, &(dr_backend_options){.isa = isa, .threads = threads}, &backend) != DR_OK) {
        fprintf(stderr, "%s\n", dr_last_error());
        exit(1);
    }
    return backend;
}

void machine_open(machine *m) {
    static const char *const names[ISAS] = {"portable", "avx2", "avx512"};
    dr_cpu_features features = dr_cpu_detect();
    *m = (machine){.isas = features.avx512 ? 3 : features.avx2 ? 2 : 1, .reference = opened("reference", NULL, 1)};
    for (int isa = 0; isa < m->isas; isa++)
        for (int threads = 1; threads <= MOST_THREADS; threads++) m->cpu[isa][threads] = opened("cpu", names[isa], threads);
}

void machine_close(machine *m) {
    dr_backend_close(m->reference);
    for (int isa = 0; isa < m->isas; isa++)
        for (int threads = 1; threads <= MOST_THREADS; threads++) dr_backend_close(m->cpu[isa][threads]);
}

/* ---- near the reference --------------------------------------------------------------------------------------------- */

/* A trial under check. */
typedef struct {
    const trial *t;
    machine *m;
    problem *p;
    standard s;
    fault *what;
} check;

static bool tampered(const check *c, const problem *p, const char *name, result *r) {
    if (c->m->tamper) c->m->tamper(c->t, p, name, r);
    return true;
}

/* A path of the CPU's engine, forward and backward, against the reference. */
static bool engine_is_near(const check *c, dr_backend *cpu, dr_path path, int64_t chunk) {
    char kernel[64];
    dr_recurrence recurrence = c->p->recurrence;
    recurrence.path = path;
    recurrence.chunk = chunk;
    dr_recurrence_kernel(cpu, &recurrence, false, kernel, sizeof kernel);
    result got;
    bool holds = problem_run(cpu, c->p, path, chunk, true, &got, c->what);
    holds = holds && tampered(c, c->p, path == DR_PATH_CHUNKWISE ? "chunkwise" : "recurrent", &got) &&
            results_near(kernel, c->p, &got, &c->s, true, path, &c->m->worst, c->what) &&
            dead_decays(kernel, c->p, &got, c->what);
    result_free(&got);
    return holds;
}

/* Decoding: all sequences at once where they are equally long, else the longest one. */
static bool decode_is_near(const check *c, dr_backend *cpu) {
    const dr_layout *layout = &c->p->recurrence.layout;
    int64_t longest = 0;
    for (int64_t i = 1; i < layout->sequences; i++)
        if (c->t->length[i] > c->t->length[longest]) longest = i;
    if (c->t->length[longest] == 0) return true;
    const bool all = equally_long(layout);
    problem *p = all ? problem_copy(c->p) : problem_part(c->p, longest, 1, (int64_t[]){0}, &c->t->length[longest], NULL);
    dr_random random = dr_random_start(c->t->seed, 2);
    standard own = {0};
    result got = {0};
    bool holds = all || standard_create(c->m->reference, p, &random, &own, c->what);
    if (holds)
        holds = problem_decode(cpu, p, &got, c->what) && tampered(c, p, "decode", &got) &&
                results_near("cpu decode", p, &got, all ? &c->s : &own, false, DR_PATH_RECURRENT, &c->m->worst, c->what);
    result_free(&got);
    standard_free(&own);
    problem_free(p);
    return holds;
}

static bool engines_are_near(const check *c) {
    for (int isa = 0; isa < c->m->isas; isa++) {
        dr_backend *cpu = c->m->cpu[isa][1];
        bool holds = engine_is_near(c, cpu, DR_PATH_RECURRENT, 0) && engine_is_near(c, cpu, DR_PATH_CHUNKWISE, 0) &&
                     engine_is_near(c, cpu, DR_PATH_CHUNKWISE, c->t->chunk) && decode_is_near(c, cpu);
        if (!holds) {
            char rest[sizeof c->what->text];
            memcpy(rest, c->what->text, sizeof rest);
            return fault_is(c->what, "%s: %.1000s", dr_backend_isa(cpu), rest);
        }
    }
    return true;
}

/* ---- split is whole ------------------------------------------------------------------------------------------------- */

/* to[rows of the whole] from the rows of the two parts of each sequence */
static void join(const check *c, const problem *head, const problem *tail, const double *first, const double *second,
                 int64_t width, double *to) {
    for (int64_t i = 0; i < c->t->sequences; i++) {
        const int64_t cut = c->t->cut[i], rest = c->t->length[i] - cut;
        double *at = to + c->p->cu_seqlens[i] * width;
        memcpy(at, first + head->cu_seqlens[i] * width, (size_t)(cut * width) * sizeof(double));
        memcpy(at + cut * width, second + tail->cu_seqlens[i] * width, (size_t)(rest * width) * sizeof(double));
    }
}

/* What the two parts give together: outputs and gradients one after the other, gradients of parameters summed. */
static void join_results(const check *c, const problem *head, const problem *tail, const result *first, const result *second,
                         result *whole) {
    const dr_recurrence *sizes = &c->p->recurrence;
    join(c, head, tail, first->o, second->o, sizes->value_heads * sizes->value_size, whole->o);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!c->p->input[i]) continue;
        if (is_per_token(c->p, (dr_input)i))
            join(c, head, tail, first->gradient[i], second->gradient[i], input_width(c->p, (dr_input)i), whole->gradient[i]);
        else
            for (int64_t j = 0; j < c->p->input_count[i]; j++)
                whole->gradient[i][j] = first->gradient[i][j] + second->gradient[i][j];
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!c->p->initial[i]) continue;
        memcpy(whole->final[i], second->final[i], (size_t)c->p->state_count[i] * sizeof(double));
        memcpy(whole->d_initial[i], first->d_initial[i], (size_t)c->p->state_count[i] * sizeof(double));
    }
}

/* The first parts of all sequences, then the second ones from the states that these leave; back the other way round. */
static bool split_is_whole(const check *c, dr_backend *cpu, dr_path path) {
    static const int64_t start[MOST_SEQUENCES];
    int64_t rest[MOST_SEQUENCES];
    for (int64_t i = 0; i < c->t->sequences; i++) rest[i] = c->t->length[i] - c->t->cut[i];
    problem *head = problem_part(c->p, 0, c->t->sequences, start, c->t->cut, NULL), *tail = NULL;
    result first = {0}, second = {0}, whole = {0};
    bool holds = problem_run(cpu, head, path, c->t->chunk, false, &first, c->what);
    if (holds) {
        tail = problem_part(c->p, 0, c->t->sequences, c->t->cut, rest, first.final);
        holds = problem_run(cpu, tail, path, c->t->chunk, true, &second, c->what);
        result_free(&first);
    }
    if (holds) {
        for (int i = 0; i < DR_STATES; i++)
            if (head->d_final[i]) memcpy(head->d_final[i], second.d_initial[i], (size_t)head->state_count[i] * sizeof(double));
        holds = problem_run(cpu, head, path, c->t->chunk, true, &first, c->what) &&
                problem_run(cpu, c->p, path, c->t->chunk, false, &whole, c->what);
    }
    if (holds) {
        join_results(c, head, tail, &first, &second, &whole);
        holds =
            tampered(c, c->p, "split", &whole) && results_near("split", c->p, &whole, &c->s, true, path, &c->m->worst, c->what);
    }
    result_free(&first), result_free(&second), result_free(&whole);
    problem_free(head);
    if (tail) problem_free(tail);
    return holds;
}

/* ---- bit for bit ---------------------------------------------------------------------------------------------------- */

/* All threads together give the bits of one, and each sequence alone those that it has among the others. */
static bool bits_are_same(const check *c, int isa, dr_path path) {
    result one = {0}, more = {0};
    dr_backend *cpu = c->m->cpu[isa][1];
    bool holds = problem_run(cpu, c->p, path, c->t->chunk, true, &one, c->what) &&
                 problem_run(c->m->cpu[isa][c->t->threads], c->p, path, c->t->chunk, true, &more, c->what) &&
                 tampered(c, c->p, "threads", &more) && results_same("another number of threads", c->p, &more, &one, c->what);
    for (int64_t i = 0; i < c->t->sequences && holds && c->t->sequences > 1; i++) {
        problem *own = problem_part(c->p, i, 1, (int64_t[]){0}, &c->t->length[i], NULL);
        result alone;
        holds = problem_run(cpu, own, path, c->t->chunk, true, &alone, c->what) && tampered(c, own, "packed", &alone) &&
                sequence_same(c->p, own, i, &one, &alone, c->what);
        result_free(&alone);
        problem_free(own);
    }
    result_free(&one), result_free(&more);
    return holds;
}

/* The rest of a sequence from its last boundary. */
static bool resumed_is_whole(const check *c, dr_backend *cpu, dr_path path) {
    const int64_t sequence = c->t->sequences - 1, width = c->p->recurrence.value_heads * c->p->recurrence.value_size;
    int64_t token;
    double *states[DR_STATES];
    result whole = {0}, resumed = {0};
    bool holds = problem_boundary(cpu, c->p, path, c->t->chunk, sequence, 0, &token, states, c->what) &&
                 problem_run(cpu, c->p, path, c->t->chunk, false, &whole, c->what);
    if (holds && token >= 0) {
        const int64_t rest = c->t->length[sequence] - token;
        problem *tail = problem_part(c->p, sequence, 1, &token, &rest, states);
        const double *o = whole.o + (c->p->cu_seqlens[sequence] + token) * width;
        holds = problem_run(cpu, tail, path, c->t->chunk, false, &resumed, c->what) && tampered(c, tail, "resumed", &resumed) &&
                numbers_same("resumed", "o", resumed.o, o, tail->o_count, c->what);
        for (int i = 0; i < DR_STATES && holds; i++)
            if (tail->initial[i])
                holds = numbers_same("resumed: final", dr_state_name((dr_state_kind)i), resumed.final[i],
                                     whole.final[i] + sequence * tail->state_count[i], tail->state_count[i], c->what);
        problem_free(tail);
    }
    for (int i = 0; i < DR_STATES; i++) free(states[i]);
    result_free(&whole), result_free(&resumed);
    return holds;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

bool trial_holds(const trial *t, machine *m, fault *what) {
    check c = {.t = t, .m = m, .p = trial_problem(t), .what = what};
    dr_random random = dr_random_start(t->seed, 3);
    const int isa = t->isa < m->isas ? t->isa : m->isas - 1;
    const dr_path path = t->seed % 4 ? DR_PATH_CHUNKWISE : DR_PATH_RECURRENT;
    bool holds = standard_create(m->reference, c.p, &random, &c.s, what) && engines_are_near(&c) &&
                 split_is_whole(&c, m->cpu[isa][1], path) && bits_are_same(&c, isa, path) &&
                 resumed_is_whole(&c, m->cpu[isa][1], path);
    standard_free(&c.s);
    problem_free(c.p);
    return holds;
}
