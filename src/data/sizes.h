/* Which sizes examples have: a list such as "3-40", "64/4*5 128/8 256/16" or "128 256 512". An item is a length, or a range of
 * lengths that come up alike; after a slash the pairs of key and value; after an asterisk how often the item comes up in
 * proportion to the others (1). Items stand apart by blanks. */
#ifndef DR_DATA_SIZES_H
#define DR_DATA_SIZES_H

#include "data/examples.h"

enum { DR_MOST_SIZES = 64, DR_MOST_SIZE_NAME = 48, DR_LONGEST_EXAMPLE = 10000000, DR_MOST_PAIRS = 1000000 };

typedef struct {
    int64_t least, most; /* length */
    int64_t pairs;
    int64_t weight;
    char name[DR_MOST_SIZE_NAME]; /* "40-256" or "64/4" */
} dr_size_range;

typedef struct {
    int count;
    dr_size_range at[DR_MOST_SIZES];
} dr_sizes;

/* setting: for messages. pairs: of items that name none; 0: none has any. DR_ERROR_ARGUMENT names what cannot be read. */
dr_status dr_sizes_parse(const char *setting, const char *text, int64_t pairs, bool weights, dr_sizes *sizes);
/* Adds an item of one length. */
dr_status dr_sizes_add(dr_sizes *sizes, int64_t length, int64_t pairs);

/* The most of each, of both lists; other may be NULL. */
dr_example_size dr_sizes_largest(const dr_sizes *one, const dr_sizes *other);
/* Narrows ranges to lengths that the generator has, and refuses what it cannot draw. */
dr_status dr_sizes_fit(const dr_generator *generator, const char *setting, dr_sizes *sizes);

/* A size of the whole list; of one item. */
dr_example_size dr_sizes_draw(const dr_sizes *sizes, const dr_generator_kind *kind, dr_random *random);
dr_example_size dr_size_draw(const dr_size_range *range, const dr_generator_kind *kind, dr_random *random);
/* The largest of an item. */
static inline dr_example_size dr_size_most(const dr_size_range *range) {
    return (dr_example_size){range->most, range->pairs};
}

#endif
