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
        if (rows->step_axis && inputs & ~(1u << DR_INPUT_KEY | 1u << DR_INPUT_BETA)) return false;
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
    bool plain = rows->asks == DR_ASKS_TENSOR; /* gains are one, or inputs, and queries inputs */
    rows->tied = true;
    for (int i = 0; i < rows->kinds; i++) {
        const dr_cuda_row row = rows->row[i] = row_of(rule, &rule->row[i]);
        rows->reads = rows->reads || row.reads != DR_READS_NONE;
        rows->tied = rows->tied && (row.reads == DR_READS_NONE || row.reads == DR_READS_TIED);
        rows->dots = rows->dots || row.gains == DR_GAINS_OF_DOT;
        rows->squashes = rows->squashes || row.write == DR_SOURCE_SQUASHED;
        rows->morrison = rows->morrison || row.write == DR_SOURCE_MORRISON;
        plain = plain && row.gains != DR_GAINS_OF_DOT;
    }
    rows->direct = plain && !rows->diagonal_scan && is_direct(rows);
    rows->made = plain && rows->diagonal_scan && is_made(rows);
}

/* ---- what 16 bits are too few for ------------------------------------------------------------------------------------ */

static bool depends_on_squash(const dr_rule *rule, const dr_cuda_row *row) {
    return row->write == DR_SOURCE_SQUASHED && (rule->decay == DR_DECAY_NONE || row->gains == DR_GAINS_OF_DOT);
}

/* Erases all that a unit key held; or, beside other rows, takes a read off in full whatever it writes. */
static bool steps_fully(const dr_rule *rule, const dr_cuda_row *row) {
    if (rule->rows > 1 && row->gains == DR_GAINS_ONE && row->reads != DR_READS_NONE) return true;
    return row->formula == DR_GAIN_NORMALIZED || (row->gains == DR_GAINS_ONE && row->reads == DR_READS_TIED);
}

bool dr_cuda_rule_widens(const dr_rule *rule) {
    if (rule->normalizer != DR_NORMALIZER_NONE) return true;
    for (int i = 0; i < rule->rows; i++) {
        const dr_cuda_row row = row_of(rule, &rule->row[i]);
        if (steps_fully(rule, &row) || depends_on_squash(rule, &row)) return true;
    }
    return false;
}
