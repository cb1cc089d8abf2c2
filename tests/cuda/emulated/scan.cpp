/* The forward by chunks of backends/cuda/chunkwise on the host (block.h), where there need be no GPU: prepare and, behind it,
 * the scan by warp groups, with one and with two groups of columns; or one kernel for both. A program that prints a line for
 * each case, and exits with 1 and a sentence at the first check that does not hold.
 *
 * The plans, the layouts of memory and the choice of the kernels are the project's own. Of every case:
 *
 *     outputs, the states before each chunk and those behind the sequences are near plain loops in double
 *     their bits are the same with copies and products as late as may be, and by threads in a random order with rests or where
 *     some warps are far behind
 *     inputs, and memory around the tensors, are as they were
 *     other bytes in memory beforehand give the same results, and what is not written is not touched
 *     a bit of a key that is flipped makes a difference, so that the comparison can fail */
#include "block.h"

#include "backends/cuda/chunkwise/launch.cuh"
#include "backends/cuda/engine/made.cu"
#include "loops.h"

struct setting : call_memory {
    dr_scan_call call;
};

static result run(setting *s, unsigned seed, bool late, unsigned char before) {
    return run_kernel(s, seed, late, before, [&] {
        if (!s->call.plan.one_pass) {
            check(begin_scan(s->call.plan, s->call.tensors.scan) == DR_OK, "what goes before the diagonal scan fails");
            check(dr_launch_prepare<T>(&s->call.plan, &s->call.tensors, {}) == DR_OK, "prepare fails");
        }
        return dr_launch_group_scan<T>(&s->call, {});
    });
}

/* processors: what the number of groups follows from. beside: prepare's blocks stay, in the scan's order, and raise flags. */
static void check_rule(const char *rule, int tokens, int processors, int groups, bool beside = false, int size = SIZE) {
    check_case(rule, tokens, size, [&] {
        setting s = {};
        dr_cuda_chunk_plan plan = {};
        make_plan(&s, dr_rule_find(rule), tokens, size, &plan, processors, true, size);
        if (beside) dr_cuda_chunk_plan_stages(&plan);
        check((plan.beside.processors > 0) == beside, "prepare is not where the case is for");
        check((plan.warpgroups || dr_cuda_scan_wide(&plan)) && !plan.linear && plan.parts == 1 && !plan.scan_inside &&
                  dr_group_scan_groups(plan) == groups,
              "the plan is not what the case is for");
        lay_forward(&s, plan, &s.call);
        check_orders([&](auto... how) { return run(&s, how...); }, [&] { check_scan(s.call); }, last_key(plan));
    });
}

/* What the diagonal scan is made in, with an A before the sequences and one behind them; saves: and its write keys. */
static void lay_scan(setting *s, bool saves) {
    dr_cuda_diagonal_chain &chain = s->call.tensors.scan;
    const auto lay = [&](char *block) {
        dr_arena arena = {};
        arena.block = block;
        dr_cuda_diagonal_lay(&s->call.plan, &arena, &chain);
        chain.entry = (float *)dr_arena_take(&arena, dr_cuda_diagonal_entry_bytes(&s->call.plan));
        chain.final = (float *)dr_arena_take(&arena, SEQUENCES * HEADS * SIZE * sizeof(float));
        if (saves) dr_cuda_diagonal_lay_made(&s->call.plan, &arena);
        return arena.used;
    };
    lay(add_tensor(&s->left, lay(NULL))->at);
    float *initial = (float *)add_tensor(&s->given, SEQUENCES * HEADS * SIZE * sizeof(float))->at;
    for (int i = 0; i < SEQUENCES * HEADS * SIZE; i++) initial[i] = uniform(s, 0, 0.1f);
    chain.initial = initial;
}

typedef struct {
    const char *rule;
    int tokens;
    bool boxed;   /* tensors are moved as boxes */
    bool tanh;    /* of the squash */
    bool saves;   /* what a backward wants, too */
    dr_read read; /* in the place of what the rule reads, if it is not DR_READ_NONE */
    dr_write write;
    dr_query query;
    int size; /* of K and V, if it is not SIZE */
    bool undecayed;
} one_case;

/* What the rows' products or queries are, in memory, in the place of their input. */
static dr_cuda_rows make_in_memory(setting *s) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    dr_cuda_made made;
    dr_cuda_rows rows = plan.rows;
    dr_arena arena = {};
    dr_cuda_made_lay(false, DR_BF16, plan.tokens, &rows, &arena, &made);
    arena = {};
    arena.block = add_tensor(&s->given, (size_t)plan.tokens * HEADS * SIZE * sizeof(T))->at;
    rows = plan.rows;
    dr_cuda_made_lay(false, DR_BF16, plan.tokens, &rows, &arena, &made);
    manner = {1, false, 0};
    check(dr_cuda_made_make(&made, &rows, DR_BF16, false, {}) == DR_OK, "making fails");
    return rows;
}

/* One kernel for both stages leaves the bits of the two, also where it makes what is made in memory before those; where rows
 * read key + lambda query, which it rounds, nearly those. */
static void check_one_pass(const one_case &c) {
    const int size = c.size ? c.size : SIZE;
    char name[32];
    dr_rule rule = *dr_rule_find(c.rule);
    if (c.read != DR_READ_NONE) rule.row[0].read = c.read;
    if (c.write != DR_WRITE_KEY) rule.row[0].write = c.write;
    if (c.query != DR_QUERY_PLAIN) rule.query = c.query;
    rule.row[0].undecayed = c.undecayed;
    snprintf(name, sizeof name, "%s%s%s%s%d%d%d", c.rule, c.tanh ? "t" : "", c.saves ? "s" : "", c.undecayed ? "u" : "",
             (int)c.read, (int)c.write, (int)c.query);
    check_case(name, c.tokens, size, [&] {
        setting s = {};
        dr_cuda_chunk_plan plan = {};
        make_plan(&s, &rule, c.tokens, size, &plan, 2 * size / SIZE, true, size);
        dr_cuda_chunk_plan_stages(&plan);
        check(plan.one_pass, "prepare and scan are not one kernel");
        check(plan.made_within == (plan.rows.products || plan.rows.query_made),
              "what rows are made of is made before the kernel");
        dr_arena workspace = {};
        dr_cuda_chunk_tensors between;
        dr_cuda_chunk_lay_between(&plan, false, &workspace, &between);
        dr_cuda_chunk_lay_rest(&plan, &workspace, &between);
        check((workspace.used > 0) == dr_cuda_one_pass_boxed(&plan),
              "there is workspace just for what may also go by two kernels");
        lay_forward(&s, plan, &s.call);
        if (!c.saves) s.call.saved = NULL;
        if (plan.scan_inside) lay_scan(&s, c.saves);
        s.call.plan.rows.aligned = c.boxed;
        s.call.plan.rows.squash.tanh = c.tanh;
        const size_t vectors = (size_t)(SEQUENCES * c.tokens * HEADS * size), states = (size_t)(SEQUENCES * HEADS * size);
        const auto left = [&] {
            result all;
            const auto add = [&](const void *at, size_t bytes) {
                if (at) all.emplace_back((const char *)at, (const char *)at + bytes);
            };
            const dr_cuda_diagonal_chain &chain = s.call.tensors.scan;
            add(s.call.o, vectors * sizeof(T)), add(s.call.final, states * (size_t)size * sizeof(float));
            add(chain.final, states * sizeof(float));
            if (!c.saves) return all;
            add(s.left[0].at, s.left[0].size), add(s.call.saved, dr_cuda_chunk_saved_bytes(&plan));
            if (plan.scan_inside) add(chain.entry, dr_cuda_diagonal_entry_bytes(&plan));
            add(s.call.plan.rows.input[DR_SOURCE_SQUASHED].at, vectors * sizeof(T));
            return all;
        };
        const dr_cuda_rows rows = s.call.plan.rows;
        s.call.plan.one_pass = s.call.plan.made_within = false;
        if (plan.made_within) s.call.plan.rows = make_in_memory(&s);
        const dr_scan_call in_memory = s.call;
        run(&s, 0, false, BEFORE);
        const result two = left();
        s.call.plan.one_pass = true, s.call.plan.made_within = plan.made_within;
        s.call.plan.rows = rows;
        check_orders([&](auto... how) { return run(&s, how...); },
                     [&] {
                         if (!plan.scan_inside) check_scan(in_memory); /* whose loops know no diagonal scan */
                         check(plan.reader_sum || left() == two, "one kernel for both stages leaves other bits than the two");
                     },
                     last_key(plan));
    });
}

/* ---- parts that begin early ---------------------------------------------------------------------------------------------- */

/* ln of the norm of I - c w r^T, by squaring it again and again. */
static double growth_of(const std::vector<double> &w, const std::vector<double> &r, double c, dr_random *random) {
    const size_t K = w.size();
    std::vector<double> x(K);
    for (double &e : x) e = dr_random_normal(random);
    double square = 0;
    for (int step = 0; step < 2000; step++) {
        const auto subtract = [&](const std::vector<double> &to, const std::vector<double> &from) {
            double dot = 0;
            for (size_t k = 0; k < K; k++) dot += from[k] * x[k];
            for (size_t k = 0; k < K; k++) x[k] -= c * to[k] * dot;
        };
        subtract(w, r), subtract(r, w);
        square = 0;
        for (double e : x) square += e * e;
        square = sqrt(square);
        for (double &e : x) e /= square;
    }
    return 0.5 * log(square);
}

/* What a row may add to a state: of a key + lambda query and the key its norm, where the diagonal scan makes the write key no
 * less than that. */
static void check_growth() {
    check_case("growth", 0, 8, [] {
        dr_random random = dr_random_start(5, 1);
        for (int i = 0; i < 300; i++) {
            std::vector<double> key(8), reader(8), written(8);
            const double c = -0.5 + 2.5 * dr_random_uniform(&random), lambda = dr_random_normal(&random), x = 1.5;
            double dot = 0, keys = 0, readers = 0;
            for (size_t k = 0; k < 8; k++) {
                key[k] = 0.4 * dr_random_normal(&random);
                reader[k] = key[k] + (i % 3 ? 0.4 * lambda * dr_random_normal(&random) : 0);
                written[k] = key[k] * (dr_random_uniform(&random) < 0.5 ? x : 1 / x);
                dot += key[k] * reader[k], keys += key[k] * key[k], readers += reader[k] * reader[k];
            }
            const double is = dr_early_growth((float)(c * dot), (float)(c * c * keys * readers));
            check(fabs(is - growth_of(key, reader, c, &random)) < 2e-3, "what a row adds is not the norm of its step");
            const double p = c * x * keys, most = dr_early_growth((float)p, (float)(p * p * (x + 1 / x) * (x + 1 / x) / 4));
            check(most > growth_of(written, key, c, &random) - 2e-3,
                  "what a row of the diagonal scan adds is more than is said");
        }
    });
}

/* The halves of a tensor are those of the sequences: of the first numbers near those of `two`, of the second the same bytes. */
template <typename E> static void check_halves(const void *at, const std::vector<char> &two, const char *sentence) {
    const E *is = (const E *)at, *wanted = (const E *)two.data();
    const size_t count = two.size() / sizeof(E), half = count / 2;
    distance d = {0, 0};
    for (size_t i = 0; i < half; i++) add_distance(&d, (double)is[i], (double)wanted[i]);
    check_near(d, sentence);
    check(!memcmp(is + half, wanted + half, half * sizeof(E)), "a sequence whose parts are not to begin early has other bits");
}

/* Rows that read before the decay may leave of a state what no decay takes: then nothing begins early. */
static void check_never_early() {
    check_case("undecayed", 4 * 1024, SIZE, [] {
        for (bool undecayed : {false, true}) {
            setting s = {};
            dr_cuda_chunk_plan plan = {};
            dr_rule rule = *dr_rule_find("gdn");
            rule.row[0].undecayed = undecayed;
            make_plan(&s, &rule, 4 * 1024, SIZE, &plan, 16);
            dr_cuda_chunk_plan_stages(&plan);
            check((plan.early.parts == 0) == undecayed, "the wrong rows begin early");
        }
    });
}

/* Two sequences in two parts each, of which the second's decays are weak in one head, so that its part would begin with the
 * sequence; as it would not where that is far. Then one kernel makes the first, and two kernels the second, in the bits that
 * they leave without any early part. least: chunks that the decays alone ask for. */
static void check_early(const char *rule, int tokens, bool boxed, bool saves, int least) {
    char name[32];
    snprintf(name, sizeof name, "%s%s early", rule, saves ? "s" : "");
    check_case(name, tokens, SIZE, [&] {
        setting s = {};
        dr_cuda_chunk_plan plan = {};
        make_plan(&s, dr_rule_find(rule), tokens, SIZE, &plan);
        plan.early = {2, (tokens + 127) / 128, (tokens + 127) / 128};
        float *decays = (float *)plan.rows.input[DR_INPUT_LOG_DECAY].at;
        for (int i = 0; i < SEQUENCES * tokens * HEADS; i++)
            if (i >= tokens * HEADS && i % HEADS == 1) decays[i] = -0.001f;
        lay_forward(&s, plan, &s.call);
        if (!saves) s.call.saved = NULL;
        if (plan.scan_inside) lay_scan(&s, saves);
        s.call.plan.rows.aligned = boxed;
        const dr_cuda_chunk_tensors &tensors = s.call.tensors;
        const size_t blocks = (size_t)plan.blocks, outputs = (size_t)(SEQUENCES * tokens * HEADS * SIZE);
        std::vector<int32_t> found;
        const auto run_all = [&](bool early, unsigned seed, bool late, unsigned char before) {
            s.call.tensors.early = early ? tensors.early : NULL;
            return run_kernel(&s, seed, late, before, [&] {
                check(begin_scan(s.call.plan, tensors.scan) == DR_OK, "what goes before the diagonal scan fails");
                if (early) {
                    check(dr_launch_find_early<T>(s.call, false, {}) == DR_OK, "to find how early parts begin fails");
                    found.assign(s.call.tensors.early, s.call.tensors.early + SEQUENCES * HEADS);
                    s.call.tensors.early[SEQUENCES * HEADS - 1] = -1;
                    check(dr_launch_one_pass<T>(s.call, {}) == DR_OK, "parts that begin early fail");
                }
                check(dr_launch_prepare<T>(&s.call.plan, &tensors, {}) == DR_OK, "prepare fails");
                return dr_launch_group_scan<T>(&s.call, {});
            });
        };
        int32_t *const early = tensors.early;
        const auto run = [&](unsigned seed, bool late, unsigned char before) {
            s.call.tensors.early = early;
            return run_all(true, seed, late, before);
        };
        std::vector<std::pair<const void *, size_t>> narrow = {{s.call.o, outputs * sizeof(T)}}, wide;
        wide.push_back({s.call.final, (size_t)(SEQUENCES * HEADS * SIZE * SIZE) * sizeof(float)});
        if (plan.scan_inside) wide.push_back({tensors.scan.final, (size_t)(SEQUENCES * HEADS * SIZE) * sizeof(float)});
        if (saves) {
            narrow.push_back({tensors.exit, blocks * 64 * 128 * sizeof(T)});
            narrow.push_back({tensors.score, blocks * 64 * 64 * sizeof(T)});
            narrow.push_back({tensors.inverse, blocks * 64 * 64 * 4});
            narrow.push_back({s.call.saved, dr_cuda_chunk_saved_bytes(&plan)});
            wide.push_back({tensors.factors, blocks * sizeof(dr_cuda_factors)});
            wide.push_back({tensors.keep, blocks * 128 * sizeof(float)});
            if (plan.scan_inside) wide.push_back({tensors.scan.entry, dr_cuda_diagonal_entry_bytes(&plan)});
            if (plan.scan_inside) narrow.push_back({s.call.plan.rows.input[DR_SOURCE_SQUASHED].at, outputs * sizeof(T)});
        }
        s.call.tensors.early = early;
        check(dr_launch_find_early<T>(s.call, true, {}) == DR_OK, "to let nothing begin early fails");
        for (int i = 0; i < 2 * SEQUENCES * HEADS; i++)
            check(early[i] == (i < SEQUENCES * HEADS ? -1 : 0), "parts begin early that are not to");
        run_all(false, 0, false, BEFORE);
        result two;
        for (const auto *of : {&narrow, &wide})
            for (const auto &x : *of) two.emplace_back((const char *)x.first, (const char *)x.first + x.second);
        check_orders(
            run,
            [&] {
                const auto near = [&](int32_t count) { return count >= least && count <= least + 2; };
                check(near(found[0]) && near(found[1]) && near(found[2]) && found[3] == plan.early.chunks,
                      "parts begin earlier or later than decays ask for");
                size_t i = 0;
                for (const auto &x : narrow) check_halves<T>(x.first, two[i++], "parts that begin early leave other numbers");
                for (const auto &x : wide) check_halves<float>(x.first, two[i++], "parts that begin early leave other numbers");
            },
            last_key(plan));
    });
}

/* Sequences that are cut in four, of whose parts the first pass takes the chunks that do, or whole ones
 * where a channel keeps all; of one head whose parts are all whole, in the bits that it has where nothing is left out. */
static void check_trimmed(const char *rule, int tokens) {
    char name[32];
    snprintf(name, sizeof name, "%s trim", rule);
    check_case(name, tokens, SIZE, [&] {
        setting s = {};
        dr_cuda_chunk_plan plan = {};
        make_plan(&s, dr_rule_find(rule), tokens, SIZE, &plan, 16);
        check(plan.trims, "the plan is not what the case is for");
        keep_channels(plan);
        lay_forward(&s, plan, &s.call);
        dr_cuda_chunk_tensors tensors = s.call.tensors;
        const size_t blocks = (size_t)plan.blocks;
        if (plan.reader_sum) tensors.reader = add_tensor(&s.left, blocks * 64 * SIZE * sizeof(T))->at;
        manner = {0, false, 0};
        check(dr_launch_prepare<T>(&plan, &tensors, {}) == DR_OK, "prepare fails");
        keep_earlier(&s, tensors.exit, blocks * 64 * SIZE * sizeof(T));
        keep_earlier(&s, tensors.score, blocks * 64 * 64 * sizeof(T));
        if (!plan.query_direct) keep_earlier(&s, tensors.query, blocks * 64 * SIZE * sizeof(T));
        if (plan.reads && !plan.reader_direct) keep_earlier(&s, tensors.reader, blocks * 64 * SIZE * sizeof(T));
        keep_earlier(&s, tensors.factors, blocks * sizeof(dr_cuda_factors));
        keep_earlier(&s, tensors.keep, blocks * SIZE * sizeof(float));
        const auto run = [&](unsigned seed, bool late, unsigned char before) {
            return run_kernel(&s, seed, late, before, [&] {
                return dr_launch_scan<T>(&s.call.plan, &tensors, NULL, s.call.o, s.call.final, s.call.saved, {});
            });
        };
        s.call.plan.trims = false, tensors.trims = NULL;
        run(0, false, BEFORE);
        const char *const o = (const char *)s.call.o;
        const std::vector<char> whole(o, o + (size_t)plan.tokens * HEADS * SIZE * sizeof(T));
        s.call.plan.trims = true, tensors.trims = s.call.tensors.trims;
        check_orders(
            run,
            [&] {
                check_trims(plan, tensors);
                check_scan(s.call);
                for (int64_t i = plan.length; i < SEQUENCES * plan.length; i++) {
                    const size_t at = (size_t)(i * HEADS + HEADS - 1) * SIZE * sizeof(T);
                    check(!memcmp(o + at, whole.data() + at, SIZE * sizeof(T)),
                          "a head whose parts are taken whole has other bits");
                }
            },
            (uint16_t *)plan.rows.input[DR_INPUT_VALUE].at + (tokens - 1) * HEADS * SIZE);
    });
}

int main() {
    static const char *const rules[] = {"gdn", "kda", "qdelta", "gla", "eda"};
    for (const char *rule : rules) {
        check_rule(rule, 210, 64, 1);
        check_rule(rule, 150, 2, 2);
        check_rule(rule, 210, 16, 1, true);
    }
    for (const char *rule : {"gdn", "kda", "eda"}) check_rule(rule, 150, 2, 2, false, 120);
    for (const char *rule : {"gdn", "kda"}) check_rule(rule, 150, 2, 2, false, 256);
    check_rule("gdn", 150, 2, 2, false, 200);
    for (const char *rule : {"gdn", "qdelta", "delta_net", "pgdn"}) check_one_pass({rule, 390, true, false, false});
    check_one_pass({"qdelta", 150, true, false, false});
    for (const char *rule : {"gdn", "pgdn"}) check_one_pass({rule, 150, false, false, false});
    for (const char *rule : {"gdn", "qdelta", "pgdn"}) check_one_pass({rule, 300, true, false, true});
    check_one_pass({"gdn", 150, true, false, true, DR_READ_NONE, DR_WRITE_KEY, DR_QUERY_PLAIN, 120});
    check_one_pass({"pgdn", 150, true, true, false});
    for (dr_read read : {DR_READ_FEEDBACK, DR_READ_FREE}) check_one_pass({"gdn", 390, true, false, false, read});
    check_one_pass({"gdn", 300, true, false, true, DR_READ_FREE});
    for (bool saves : {false, true})
        check_one_pass({"gdn", 390, true, false, saves, DR_READ_NONE, DR_WRITE_KEY, DR_QUERY_PLAIN, 64});
    check_one_pass({"delta_net", 150, true, false, true, DR_READ_NONE, DR_WRITE_KEY, DR_QUERY_PLAIN, 64});
    check_one_pass({"gdn", 390, true, false, false, DR_READ_GATED_KEY});
    check_one_pass({"gdn", 300, true, false, true, DR_READ_GATED_KEY});
    check_one_pass({"gdn", 390, true, false, false, DR_READ_NONE, DR_WRITE_RATE_READ});
    check_one_pass({"gdn", 300, true, false, true, DR_READ_NONE, DR_WRITE_RATE_READ});
    check_one_pass({"gdn", 390, true, false, false, DR_READ_NONE, DR_WRITE_KEY, DR_QUERY_CORRECTED});
    check_one_pass({"gdn", 300, true, false, true, DR_READ_FEEDBACK, DR_WRITE_KEY, DR_QUERY_CORRECTED});
    for (const char *rule : {"gdn", "qdelta"})
        check_one_pass({rule, 300, true, false, true, DR_READ_NONE, DR_WRITE_KEY, DR_QUERY_PLAIN, SIZE, true});
    check_one_pass({"gdn", 300, true, false, true, DR_READ_FEEDBACK, DR_WRITE_KEY, DR_QUERY_CORRECTED, SIZE, true});
    check_one_pass({"gdn", 300, true, false, true, DR_READ_NONE, DR_WRITE_KEY, DR_QUERY_PLAIN, 64, true});
    check_growth();
    check_never_early();
    for (const char *rule : {"gdn", "qdelta", "pgdn"}) check_early(rule, 430, true, true, 2);
    check_early("gdn", 330, true, false, 2);
    check_early("pgdn", 330, true, false, 2);
    check_trimmed("kda", 4 * 1024 + 40);
    check_trimmed("gla", 4 * 1024 + 40);
    check_trimmed("gdn", 4 * 1024 + 40);
    check_trimmed("qdelta", 4 * 1024 + 40);
    return 0;
}
