/* What the files of this folder share: an experiment in memory, and the statistics of its results. */
#ifndef DR_CHECK_EXPERIMENT_EXPERIMENT_H
#define DR_CHECK_EXPERIMENT_EXPERIMENT_H

#include <deltarule/experiment.h>
#include <deltarule/train.h>
#include <jansson.h>

enum {
    DR_MOST_AXES = 8,
    DR_MOST_VALUES = 64,
    DR_LABEL_SIZE = 64,
    DR_CELL_NAME_SIZE = 200,
    DR_MOST_SEEDS = 1000,
    DR_MOST_ARGUMENTS = 40
};

typedef struct {
    char label[DR_LABEL_SIZE];
    json_t *settings; /* what this value sets */
} dr_axis_value;

typedef struct {
    const char *name; /* borrowed from the file */
    dr_axis_value *value;
    int count, stride; /* stride: rows from one value to the next */
    bool best;         /* of its values the best one counts in claims */
} dr_axis;

typedef struct {
    char name[DR_CELL_NAME_SIZE];
    json_t *settings;
    json_t *then;     /* list of what follows the run (follow.h); NULL: nothing */
    json_t *measures; /* numbers by name; NULL until the run is over */
    uint64_t left;    /* bits: what follows and has no result yet */
    dr_cell_state state;
    json_t *record; /* its line of recorded results; NULL: none */
} dr_cell;

/* A row is a point of the grid; cell row * seeds + s is its run with seed s + 1. */
struct dr_experiment {
    json_t *file;
    json_t *places;  /* text, tasks, results and machine of the options, as strings */
    json_t *command; /* list of strings, the last command that was told, and where they are */
    const char *argument[DR_MOST_ARGUMENTS];
    int axes, seeds, rows;
    bool partial; /* comparisons are judged by the seeds that all their runs have */
    dr_axis axis[DR_MOST_AXES];
    dr_cell *cell; /* [rows * seeds] */
};

/* The index of a row's value on an axis. */
static inline int dr_row_value(const dr_experiment *experiment, int row, int axis) {
    const dr_axis *of = &experiment->axis[axis];
    return row / of->stride % of->count;
}

/* Axis or label of that name; -1: there is none. */
int dr_axis_find(const dr_experiment *experiment, const char *name);
int dr_label_find(const dr_axis *axis, const char *label);

/* A value of a setting as dr_train_options_set takes it; free with dr_release. NULL: it is of no type that a setting has. */
dr_status dr_experiment_text(const json_t *value, char **text);

/* The settings of a cell's run; destroy them. */
dr_status dr_experiment_options_of(const dr_cell *cell, dr_train_options **options);

/* Whether a setting may differ between a cell and its run: it changes no result, or says where text is. */
bool dr_experiment_free_setting(const char *name);
/* Whether two texts are the same value of a setting. */
bool dr_experiment_same_value(const dr_setting *setting, const char *one, const char *other);

/* ---- files of runs ---- */

/* The columns of a metrics.csv as measures. DR_ERROR_FORMAT: it has no steps; DR_ERROR_IO. */
dr_status dr_metrics_measures(const char *path, json_t **measures);
/* A column over the steps as a list of [step, value], at most about `most`, each the mean of the steps since the one before. A
 * column that is not there has none. */
dr_status dr_metrics_curve(const char *path, const char *column, int most, json_t **points);

/* Takes cells that are not done from the recorded results, if the options name a file of them (recorded.c). */
dr_status dr_recorded_load(dr_experiment *experiment);
/* "NVIDIA H100, cuda, bf16; deltarule 0.1.0": where a recorded cell was run. */
void dr_recorded_origin(const json_t *record, char *text, size_t size);

/* ---- statistics ---- */

/* The median of some numbers and an interval for the median of what they were drawn from: between order statistics, so that no
 * distribution is assumed. It is the narrowest that covers the median with 95% or, of fewer than six numbers, from the least
 * to the greatest, which covers it with `coverage`. */
typedef struct {
    int count;
    double median, low, high, coverage;
} dr_spread;

/* Sorts the values. count 0: NaN. */
dr_spread dr_spread_of(double *values, int count);

/* The values of a measure over the seeds of a row that are done and have it, in the order of seeds; returns how many. seed: of
 * each, or NULL. */
int dr_row_values(const dr_experiment *experiment, int row, const char *measure, double *values, int *seed);

/* ---- claims ---- */

typedef struct {
    const char *text, *measure;
    int axis, count;
    int value[DR_MOST_VALUES]; /* indices on the axis; of an order the best first */
    bool lower;                /* whether a lower figure is better */
    bool bounded, at_least;    /* a bound that each value must keep, instead of an order */
    bool ratio;                /* what must keep it is the first value's measure over the second's */
    const char *than;          /* what must keep it is the measure less this one; NULL: the measure */
    double bound;
    bool capped; /* an order's figures that are better than `solved` count as it: runs end there */
    double solved;
    const json_t *where; /* labels that other axes must have; NULL: any */
} dr_claim;

typedef enum { DR_CLAIM_NOT_RUN, DR_CLAIM_HOLDS, DR_CLAIM_EVEN, DR_CLAIM_IN_MEDIAN, DR_CLAIM_FAILS } dr_verdict;

typedef struct {
    dr_verdict verdict;
    int comparisons, judged; /* how many there are, and how many have runs to be judged by */
    int least_seeds;         /* the fewest seeds that one of them was judged by; 0: none was */
} dr_judgement;

/* From an object of the file's list. DR_ERROR_FORMAT with what is wrong. */
dr_status dr_claim_read(const dr_experiment *experiment, const json_t *object, dr_claim *claim);
const char *dr_verdict_name(dr_verdict verdict);
/* Judges a claim; `line` is told of each comparison. Of a partial experiment the verdict is of the comparisons that were
 * judged. */
dr_judgement dr_claim_judge(const dr_experiment *experiment, const dr_claim *claim,
                            void (*line)(void *context, const char *text), void *context);

#endif
