/* The kernels of rules whose rows read nothing on the host (block.h), where there need be no GPU: scan_linear of
 * backends/cuda/chunkwise and gradients_linear of backends/cuda/backward. A program that prints a line for each case, and exits
 * with 1 and a sentence at the first check that does not hold.
 *
 * Both have an instance for plain calls beside the general one that takes the same calls, which must leave the same bits. The
 * plans, the layouts of memory and the choice of the instance are the project's own. Of every case:
 *
 *     the bits that the general instance leaves, copies and products made at once and threads in turn, are left by both with
 *     copies and products as late as may be, and by threads in a random order with rests or where some warps are far behind
 *     inputs, and memory around the tensors, are as they were
 *     other bytes in memory beforehand give the same results, and what is not written is not touched
 *     a bit of a key that is flipped makes a difference, so that the comparison can fail
 *     outputs and states, and all gradients, are near those by plain loops in double
 *
 * A sequence that is cut goes through carry_linear and join_linear as well, by the project's own launches. */
#include "block.h"

#include "backends/cuda/backward/gradients_linear.cu"
#include "backends/cuda/chunkwise/launch.cuh"
#include "loops.h"

/* Mamba-2, and with a gain of every value. */
static const dr_rule *rule_of(bool gained) {
    static dr_rule rule;
    rule = *dr_rule_find("mamba2");
    if (gained) rule.name = "gained", rule.row[0].gain = DR_GAIN_BETA, rule.row[0].value = DR_VALUE_GAIN;
    return &rule;
}

/* ---- forward ------------------------------------------------------------------------------------------------------------ */

struct scan_setting : call_memory {
    dr_scan_call call;
    int groups;
};

/* How many groups of a thread block compute, and how many parts a sequence has, follows from the multiprocessors. */
typedef struct {
    int processors, groups, parts;
} scan_shape;

static void make_scan(scan_setting *s, const dr_rule *rule, int tokens, const scan_shape &shape) {
    dr_cuda_chunk_plan plan = {};
    make_plan(s, rule, tokens, SIZE, &plan, shape.processors);
    s->groups = dr_group_scan_groups(plan);
    check(plan.linear && plan.linear_back && plan.parts == shape.parts && s->groups == shape.groups,
          "the plan is not what the case is for");
    lay_forward(s, plan, &s->call);
}

static dr_linear_kernel scan_instance(int groups, bool plain) {
    if (groups == 1) return plain ? scan_linear<T, 2, 1, true> : scan_linear<T, 2, 1, false>;
    return plain ? scan_linear<T, 2, 2, true> : scan_linear<T, 2, 2, false>;
}

static result run_scan(scan_setting *s, bool plain, unsigned seed, bool late, unsigned char before) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    const int columns = dr_scan_groups(s->call), beside = dr_linear_beside(s->groups);
    const dr_group_scan_call scan = dr_group_scan_lay(s->call, s->groups, false, false, beside);
    check(dr_linear_choose<T, 2>(plan, s->groups) == scan_instance(s->groups, true), "the call is not plain");
    return run_kernel(s, seed, late, before, [&] {
        return dr_cuda_launch("scan_linear", scan_instance(s->groups, plain),
                              {dr_group_scan_chains(plan), (columns + s->groups - 1) / s->groups}, DR_LINEAR_THREADS,
                              dr_group_scan_bytes(scan) + beside, dr_cuda_stream{}, dr_linear_call_of(scan, s->groups));
    });
}

static void check_forward(const dr_rule *rule, int tokens, const scan_shape &shape) {
    check_case(rule->name, tokens, SIZE, [&] {
        scan_setting s = {};
        make_scan(&s, rule, tokens, shape);
        check_instances([&](bool plain, auto... how) { return run_scan(&s, plain, how...); }, [&] { check_scan(s.call); },
                        last_key(s.call.plan));
    });
}

/* Of a sequence that is cut: the states between its parts by carry_linear and join_linear first. */
static result run_cut(scan_setting *s, unsigned seed, bool late, unsigned char before) {
    dr_scan_call first = s->call;
    first.summary = true, first.o = first.saved = NULL;
    return run_kernel(s, seed, late, before, [&] {
        const dr_cuda_chunk_tensors &tensors = s->call.tensors;
        const dr_status status = dr_launch_linear_parts<T, false>(first, tensors.local, tensors.entry, tensors.passage, {});
        return status == DR_OK ? dr_launch_linear<T>(s->call, {}) : status;
    });
}

/* Of one head decays leave nothing within two chunks, at which the first pass stops, of the other one a part of it all. */
static void check_cut(const dr_rule *rule, int tokens, const scan_shape &shape) {
    check_case(rule->name, tokens, SIZE, [&] {
        scan_setting s = {};
        make_scan(&s, rule, tokens, shape);
        float *decays = (float *)s.call.plan.rows.input[DR_INPUT_LOG_DECAY].at;
        for (int i = 1; i < SEQUENCES * tokens * HEADS; i += HEADS) decays[i] *= 0.01f;
        check_orders([&](auto... how) { return run_cut(&s, how...); }, [&] { check_scan(s.call); }, last_key(s.call.plan));
    });
}

/* ---- backward ----------------------------------------------------------------------------------------------------------- */

struct back_setting : call_memory {
    dr_cuda_backward_call call;
};

static void make_back(back_setting *s, const dr_rule *rule, int tokens) {
    make_plan(s, rule, tokens, SIZE, &s->call.plan);
    lay_backward(s, &s->call);
    keep_earlier(s, s->call.back.d_exit, (size_t)s->call.plan.blocks * SIZE * SIZE * sizeof(T));
}

static result run_back(back_setting *s, bool plain, unsigned seed, bool late, unsigned char before) {
    const gradients_call known = gradients_of(s->call);
    check(gradients_plain(known, READS_NOTHING), "the call is not plain");
    return run_kernel(s, seed, late, before, [&] {
        if (plain) return launch<T, 2, 2>(&s->call, {});
        return dr_cuda_launch("gradients_linear", gradients_linear<T, 2, 2, false>, {2}, linear_shape<2, 2>::threads,
                              LINEAR_BYTES, dr_cuda_stream{}, known);
    });
}

typedef struct {
    distance query, key, value, gain, decay;
} back_distances;

/* The gradients of a chunk by the equations of gradients_linear.cu, in double. */
static void add_chunk_distances(const back_setting *s, int64_t block, back_distances *to) {
    const dr_cuda_backward_call &call = s->call;
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_row_block x = dr_row_block_of(call.plan, NULL, (unsigned)block);
    const int count = x.rows;
    const head_of_doubles head = {&call.plan, (int)x.place.sequence, x.head};
    const int64_t begin = x.place.first - head.token(0);
    const auto at = [&](int row) { return head.vector_at(begin + row); };
    const auto of = [&](const void *tensor, int row, int i) { return element(tensor, at(row) + i); };
    const auto state = [&](const void *tensor, int v, int k) { return element(tensor, (block * SIZE + v) * SIZE + k); };
    const void *query = rows.input[DR_INPUT_QUERY].at, *key = rows.input[DR_INPUT_KEY].at,
               *value = rows.input[DR_INPUT_VALUE].at, *entry = call.saved, *exit = call.back.d_exit;
    double decay[64], factor[64]; /* decay: from the chunk's start to after the row */
    static double score[64][64], error[64][64], from_state[64], to_state[64];
    for (int i = 0; i < count; i++) {
        decay[i] = (i ? decay[i - 1] : 1) * head.alpha(begin + i, 0);
        factor[i] = head.row(begin + i, 0).value;
        for (int j = 0; j <= i; j++) {
            double asked = 0, given = 0;
            for (int k = 0; k < SIZE; k++) asked += of(query, i, k) * of(key, j, k);
            for (int v = 0; v < SIZE; v++) given += of(call.d_o, i, v) * of(value, j, v);
            score[i][j] = rows.scale * decay[i] / decay[j] * asked;
            error[i][j] = rows.scale * decay[i] / decay[j] * given * factor[j];
        }
    }
    double both = 0; /* S . dS' */
    for (int v = 0; v < SIZE; v++)
        for (int k = 0; k < SIZE; k++) both += state(entry, v, k) * state(exit, v, k);
    for (int i = 0; i < count; i++) {
        double of_gain = 0;
        from_state[i] = to_state[i] = 0;
        for (int k = 0; k < SIZE; k++) {
            double asked = 0, written = 0, got = 0, rest = 0;
            for (int v = 0; v < SIZE; v++) {
                asked += rows.scale * decay[i] * state(entry, v, k) * of(call.d_o, i, v);
                written += factor[i] * decay[count - 1] / decay[i] * state(exit, v, k) * of(value, i, v);
                got += decay[count - 1] / decay[i] * state(exit, k, v) * of(key, i, v); /* of column k of V */
            }
            from_state[i] += asked * of(query, i, k);
            to_state[i] += written * of(key, i, k);
            for (int j = 0; j <= i; j++) asked += error[i][j] * of(key, j, k);
            for (int j = i; j < count; j++) {
                written += error[j][i] * of(query, j, k);
                rest += score[j][i] * of(call.d_o, j, k);
            }
            of_gain += (got + rest) * of(value, i, k);
            const auto gradient = [&](dr_input input) { return element(rows.input[input].gradient, at(i) + k); };
            add_distance(&to->query, gradient(DR_INPUT_QUERY), asked);
            add_distance(&to->key, gradient(DR_INPUT_KEY), written);
            add_distance(&to->value, gradient(DR_INPUT_VALUE), factor[i] * (got + rest));
        }
        const dr_cuda_input &beta = rows.input[DR_INPUT_BETA];
        if (beta.at && beta.gradient)
            add_distance(&to->gain, (double)((const float *)beta.gradient)[(x.place.first + i) * HEADS + x.head], of_gain);
    }
    const dr_cuda_input &decays = rows.input[DR_INPUT_LOG_DECAY];
    for (int t = 0; t < count && decays.at; t++) {
        double sum = decay[count - 1] * both;
        const bool begins = t == 0 && x.place.first % call.plan.length == 0; /* a sequence, before which there is no state */
        for (int i = t; i < count; i++) {
            sum += from_state[i];
            for (int j = 0; j < t; j++) {
                double asked = 0;
                for (int k = 0; k < SIZE; k++) asked += of(query, i, k) * of(key, j, k);
                sum += error[i][j] * asked;
            }
        }
        for (int j = 0; j < t; j++) sum += to_state[j];
        add_distance(&to->decay, (double)((const float *)decays.gradient)[(x.place.first + t) * HEADS + x.head],
                     begins && !call.initial ? 0 : sum);
    }
}

static void check_gradients(const back_setting *s) {
    back_distances d = {};
    for (int64_t block = 0; block < s->call.plan.blocks; block++) add_chunk_distances(s, block, &d);
    check_near(d.query, "gradients of queries are not those of the plain loops");
    check_near(d.key, "gradients of keys are not those of the plain loops");
    check_near(d.value, "gradients of values are not those of the plain loops");
    if (d.gain.size > 0) check_near(d.gain, "gradients of gains are not those of the plain loops");
    if (d.decay.size > 0) check_near(d.decay, "gradients of decays are not those of the plain loops");
}

static void check_backward(const dr_rule *rule, int tokens) {
    check_case(rule->name, tokens, SIZE, [&] {
        back_setting s = {};
        make_back(&s, rule, tokens);
        check_instances([&](bool plain, auto... how) { return run_back(&s, plain, how...); }, [&] { check_gradients(&s); },
                        last_key(s.call.plan));
    });
}

int main() {
    static const int tokens[] = {150, 128, 401};
    for (int count : tokens) {
        check_forward(rule_of(false), count, {2, 2, 1});
        check_forward(rule_of(true), count, {64, 1, 1});
        check_backward(rule_of(true), count);
    }
    check_cut(rule_of(true), 3 * 1024 + 40, {6, 2, 3});
    return 0;
}
