/* What the tests of experiments share: files of experiments, cells that are done, reports that are kept. */
#ifndef DR_TESTS_EXPERIMENT_FILE_H
#define DR_TESTS_EXPERIMENT_FILE_H

#include "check/experiment/experiment.h"
#include "scratch.h"

#define HEAD "{\"title\": \"t\", \"source\": \"s\", \"measures\": [\"accuracy\"], "

static inline void write_file(const char *name, const char *text) {
    FILE *file = fopen(scratch_path(name), "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static inline dr_status open_text(const char *text, const dr_experiment_options *options, dr_experiment **experiment) {
    write_file("e.json", text);
    return dr_experiment_open(scratch_path("e.json"), options, experiment);
}

static const char grid[] = HEAD
    "\"settings\": {\"task\": \"mqar\", \"hidden\": 8}, \"seeds\": 3, \"best_of\": [\"learning_rate\"],"
    "\"grid\": {\"rule\": [\"gdn\", \"pgdn\"], \"learning_rate\": [0.001, 0.01], \"size\": {\"a b\": {\"lengths\": \"64/4\"}}},"
    "\"claims\": [{\"text\": \"order\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"pgdn\", \"gdn\"]},"
    "{\"text\": \"bound\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"of\": [\"pgdn\"], \"at_least\": 0.5},"
    "{\"text\": \"lower\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"gdn\", \"pgdn\"], \"better\": "
    "\"lower\"}],"
    "\"small\": {\"grid\": {\"learning_rate\": [0.01]}, \"settings\": {\"hidden\": 4}, \"seeds\": 2}}";

/* Makes a cell done, with this accuracy. */
static inline void measure(dr_experiment *experiment, int cell, double accuracy) {
    json_decref(experiment->cell[cell].measures);
    experiment->cell[cell].measures = json_pack("{s:f}", "accuracy", accuracy);
    experiment->cell[cell].state = DR_CELL_DONE;
}

static inline dr_verdict judge(const dr_experiment *experiment, size_t claim, void (*line)(void *, const char *),
                               void *context) {
    dr_claim read;
    assert_int_equal(dr_claim_read(experiment, json_array_get(json_object_get(experiment->file, "claims"), claim), &read),
                     DR_OK);
    return dr_claim_judge(experiment, &read, line, context).verdict;
}

static inline void keep(void *context, const char *text) {
    snprintf(context, 256, "%s", text);
}

static inline void keep_all(void *context, const char *text) {
    strncat(context, text, 16000 - strlen(context));
    strncat(context, "\n", 16000 - strlen(context));
}

#endif
