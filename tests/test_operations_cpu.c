/* The CPU backend's operations against the reference, on every instruction set of the machine: random shapes from one row and
 * one column to sizes that many threads share, whole vectors and tails (cpu_calls.h). */
#include "cpu_calls.h"

/* Linear layers */

static dr_status linear_forward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->linear_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}

static dr_status linear_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->linear_backward(b, c->descriptor, at[0], at[1], at[2], at[3], *(const bool *)c->extra, at[4], at[5]);
}

static void check_linear(dr_linear linear) {
    int64_t rows = linear.rows, in = linear.in, out = linear.out;
    bool accumulate = number_flip();
    check(&(call){"linear_forward",
                  &linear,
                  NULL,
                  tolerance_forward,
                  {input("x", rows * in), input("weight", out * in), maybe(input("bias", out)), overwritten("y", rows * out)},
                  linear_forward});
    check(&(call){"linear_backward",
                  &linear,
                  &accumulate,
                  tolerance_backward,
                  {input("x", rows * in), input("weight", out * in), input("d_y", rows * out),
                   maybe(accumulated("d_x", rows * in, accumulate)), maybe(added("d_weight", out * in)),
                   maybe(added("d_bias", out))},
                  linear_backward});
    numbers_release();
}

static void test_linear(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++)
        check_linear((dr_linear){.rows = size_drawn(300), .in = size_drawn(300), .out = size_drawn(300)});
    for (int draw = 0; draw < DRAWS; draw++) { /* panels, some members of which are narrow */
        int64_t columns[4];
        dr_linear linear = {.rows = size_drawn(200), .in = size_drawn(300), .members = 2 + draw % 3, .columns = columns};
        for (int i = 0; i < linear.members; i++)
            linear.out += columns[i] = number_flip() ? size_drawn(300) : number_between(1, 9);
        check_linear(linear);
    }
    check_linear((dr_linear){.rows = 0, .in = 5, .out = 3});
    check_linear((dr_linear){.rows = 2, .in = 700, .out = 600});  /* more steps than one block, columns than one block */
    check_linear((dr_linear){.rows = 150, .in = 70, .out = 300}); /* blocks of columns and of steps */
    check_linear((dr_linear){.rows = 600, .in = 33, .out = 4});
}

static dr_status grouped_forward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->grouped_linear_forward(b, c->descriptor, at[0], at[1], at[2]);
}

static dr_status grouped_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->grouped_linear_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}

static void test_grouped_linear(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        dr_grouped_linear linear = {.rows = size_drawn(200), .groups = number_between(1, 5), .in = size_drawn(60)};
        linear.out = size_drawn(60);
        int64_t weights = linear.groups * linear.in * linear.out, xs = linear.rows * linear.groups * linear.in;
        int64_t ys = linear.rows * linear.groups * linear.out;
        check(&(call){"grouped_linear_forward",
                      &linear,
                      NULL,
                      tolerance_forward,
                      {input("x", xs), input("weight", weights), overwritten("y", ys)},
                      grouped_forward});
        check(&(call){"grouped_linear_backward",
                      &linear,
                      NULL,
                      tolerance_backward,
                      {input("x", xs), input("weight", weights), input("d_y", ys), maybe(overwritten("d_x", xs)),
                       maybe(added("d_weight", weights))},
                      grouped_backward});
    }
}

/* Embedding and rows */

static dr_status embedding_forward(const call *c, dr_backend *b, void *const at[]) {
    const int64_t *shape = c->descriptor;
    return b->ops->embedding_forward(b, shape[0], shape[1], c->extra, at[0], at[1]);
}

static dr_status embedding_backward(const call *c, dr_backend *b, void *const at[]) {
    const int64_t *shape = c->descriptor;
    return b->ops->embedding_backward(b, shape[0], shape[1], c->extra, at[0], at[1]);
}

static void test_embedding(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        int64_t shape[] = {size_drawn(900), size_drawn(100)}, vocabulary = size_drawn(300);
        int32_t *ids = numbers_block(shape[0], sizeof(int32_t));
        for (int64_t i = 0; i < shape[0]; i++) ids[i] = (int32_t)number_between(0, vocabulary - 1);
        check(&(call){"embedding_forward",
                      shape,
                      ids,
                      0,
                      {input("table", vocabulary * shape[1]), overwritten("y", shape[0] * shape[1])},
                      embedding_forward});
        check(&(call){"embedding_backward",
                      shape,
                      ids,
                      tolerance_backward,
                      {input("d_y", shape[0] * shape[1]), added("d_table", vocabulary * shape[1])},
                      embedding_backward});
    }
}

typedef struct {
    int64_t rows, count, dim;
    int64_t *positions;
} picked_rows;

static dr_status rows_gather(const call *c, dr_backend *b, void *const at[]) {
    const picked_rows *p = c->descriptor;
    return b->ops->rows_gather(b, p->count, p->dim, p->positions, at[0], at[1]);
}

static dr_status rows_scatter(const call *c, dr_backend *b, void *const at[]) {
    const picked_rows *p = c->descriptor;
    return b->ops->rows_scatter(b, p->rows, p->count, p->dim, p->positions, at[0], at[1]);
}

static void test_rows(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        picked_rows p = {.rows = size_drawn(300), .dim = size_drawn(60)};
        p.positions = numbers_block(p.rows, sizeof(int64_t));
        int64_t most = number_between(0, 3); /* none, some or all of the rows */
        for (int64_t i = 0; i < p.rows; i++)
            if (most == 3 || number_between(0, 3) < most) p.positions[p.count++] = i;
        check(
            &(call){"rows_gather", &p, NULL, 0, {input("x", p.rows * p.dim), overwritten("y", p.count * p.dim)}, rows_gather});
        check(&(call){
            "rows_scatter", &p, NULL, 0, {input("d_y", p.count * p.dim), overwritten("d_x", p.rows * p.dim)}, rows_scatter});
    }
}

static dr_status add(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->add(b, DR_VECTOR, *(const int64_t *)c->descriptor, 0.75, at[0], at[1]);
}

static void test_add(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        int64_t count = draw == 0 ? 0 : size_drawn(80000);
        check(&(call){"add", &count, NULL, tolerance_forward, {input("x", count), added("y", count)}, add});
    }
}

/* Norms */

static dr_status rms_norm_forward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->rms_norm_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}

static dr_status rms_norm_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->rms_norm_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], *(const bool *)c->extra, at[5],
                                     at[6]);
}

/* d_gate over the gate */
static dr_status rms_norm_backward_over(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->rms_norm_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], *(const bool *)c->extra, at[5],
                                     at[2]);
}

/* Two numbers or more: the norm of one is its sign, whose gradient is nothing but eps. */
static void test_rms_norm(void **state) {
    (void)state;
    for (int draw = 0; draw < 3 * DRAWS; draw++, numbers_release()) {
        dr_rms_norm norm = {.rows = size_drawn(150), .dim = 1 + size_drawn(200), .eps = 1e-5, .gate = draw % 3};
        norm.gate_first = norm.gate != DR_ACTIVATION_NONE && number_flip();
        bool accumulate = number_flip();
        int64_t gates = norm.rows * norm.dim;
        if (norm.gate != DR_ACTIVATION_NONE && number_flip()) { /* columns of a panel */
            norm.gate_vectors = number_between(1, 4);
            norm.gate_row = norm.gate_vectors * norm.dim + number_between(0, 20);
            gates = (norm.rows = norm.rows / norm.gate_vectors * norm.gate_vectors) / norm.gate_vectors * norm.gate_row;
        }
        int64_t count = norm.rows * norm.dim;
        tensor gate = norm.gate == DR_ACTIVATION_NONE ? (tensor){"no gate", INPUT, 0, NULL} : input("gate", gates);
        tensor d_gate = norm.gate == DR_ACTIVATION_NONE ? gate : maybe(accumulated("d_gate", gates, norm.gate_row > 0));
        check(&(call){"rms_norm_forward",
                      &norm,
                      NULL,
                      tolerance_forward,
                      {input("x", count), input("weight", norm.dim), gate, overwritten("y", count)},
                      rms_norm_forward});
        check(&(call){"rms_norm_backward",
                      &norm,
                      &accumulate,
                      tolerance_backward,
                      {input("x", count), input("weight", norm.dim), gate, input("d_y", count),
                       maybe(accumulated("d_x", count, accumulate)), maybe(added("d_weight", norm.dim)), d_gate},
                      rms_norm_backward});
        if (norm.gate == DR_ACTIVATION_NONE) continue;
        check(&(call){"rms_norm_backward over the gate",
                      &norm,
                      &accumulate,
                      tolerance_backward,
                      {input("x", count), input("weight", norm.dim), added("gate", gates), input("d_y", count),
                       maybe(accumulated("d_x", count, accumulate)), maybe(added("d_weight", norm.dim))},
                      rms_norm_backward_over});
    }
}

static dr_status l2_norm_forward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->l2_norm_forward(b, c->descriptor, at[0], at[1] ? at[1] : at[0]);
}

static dr_status l2_norm_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->l2_norm_backward(b, c->descriptor, at[0], at[1], at[2] ? at[2] : at[1]);
}

static void test_l2_norm(void **state) {
    (void)state;
    tensor none = {"none", INPUT, 0, NULL};
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        dr_l2_norm norm = {.rows = size_drawn(200), .dim = 1 + size_drawn(100), .eps = 1e-6};
        int64_t count = norm.rows * norm.dim;
        bool in_place = number_flip();
        tensor x = in_place ? added("x", count) : input("x", count), d_y = in_place ? added("d_y", count) : input("d_y", count);
        check(&(call){"l2_norm_forward",
                      &norm,
                      NULL,
                      tolerance_forward,
                      {x, in_place ? none : overwritten("y", count)},
                      l2_norm_forward});
        check(&(call){"l2_norm_backward",
                      &norm,
                      NULL,
                      tolerance_backward,
                      {input("x", count), d_y, in_place ? none : overwritten("d_x", count)},
                      l2_norm_backward});
    }
}

/* Convolution */

static dr_status conv_forward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->conv_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5] ? at[5] : at[6]);
}

/* the state is updated in place */
static dr_status conv_step(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->conv_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[3]);
}

static dr_status conv_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->conv_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]);
}

/* d_x over x */
static dr_status conv_backward_over(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->conv_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[0], at[5], at[6]);
}

static void test_conv(void **state) {
    (void)state;
    for (int draw = 0; draw < 4 * DRAWS; draw++, numbers_release()) {
        const int64_t tokens = number_between(1, 40); /* one of each sequence */
        dr_conv conv = {.layout =
                            draw % 5 == 1 ? (dr_layout){.sequences = tokens, .rows = tokens} : layout_drawn(draw % 4 ? 9 : 150),
                        .channels = (draw % 7 == 1 ? 1000 : 0) + size_drawn(100),
                        .activation = draw % 3};
        conv.width = number_flip() ? 4 : number_between(1, 7);
        if (number_flip()) conv.x_row = conv.channels + number_between(0, 40); /* columns of a panel */
        int64_t count = conv.layout.rows * conv.channels, taps = conv.channels * conv.width;
        int64_t xs = conv.layout.rows * dr_conv_pitch(&conv);
        int64_t kept = conv.layout.sequences * (conv.width - 1) * conv.channels;
        check(&(call){"conv_forward",
                      &conv,
                      NULL,
                      tolerance_forward,
                      {input("x", xs), input("weight", taps), maybe(input("bias", conv.channels)),
                       maybe(input("initial", kept)), overwritten("y", count), maybe(overwritten("final", kept))},
                      conv_forward});
        check(&(call){"conv_forward in place",
                      &conv,
                      NULL,
                      tolerance_forward,
                      {input("x", xs), input("weight", taps), maybe(input("bias", conv.channels)), added("state", kept),
                       overwritten("y", count)},
                      conv_step});
        check(&(call){"conv_backward",
                      &conv,
                      NULL,
                      tolerance_backward,
                      {input("x", xs), input("weight", taps), maybe(input("bias", conv.channels)),
                       maybe(input("initial", kept)), input("d_y", count), maybe(accumulated("d_x", xs, conv.x_row > 0)),
                       maybe(added("d_weight", taps)), maybe(added("d_bias", conv.channels))},
                      conv_backward});
        check(
            &(call){"conv_backward over x",
                    &conv,
                    NULL,
                    tolerance_backward,
                    {added("x", xs), input("weight", taps), maybe(input("bias", conv.channels)), maybe(input("initial", kept)),
                     input("d_y", count), maybe(added("d_weight", taps)), maybe(added("d_bias", conv.channels))},
                    conv_backward_over});
    }
}

/* Gates */

static dr_status gate_forward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->gate_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}

static dr_status gate_backward(const call *c, dr_backend *b, void *const at[]) {
    void *d_x = at[4] ? at[4] : at[3]; /* d_x may be d_y */
    return b->ops->gate_backward(b, c->descriptor, at[0], at[1], at[2], at[3], d_x, *(const bool *)c->extra, at[5], at[6]);
}

/* d_x over x */
static dr_status gate_backward_over(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->gate_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[0], false, at[4], at[5]);
}

static void test_gate(void **state) {
    (void)state;
    for (int draw = 0; draw < 8 * DRAWS; draw++, numbers_release()) {
        dr_gate gate = {.kind = draw % 8, .rows = size_drawn(300), .heads = number_between(1, 6), .dim = 1};
        gate.multiplier = 1 + number_between(0, 1);
        gate.shift = (double)number_between(-1, 1) * 0.875;
        gate.lower_bound = -5;
        gate.a_log_per_channel = number_flip();
        if (number_flip()) gate.dim = size_drawn(64);
        bool accumulate = number_flip(), in_place = !accumulate && number_flip();
        bool rated = gate.kind == DR_GATE_LOG_DECAY || gate.kind == DR_GATE_KDA_BOUNDED || gate.kind == DR_GATE_EDA_BOUNDED;
        int64_t channels = gate.heads * gate.dim, count = gate.rows * channels;
        if (number_flip()) gate.x_row = channels + number_between(0, 20), in_place = false; /* columns of a panel */
        int64_t xs = gate.rows * dr_gate_pitch(&gate);
        int64_t rates = gate.a_log_per_channel ? channels : gate.heads;
        tensor none = {"none", INPUT, 0, NULL}, a_log = rated ? input("a_log", rates) : none;
        if (gate.kind == DR_GATE_KDA_BOUNDED) a_log = maybe(a_log);
        tensor bias = maybe(input("bias", channels));
        check(&(call){"gate_forward",
                      &gate,
                      NULL,
                      tolerance_forward,
                      {input("x", xs), a_log, bias, overwritten("y", count)},
                      gate_forward});
        check(&(call){"gate_backward",
                      &gate,
                      &accumulate,
                      tolerance_backward,
                      {input("x", xs), a_log, bias, in_place ? added("d_y", count) : input("d_y", count),
                       in_place ? none : accumulated("d_x", xs, accumulate || gate.x_row > 0),
                       a_log.values ? maybe(added("d_a_log", rates)) : none,
                       bias.values ? maybe(added("d_bias", channels)) : none},
                      gate_backward});
        check(&(call){"gate_backward over x",
                      &gate,
                      NULL,
                      tolerance_backward,
                      {added("x", xs), a_log, bias, input("d_y", count), a_log.values ? maybe(added("d_a_log", rates)) : none,
                       bias.values ? maybe(added("d_bias", channels)) : none},
                      gate_backward_over});
    }
}

/* SwiGLU, heads */

static dr_status swiglu_forward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->swiglu_forward(b, *(const int64_t *)c->descriptor, at[0], at[1], at[2]);
}

static dr_status swiglu_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->swiglu_backward(b, *(const int64_t *)c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}

static void test_swiglu(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        int64_t count = size_drawn(80000);
        check(&(call){"swiglu_forward",
                      &count,
                      NULL,
                      tolerance_forward,
                      {input("gate", count), input("up", count), overwritten("y", count)},
                      swiglu_forward});
        check(&(call){"swiglu_backward",
                      &count,
                      NULL,
                      tolerance_backward,
                      {input("gate", count), input("up", count), input("d_y", count), maybe(overwritten("d_gate", count)),
                       maybe(overwritten("d_up", count))},
                      swiglu_backward});
    }
}

typedef struct {
    int64_t rows, heads, dim;
    bool shared, accumulate;
} scaled_heads;

static dr_status scale_heads_forward(const call *c, dr_backend *b, void *const at[]) {
    const scaled_heads *s = c->descriptor;
    return b->ops->scale_heads_forward(b, s->rows, s->heads, s->dim, s->shared, at[0], at[1], at[2], s->accumulate);
}

static dr_status scale_heads_backward(const call *c, dr_backend *b, void *const at[]) {
    const scaled_heads *s = c->descriptor;
    return b->ops->scale_heads_backward(b, s->rows, s->heads, s->dim, s->shared, at[0], at[1], at[2], at[3], at[4],
                                        s->accumulate);
}

static void test_scale_heads(void **state) {
    (void)state;
    for (int draw = 0; draw < 2 * DRAWS; draw++, numbers_release()) {
        scaled_heads s = {size_drawn(200), number_between(1, 5), size_drawn(64), number_flip(), number_flip()};
        int64_t factors = (s.shared ? 1 : s.rows) * s.heads, count = s.rows * s.heads * s.dim;
        check(&(call){"scale_heads_forward",
                      &s,
                      NULL,
                      tolerance_forward,
                      {input("factor", factors), input("x", count), accumulated("y", count, s.accumulate)},
                      scale_heads_forward});
        check(&(call){"scale_heads_backward",
                      &s,
                      NULL,
                      tolerance_backward,
                      {input("factor", factors), input("x", count), input("d_y", count),
                       maybe(accumulated("d_factor", factors, s.shared)), maybe(accumulated("d_x", count, s.accumulate))},
                      scale_heads_backward});
    }
}

/* Loss and optimizer */

typedef struct {
    int64_t count, vocabulary;
    int32_t *labels;
} losses;

/* loss and hits come back as tensors, to be compared like them; without d_logits, or with it in the logits' place */
static dr_status cross_entropy(const call *c, dr_backend *b, void *const at[]) {
    const losses *l = c->descriptor;
    double loss[1000], hits[1000];
    uint8_t hit[1000];
    void *d_logits = *(const bool *)c->extra ? at[0] : at[3];
    dr_status status = b->ops->cross_entropy(b, l->count, l->vocabulary, at[0], l->labels, 0.125, loss, hit, d_logits);
    for (int64_t i = 0; i < l->count; i++) hits[i] = hit[i];
    if (status == DR_OK) status = b->ops->upload(b, at[1], loss, DR_F64, l->count);
    if (status == DR_OK) status = b->ops->upload(b, at[2], hits, DR_F64, l->count);
    return status;
}

static void test_cross_entropy(void **state) {
    (void)state;
    tensor none = {"none", INPUT, 0, NULL};
    for (int draw = 0; draw < 2 * DRAWS; draw++, numbers_release()) {
        losses l = {.count = number_between(1, 20), .vocabulary = draw % 3 == 0 ? number_between(1, 5000) : size_drawn(300)};
        bool in_place = number_flip(); /* d_logits in the place of the logits */
        l.labels = numbers_block(l.count, sizeof(int32_t));
        for (int64_t i = 0; i < l.count; i++) l.labels[i] = (int32_t)number_between(0, l.vocabulary - 1);
        tensor logits = {"logits", in_place ? ADDED : INPUT, l.count * l.vocabulary, floats(l.count * l.vocabulary, 6)};
        for (int64_t i = 0; i < l.count; i += 3) { /* ties, also with the label */
            double *row = logits.values + i * l.vocabulary;
            row[number_between(0, l.vocabulary - 1)] = 40;
            row[number_between(0, l.vocabulary - 1)] = 40;
            row[l.labels[i]] = 40;
        }
        check(&(call){"cross_entropy",
                      &l,
                      &in_place,
                      tolerance_forward,
                      {logits, overwritten("loss", l.count), overwritten("hit", l.count),
                       in_place ? none : maybe(overwritten("d_logits", l.count * l.vocabulary))},
                      cross_entropy});
    }
}

static dr_status sum_squares(const call *c, dr_backend *b, void *const at[]) {
    dr_control control = {0};
    dr_status status = b->ops->sum_squares(b, *(const int64_t *)c->descriptor, at[0], &control);
    return status == DR_OK ? b->ops->upload(b, at[1], &control.squares, DR_F64, 1) : status;
}

enum { ADAMW_RUNS = 2 };

typedef struct {
    dr_adamw adamw;
    dr_adamw_run run[ADAMW_RUNS];
} adamw_drawn;

static dr_status adamw(const call *c, dr_backend *b, void *const at[]) {
    const adamw_drawn *of = c->descriptor;
    return b->ops->adamw(b, &of->adamw, c->extra, ADAMW_RUNS, of->run, at[0], at[1], at[2], at[3]);
}

static void test_optimizer(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        int64_t count = size_drawn(80000);
        const int64_t cut = number_between(0, count);
        const adamw_drawn a = {{0.9, 0.95, 1e-8}, {{0, cut, 1e-2, 0.1}, {cut, count - cut, 2e-2, 0}}};
        dr_control control = {.scale = 0.5, .updates = number_between(1, 3000)};
        tensor v = added("v", count);
        for (int64_t i = 0; i < count; i++) v.values[i] = fabs(v.values[i]);
        check(&(call){"sum_squares", &count, NULL, tolerance_forward, {input("x", count), overwritten("sum", 1)}, sum_squares});
        check(&(call){"adamw",
                      &a,
                      &control,
                      tolerance_forward,
                      {input("gradient", count), added("parameter", count), added("m", count), v},
                      adamw});
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),      cmocka_unit_test(test_grouped_linear),
        cmocka_unit_test(test_embedding),   cmocka_unit_test(test_rows),
        cmocka_unit_test(test_add),         cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_l2_norm),     cmocka_unit_test(test_conv),
        cmocka_unit_test(test_gate),        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_scale_heads), cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_optimizer),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
