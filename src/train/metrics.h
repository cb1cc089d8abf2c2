/* metrics.csv of a run folder: a line a step, in order, none twice. Where a run has several held-out sets, each has columns
 * of its own, as far as there is room: held_out_loss:NAME and held_out_bits_per_byte:NAME of text, held_out_loss:NAME,
 * accuracy:NAME and sequence_accuracy:NAME of examples. */
#ifndef DR_TRAIN_METRICS_H
#define DR_TRAIN_METRICS_H

#include "formats/folder.h"
#include "train/task.h"

#include <stdio.h>

enum { DR_METRICS_COLUMNS = 12, DR_MOST_METRICS_COLUMNS = 64 };

typedef struct {
    FILE *file;
    char *path;
    bool holds; /* the file is not there yet: its lines are kept in `held` */
    void *held;
    size_t held_bytes;
    dr_set_names sets;
    int columns;                         /* of the file */
    int column[DR_MOST_METRICS_COLUMNS]; /* which of ours stands in each; -1: somebody else's, left empty */
} dr_metrics;

/* Writes a file without steps among the first files of a run. */
dr_status dr_metrics_begin(dr_folder *change, const dr_set_names *sets);
/* Opens or makes FOLDER/metrics.csv to go on after `step`. Lines of later steps and a last line that a kill cut short go: the
 * run makes them again. Everything else stays; added columns stay empty from here on, Windows line ends become plain ones. A
 * file that cannot be gone on with (a column missing, a line that is no step, steps out of order) is refused,
 * DR_ERROR_FORMAT, and not touched. */
dr_status dr_metrics_open(const char *folder, int64_t step, const dr_set_names *sets, dr_metrics *metrics);
/* For a new run whose folder gets the file of dr_metrics_begin later: lines are held in memory until then. */
dr_status dr_metrics_hold(const char *folder, const dr_set_names *sets, dr_metrics *metrics);
/* The file is there: opens it and writes what is held. */
dr_status dr_metrics_settle(dr_metrics *metrics);
/* One line, flushed. evaluation: NULL if there was none at this step. */
dr_status dr_metrics_append(dr_metrics *metrics, const dr_progress *progress, const dr_evaluation *evaluation);
/* On the disk before a checkpoint says that its steps are done. */
dr_status dr_metrics_sync(dr_metrics *metrics);
void dr_metrics_close(dr_metrics *metrics);

#endif
