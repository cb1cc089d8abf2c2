/* The generators by name. */
#include "data/examples.h"

#include "base/error.h"
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

dr_status dr_generator_create_plain(const dr_generator_kind *kind, int64_t vocabulary, dr_generator **generator) {
    void *memory;
    DR_TRY(dr_allocate(sizeof(dr_generator), "a generator of examples", &memory));
    *generator = memory;
    **generator = (dr_generator){.kind = kind, .vocabulary = vocabulary};
    return DR_OK;
}

int64_t dr_generator_one_target(const dr_generator *generator, dr_example_size size) {
    (void)generator, (void)size;
    return 1;
}

void dr_generator_release(dr_generator *generator) {
    dr_release(generator);
}
