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
 * With the diagonal scan K is 64: with 128, two thread blocks of a cluster store to one another's memory. */
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
    std::vector<char> workspace; /* what earlier stages leave, which the kernel reads */
    tensor *left_workspace;
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
    make_plan(s, rule, tokens, size, plan);
    s->left_workspace = lay_backward(s, call);
    for (int64_t i = 0; i < plan->blocks * plan->key_width && plan->rows.diagonal_scan; i++)
        call->chunk.scan.entry[i] = uniform(s, 0, 1);
    for (int64_t i = 0; i < plan->tokens * HEADS * size && plan->rows.squashed; i++)
        ((T *)plan->rows.squashed)[i] = normal(s, 0.1f);
    for (int64_t i = 0; i < plan->blocks * plan->key_width; i++) call->chunk.keep[i] = uniform(s, 0.1f, 1);
    for (int64_t i = 0; i < plan->blocks * 64; i++) call->chunk.factors[i] = {uniform(s, 0.1f, 1), 1, 1, plan->rows.scale};
    fill_rows(s, call->back.d_update);
    fill_rows(s, call->back.update);
    fill_scores(s, call->back.d_score, true);
    if (call->back.d_erase) fill_scores(s, call->back.d_erase, false);
    for (int64_t i = 0; i < plan->blocks * 64; i++) call->back.write_dot[i] = uniform(s, -1, 1);
    s->workspace.assign(s->left_workspace->at, s->left_workspace->at + s->left_workspace->size);
}

/* before: every byte of what is left, but of what earlier stages leave, of shared memory and of stacks. */
static result run(setting *s, bool lean, unsigned seed, bool late, unsigned char before) {
    const dr_cuda_backward_call *call = &s->call;
    const dr_cuda_chunk_plan &plan = call->plan;
    const dr_cuda_backward_tensors &back = call->back;
    const size_t states = (size_t)plan.blocks * V * (size_t)plan.key_width * sizeof(T),
                 vectors = (size_t)plan.blocks * 64 * V * sizeof(T), scores = (size_t)plan.blocks * 64 * 64 * sizeof(T);
    const struct {
        void *at;
        size_t size;
    } read[] = {{back.d_exit, states},  {back.d_update, vectors}, {back.update, vectors},
                {back.d_score, scores}, {back.d_erase, scores},   {back.write_dot, (size_t)plan.blocks * 64 * sizeof(float)}};
    const result given = bytes_of(s->given);
    const auto earlier = [&](const void *at) { return s->workspace.data() + ((const char *)at - s->left_workspace->at); };
    for (tensor &t : s->left) memset(t.at, before, t.size);
    for (const auto &x : read)
        if (x.at) memcpy(x.at, earlier(x.at), x.size);
    manner = {0, false, before};
    if (plan.scan_inside)
        check(dr_cuda_diagonal_begin_inside(&plan, NULL, &call->chain, NULL, NULL) == DR_OK, "the launch fails");
    manner = {seed, late, before};
    check(launch(call, lean ? choose_form<T>(*call) : s->general, sizeof(T), NULL) == DR_OK, "the launch fails");
    check(bytes_of(s->given) == given, "an input is written to");
    for (const auto &x : read)
        if (x.at) check(!memcmp(x.at, earlier(x.at), x.size), "what an earlier stage left is written to");
    for (const tensor &t : s->given) check(room_is_untouched(t), "memory around an input is written to");
    for (const tensor &t : s->left) check(room_is_untouched(t), "memory around an output is written to");
    return bytes_of(s->left);
}

/* ---- against plain loops ------------------------------------------------------------------------------------------------ */

typedef struct {
    double error, size; /* sums of squares */
} distance;

static double element(const void *tensor, int64_t at) {
    return (double)__bfloat162float(((const T *)tensor)[at]);
}

/* Gradients of the queries, keys and gates of a chunk by the equations of keys.cuh, in double; all within a hundredth. */
static void check_chunk(const setting *s, int64_t block) {
    const dr_cuda_backward_call &call = s->call;
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_row_block x = dr_row_block_of(call.plan, NULL, (unsigned)block);
    const int K = rows.key_size, count = x.rows;
    const dr_row &row = rows.row[0];
    const bool reads = row.read != DR_READ_NONE, gated = row.read == DR_READ_GATED_KEY;
    const auto place = [&](int i, int k) { return ((x.place.first + i) * HEADS + x.head) * K + k; };
    const auto input = [&](dr_input which, int i, int k) { return element(rows.input[which].at, place(i, k)); };
    const auto gradient = [&](dr_input which, int i, int k) { return element(rows.input[which].gradient, place(i, k)); };
    distance query = {}, key = {}, gate = {};
    const auto add = [](distance *d, double is, double wanted) {
        d->error += (is - wanted) * (is - wanted), d->size += wanted * wanted;
    };
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
            const auto gain = [&](int n) { return (double)call.chunk.factors[block * 64 + n].gain; };
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
            add(&query, gradient(DR_INPUT_QUERY, i, k), of_query);
            if (gated) add(&gate, gradient(DR_INPUT_ERASE_GATE, i, k), of_read * w[i]);
            add(&key, gradient(DR_INPUT_KEY, i, k),
                of_write + (gated   ? of_read * input(DR_INPUT_ERASE_GATE, i, k)
                            : reads ? of_read
                                    : 0));
        }
    }
    const auto near = [](const distance &d) { return d.error <= 1e-4 * d.size; };
    check(near(query), "gradients of queries are not those of the plain loops");
    check(near(key), "gradients of keys are not those of the plain loops");
    check(near(gate), "gradients of gates are not those of the plain loops");
}

/* ---- cases -------------------------------------------------------------------------------------------------------------- */

static void check_case(const char *rule, keys_kernel general, int tokens, int size) {
    enum { BEFORE = 0xa5, BEFORE_AGAIN = 0x5a };
    static const struct {
        unsigned seed;
        bool late;
    } manners[] = {{0, false}, {0, true}, {1, true}};
    char name[32];
    snprintf(name, sizeof name, "%s %d", rule, tokens);
    case_name = name;
    const double start = dr_clock_now();
    const long checks_before = checks;
    setting s = {};
    make_call(&s, rule, tokens, size);
    s.general = general;
    check(choose_form<T>(s.call) != general, "there is no lean form of the rule");
    const result want = run(&s, false, 0, false, BEFORE);
    if (s.call.plan.rows.steps == 1 && !s.call.plan.rows.diagonal_scan)
        for (int64_t block = 0; block < s.call.plan.blocks; block++) check_chunk(&s, block);
    for (const auto &m : manners) {
        if (m.late)
            check(run(&s, false, m.seed, m.late, BEFORE) == want, "the general form depends on the order of what happens");
        check(run(&s, true, m.seed, m.late, BEFORE) == want, "the lean form leaves other bits than the general one");
    }
    check(same_where_written(want, BEFORE, run(&s, true, 0, false, BEFORE_AGAIN), BEFORE_AGAIN),
          "results depend on what was in memory before");
    uint16_t *key = (uint16_t *)s.call.plan.rows.input[DR_INPUT_KEY].at + (tokens - 1) * HEADS * size;
    *key ^= 8;
    check(run(&s, true, 0, false, BEFORE) != want, "a bit of a key makes no difference");
    printf("%-9s K %3d %6ld checks %6.1f s  all right\n", name, size, checks - checks_before, dr_clock_now() - start);
    fflush(stdout);
}

int main() {
    static const int tokens[] = {150, 128};
    for (int count : tokens) {
        check_case("kda", keys_channel<T, READS | SINGLE>, count, 128);
        check_case("gdn2", keys_channel<T, READS | GATED | SINGLE>, count, 128);
        check_case("gla", keys_channel<T, 0>, count, 128);
        check_case("eda", keys_channel<T, READS | PAIRS>, count, 128);
        check_case("pkda", keys_channel_made<T, READS | SINGLE | MADE, 1>, count, 64);
    }
    return 0;
}
