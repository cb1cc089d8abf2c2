/* Options of a rule to traits (traits.h). A new option is handled here, or does not compile. */
#include "backends/cuda/rows/rows_make.h"

dr_status dr_cuda_rule_check(const dr_rule *rule) {
    switch (rule->scan) {
    case DR_SCAN_NONE:
    case DR_SCAN_DIAGONAL:
        return DR_OK;
    case DR_SCAN_GRAM:
    case DR_SCAN_INVERSE_GRAM:
        break;
    }
    return dr_fail(DR_ERROR_UNSUPPORTED, "backend cuda has no scan \"%s\", only none and diagonal: use backend cpu",
                   dr_scan_name(rule->scan));
}

/* ---- a row ----------------------------------------------------------------------------------------------------------- */

static void set_write(dr_write write, dr_cuda_row *row) {
    row->writes = DR_WRITES_TENSOR;
    switch (write) {
    case DR_WRITE_KEY:
        row->write = DR_INPUT_KEY;
        return;
    case DR_WRITE_ERASE_KEY:
        row->write = DR_INPUT_ERASE_KEY;
        return;
    case DR_WRITE_FREE:
        row->write = DR_INPUT_FREE_WRITE;
        return;
    case DR_WRITE_PRECONDITIONED:
        row->writes = DR_WRITES_MADE, row->write = DR_SOURCE_SQUASHED;
        return;
    case DR_WRITE_SHERMAN_MORRISON:
        row->writes = DR_WRITES_MADE, row->write = DR_SOURCE_MORRISON;
        return;
    case DR_WRITE_RATE_READ:
        row->writes = DR_WRITES_PRODUCT, row->write = DR_INPUT_RATE;
        return;
    case DR_WRITE_EXACT: /* with scans that dr_cuda_rule_check refuses */
        return;
    }
}

/* A tensor that rows read; a row that writes it as well is tied. */
static void set_read_tensor(dr_input read, dr_cuda_row *row) {
    row->read = (int32_t)read;
    row->reads = row->writes == DR_WRITES_TENSOR && row->write == row->read ? DR_READS_TIED : DR_READS_TENSOR;
}

/* After set_write. */
static void set_read(dr_read read, dr_cuda_row *row) {
    row->reads = DR_READS_NONE;
    switch (read) {
    case DR_READ_NONE:
        return;
    case DR_READ_KEY:
        set_read_tensor(DR_INPUT_KEY, row);
        return;
    case DR_READ_ERASE_KEY:
        set_read_tensor(DR_INPUT_ERASE_KEY, row);
        return;
    case DR_READ_FEEDBACK:
        set_read_tensor(DR_INPUT_FEEDBACK_KEY, row);
        return;
    case DR_READ_FREE:
        set_read_tensor(DR_INPUT_FREE_READ, row);
        row->negative = true;
        return;
    case DR_READ_GATED_KEY:
        row->reads = DR_READS_PRODUCT, row->read = DR_INPUT_KEY, row->read_other = DR_INPUT_ERASE_GATE;
        return;
    case DR_READ_KEY_PLUS_QUERY:
        row->reads = DR_READS_AFFINE, row->read = DR_INPUT_KEY, row->read_other = DR_INPUT_QUERY;
        row->read_factor = DR_INPUT_LAMBDA;
        return;
    }
}

static void set_gain(dr_gain gain, dr_cuda_row *row) {
    row->formula = gain, row->gain = DR_INPUT_BETA;
    switch (gain) {
    case DR_GAIN_ONE:
        row->gains = DR_GAINS_ONE;
        return;
    case DR_GAIN_BETA:
        row->gains = DR_GAINS_INPUT;
        return;
    case DR_GAIN_GAMMA:
        row->gains = DR_GAINS_INPUT, row->gain = DR_INPUT_ERASE_GAIN;
        return;
    case DR_GAIN_IMPLICIT:
    case DR_GAIN_NORMALIZED:
    case DR_GAIN_EXPONENTIAL:
        row->gains = DR_GAINS_OF_DOT;
        return;
    }
}

static dr_values values_of(dr_value value) {
    switch (value) {
    case DR_VALUE_NONE:
        break;
    case DR_VALUE_V:
        return DR_VALUES_PLAIN;
    case DR_VALUE_GAIN:
        return DR_VALUES_GAINED;
    case DR_VALUE_GATED:
        return DR_VALUES_GATED;
    }
    return DR_VALUES_NONE;
}

/* Where the gradients of the row's vectors and of its gain belong. */
static void set_gradients(dr_cuda_row *row) {
    row->written = row->writes == DR_WRITES_TENSOR ? row->write : DR_NO_SOURCE;
    row->gained = row->gains == DR_GAINS_INPUT ? row->gain : DR_NO_SOURCE;
    row->led = DR_NO_SOURCE;
    switch (row->reads) {
    case DR_READS_NONE:
    case DR_READS_TIED:   /* the write key's */
    case DR_READS_AFFINE: /* the write key's and the query's */
        return;
    case DR_READS_TENSOR:
        row->led = row->read;
        return;
    case DR_READS_PRODUCT:
        row->led = row->read_other;
        return;
    }
}

static dr_cuda_row row_of(const dr_rule *rule, const dr_row *from) {
    dr_cuda_row row = {.undecayed = from->undecayed, .values = values_of(from->value)};
    set_write(from->write, &row);
    set_read(from->read, &row);
    set_gain(from->gain, &row);
    set_gradients(&row);
    row.normalizer = from->write == DR_WRITE_PRECONDITIONED ? rule->normalizer : DR_NORMALIZER_NONE;
    row.normalized = row.normalizer != DR_NORMALIZER_NONE;
    return row;
}

/* ---- a rule ---------------------------------------------------------------------------------------------------------- */

static void set_decay(dr_decay decay, dr_cuda_rows *rows) {
    switch (decay) {
    case DR_DECAY_NONE:
        return;
    case DR_DECAY_CONSTANT:
        rows->constant_decay = rows->scalar_decay = true;
        return;
    case DR_DECAY_SCALAR:
        rows->scalar_decay = true;
        return;
    case DR_DECAY_CHANNEL:
        rows->channel_decay = true;
        return;
    }
}

static void set_query(dr_query query, dr_cuda_rows *rows) {
    rows->asks = DR_ASKS_TENSOR, rows->asked = DR_INPUT_QUERY;
    switch (query) {
    case DR_QUERY_PLAIN:
    case DR_QUERY_EXACT: /* with scans that dr_cuda_rule_check refuses */
    case DR_QUERY_CONJUGATE_GRADIENT:
        return;
    case DR_QUERY_CORRECTED:
        rows->asks = DR_ASKS_AFFINE, rows->ask_other = DR_INPUT_KEY, rows->ask_factor = DR_INPUT_CORRECTION;
        return;
    case DR_QUERY_RIDGE:
        rows->asks = DR_ASKS_MADE, rows->asked = DR_SOURCE_RIDGE_QUERY;
        return;
    }
}

/* Bits of the inputs whose gradients a row has a part in. */
static unsigned inputs_of(const dr_cuda_row *row) {
    const unsigned none = 1u << DR_NO_SOURCE, other = row->reads == DR_READS_AFFINE ? 1u << row->read_other : 0;
    return (1u << row->written | 1u << row->led | 1u << row->gained | other) & ~none;
}

/* A vector made of two inputs has its gradients beside those of the vector that the row writes and of the query. */
static bool leads_beside(const dr_cuda_rows *rows, const dr_cuda_row *row) {
    if (row->written != row->read || rows->steps > 1) return false;
    return row->reads == DR_READS_PRODUCT ? !row->undecayed : !rows->channel_decay && row->read_other == rows->asked;
}

static bool is_direct(const dr_cuda_rows *rows) {
    unsigned seen = 0;
    for (int i = 0; i < rows->kinds; i++) {
        const dr_cuda_row *row = &rows->row[i];
        const unsigned inputs = inputs_of(row);
        if (row->written == DR_NO_SOURCE || seen & inputs) return false;
        if (rows->step_axis && inputs & ~(1u << DR_INPUT_KEY | 1u << DR_INPUT_BETA | 1u << DR_SOURCE_GAIN)) return false;
        if ((row->reads == DR_READS_PRODUCT || row->reads == DR_READS_AFFINE) && !leads_beside(rows, row)) return false;
        seen |= inputs;
    }
    return seen >> DR_INPUT_KEY & 1; /* a key that no row takes is an input all the same, and has a gradient of zeros */
}

static bool is_made(const dr_cuda_rows *rows) {
    const dr_cuda_row *row = &rows->row[0];
    return rows->group == 1 && rows->steps == 1 && row->write == DR_SOURCE_SQUASHED && !row->normalized &&
           (row->reads == DR_READS_NONE || (row->reads == DR_READS_TENSOR && row->read == DR_INPUT_KEY));
}

/* What follows from the rows. */
static void set_whole(dr_cuda_rows *rows) {
    bool plain = rows->asks == DR_ASKS_TENSOR; /* gains are one, or inputs, and queries inputs */
    rows->reads = rows->dots = rows->squashes = rows->morrison = false;
    rows->tied = true;
    for (int i = 0; i < rows->kinds; i++) {
        const dr_cuda_row *row = &rows->row[i];
        rows->reads = rows->reads || row->reads != DR_READS_NONE;
        rows->tied = rows->tied && (row->reads == DR_READS_NONE || row->reads == DR_READS_TIED);
        rows->dots = rows->dots || row->gains == DR_GAINS_OF_DOT;
        rows->squashes = rows->squashes || row->write == DR_SOURCE_SQUASHED;
        rows->morrison = rows->morrison || row->write == DR_SOURCE_MORRISON;
        plain = plain && row->gains != DR_GAINS_OF_DOT;
    }
    rows->direct = plain && !rows->diagonal_scan && is_direct(rows);
    rows->made = plain && rows->diagonal_scan && is_made(rows);
}

void dr_cuda_rows_traits(const dr_rule *rule, dr_cuda_rows *rows) {
    rows->steps = dr_rule_steps(rule);
    rows->step_axis = rule->repeat > 1;
    rows->kinds = rule->rows;
    rows->tied_scan = rule->tied_scan;
    rows->diagonal_scan = rule->scan == DR_SCAN_DIAGONAL;
    rows->normalized = rule->normalizer != DR_NORMALIZER_NONE;
    rows->discounted = rule->normalizer == DR_NORMALIZER_DISCOUNTED;
    set_decay(rule->decay, rows);
    set_query(rule->query, rows);
    for (int i = 0; i < rows->kinds; i++) rows->row[i] = row_of(rule, &rule->row[i]);
    set_whole(rows);
}

static void add_product(dr_cuda_rows *rows, int32_t of, int32_t by, bool negative, bool adds) {
    rows->product[rows->products++] = (dr_row_product){.of = of, .by = by, .negative = negative, .adds = adds};
}

/* Of one row, if it is the only one whose write keys are a rate times what it reads. */
static void make_write(dr_cuda_rows *rows) {
    dr_cuda_row *made = NULL;
    for (int i = 0; i < rows->kinds; i++) {
        dr_cuda_row *row = &rows->row[i];
        if (row->writes != DR_WRITES_PRODUCT) continue;
        if (made || row->reads != DR_READS_TENSOR) return;
        made = row;
    }
    if (!made) return;
    add_product(rows, made->write, made->read, made->negative, true);
    made->writes = DR_WRITES_TENSOR;
    made->written = made->write;
}

/* Gated values of rules of one row, and read keys, which are those of a key head; with a decay of each channel kernels make
 * them on their way. */
static void make_gated(dr_cuda_rows *rows) {
    dr_cuda_row *row = &rows->row[0];
    if (rows->kinds > 1 || rows->channel_decay) return;
    if (row->reads == DR_READS_PRODUCT && row->written == row->read && rows->group == 1) {
        add_product(rows, row->read_other, row->read, false, true);
        row->reads = DR_READS_TENSOR, row->read = row->led = row->read_other;
    }
    if (row->values != DR_VALUES_GATED || row->normalized) return;
    add_product(rows, DR_INPUT_VALUE, DR_INPUT_WRITE_GATE, false, false);
    row->values = DR_VALUES_PLAIN;
}

/* The sum of key and query that a row reads, with a decay of each channel: with others kernels make it on their way. */
static void make_sum(dr_cuda_rows *rows) {
    if (!rows->channel_decay || rows->group > 1) return;
    for (int i = 0; i < rows->kinds && !rows->sum_made; i++) {
        dr_cuda_row *row = &rows->row[i];
        if (row->reads != DR_READS_AFFINE) continue;
        row->reads = DR_READS_TENSOR, row->read = row->led = DR_SOURCE_SUM;
        rows->sum_made = true;
    }
}

/* Rows that read a part of the query read that of the input. */
static void make_query(dr_cuda_rows *rows) {
    if (rows->asks != DR_ASKS_AFFINE) return;
    for (int i = 0; i < rows->kinds; i++)
        if (rows->row[i].reads == DR_READS_AFFINE) return;
    rows->asks = DR_ASKS_TENSOR;
    rows->query_made = true;
}

/* Where all gradients are then led to inputs, or to the diagonal scan's backward: else they pass through floats anyway, and the
 * gain's stay with them. */
static void make_gains(dr_cuda_rows *rows) {
    const dr_cuda_rows within = *rows;
    dr_cuda_row *row = &rows->row[0];
    if (rows->kinds > 1 || row->gains != DR_GAINS_OF_DOT || row->normalized || row->writes == DR_WRITES_PRODUCT) return;
    if (row->reads != DR_READS_TIED && row->reads != DR_READS_TENSOR) return;
    rows->gains_made = true, rows->gains_from = row->formula;
    row->gains = DR_GAINS_INPUT, row->formula = DR_GAIN_BETA, row->gain = row->gained = DR_SOURCE_GAIN;
    set_whole(rows);
    if (!rows->direct && !rows->made) *rows = within;
}

static void make_vectors(bool sums, dr_cuda_rows *rows) {
    if (rows->step_axis) return;
    make_write(rows);
    make_gated(rows);
    if (sums) make_sum(rows);
    make_query(rows);
    set_whole(rows);
}

void dr_cuda_rows_make_before(dr_cuda_rows *rows) {
    const int32_t steps = rows->step_axis ? rows->steps : 1;
    const dr_cuda_rows within = *rows;
    if (!rows->diagonal_scan) make_vectors(true, rows);
    if (rows->sum_made && !rows->direct) { /* what passes through floats knows no sum that is made */
        *rows = within;
        make_vectors(false, rows);
    }
    make_gains(rows);
    rows->input[DR_SOURCE_GAIN] = (dr_cuda_input){.token = steps * rows->value_heads,
                                                  .step = steps > 1 ? rows->value_heads : 0,
                                                  .head = 1,
                                                  .bytes = sizeof(float),
                                                  .element = sizeof(float),
                                                  .per_value = true};
}

/* ---- what 16 bits are too few for ------------------------------------------------------------------------------------ */

/* Takes off all that a unit key held. Of one such row with the keys of inputs the reverse pass takes the gradient in two parts
 * (tests/test_chunk_rounding.c); beside other rows that read, or with keys of a scan, it is computed in float32. */
static bool steps_fully(const dr_cuda_row *row, dr_gain formula) {
    return formula == DR_GAIN_NORMALIZED || (formula == DR_GAIN_ONE && row->reads == DR_READS_TIED);
}

bool dr_cuda_rows_step_fully(const dr_cuda_rows *rows) {
    for (int i = 0; i < rows->kinds; i++)
        if (steps_fully(&rows->row[i], rows->gains_made ? rows->gains_from : rows->row[i].formula)) return true;
    return false;
}

bool dr_cuda_rule_widens(const dr_rule *rule) {
    if (rule->normalizer != DR_NORMALIZER_NONE) return true;
    int readers = 0;
    for (int i = 0; i < rule->rows; i++) readers += rule->row[i].read != DR_READ_NONE;
    for (int i = 0; i < rule->rows; i++) {
        const dr_cuda_row row = row_of(rule, &rule->row[i]);
        const bool full = steps_fully(&row, row.formula), one = row.gains == DR_GAINS_ONE && row.reads != DR_READS_NONE;
        if ((full && rule->scan != DR_SCAN_NONE) || ((full || one) && readers > 1)) return true;
    }
    return false;
}
