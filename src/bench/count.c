/* Operations of the chunkwise form (docs/chunkwise.md), triangular products by their triangle. A token has r rows that read, w
 * that write and one query, per value head: products with the state take 2 K V each, products within a chunk of C tokens C K or
 * C V for each pair of a reader and a writer. Elementwise work, scans and maps are not counted. */
#include "bench/count.h"

enum { COUNTED_CHUNK = 64 };

typedef struct {
    double readers, writers, pairs, heads; /* pairs: of a reading row and a writing one; heads: tokens times value heads */
    double state, key, value;              /* K V, K, V */
} sizes;

static sizes sizes_of(const dr_recurrence *recurrence) {
    const dr_rule *rule = recurrence->rule;
    double readers = 0, steps = dr_rule_steps(rule);
    for (int i = 0; i < rule->rows; i++) readers += rule->row[i].read != DR_READ_NONE;
    if (rule->repeat > 1) readers *= rule->repeat;
    double key = (double)recurrence->key_size, value = (double)recurrence->value_size;
    return (sizes){.readers = readers,
                   .writers = steps,
                   .pairs = readers * steps,
                   .heads = (double)(recurrence->layout.rows * recurrence->value_heads),
                   .state = key * value,
                   .key = key,
                   .value = value};
}

double dr_bench_performed_forward(const dr_recurrence *recurrence, bool chunkwise, int64_t chunk) {
    sizes s = sizes_of(recurrence);
    double operations = 2 * s.state * (s.readers + s.writers + 1);
    if (chunkwise)
        operations += (double)chunk * (s.key + s.value) * (s.pairs + s.writers);
    else if (recurrence->rule->decay != DR_DECAY_NONE)
        operations += s.state;
    return operations * s.heads;
}

double dr_bench_performed_backward(const dr_recurrence *recurrence, bool chunkwise, int64_t chunk) {
    sizes s = sizes_of(recurrence);
    double operations = 2 * s.state * (3 * s.readers + 2 * s.writers + 2);
    if (chunkwise)
        operations += (double)chunk * (s.key * (2 * s.pairs + 3 * s.writers) + s.value * (3 * s.pairs + 2 * s.writers));
    else if (recurrence->rule->decay != DR_DECAY_NONE)
        operations += 2 * s.state;
    return operations * s.heads;
}

double dr_bench_counted(const dr_recurrence *recurrence) {
    return dr_bench_performed_forward(recurrence, true, COUNTED_CHUNK);
}
