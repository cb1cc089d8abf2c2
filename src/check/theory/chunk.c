/* Chunk forms. A rule becomes rows of read keys r, write keys w, gains b, values z and queries: one a token, two for EDA
 * (erase, then delta; eq. 17). A chunk of them is, with Gamma the decays between rows,
 *
 *     U = (I + strict(b Gamma R W^T))^-1 b Z,   W' = gamma (I + strict(b R W^T))^-1 b R,   D = U - W' S
 *     O = (gamma Q) S + (Gamma Q W^T) D,         S' = gamma_N S + (gamma_N/gamma W)^T D
 *
 * for scalar decays (Q-Delta eq. 22 to 27, PDN F.2.1), and with Lambda, a factor a channel, inside every product for decays by
 * channel (PKDA F.2.1, PLA F.2.2, EDA eq. 19 to 22). The quotients of decays are the papers' own: data is mild enough for them.
 */
#include "check/theory/chunk.h"

#include "base/error.h"
#include "base/memory.h"

enum { CHUNK_ROWS = 128 };

typedef struct {
    int count, key_size, value_size, a_token; /* rows; a_token of them make a token, whose last gives the output */
    bool by_channel;                          /* decays */
    double read[FORM_ROWS][FORM_SIZE], write[FORM_ROWS][FORM_SIZE], query[FORM_ROWS][FORM_SIZE];
    double value[FORM_ROWS][FORM_SIZE], log_decay[FORM_ROWS][FORM_SIZE], gain[FORM_ROWS];
    double state[FORM_SIZE][FORM_SIZE], o[FORM_ROWS][FORM_SIZE];
} form_rows;

/* One chunk: what its formulas need, made from the rows by one of the two forms. */
typedef struct {
    double value_lower[CHUNK_ROWS][CHUNK_ROWS], key_lower[CHUNK_ROWS][CHUNK_ROWS], attention[CHUNK_ROWS][CHUNK_ROWS];
    double value_right[CHUNK_ROWS][FORM_SIZE], key_right[CHUNK_ROWS][FORM_SIZE], row_factor[CHUNK_ROWS];
    double query[CHUNK_ROWS][FORM_SIZE], end[CHUNK_ROWS][FORM_SIZE], decay[FORM_SIZE];
    double u[CHUNK_ROWS][FORM_SIZE], w[CHUNK_ROWS][FORM_SIZE], cumulative[CHUNK_ROWS][FORM_SIZE];
} form_chunk;

/* ---- rows of a rule ------------------------------------------------------------------------------------------------------ */

/* Product of alpha of the scan over tokens from .. end - 1 */
static double scan_decay(const dr_theory_sequence *s, int from, int end) {
    double alpha = 1;
    for (int i = from; i < end; i++) alpha *= exp(number_at(s, DR_INPUT_SCAN_LOG_DECAY, i));
    return alpha;
}

/* The scan after tokens first .. end - 1 of a chunk that it enters as `entry`. */
static matrix gram_within(const dr_theory_sequence *s, int first, int end, bool slipped, matrix entry) {
    matrix scan = scaled(scan_decay(s, first, end), entry);
    for (int k = first; k < end; k++) {
        matrix key = vector_at(s, DR_INPUT_KEY, k);
        double weight = scan_decay(s, slipped ? k : k + 1, end) * number_at(s, DR_INPUT_SCAN_GAIN, k);
        scan = sum(scan, scaled(weight, times(key, key)));
    }
    return scan;
}

void dr_theory_gram(const dr_theory_sequence *s, int chunk, bool before, bool slipped, double *scan) {
    int K = s->key_size;
    matrix entry = column(K, s->initial[DR_STATE_A]);
    for (int first = 0; first < s->tokens; first += chunk) {
        int end = first + chunk < s->tokens ? first + chunk : s->tokens;
        for (int t = first; t < end; t++) {
            matrix at = gram_within(s, first, before ? t : t + 1, slipped, entry);
            for (int i = 0; i < K; i++) scan[t * K + i] = at.at[i];
        }
        entry = gram_within(s, first, end, slipped, entry);
    }
}

/* B of eq. 9, with eps */
static matrix squashed(matrix scan, double centre, const dr_squash *squash) {
    for (int i = 0; i < scan.rows; i++) {
        double r = log(scan.at[i] + squash->eps) - centre;
        scan.at[i] = exp(-log(squash->x) * (r / (1 + fabs(r))));
    }
    return scan;
}

/* The write key of a token; scan: A_t, or A_{t-1} for the Sherman-Morrison form (F.1.2). */
static matrix write_key(const dr_theory_sequence *s, int t, matrix scan) {
    matrix key = vector_at(s, DR_INPUT_KEY, t);
    if (s->rule.row[0].write == DR_WRITE_PRECONDITIONED)
        return times(squashed(scan, number_at(s, DR_INPUT_SCAN_CENTRE, 0), &s->rule.squash), key);
    if (s->rule.row[0].write != DR_WRITE_SHERMAN_MORRISON) return key;
    matrix m = quotient(key, sum(scan, vector_at(s, DR_INPUT_RIDGE, 0)));
    return scaled(1 / (1 + dot(key, m)), m);
}

static void store(matrix v, double to[FORM_SIZE]) {
    for (int i = 0; i < v.rows; i++) to[i] = v.at[i];
}

static void add_row(form_rows *rows, matrix read, matrix write, double gain, matrix value, matrix query, matrix log_decay) {
    int i = rows->count++;
    store(read, rows->read[i]);
    store(write, rows->write[i]);
    store(value, rows->value[i]);
    store(query, rows->query[i]);
    store(log_decay, rows->log_decay[i]);
    rows->gain[i] = gain;
}

/* Log decays of a token, one a channel. */
static matrix log_decays(const dr_theory_sequence *s, int t) {
    if (s->rule.decay == DR_DECAY_NONE) return zeros(s->key_size, 1);
    if (s->rule.decay == DR_DECAY_SCALAR) return filled(s->key_size, 1, number_at(s, DR_INPUT_LOG_DECAY, t));
    return vector_at(s, DR_INPUT_LOG_DECAY, t);
}

static void add_token(dr_theory_form form, const dr_theory_sequence *s, int t, matrix scan, form_rows *rows) {
    matrix query = vector_at(s, DR_INPUT_QUERY, t), key = vector_at(s, DR_INPUT_KEY, t), g = log_decays(s, t);
    matrix value = vector_at(s, DR_INPUT_VALUE, t), none = zeros(s->key_size, 1), read = key;
    double beta = dr_rule_uses(&s->rule, DR_INPUT_BETA) ? number_at(s, DR_INPUT_BETA, t) : 1;
    if (s->rule.rows == 2) { /* eq. 17: the erase row decays and gives no output */
        matrix erase = vector_at(s, DR_INPUT_ERASE_KEY, t);
        add_row(rows, erase, erase, number_at(s, DR_INPUT_ERASE_GAIN, t), zeros(s->value_size, 1), none, g);
        g = none;
    }
    if (s->rule.row[0].read == DR_READ_NONE) read = none;
    if (s->rule.row[0].read == DR_READ_KEY_PLUS_QUERY) read = sum(key, scaled(number_at(s, DR_INPUT_LAMBDA, t), query));
    if (s->rule.query == DR_QUERY_RIDGE && form != FORM_RAW_QUERY)
        query = quotient(query, sum(scan, vector_at(s, DR_INPUT_RIDGE, 0)));
    add_row(rows, read, write_key(s, t, scan), beta, value, query, g);
}

static void make_rows(dr_theory_form form, int chunk, const dr_theory_sequence *s, form_rows *rows) {
    double scan[SEQUENCE_NUMBERS] = {0};
    bool before = s->rule.row[0].write == DR_WRITE_SHERMAN_MORRISON && form != FORM_GRAM_AFTER;
    if (s->rule.scan == DR_SCAN_DIAGONAL) dr_theory_gram(s, chunk, before, false, scan);
    rows->count = 0;
    rows->a_token = s->rule.rows;
    rows->key_size = s->key_size;
    rows->value_size = s->value_size;
    rows->by_channel = s->rule.decay == DR_DECAY_CHANNEL;
    for (int t = 0; t < s->tokens; t++) add_token(form, s, t, row_of(scan, t, s->key_size), rows);
    for (int i = 0; i < s->key_size; i++)
        for (int j = 0; j < s->value_size; j++) rows->state[i][j] = s->initial[DR_STATE_S][i * s->value_size + j];
}

/* ---- one chunk ------------------------------------------------------------------------------------------------------------
 */

static double inner(int size, const double *one, const double *other) {
    double total = 0;
    for (int i = 0; i < size; i++) total += one[i] * other[i];
    return total;
}

/* sum over channels of one other factor / divisor */
static double decayed_inner(int size, const double *one, const double *other, const double *factor, const double *divisor) {
    double total = 0;
    for (int i = 0; i < size; i++) total += one[i] * factor[i] * (other[i] / divisor[i]);
    return total;
}

static void accumulate_decays(const form_rows *rows, int first, int count, form_chunk *c) {
    for (int d = 0; d < rows->key_size; d++) {
        double total = 0;
        for (int i = 0; i < count; i++) c->cumulative[i][d] = exp(total += rows->log_decay[first + i][d]);
        c->decay[d] = c->cumulative[count - 1][d];
    }
}

/* Scalar decays: Q-Delta eq. 26 and 27, PDN F.2.1. */
static void form_scalar(dr_theory_form form, const form_rows *rows, int first, int count, form_chunk *c) {
    int K = rows->key_size;
    for (int i = 0; i < count; i++) {
        const double *read = rows->read[first + i], *query = rows->query[first + i], of_i = c->cumulative[i][0];
        double b = rows->gain[first + i];
        c->row_factor[i] = form == FORM_UNDECAYED || form == FORM_NO_ROW_FACTOR ? 1 : of_i;
        for (int d = 0; d < K; d++) {
            c->key_right[i][d] = b * read[d];
            c->query[i][d] = of_i * query[d];
            c->end[i][d] = c->decay[0] / of_i * rows->write[first + i][d];
        }
        for (int j = 0; j <= i; j++) {
            const double *write = rows->write[first + j];
            double between = of_i / c->cumulative[j][0];
            double overlap =
                form == FORM_SWAPPED_PRODUCT ? inner(K, rows->write[first + i], rows->read[first + j]) : inner(K, read, write);
            if (j == i && form != FORM_WHOLE_LOWER) overlap = 0;
            c->key_lower[i][j] = b * overlap;
            c->value_lower[i][j] = b * overlap * (form == FORM_UNDECAYED ? 1 : between);
            c->attention[i][j] = inner(K, query, write) * (form == FORM_NO_GAMMA ? 1 : between);
        }
    }
}

/* Decays by channel: PKDA F.2.1, PLA F.2.2, EDA eq. 21 and 22. */
static void form_channel(dr_theory_form form, const form_rows *rows, int first, int count, form_chunk *c) {
    int K = rows->key_size;
    for (int i = 0; i < count; i++) {
        const double *read = rows->read[first + i], *query = rows->query[first + i], *of_i = c->cumulative[i];
        double b = form == FORM_NO_GAIN ? 1 : rows->gain[first + i];
        bool from_i = form == FORM_DECAY_FROM_I || form == FORM_END_FROM_I;
        c->row_factor[i] = 1;
        for (int d = 0; d < K; d++) {
            double own = exp(rows->log_decay[first + i][d]);
            c->key_right[i][d] = b * read[d] * (form == FORM_UNDECAYED ? 1 : of_i[d]);
            c->query[i][d] = query[d] * of_i[d];
            c->end[i][d] = rows->write[first + i][d] * (c->decay[d] / of_i[d]) * (from_i ? own : 1);
        }
        for (int j = 0; j <= i; j++) {
            double write[FORM_SIZE];
            for (int d = 0; d < K; d++)
                write[d] = rows->write[first + j][d] * (form == FORM_DECAY_FROM_I ? exp(rows->log_decay[first + j][d]) : 1);
            double overlap =
                form == FORM_UNDECAYED ? inner(K, read, write) : decayed_inner(K, read, write, of_i, c->cumulative[j]);
            c->key_lower[i][j] = c->value_lower[i][j] = j < i ? rows->gain[first + i] * overlap : 0;
            c->attention[i][j] = decayed_inner(K, query, rows->write[first + j], of_i, c->cumulative[j]);
        }
    }
}

/* x = (I + lower)^-1 right, or (I + lower) right */
static void apply_inverse(bool multiply, int count, int size, double lower[CHUNK_ROWS][CHUNK_ROWS],
                          double right[CHUNK_ROWS][FORM_SIZE], double x[CHUNK_ROWS][FORM_SIZE]) {
    for (int i = 0; i < count; i++)
        for (int d = 0; d < size; d++) {
            double total = multiply ? right[i][d] * (1 + lower[i][i]) : right[i][d];
            for (int j = 0; j < i; j++) total += multiply ? lower[i][j] * right[j][d] : -lower[i][j] * x[j][d];
            x[i][d] = multiply ? total : total / (1 + lower[i][i]);
        }
}

/* D = U - W S in place of U; turned: with S^T for S, which is square then */
static void subtract_read(bool turned, const form_rows *rows, int count, form_chunk *c) {
    for (int i = 0; i < count; i++)
        for (int v = 0; v < rows->value_size; v++)
            for (int d = 0; d < rows->key_size; d++)
                c->u[i][v] -= c->row_factor[i] * c->w[i][d] * (turned ? rows->state[v][d] : rows->state[d][v]);
}

static void run_chunk(dr_theory_form form, int first, int count, form_rows *rows, form_chunk *c) {
    int K = rows->key_size, V = rows->value_size;
    accumulate_decays(rows, first, count, c);
    (rows->by_channel ? form_channel : form_scalar)(form, rows, first, count, c);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < V; v++)
            c->value_right[i][v] = (form == FORM_NO_GAIN ? 1 : rows->gain[first + i]) * rows->value[first + i][v];
    apply_inverse(form == FORM_NO_INVERSE, count, V, c->value_lower, c->value_right, c->u);
    apply_inverse(form == FORM_NO_INVERSE, count, K, c->key_lower, c->key_right, c->w);
    subtract_read(form == FORM_TURNED_STATE, rows, count, c);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < V; v++) {
            double total = 0;
            for (int d = 0; d < K; d++) total += c->query[i][d] * rows->state[d][v];
            for (int j = 0; j <= i; j++) total += c->attention[i][j] * c->u[j][v];
            rows->o[first + i][v] = total;
        }
    for (int d = 0; d < K; d++)
        for (int v = 0; v < V; v++) {
            double total = c->decay[d] * rows->state[d][v];
            for (int i = 0; i < count; i++) total += c->end[i][d] * c->u[i][v];
            rows->state[d][v] = total;
        }
}

/* What one run works on; too much for a stack. */
typedef struct {
    form_rows rows;
    form_chunk chunk;
} form_memory;

dr_status dr_theory_form_run(dr_theory_form form, int chunk, dr_theory_sequence *s) {
    void *memory;
    DR_TRY(dr_allocate(sizeof(form_memory), "a chunk form", &memory));
    form_rows *rows = &((form_memory *)memory)->rows;
    make_rows(form, chunk, s, rows);
    int step = chunk * rows->a_token;
    for (int first = 0; first < rows->count; first += step) {
        int left = rows->count - first;
        run_chunk(form, first, left < step ? left : step, rows, &((form_memory *)memory)->chunk);
    }
    for (int t = 0; t < s->tokens; t++)
        for (int v = 0; v < s->value_size; v++) s->o[t * s->value_size + v] = rows->o[(t + 1) * rows->a_token - 1][v];
    for (int d = 0; d < s->key_size; d++)
        for (int v = 0; v < s->value_size; v++) s->final[DR_STATE_S][d * s->value_size + v] = rows->state[d][v];
    dr_release(memory);
    return DR_OK;
}
