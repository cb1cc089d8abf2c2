/* Synthetic examples: sequences of tokens with labels at some of their positions, drawn by a generator from a stream of random
 * numbers. A generator is one file that fills a dr_generator_kind, and a row of the table in examples.c; training, scoring and
 * the command line find it there by its name. */
#ifndef DR_DATA_EXAMPLES_H
#define DR_DATA_EXAMPLES_H

#include "base/random.h"

#include <deltarule/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t length; /* what it counts is the generator's matter */
    int64_t pairs;  /* of key and value; 0 in generators that have none */
} dr_example_size;

/* Where an example is written. */
typedef struct {
    int32_t *ids;       /* [tokens] */
    int64_t *positions; /* [targets] tokens of the example, rising */
    int32_t *labels;    /* [targets] what the model shall predict at these tokens */
} dr_example;

/* What generators can be asked; each reads its own. */
typedef struct {
    int64_t vocabulary;   /* recall: ids */
    double power;         /* recall: query slot g has weight (g + 1)^(power - 1) */
    bool random_fillers;  /* recall */
    int64_t updates;      /* recall: keys that get a second value */
    const char *group;    /* group: "S5" */
    int64_t moves;        /* group: elements move at most so many points; 0: any */
    int64_t tokens;       /* group: of an element */
    bool repeat_elements; /* group: the further tokens of an element repeat it; false: they have an id of their own */
} dr_generator_options;

typedef struct dr_generator dr_generator;

typedef struct {
    const char *name;             /* of the task */
    const char *lengths;          /* of training by default, as dr_sizes_parse reads them; "": none */
    const char *held_out_lengths; /* of the held-out sets by default; "": those of training */
    int64_t shortest, longest;    /* lengths; longest 0: any */
    int64_t step;                 /* lengths are shortest, shortest + step, .. */
    bool has_pairs;
    /* largest: both sizes are the most that will be drawn. */
    dr_status (*create)(const dr_generator_options *options, dr_example_size largest, dr_generator **generator);
    /* Whether such an example can be; NULL: any of the lengths above. */
    dr_status (*check)(const dr_generator *, dr_example_size);
    int64_t (*tokens)(const dr_generator *, dr_example_size);
    int64_t (*targets)(const dr_generator *, dr_example_size);
    /* One example of a size that was checked. */
    void (*draw)(dr_generator *, dr_random *, dr_example_size, dr_example *);
    /* What is drawn, in a line. */
    void (*describe)(const dr_generator *, char *text, size_t size);
    void (*destroy)(dr_generator *);
} dr_generator_kind;

struct dr_generator {
    const dr_generator_kind *kind;
    int64_t vocabulary;
};

extern const dr_generator_kind dr_generator_mqar, dr_generator_parity, dr_generator_arithmetic,
    dr_generator_arithmetic_brackets, dr_generator_group;

/* NULL: there is none of this name. */
const dr_generator_kind *dr_generator_find(const char *name);
/* index from 0; NULL: there are no more. */
const dr_generator_kind *dr_generator_at(int index);
void dr_generator_destroy(dr_generator *generator); /* NULL is allowed */

/* For generators that keep nothing beside their vocabulary and label one token of an example: what create does for a kind, and
 * its targets. */
dr_status dr_generator_create_plain(const dr_generator_kind *kind, int64_t vocabulary, dr_generator **generator);
int64_t dr_generator_one_target(const dr_generator *generator, dr_example_size size);
/* The destroy of generators whose memory is one block. */
void dr_generator_release(dr_generator *generator);

#endif
