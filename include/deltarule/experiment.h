/* Experiments: grids of training runs from one file, what came out of them, and whether the claims hold that the file states.
 *
 * A file in JSON names settings of training runs, axes of a grid over them, and a number of seeds. A *cell* is the run of one
 * seed at one point of the grid; it lies in a run folder of its own, so that whoever runs the cells (`deltarule experiment`
 * does it in processes) can stop and go on at any time. docs/experiments.md describes the file.
 *
 * Threads. One thread at a time uses an experiment; different ones may be used at once. */
#ifndef DELTARULE_EXPERIMENT_H
#define DELTARULE_EXPERIMENT_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_experiment dr_experiment;

typedef struct {
    bool small;                     /* with what the file changes to fit a CPU */
    int64_t seeds;                  /* instead of the file's; 0: the file's */
    const char *corpus, *tokenizer; /* instead of the settings' of these names; NULL: those of the file */
    const char *text;               /* UTF-8 file that probes read; NULL: a cell with probes cannot be run */
    const char *tasks;              /* folder of files that models are asked; NULL: a cell that is asked any cannot be run */
    const char *settings;           /* JSON object of settings that all cells share, instead of the file's; NULL: the file's */
    const char *only;               /* JSON object of axes, each with a list of values: others are left out; NULL: all stay */
    bool partial;                   /* judge a comparison by the seeds that all of its runs have, where some are missing */
    const char *results;            /* file of recorded results, which need not be there yet; NULL: none */
    const char *machine;            /* what records say of the machine, such as "NVIDIA H100, bf16"; NULL: nothing */
} dr_experiment_options;

/* Reads and checks a file. DR_ERROR_FORMAT: it is no experiment; DR_ERROR_ARGUMENT: a setting that cannot be; DR_ERROR_IO.
 * options NULL: the file as it is. */
DR_API dr_status dr_experiment_open(const char *file, const dr_experiment_options *options, dr_experiment **experiment);
DR_API void dr_experiment_close(dr_experiment *experiment);               /* NULL is allowed */
DR_API const char *dr_experiment_title(const dr_experiment *experiment);  /* NULL of NULL */
DR_API const char *dr_experiment_source(const dr_experiment *experiment); /* paper and place; NULL of NULL */
DR_API int dr_experiment_jobs(const dr_experiment *experiment);           /* how many of its runs fit side by side; 0: any */
DR_API int dr_experiment_cells(const dr_experiment *experiment);          /* 0 of NULL */
DR_API const char *dr_experiment_cell(const dr_experiment *experiment, int cell); /* its name; NULL if there is none */
/* The cell whose turn comes at a place, from 0 on: the first seed of every point, then the second of every point, so that a
 * sweep that is cut has compared all points by some seeds. -1 if there is none. */
DR_API int dr_experiment_turn(const dr_experiment *experiment, int place);

typedef enum {
    DR_CELL_MISSING, /* no run yet */
    DR_CELL_BEGUN,   /* a run that can be resumed */
    DR_CELL_DONE,
    DR_CELL_TRAINED /* the run is over, but not yet all that follows it */
} dr_cell_state;

/* Makes the experiment's folder and holds its lock, so that one process at a time runs cells there. Whoever begins processes
 * for them leaves *descriptor open in them: then the folder is free when the last has ended. Where another process holds it, it
 * is waited for, `seconds` at most. DR_ERROR_IO: it is still held, or the folder cannot be made or locked. Closing *descriptor
 * lets go of it. */
DR_API dr_status dr_experiment_hold(const char *folder, double seconds, int *descriptor);

/* Learns which cells are done in an experiment's folder, where each has the subfolder of its name, or recorded with the same
 * settings in the results that the options name. A folder that is not there has none. DR_ERROR_ARGUMENT: a run there has other
 * settings than the cell; DR_ERROR_FORMAT: a line of the results is no record. */
DR_API dr_status dr_experiment_load(dr_experiment *experiment, const char *folder);
DR_API dr_cell_state dr_experiment_state(const dr_experiment *experiment, int cell); /* since the last load */

/* Makes the folder, and in it NAME.json, the settings of a cell's run. DR_ERROR_ARGUMENT: it learns from text, and has none;
 * DR_ERROR_IO: its corpus or tokenizer cannot be read. */
DR_API dr_status dr_experiment_prepare(const dr_experiment *experiment, const char *folder, int cell);
/* Reads what the cell's run measured once it is over and keeps it in result.json of its folder: the cell is done, or trained
 * where its settings have a list "then". */
DR_API dr_status dr_experiment_finish(dr_experiment *experiment, const char *folder, int cell);

/* The next command that follows a cell's run, also before the run has begun, so that what any of them lacks is told at once:
 * `deltarule` with these arguments, the last of them NULL, valid until the next call with this experiment. *arguments is NULL
 * where nothing is left. DR_ERROR_ARGUMENT: the options name no text or no tasks; DR_ERROR_IO: the text or a file of tasks is
 * missing. */
DR_API dr_status dr_experiment_next(dr_experiment *experiment, const char *folder, int cell, const char *const **arguments);
/* Keeps what that command printed, in a file of the run folder, and its figures as measures of the cell: the cell is done when
 * nothing is left. DR_ERROR_FORMAT: it did not print what it should. */
DR_API dr_status dr_experiment_keep(dr_experiment *experiment, const char *folder, int cell, const char *output);

/* Adds cells that are done in the experiment's folder to the results that the options name, a line each (docs/experiments.md,
 * "Recorded results"), unless they are there. DR_ERROR_IO. */
DR_API dr_status dr_experiment_record(dr_experiment *experiment, const char *folder);

typedef enum {
    DR_REPORT_TABLE, /* rows of the grid with medians and intervals over seeds, then the claims */
    DR_REPORT_CSV,   /* the same rows */
    DR_REPORT_JSON,  /* an object a line: the cells that are done, then the claims */
    DR_REPORT_PLOT   /* commands of gnuplot that draw the rows into picture.png of the folder they run in */
} dr_report;

/* Tells the lines of a report on the cells that are done. */
DR_API dr_status dr_experiment_report(const dr_experiment *experiment, dr_report report,
                                      void (*line)(void *context, const char *text), void *context);
/* Writes table.txt, table.csv, cells.jsonl and picture.gp, the four reports, into the experiment's folder. */
DR_API dr_status dr_experiment_write(const dr_experiment *experiment, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
