/* The kernel keys_channel of backends/cuda/backward/keys_channel.cu on the host (block.h): a program that prints a line for
 * each case, and exits with 1 and a sentence at the first check that does not hold. Plans, the layouts of memory and the choice
 * of the form are the project's own; tensors, and what earlier stages would have left, are random numbers. Of every case:
 *
 *     the bits that the general form of a rule leaves, copies made at once and threads in turn, are left by it and by the lean
 *     form with copies as late as may be, and by threads in a random order with rests
 *     inputs, and memory around the tensors, are as they were
 *     other bytes in memory beforehand give the same results, and what is not written is not touched
 *     a bit of a key that is flipped makes a difference, so that the comparison can fail
 *     gradients of queries, keys and gates are near those by plain loops in double, where a token has one row
 *
 * with chunks that are mild, and some of which 64 channels are not (chunkwise/mild.cuh); and what mild chunks leave is near
 * what the longer way makes of the same numbers.
 *
 * With the diagonal scan K is 64: with 128, two thread blocks wait for one another's numbers, and here they run one after
 * another. */
#include "block.h"

#include "backends/cuda/backward/keys_channel.cu"
#include "call.h"

/* Of gradients.cu, which no call with a decay of each channel comes to. */
extern "C" bool dr_cuda_backward_fuses(const dr_cuda_chunk_plan *plan) {
    check(plan->rows.channel_decay, "the call has no decay of each channel");
    return false;
}

enum { V = 128 };

struct setting : call_memory {
    dr_cuda_backward_call call;
    keys_kernel general;
};

static void fill_scores(setting *s, void *to, bool diagonal) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    for (int64_t i = 0; i < plan.blocks * 64 * 64; i++) {
        const int row = (int)(i / 64 % 64), column = (int)(i % 64);
        ((T *)to)[i] = column < row + diagonal ? normal(s, 0.3f) : __float2bfloat16_rn(0);
    }
}

/* Of rows that are there, and zeros. */
static void fill_rows(setting *s, void *to) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    for (int64_t block = 0; block < plan.blocks; block++) {
        const dr_row_block x = dr_row_block_of(plan, NULL, (unsigned)block);
        for (int i = 0; i < 64 * V; i++) ((T *)to)[block * 64 * V + i] = i / V < x.rows ? normal(s, 1) : __float2bfloat16_rn(0);
    }
}

static void make_call(setting *s, const char *rule, int tokens, int size) {
    dr_cuda_backward_call *call = &s->call;
    dr_cuda_chunk_plan *plan = &call->plan;
    make_plan(s, dr_rule_find(rule), tokens, size, plan);
    make_steep(*plan);
    lay_backward(s, call);
    for (int64_t i = 0; i < plan->blocks * plan->key_width && plan->rows.diagonal_scan; i++)
        call->chunk.scan.entry[i] = uniform(s, 0, 1);
    for (int64_t i = 0; i < plan->tokens * HEADS * size && plan->rows.input[DR_SOURCE_SQUASHED].at; i++)
        ((T *)plan->rows.input[DR_SOURCE_SQUASHED].at)[i] = normal(s, 0.1f);
    for (int64_t i = 0; i < plan->blocks * plan->key_width; i++) call->chunk.keep[i] = uniform(s, 0.1f, 1);
    for (int64_t i = 0; i < plan->blocks * 64; i++)
        dr_put_factors(call->chunk.factors[i / 64], (int)(i % 64), {uniform(s, 0.1f, 1), 1, 1, plan->rows.scale});
    fill_rows(s, call->back.d_update);
    fill_rows(s, call->back.update);
    fill_scores(s, call->back.d_score, true);
    if (call->back.d_erase) fill_scores(s, call->back.d_erase, false);
    for (int64_t i = 0; i < plan->blocks * 64; i++) call->back.write_dot[i] = uniform(s, -1, 1);
    const size_t rows = (size_t)plan->blocks * 64;
    keep_earlier(s, call->back.d_exit, (size_t)plan->blocks * V * (size_t)plan->key_width * sizeof(T));
    keep_earlier(s, call->back.d_update, rows * V * sizeof(T));
    keep_earlier(s, call->back.update, rows * V * sizeof(T));
    keep_earlier(s, call->back.d_score, rows * 64 * sizeof(T));
    if (call->back.d_erase) keep_earlier(s, call->back.d_erase, rows * 64 * sizeof(T));
    keep_earlier(s, call->back.write_dot, rows * sizeof(float));
}

static result run(setting *s, bool lean, unsigned seed, bool late, unsigned char before) {
    const dr_cuda_backward_call *call = &s->call;
    return run_kernel(s, seed, late, before, [&] {
        check(begin_scan(call->plan, call->chain) == DR_OK, "the launch fails");
        return launch(call, lean ? choose_form<T>(*call) : s->general, sizeof(T), {});
    });
}

/* ---- against plain loops ------------------------------------------------------------------------------------------------ */

/* Gradients of the queries, keys and gates of a chunk by the equations of keys.cuh, in double. */
static void check_chunk(const setting *s, int64_t block) {
    const dr_cuda_backward_call &call = s->call;
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_row_block x = dr_row_block_of(call.plan, NULL, (unsigned)block);
    const int K = rows.key_size, count = x.rows;
    const dr_cuda_row &row = rows.row[0];
    const bool reads = row.reads != DR_READS_NONE, gated = row.reads == DR_READS_PRODUCT;
    const auto place = [&](int i, int k) { return ((x.place.first + i) * HEADS + x.head) * K + k; };
    const auto input = [&](dr_input which, int i, int k) { return element(rows.input[which].at, place(i, k)); };
    const auto gradient = [&](dr_input which, int i, int k) { return element(rows.input[which].gradient, place(i, k)); };
    distance query = {}, key = {}, gate = {};
    for (int k = 0; k < K; k++) {
        double decay[64], w[64], r[64], q[64]; /* decay: from before the chunk to after row i */
        for (int i = 0; i < count; i++) {
            const double step = exp((double)((const float *)rows.input[DR_INPUT_LOG_DECAY].at)[place(i, k)]);
            decay[i] = (i ? decay[i - 1] : 1) * step;
            w[i] = input(DR_INPUT_KEY, i, k), q[i] = input(DR_INPUT_QUERY, i, k);
            r[i] = !reads  ? 0
                   : gated ? (double)__bfloat162float(__float2bfloat16_rn((float)(w[i] * input(DR_INPUT_ERASE_GATE, i, k))))
                           : w[i];
        }
        const auto score = [&](const void *scores, int i, int j) {
            return scores ? element(scores, (block * 64 + i) * 64 + j) : 0;
        };
        for (int i = 0; i < count; i++) {
            double of_query = 0, of_read = 0, of_write = 0;
            const auto gain = [&](int n) { return (double)call.chunk.factors[block].gain[n]; };
            for (int v = 0; v < V; v++) {
                const int64_t state = (block * V + v) * K + k;
                of_query += rows.scale * decay[i] * element(call.saved, state) *
                            element(call.d_o, ((x.place.first + i) * HEADS + x.head) * V + v);
                if (reads)
                    of_read += decay[i] * element(call.saved, state) * element(call.back.d_update, (block * 64 + i) * V + v);
                of_write += decay[count - 1] / decay[i] * element(call.back.d_exit, state) *
                            element(call.back.update, (block * 64 + i) * V + v);
            }
            for (int j = 0; j <= i; j++) {
                of_query += score(call.back.d_score, i, j) * w[j] * decay[i] / decay[j];
                of_read += score(call.back.d_erase, i, j) / dr_score_gain((float)gain(i)) * w[j] * decay[i] / decay[j];
            }
            for (int j = i; j < count; j++)
                of_write += decay[j] / decay[i] *
                            (score(call.back.d_score, j, i) * q[j] -
                             gain(j) / dr_score_gain((float)gain(j)) * score(call.back.d_erase, j, i) * r[j]);
            of_read *= -gain(i);
            add_distance(&query, gradient(DR_INPUT_QUERY, i, k), of_query);
            if (gated) add_distance(&gate, gradient(DR_INPUT_ERASE_GATE, i, k), of_read * w[i]);
            add_distance(&key, gradient(DR_INPUT_KEY, i, k),
                         of_write + (gated   ? of_read * input(DR_INPUT_ERASE_GATE, i, k)
                                     : reads ? of_read
                                             : 0));
        }
    }
    check_near(query, "gradients of queries are not those of the plain loops");
    check_near(key, "gradients of keys are not those of the plain loops");
    if (gated) check_near(gate, "gradients of gates are not those of the plain loops");
}

static void check_against_loops(const setting *s) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    for (int64_t block = 0; block < plan.blocks && plan.rows.steps == 1 && !plan.rows.diagonal_scan; block++)
        check_chunk(s, block);
}

/* ---- mild chunks against all others -------------------------------------------------------------------------------------- */

/* What a run has left of each gradient, and of parts that later stages add up. */
static std::vector<std::vector<double>> gradients_of(const setting *s) {
    const dr_cuda_backward_call &call = s->call;
    const dr_cuda_rows &rows = call.plan.rows;
    std::vector<std::vector<double>> all;
    const auto add = [&](const void *at, int64_t count, bool vector) {
        std::vector<double> values((size_t)(at ? count : 0));
        for (size_t i = 0; i < values.size(); i++)
            values[i] = vector ? element(at, (int64_t)i) : (double)((const float *)at)[i];
        all.push_back(values);
    };
    for (int n = 0; n < DR_INPUTS; n++)
        if (rows.input[n].gradient)
            add(rows.input[n].gradient, dr_recurrence_input_count(&s->recurrence, (dr_input)n),
                dr_input_is_vector((dr_input)n));
    const int64_t parts = call.plan.blocks * call.plan.key_width; /* a number for each row of each 64 channels */
    if (call.plan.reads) add(call.back.gain_part, parts, false);
    if (!rows.diagonal_scan) return all;
    add(call.back.scan_gain_part, parts, false);
    add(call.back.scan_decay_part, parts, false);
    return all;
}

/* Log decays of each chunk's first token, of a channel of each 64. One that is positive, be it ever so small, sends the chunk
 * the longer way. */
static void begin_chunks(const dr_cuda_chunk_plan &plan, float log_decay) {
    const dr_cuda_input &decays = plan.rows.input[DR_INPUT_LOG_DECAY];
    for (int64_t token = 0; token < plan.tokens; token++)
        for (int head = 0; head < HEADS && token % plan.length % plan.chunk == 0; head++)
            for (int k = 0; k < plan.key_width; k += 64)
                ((float *)decays.at)[dr_input_index(decays, token, 0, head) + k] = log_decay;
}

static void check_ways(setting *s) {
    begin_chunks(s->call.plan, 0);
    run(s, true, 0, false, BEFORE);
    const auto mild = gradients_of(s);
    begin_chunks(s->call.plan, 1e-30f);
    run(s, true, 0, false, BEFORE);
    const auto other = gradients_of(s);
    check(mild != other, "mild chunks go the same way as all others");
    for (size_t i = 0; i < mild.size(); i++) {
        distance d = {};
        for (size_t j = 0; j < mild[i].size(); j++) add_distance(&d, mild[i][j], other[i][j]);
        check_near(d, "mild chunks leave other gradients than they would by the longer way");
    }
}

/* ---- cases -------------------------------------------------------------------------------------------------------------- */

static void check_rule(const char *rule, keys_kernel general, int tokens, int size) {
    check_case(rule, tokens, size, [&] {
        setting s = {};
        make_call(&s, rule, tokens, size);
        s.general = general;
        check(choose_form<T>(s.call) != general, "there is no lean form of the rule");
        check_instances([&](bool lean, auto... how) { return run(&s, lean, how...); }, [&] { check_against_loops(&s); },
                        (uint16_t *)s.call.plan.rows.input[DR_INPUT_KEY].at + (tokens - 1) * HEADS * size);
        check_ways(&s);
    });
}

int main() {
    static const int tokens[] = {150, 128};
    for (int count : tokens) {
        check_rule("kda", keys_channel<T, READS | SINGLE>, count, 128);
        check_rule("gdn2", keys_channel<T, READS | GATED | SINGLE>, count, 128);
        check_rule("gla", keys_channel<T, 0>, count, 128);
        check_rule("eda", keys_channel<T, READS | PAIRS>, count, 128);
        check_rule("pkda", keys_channel_made<T, READS | SINGLE | MADE, 1>, count, 64);
    }
    return 0;
}
