/* Operations of the chunkwise form (docs/chunkwise.md), triangular products by their triangle.
 *
 * A token has r rows that read, w that write, and a query, for each value head. A product with the state takes 2 K V, and one
 * between rows of a chunk of C tokens C K or C V for each pair of rows:
 *
 *     forward     2 K V (r + w + 1) + C K (r w + w) + C V (r w + w)
 *     backward    2 K V (2 r + 2 w + 2 + w s) + C K (3 r w + 3 w) + C V (2 r w + 2 w)
 *
 * The backward reads what the forward saved, the updates of all rows and the state of every segment, and computes the products
 * of keys again, and the states between: the share s of all chunks but the last of each segment. Token by token, nothing is
 * between rows; the decay takes K V more, twice that backward, which computes all from the saved states. Maps and scans, linear
 * in K and V, are not counted. */
#include "check/bench/count.h"

enum { COUNTED_CHUNK = 64 };

typedef struct {
    double readers, writers, pairs; /* rows of a token */
    double heads;                   /* tokens times value heads */
    double key, value, state;       /* K, V, K V */
    double decay;                   /* 1 if there is one */
} sizes;

static sizes sizes_of(const dr_recurrence *recurrence) {
    const dr_rule *rule = recurrence->rule;
    double readers = 0, writers = dr_rule_steps(rule);
    for (int i = 0; i < rule->rows; i++) readers += rule->row[i].read != DR_READ_NONE;
    if (rule->repeat > 1) readers *= rule->repeat;
    double key = (double)recurrence->key_size, value = (double)recurrence->value_size;
    return (sizes){.readers = readers,
                   .writers = writers,
                   .pairs = readers * writers,
                   .heads = (double)recurrence->layout.rows * (double)recurrence->value_heads,
                   .key = key,
                   .value = value,
                   .state = key * value,
                   .decay = rule->decay != DR_DECAY_NONE};
}

static double chunkwise_forward(const dr_recurrence *recurrence, int64_t chunk) {
    sizes s = sizes_of(recurrence);
    double between = (double)chunk * (s.key + s.value) * (s.pairs + s.writers);
    return s.heads * (2 * s.state * (s.readers + s.writers + 1) + between);
}

double dr_bench_counted(const dr_recurrence *recurrence) {
    return chunkwise_forward(recurrence, COUNTED_CHUNK);
}

double dr_bench_performed_forward(const dr_recurrence *recurrence, int64_t chunk) {
    sizes s = sizes_of(recurrence);
    if (chunk > 1) return chunkwise_forward(recurrence, chunk);
    return s.heads * s.state * (2 * (s.readers + s.writers + 1) + s.decay);
}

double dr_bench_performed_backward(const dr_recurrence *recurrence, int64_t chunk, int64_t segment) {
    sizes s = sizes_of(recurrence);
    if (chunk == 1) return s.heads * s.state * (2 * (3 * s.readers + 2 * s.writers + 2) + 2 * s.decay);
    double replayed = segment > chunk ? 1 - (double)chunk / (double)segment : 0;
    double with_state = 2 * s.state * (2 * s.readers + 2 * s.writers + 2 + replayed * s.writers);
    double of_keys = 3 * s.key * (s.pairs + s.writers), of_values = 2 * s.value * (s.pairs + s.writers);
    return s.heads * (with_state + (double)chunk * (of_keys + of_values));
}
