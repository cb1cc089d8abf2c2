#include "pairs.h"

#include <stdlib.h>
#include <string.h>

/* Options of all axes are numbered one after the other. */
static int first_option(int axis) {
    int first = 0;
    for (int i = 0; i < axis; i++) first += axis_options(i);
    return first;
}

pairs pairs_create(void) {
    const int options = first_option(axis_count());
    const size_t squared = (size_t)(options * options);
    pairs p = {.options = options,
               .count = block(squared * sizeof(long)),
               .refused = block(squared * sizeof(bool)),
               .sample = block((size_t)(options * SAMPLES) * sizeof(trial)),
               .samples = block((size_t)options * sizeof(long))};
    memset(p.count, 0, squared * sizeof(long));
    memset(p.refused, 0, squared * sizeof(bool));
    memset(p.samples, 0, (size_t)options * sizeof(long));
    return p;
}

void pairs_free(pairs *p) {
    free(p->count);
    free(p->refused);
    free(p->sample);
    free(p->samples);
}

void pairs_add(pairs *p, const trial *t) {
    const int axes = axis_count();
    for (int a = 0, first = 0; a < axes; first += axis_options(a), a++) {
        if (!axis_matters(t, a)) continue;
        const int option = first + option_of(t, a);
        p->sample[option * SAMPLES + p->samples[option]++ % SAMPLES] = *t;
        for (int b = 0, other_first = 0; b < axes; other_first += axis_options(b), b++)
            if (b != a && axis_matters(t, b)) p->count[option * p->options + other_first + option_of(t, b)]++;
    }
}

/* Whether some trial has the options i of axis a and j of axis b, which are numbers first and second among all options. */
static bool is_possible(const pairs *p, dr_random *random, int a, int i, int b, int j, int first, int second) {
    for (int n = 0; n < SAMPLES; n++) {
        trial t;
        if (n < p->samples[first] && (t = p->sample[first * SAMPLES + n], trial_change(random, &t, a, i, b, j))) return true;
        if (n < p->samples[second] && (t = p->sample[second * SAMPLES + n], trial_change(random, &t, a, i, b, j))) return true;
    }
    return false;
}

long pairs_find_refused(pairs *p, char *missing, size_t size) {
    const int axes = axis_count();
    long missed = 0;
    dr_random random = dr_random_start(0, 4);
    missing[0] = '\0';
    for (int a = 0, first = 0; a < axes; first += axis_options(a), a++)
        for (int b = a + 1, other_first = first_option(b); b < axes; other_first += axis_options(b), b++)
            for (int i = 0; i < axis_options(a); i++)
                for (int j = 0; j < axis_options(b); j++) {
                    const int at = (first + i) * p->options + other_first + j;
                    if (p->count[at]) continue;
                    if (!is_possible(p, &random, a, i, b, j, first + i, other_first + j)) {
                        p->refused[at] = p->refused[(other_first + j) * p->options + first + i] = true;
                    } else if (missed++ == 0) {
                        int used = snprintf(missing, size, "%s %s", axis_name(a), option_name(a, i));
                        snprintf(missing + used, size - (size_t)used, " with %s %s", axis_name(b), option_name(b, j));
                    }
                }
    return missed;
}

/* The least count of an option with those of an axis; -1: all refused. */
static long least_count(const pairs *p, int option, int axis) {
    const int first = first_option(axis);
    long least = -1;
    for (int j = first; j < first + axis_options(axis); j++) {
        const int at = option * p->options + j;
        if (!p->refused[at] && (least < 0 || p->count[at] < least)) least = p->count[at];
    }
    return least;
}

static void print_all(const pairs *p, FILE *to) {
    const int axes = axis_count();
    for (int a = 0; a < axes; a++)
        for (int b = a + 1; b < axes; b++)
            for (int i = 0; i < axis_options(a); i++)
                for (int j = 0; j < axis_options(b); j++) {
                    const int at = (first_option(a) + i) * p->options + first_option(b) + j;
                    fprintf(to, "%s %s, ", axis_name(a), option_name(a, i));
                    fprintf(to, "%s %s: ", axis_name(b), option_name(b, j));
                    fprintf(to, p->refused[at] ? "refused\n" : "%ld\n", p->count[at]);
                }
}

void pairs_print(const pairs *p, bool all, FILE *to) {
    const int axes = axis_count();
    fprintf(to,
            "How often pairs of options came up: the least count over the options of each axis (columns); - : no pair is "
            "allowed\n%-29s",
            "");
    for (int b = 0; b < axes; b++) fprintf(to, " %4d", b + 1);
    fprintf(to, "\n");
    for (int a = 0, option = 0; a < axes; a++)
        for (int i = 0; i < axis_options(a); i++, option++) {
            fprintf(to, "%2d %-10s %-15.15s", a + 1, i == 0 ? axis_name(a) : "", option_name(a, i));
            for (int b = 0; b < axes; b++) {
                const long least = a == b ? -1 : least_count(p, option, b);
                if (least < 0)
                    fprintf(to, "    %c", a == b ? '.' : '-');
                else
                    fprintf(to, " %4ld", least);
            }
            fprintf(to, "\n");
        }
    long possible = 0, refused = 0;
    for (int a = 0; a < axes; a++)
        for (int b = a + 1; b < axes; b++)
            for (int i = 0; i < axis_options(a); i++)
                for (int j = 0; j < axis_options(b); j++) {
                    const bool no = p->refused[(first_option(a) + i) * p->options + first_option(b) + j];
                    refused += no;
                    possible += !no;
                }
    fprintf(to, "%ld pairs of options are possible, %ld are refused\n", possible, refused);
    if (all) print_all(p, to);
}
