/* The order that qsort puts numbers in. */
#ifndef DR_BASE_ORDER_H
#define DR_BASE_ORDER_H

/* For qsort of doubles, the least first. */
static inline int dr_ascending(const void *one, const void *other) {
    const double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

#endif
