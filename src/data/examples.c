/* The generators by name. */
#include "data/examples.h"

#include "base/memory.h"

#include <string.h>

enum { KINDS = 5 };
static const dr_generator_kind *const kinds[KINDS] = {&dr_generator_mqar, &dr_generator_parity, &dr_generator_arithmetic,
                                                      &dr_generator_arithmetic_brackets, &dr_generator_group};

const dr_generator_kind *dr_generator_at(int index) {
    return index >= 0 && index < KINDS ? kinds[index] : NULL;
}

const dr_generator_kind *dr_generator_find(const char *name) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i]->name, name) == 0) return kinds[i];
    return NULL;
}

void dr_generator_destroy(dr_generator *generator) {
    if (generator) generator->kind->destroy(generator);
}

void dr_generator_release(dr_generator *generator) {
    dr_release(generator);
}
