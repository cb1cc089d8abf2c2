/* The runs of an experiment's cells as processes. */
#ifndef DR_CLI_CELLS_H
#define DR_CLI_CELLS_H

#include <deltarule/experiment.h>

typedef struct {
    int jobs;                      /* processes at once; 0: as many as the experiment says, at most cores by threads */
    int most;                      /* processes to begin in all; 0: any number */
    int gpus;                      /* GPUs that runs are spread over, of those that are visible; 0: each run takes the first */
    const char *backend, *threads; /* of each run, and of what follows it */
    const char *dtype;             /* of runs and of benchmarks */
} cli_cells_options;

/* Runs the cells that are not done, telling each on standard error as it ends, and writes the experiment's files each time.
 * Ends early when the user interrupts. Returns the command's exit status: 1 if a run failed. *refused: it told an error that
 * is not one of a run, such as a folder that cannot be written to, and there is nothing else to tell. */
int cli_cells_run(dr_experiment *experiment, const char *folder, const cli_cells_options *options, bool *refused);

#endif
