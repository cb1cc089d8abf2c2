/* Reads an experiment's file; of one that reads, every report can be made. */
#include "fuzz.h"

#include <deltarule/experiment.h>

static void take(void *context, const char *text) {
    (void)context;
    (void)text;
}

static void make_reports(const char *path) {
    const dr_experiment_options small = {.small = true};
    for (int i = 0; i < 2; i++) {
        dr_experiment *experiment;
        if (dr_experiment_open(path, i ? &small : NULL, &experiment) != DR_OK) continue;
        for (int report = DR_REPORT_TABLE; report <= DR_REPORT_PLOT; report++)
            if (dr_experiment_report(experiment, (dr_report)report, take, NULL) != DR_OK) abort();
        dr_experiment_close(experiment);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_with_file(data, size, make_reports);
    return 0;
}
