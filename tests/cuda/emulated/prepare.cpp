/* The kernels prepare, prepare_channel and prepare_beside of backends/cuda/chunkwise on the host (block.h), in
 * the forms that calls in bf16 come to on sm_90a and, but for the last, in that for any rule: a program that prints a line for
 * each case, and exits with 1 and a sentence at the first check that does not hold. Plans, the layouts of memory, shared
 * memory's too, and the choice of the form are the project's own; inputs are random numbers. Of every case:
 *
 *     P', X, A, the decayed rows and decays, and the write keys that the diagonal scan makes, are near those of plain loops in
 *     double, row by row
 *     copies and products made as late as may be, and threads in a random order with rests, leave the same bits
 *     inputs, memory around the tensors, and shared memory behind what the launch asks for are as they were
 *     other bytes in memory beforehand give the same results */
#include "block.h"

#include "backends/cuda/chunkwise/launch.cuh"
#include "call.h"

struct setting : call_memory {
    dr_prepare_call call;
    dr_prepare_form form;
    dr_cuda_diagonal_chain chain;
};

/* A rule of the table; "NAME erase", "NAME free": of which the row reads the erase key, the negative of a free key; "NAME
 * undecayed": which reads before the decay. */
static const dr_rule *rule_of(const char *name) {
    static dr_rule rule;
    char base[32];
    const char *end = strchr(name, ' ');
    if (!end) return dr_rule_find(name);
    snprintf(base, sizeof base, "%.*s", (int)(end - name), name);
    rule = *dr_rule_find(base);
    rule.name = name;
    if (!strcmp(end, " undecayed"))
        rule.row[0].undecayed = true;
    else
        rule.row[0].read = strcmp(end, " free") ? DR_READ_ERASE_KEY : DR_READ_FREE;
    return &rule;
}

/* As a forward that a backward follows has it; any: in the form for any rule; beside: beside a scan, by blocks that stay. */
static void make_call(setting *s, const char *rule, bool any, bool beside, int tokens, int size) {
    dr_cuda_chunk_plan *plan = &s->call.plan;
    make_plan(s, rule_of(rule), tokens, size, plan, beside ? 16 : 2);
    if (beside) dr_cuda_chunk_plan_stages(plan);
    if (plan->rows.channel_decay) make_steep(*plan);
    check((plan->beside.processors > 0) == beside, "prepare is not where the case is for");
    const auto lay = [&](char *block) {
        dr_arena arena = {};
        arena.block = block;
        lay_stages(plan, &arena, &s->call.tensors);
        dr_cuda_diagonal_lay(plan, &arena, &s->chain);
        s->chain.entry = (float *)dr_arena_take(&arena, dr_cuda_diagonal_entry_bytes(plan));
        dr_cuda_diagonal_lay_made(plan, &arena);
        return arena.used;
    };
    lay(add_tensor(&s->left, lay(NULL))->at);
    s->call.tensors.scan = s->chain;
    s->form = any ? DR_PREPARE_ANY : dr_prepare_form_of(*plan);
    s->call = dr_prepare_call_of<T>(*plan, s->call.tensors, s->form);
}

static result run(setting *s, unsigned seed, bool late, unsigned char before) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    const bool beside = plan.beside.processors > 0;
    const int bytes = beside ? plan.beside.groups * dr_beside_bytes(s->call) : s->call.facts.room.bytes;
    return run_kernel(s, seed, late, before, [&] {
        check(begin_scan(plan, s->chain) == DR_OK, "the launch fails");
        const dr_status status =
            beside ? dr_launch_prepare<T>(&plan, &s->call.tensors, {})
                   : dr_cuda_launch("prepare", dr_choose_prepare<T>(plan, s->form, false),
                                    {plan.slots, (int64_t)plan.value_heads}, PREPARE_THREADS, bytes, dr_cuda_stream{}, s->call);
        bool kept = true;
        for (int i = bytes; i < SHARED_SIZE; i++) kept &= shared[i] == (char)before;
        check(kept, "shared memory is written to behind what the launch asks for");
        return status;
    });
}

/* ---- against plain loops ------------------------------------------------------------------------------------------------ */

enum { K = 128 };

/* A chunk of a head, rows of two a token as well. */
struct chunk_of_doubles {
    double read[64][K], write[64][K], query[64][K], gain[64];
    double decay[64][K], seen[64][K]; /* from before the chunk to after row i; to what it reads */
    double a[64][64], score[64][64];  /* A; P: queries by tokens */
};

static double square(double x) {
    return x * x;
}

static double decay_over(const chunk_of_doubles &c, int from, int to, int channel) {
    return c.decay[to][channel] / c.decay[from][channel];
}

static void take_rows(const setting *s, const dr_prepare_block &x, chunk_of_doubles *c) {
    const dr_cuda_rows &rows = s->call.plan.rows;
    const auto vector = [&](int input, int token, int k) {
        return element(rows.input[input].at, dr_input_index(rows.input[input], x.place.first + token, 0, x.head) + k);
    };
    const auto scalar = [&](int input, int token) {
        return (double)dr_input_scalar(rows, input, x.place.first + token, 0, x.head);
    };
    for (int i = 0; i < x.alive; i++) {
        const int token = i / rows.steps, step = i % rows.steps;
        const dr_cuda_row &row = rows.row[step];
        c->gain[i] = row.gained == DR_NO_SOURCE ? 1 : scalar(row.gained, token);
        for (int k = 0; k < rows.key_size; k++) {
            const double key = vector(row.writes == DR_WRITES_MADE ? DR_INPUT_KEY : row.written, token, k);
            const int64_t made = ((x.place.first + token) * HEADS + x.head) * rows.key_size + k;
            c->write[i][k] = row.writes == DR_WRITES_MADE ? element(rows.input[DR_SOURCE_SQUASHED].at, made) : key;
            c->read[i][k] = row.reads == DR_READS_NONE ? 0 : key;
            if (row.reads == DR_READS_TENSOR && row.writes == DR_WRITES_TENSOR)
                c->read[i][k] = (row.negative ? -1 : 1) * vector(row.read, token, k);
            if (row.reads == DR_READS_PRODUCT) /* rounded as the tile is */
                c->read[i][k] =
                    (double)__bfloat162float(__float2bfloat16_rn((float)(key * vector(DR_INPUT_ERASE_GATE, token, k))));
            c->query[i][k] = vector(DR_INPUT_QUERY, token, k);
            const dr_cuda_input &log_decay = rows.input[DR_INPUT_LOG_DECAY];
            const int64_t at = dr_input_index(log_decay, x.place.first + token, 0, x.head) + (rows.channel_decay ? k : 0);
            const double step_decay = step == 0 ? exp((double)((const float *)log_decay.at)[at]) : 1;
            const double before = i ? c->decay[i - 1][k] : 1;
            c->decay[i][k] = before * step_decay;
            c->seen[i][k] = dr_row_undecayed(rows, step) ? before : c->decay[i][k];
        }
    }
}

static void solve(const setting *s, int alive, chunk_of_doubles *c) {
    const dr_cuda_rows &rows = s->call.plan.rows;
    for (int i = 0; i < alive; i++)
        for (int j = 0; j <= i; j++) {
            double erase = 0, score = 0;
            for (int k = 0; k < rows.key_size; k++) {
                erase += c->read[i][k] * c->write[j][k] * c->seen[i][k] / c->decay[j][k];
                score += c->query[i][k] * c->write[j][k] * decay_over(*c, j, i, k);
            }
            c->score[i][j] = rows.scale * score;
            c->a[i][j] = i == j ? 1 : -c->gain[i] * erase; /* -L, and then A */
        }
    for (int i = 0; i < alive; i++) { /* a row of A by those before it */
        double row[64];
        for (int j = 0; j < i; j++) {
            row[j] = c->a[i][j];
            for (int k = j + 1; k < i; k++) row[j] += c->a[i][k] * c->a[k][j];
        }
        for (int j = 0; j < i; j++) c->a[i][j] = row[j];
    }
}

static void check_chunk(const setting *s, int64_t block) {
    static chunk_of_doubles c;
    const dr_cuda_chunk_plan &plan = s->call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_chunk_tensors &tensors = s->call.tensors;
    const dr_prepare_block x = dr_prepare_find(s->call, (unsigned)block, false);
    const int alive = x.alive, size = rows.key_size, last = alive - 1;
    const int64_t row = x.block * 64, query = x.block * plan.query_rows;
    take_rows(s, x, &c);
    solve(s, alive, &c);
    for (int i = 0; i < alive; i++) {
        const int token = i / rows.steps;
        distance score = {}, exit = {}, reader = {}, asked = {}, inverse = {};
        double cut = 0; /* of what scores are sums of: tf32 products know their factors to 2^-11 */
        for (int j = 0; j <= i; j++)
            for (int k = 0; k < size && rows.channel_decay; k++)
                cut += square(0x1p-11 * rows.scale * c.query[i][k] * c.write[j][k] * decay_over(c, j, i, k));
        for (int k = 0; k < size; k++) {
            double sum = 0;
            for (int j = i; j < alive; j++) sum += c.a[j][i] * c.write[j][k] * decay_over(c, j, last, k);
            add_distance(&exit, element(tensors.exit, (row + i) * plan.key_width + k), sum);
            if (tensors.reader)
                add_distance(&reader, element(tensors.reader, (row + i) * plan.key_width + k), c.read[i][k] * c.seen[i][k]);
            if (tensors.query)
                add_distance(&asked, element(tensors.query, (query + token) * plan.key_width + k),
                             c.query[i][k] * c.decay[i][k]);
        }
        for (int j = 0; j < 64; j++) {
            double sum = 0;
            for (int k = j; k <= i && j <= i; k++) sum += c.score[i][k] * c.a[k][j];
            add_distance(&score, element(tensors.score, (query + token) * 64 + j), sum);
            if (!plan.reads) continue;
            const char *halves = (const char *)tensors.inverse + x.block * DR_HALVES_BYTES + dr_tile_at<T>(0, 64, i, j);
            add_distance(&inverse, element(halves, 0) + element(halves + DR_HALVES_BYTES / 2, 0), j <= i ? c.a[i][j] : 0);
        }
        check_near(exit, "X is not that of the plain loops");
        if (plan.reads) check_near(inverse, "A is not that of the plain loops");
        if (tensors.reader) check_near(reader, "decayed readers are not those of the plain loops");
        if (i % rows.steps < rows.steps - 1) continue;
        score.size += cut / 1e-4; /* few scores may cancel further than these are known */
        check_near(score, "P' is not that of the plain loops");
        if (tensors.query) check_near(asked, "decayed queries are not those of the plain loops");
    }
    distance keep = {};
    for (int k = 0; k < size; k++) add_distance(&keep, tensors.keep[x.block * plan.key_width + k], c.decay[last][k]);
    check_near(keep, "the decay of a chunk is not that of the plain loops");
}

/* Write keys B * key, B = exp(offset - factor s), s = r / (1 + |r|), r = ln(A + eps) - centre. */
static void check_scan(const setting *s) {
    const dr_cuda_rows &rows = s->call.plan.rows;
    const dr_cuda_input &key = rows.input[DR_INPUT_KEY];
    for (int64_t head = 0; head < HEADS; head++)
        for (int k = 0; k < rows.key_size; k++) {
            distance write = {};
            double a = 0;
            for (int64_t token = 0; token < s->call.plan.tokens; token++) {
                if (token % s->call.plan.length == 0) a = 0;
                const auto scalar = [&](dr_input input) { return (double)dr_input_scalar(rows, input, token, 0, (int)head); };
                const double x = element(key.at, dr_input_index(key, token, 0, (int)head) + k);
                a = exp(scalar(dr_diagonal_decay_input(rows))) * a + scalar(dr_diagonal_gain_input(rows)) * x * x;
                const double r = log(a + rows.squash.eps) - dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, (int)head);
                const double b = exp(rows.squash.offset - rows.squash.factor * (r / (1 + fabs(r))));
                add_distance(&write, element(rows.input[DR_SOURCE_SQUASHED].at, (token * HEADS + head) * rows.key_size + k),
                             b * x);
            }
            check_near(write, "write keys of the diagonal scan are not those of the plain loops");
        }
}

/* ---- cases -------------------------------------------------------------------------------------------------------------- */

static void check_rule(const char *rule, dr_prepare_form form, bool beside, int tokens, int size) {
    char name[32];
    snprintf(name, sizeof name, "%s%s%s", rule, form == DR_PREPARE_ANY ? ", any" : "", beside ? ", beside" : "");
    check_case(name, tokens, size, [&] {
        setting s = {};
        make_call(&s, rule, form == DR_PREPARE_ANY, beside, tokens, size);
        check(s.form == form, "the form is not what the case is for");
        const result want = run(&s, 0, false, BEFORE);
        for (int64_t block = 0; block < s.call.plan.blocks; block++) check_chunk(&s, block);
        if (s.call.plan.scan_inside) check_scan(&s);
        check(run(&s, 0, true, BEFORE) == want, "the kernel depends on when copies and products are made");
        check(run(&s, 1, true, BEFORE) == want, "the kernel depends on the order of threads");
        check(same_where_written(want, BEFORE, run(&s, 0, false, BEFORE_AGAIN), BEFORE_AGAIN),
              "results depend on what was in memory before");
    });
}

int main() {
    static const struct {
        const char *rule;
        dr_prepare_form form;
        int size;
    } cases[] = {
        {"gdn", DR_PREPARE_PLAIN, 128},
        {"pgdn", DR_PREPARE_SCANS, 128},
        {"pgdn", DR_PREPARE_NARROW_SCANS, 64},
        {"kda", DR_PREPARE_PLAIN, 128},
        {"pkda", DR_PREPARE_SCANS, 128},
        {"pkda", DR_PREPARE_NARROW_SCANS, 64},
        {"gdn2", DR_PREPARE_APART, 128},
        {"gdn erase", DR_PREPARE_APART, 128},
        {"kda free", DR_PREPARE_APART, 128},
        {"gdn free", DR_PREPARE_APART, 128},
        {"gla", DR_PREPARE_LINEAR, 128},
        {"eda", DR_PREPARE_PLAIN, 128},
        {"kda", DR_PREPARE_PLAIN, 64},
        {"gdn", DR_PREPARE_ANY, 128},
        {"kda", DR_PREPARE_ANY, 128},
        {"gdn2", DR_PREPARE_ANY, 128},
        {"gla", DR_PREPARE_ANY, 128},
        {"eda", DR_PREPARE_ANY, 128},
        {"kda undecayed", DR_PREPARE_PLAIN, 128},
        {"eda undecayed", DR_PREPARE_PLAIN, 128},
        {"gdn2 undecayed", DR_PREPARE_APART, 128},
        {"gdn undecayed", DR_PREPARE_ANY, 128},
        {"kda", DR_PREPARE_PLAIN, 120},
        {"gdn erase", DR_PREPARE_APART, 120},
        {"eda", DR_PREPARE_PLAIN, 120},
    };
    static const int tokens[] = {150, 128};
    for (int count : tokens)
        for (const auto &x : cases) {
            check_rule(x.rule, x.form, false, count, x.size);
            if (x.form != DR_PREPARE_ANY) check_rule(x.rule, x.form, true, count, x.size);
        }
    return 0;
}
