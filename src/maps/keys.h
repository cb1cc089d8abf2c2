/* Read and write keys of a row from the inputs, one lane of channels at a time, forward and backward.
 *
 * A dr_map_keys points at the channels of one token and head: of the inputs, or of their gradients, which are added to. */
#ifndef DR_MAPS_KEYS_H
#define DR_MAPS_KEYS_H

#include "maps/map.h"

#include <deltarule/rule.h>

typedef struct {
    float *query, *key, *erase_key, *feedback_key, *free_read, *free_write, *rate, *erase_gate;
    float *squash;   /* B of the preconditioned key */
    float *morrison; /* the whole Sherman-Morrison key */
    float *exact;    /* the whole exact key */
} dr_map_keys;

DR_MAP lanes dr_map_read(dr_read read, const dr_map_keys *x, float lambda, int64_t d) {
    switch (read) {
    case DR_READ_KEY:
        return lanes_load(x->key + d);
    case DR_READ_GATED_KEY:
        return lanes_load(x->erase_gate + d) * lanes_load(x->key + d);
    case DR_READ_KEY_PLUS_QUERY:
        return lanes_load(x->key + d) + lanes_set(lambda) * lanes_load(x->query + d);
    case DR_READ_ERASE_KEY:
        return lanes_load(x->erase_key + d);
    case DR_READ_FEEDBACK:
        return lanes_load(x->feedback_key + d);
    case DR_READ_FREE:
        return -lanes_load(x->free_read + d);
    case DR_READ_NONE:
        break;
    }
    return lanes_set(0.0f);
}

DR_MAP lanes dr_map_write(dr_write write, const dr_map_keys *x, lanes read, int64_t d) {
    switch (write) {
    case DR_WRITE_KEY:
        return lanes_load(x->key + d);
    case DR_WRITE_PRECONDITIONED:
        return lanes_load(x->squash + d) * lanes_load(x->key + d);
    case DR_WRITE_SHERMAN_MORRISON:
        return lanes_load(x->morrison + d);
    case DR_WRITE_ERASE_KEY:
        return lanes_load(x->erase_key + d);
    case DR_WRITE_RATE_READ:
        return lanes_load(x->rate + d) * read;
    case DR_WRITE_FREE:
        return lanes_load(x->free_write + d);
    case DR_WRITE_EXACT:
        return lanes_load(x->exact + d);
    }
    return lanes_set(0.0f);
}

DR_MAP void dr_map_add(float *to, lanes x) {
    lanes_store(to, lanes_load(to) + x);
}

/* Returns this lane's part of d_lambda. */
DR_MAP lanes dr_map_read_backward(dr_read read, const dr_map_keys *x, float lambda, lanes d_read, const dr_map_keys *dx,
                                  int64_t d) {
    switch (read) {
    case DR_READ_KEY:
        dr_map_add(dx->key + d, d_read);
        break;
    case DR_READ_GATED_KEY:
        dr_map_add(dx->key + d, d_read * lanes_load(x->erase_gate + d));
        dr_map_add(dx->erase_gate + d, d_read * lanes_load(x->key + d));
        break;
    case DR_READ_KEY_PLUS_QUERY:
        dr_map_add(dx->key + d, d_read);
        dr_map_add(dx->query + d, lanes_set(lambda) * d_read);
        return d_read * lanes_load(x->query + d);
    case DR_READ_ERASE_KEY:
        dr_map_add(dx->erase_key + d, d_read);
        break;
    case DR_READ_FEEDBACK:
        dr_map_add(dx->feedback_key + d, d_read);
        break;
    case DR_READ_FREE:
        dr_map_add(dx->free_read + d, -d_read);
        break;
    case DR_READ_NONE:
        break;
    }
    return lanes_set(0.0f);
}

/* Returns what the write key passes on to the gradient of the read key of its row. */
DR_MAP lanes dr_map_write_backward(dr_write write, const dr_map_keys *x, lanes read, lanes d_write, const dr_map_keys *dx,
                                   int64_t d) {
    switch (write) {
    case DR_WRITE_KEY:
        dr_map_add(dx->key + d, d_write);
        break;
    case DR_WRITE_PRECONDITIONED:
        dr_map_add(dx->key + d, d_write * lanes_load(x->squash + d));
        dr_map_add(dx->squash + d, d_write * lanes_load(x->key + d));
        break;
    case DR_WRITE_SHERMAN_MORRISON:
        dr_map_add(dx->morrison + d, d_write);
        break;
    case DR_WRITE_ERASE_KEY:
        dr_map_add(dx->erase_key + d, d_write);
        break;
    case DR_WRITE_RATE_READ:
        dr_map_add(dx->rate + d, d_write * read);
        return d_write * lanes_load(x->rate + d);
    case DR_WRITE_FREE:
        dr_map_add(dx->free_write + d, d_write);
        break;
    case DR_WRITE_EXACT:
        dr_map_add(dx->exact + d, d_write);
        break;
    }
    return lanes_set(0.0f);
}

#endif
