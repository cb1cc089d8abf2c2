/* Finite groups as tables of products. */
#ifndef DR_DATA_GROUP_H
#define DR_DATA_GROUP_H

#include "data/examples.h"

enum { DR_MOST_GROUP = 1024, DR_GROUP_NAME = 48 };

typedef struct {
    int64_t order;
    int32_t *product; /* [order, order] x y at row x; element 0 is the identity */
    int32_t *moved;   /* [order] how many points an element moves */
} dr_group;

/* "S5", "A4xZ5"; DR_ERROR_ARGUMENT for other names, and for more than DR_MOST_GROUP elements. */
dr_status dr_group_create(const char *name, dr_group *group);
void dr_group_destroy(dr_group *group); /* of one that is all zeros too */

#endif
