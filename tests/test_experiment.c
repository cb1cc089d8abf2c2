/* Experiments: medians and intervals, files that are none, claims and what their runs say, runs of other settings. Whole sweeps
 * run in tests/cli/experiment.sh. */
#include "allocation.h"
#include "check/experiment/experiment.h"
#include "scratch.h"

#include <deltarule/train.h>
#include <math.h>

static void write_file(const char *name, const char *text) {
    FILE *file = fopen(scratch_path(name), "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static dr_status open_text(const char *text, const dr_experiment_options *options, dr_experiment **experiment) {
    write_file("e.json", text);
    return dr_experiment_open(scratch_path("e.json"), options, experiment);
}

/* ---- statistics ----------------------------------------------------------------------------------------------------- */

static void test_spreads(void **state) {
    (void)state;
    double none[1] = {0}, three[] = {3, 1, 2}, four[] = {4, 1, 3, 2}, nine[] = {9, 8, 7, 6, 5, 4, 3, 2, 1}, many[30];
    assert_true(isnan(dr_spread_of(none, 0).median));
    dr_spread spread = dr_spread_of(three, 3);
    assert_true(spread.median == 2 && spread.low == 1 && spread.high == 3 && spread.coverage == 0.75);
    spread = dr_spread_of(four, 4);
    assert_true(spread.median == 2.5 && spread.low == 1 && spread.high == 4 && spread.coverage == 0.875);
    /* of nine the second and the eighth: 1 - 2 (1 + 9)/512 */
    spread = dr_spread_of(nine, 9);
    assert_true(spread.low == 2 && spread.high == 8);
    assert_true(fabs(spread.coverage - (1 - 20.0 / 512)) < 1e-12);
    /* of thirty the tenth and the twenty-first, as tables of the sign test have it: 0.9572 */
    for (int i = 0; i < 30; i++) many[i] = i + 1;
    spread = dr_spread_of(many, 30);
    assert_true(spread.low == 10 && spread.high == 21 && fabs(spread.coverage - 0.9572) < 1e-4);
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

#define HEAD "{\"title\": \"t\", \"source\": \"s\", \"measures\": [\"accuracy\"], "

static const struct {
    const char *text, *says;
} refused[] = {
    {"[]", "e.json"},
    {"{", "e.json"},
    {"{\"title\": \"t\"}", "source"},
    {"{\"title\": 5, \"source\": \"s\", \"measures\": [\"a\"]}", "must be a string, not the integer 5"},
    {"{\"title\": \"t\", \"source\": \"s\"}", "measures must be a list"},
    {"{\"title\": \"t\", \"source\": \"s\", \"measures\": []}", "measures must be a list"},
    {"{\"title\": \"t\", \"source\": \"s\", \"measures\": [5]}", "measures: each must be a string"},
    {"{\"title\": \"t\", \"source\": \"s\", \"measures\": 5}", "measures must be a list, not the integer 5"},
    {HEAD "\"gird\": {}}", "grid"},
    {HEAD "\"grid\": []}", "grid must be an object"},
    {HEAD "\"grid\": {\"rule\": []}}", "grid: rule: an axis is a list"},
    {HEAD "\"grid\": {\"rule\": 5}}", "grid: rule: an axis is a list"},
    {HEAD "\"grid\": {\"rule\": [null]}}", "is no value of a setting"},
    {HEAD "\"grid\": {\"rule\": [{\"base\": \"gdn\"}]}}", "needs a name"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"gdn\"]}}", "\"gdn\" stands twice"},
    {HEAD "\"grid\": {\"rule\": [\"gdm\"]}}", "gdm"},
    {HEAD "\"grid\": {\"a\": {\"x\": 5}}}", "must be an object of settings"},
    {HEAD "\"grid\": {\"a\": {\"x\": {\"hiden\": 5}}}}", "did you mean \"hidden\"?"},
    {HEAD "\"grid\": {\"a\": {\"x\": {\"hidden\": []}}}}", "is no value of setting hidden"},
    {HEAD "\"grid\": {\"a\": {\"x y\": {}, \"x/y\": {}}}}", "two cells have the name"},
    {HEAD "\"grid\": {\"a\": {\"\": {}}}}", "a name of 0 bytes"},
    {HEAD "\"grid\": {\"seed\": [1, 2]}}", "seeds are no axis"},
    {HEAD "\"settings\": 5}", "settings must be an object"},
    {HEAD "\"settings\": {\"steps\": 0.5}}", "steps is \"0.5\""},
    {HEAD "\"seeds\": 0}", "seeds"},
    {HEAD "\"seeds\": 1e9}", "seeds"},
    {HEAD "\"best_of\": [\"rule\"]}", "\"rule\" is no axis"},
    {HEAD "\"best_of\": [5]}", "is no axis"},
    {HEAD "\"small\": 5}", "small must be an object"},
    {HEAD "\"small\": {\"measures\": []}}", "small"},
    {HEAD "\"claims\": {}}", "claims must be a list"},
    {HEAD "\"claims\": [5]}", "claims: number 1: it must be an object"},
    {HEAD "\"claims\": [{\"text\": \"c\", \"measure\": \"m\"}]}", "axis"},
    {HEAD "\"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\"}]}", "\"rule\" is no axis"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"kda\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\"}]}",
     "order must be a list of 2 or more"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", \"order\": "
          "[1, 2]}]}",
     "order: each must be a string"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", \"better\": "
          "\"big\"}]}",
     "it must be higher or lower"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"at_least\": \"x\"}]}",
     "are numbers"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"at_least\": 1, \"of\": [\"gdn\"], \"where\": {\"size\": \"1\"}}]}",
     "where: \"size\""},
    {HEAD "\"jobs\": 0}", "jobs"},
    {HEAD "\"curves\": 5}", "\"curves\" must be a string"},
    {HEAD "\"settings\": {\"then\": 5}}", "then must be a list"},
    {HEAD "\"settings\": {\"then\": [5]}}", "then: number 1: it must be an object with the key probe, evaluate or bench"},
    {HEAD "\"settings\": {\"then\": [{\"tokens\": 5}]}}", "with the key probe, evaluate or bench"},
    {HEAD "\"settings\": {\"then\": [{\"probe\": \"erasure\"}]}}", "there is no probe \"erasure\""},
    {HEAD "\"settings\": {\"then\": [{\"probe\": 5}]}}", "\"probe\" must be a string"},
    {HEAD "\"settings\": {\"then\": [{\"probe\": \"erase\", \"limit\": 5}]}}", "limit"},
    {HEAD "\"settings\": {\"then\": [{\"probe\": \"erase\", \"tokens\": 0}]}}", "tokens"},
    {HEAD "\"settings\": {\"then\": [{\"probe\": \"erase\"}, {\"probe\": \"erase\", \"tokens\": 5}]}}",
     "probe-erase stands twice"},
    {HEAD "\"settings\": {\"then\": [{\"evaluate\": \"../a\"}]}}", "must be the name of a file of tasks"},
    {HEAD "\"settings\": {\"then\": [{\"evaluate\": \"\"}]}}", "must be the name of a file of tasks"},
    {HEAD "\"settings\": {\"then\": [{\"evaluate\": \"a\", \"format\": 5}]}}", "\"format\" must be a string"},
    {HEAD "\"settings\": {\"then\": [{\"bench\": \"train\"}]}}", "it must be op"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"kda\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"ratio\": [\"gdn\", \"kda\"]}]}",
     "ratio needs at_least or at_most"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"kda\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"at_least\": 1, \"ratio\": [\"gdn\"]}]}",
     "ratio must be a list of two"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"kda\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"at_least\": 1, \"than\": \"n\", \"ratio\": [\"gdn\", \"kda\"]}]}",
     "ratio and than: one of them"},
};

static void test_refused_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        dr_experiment *experiment = NULL;
        const long alive = allocation_alive;
        dr_status status = open_text(refused[i].text, NULL, &experiment);
        if (status == DR_OK) fail_msg("accepted: %s", refused[i].text);
        if (!strstr(dr_last_error(), refused[i].says)) fail_msg("%s: %s", refused[i].text, dr_last_error());
        assert_null(experiment);
        assert_int_equal(allocation_alive, alive);
    }
    dr_experiment *experiment;
    assert_int_equal(open_text(HEAD "\"seeds\": 2}", &(dr_experiment_options){.small = true}, &experiment), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "no small form"));
    assert_int_equal(open_text(HEAD "\"seeds\": 2}", &(dr_experiment_options){.seeds = -1}, &experiment), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_experiment_open(scratch_path("not there"), NULL, &experiment), DR_ERROR_IO);
}

/* ---- cells and claims ----------------------------------------------------------------------------------------------- */

static const char grid[] = HEAD
    "\"settings\": {\"task\": \"mqar\", \"hidden\": 8}, \"seeds\": 3, \"best_of\": [\"learning_rate\"],"
    "\"grid\": {\"rule\": [\"gdn\", \"pgdn\"], \"learning_rate\": [0.001, 0.01], \"size\": {\"a b\": {\"lengths\": \"64/4\"}}},"
    "\"claims\": [{\"text\": \"order\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"pgdn\", \"gdn\"]},"
    "{\"text\": \"bound\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"of\": [\"pgdn\"], \"at_least\": 0.5},"
    "{\"text\": \"lower\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"gdn\", \"pgdn\"], \"better\": "
    "\"lower\"}],"
    "\"small\": {\"grid\": {\"learning_rate\": [0.01]}, \"settings\": {\"hidden\": 4}, \"seeds\": 2}}";

static void test_cells(void **state) {
    (void)state;
    dr_experiment *experiment;
    assert_int_equal(open_text(grid, NULL, &experiment), DR_OK);
    assert_int_equal(dr_experiment_cells(experiment), 12);
    assert_int_equal(dr_experiment_jobs(experiment), 0);
    assert_string_equal(dr_experiment_cell(experiment, 0), "rule=gdn,learning_rate=0.001,size=a-b,seed=1");
    assert_string_equal(dr_experiment_cell(experiment, 11), "rule=pgdn,learning_rate=0.01,size=a-b,seed=3");
    assert_null(dr_experiment_cell(experiment, 12));
    assert_null(dr_experiment_cell(experiment, -1));
    const json_t *settings = experiment->cell[5].settings;
    assert_int_equal(json_integer_value(json_object_get(settings, "seed")), 3);
    assert_string_equal(json_string_value(json_object_get(settings, "lengths")), "64/4");
    assert_true(json_real_value(json_object_get(settings, "learning_rate")) == 0.01);
    dr_experiment_close(experiment);
    assert_int_equal(open_text(HEAD "\"jobs\": 5}", NULL, &experiment), DR_OK);
    assert_int_equal(dr_experiment_jobs(experiment), 5);
    dr_experiment_close(experiment);
    const dr_experiment_options small = {.small = true, .corpus = "text"};
    assert_int_equal(open_text(grid, &small, &experiment), DR_OK);
    assert_int_equal(dr_experiment_cells(experiment), 4);
    assert_int_equal(json_integer_value(json_object_get(experiment->cell[0].settings, "hidden")), 4);
    assert_string_equal(json_string_value(json_object_get(experiment->cell[0].settings, "corpus")), "text");
    dr_experiment_close(experiment);
}

/* Makes a cell done, with this accuracy. */
static void measure(dr_experiment *experiment, int cell, double accuracy) {
    json_decref(experiment->cell[cell].measures);
    experiment->cell[cell].measures = json_pack("{s:f}", "accuracy", accuracy);
    experiment->cell[cell].state = DR_CELL_DONE;
}

static dr_verdict judge(const dr_experiment *experiment, size_t claim, void (*line)(void *, const char *), void *context) {
    dr_claim read;
    assert_int_equal(dr_claim_read(experiment, json_array_get(json_object_get(experiment->file, "claims"), claim), &read),
                     DR_OK);
    return dr_claim_judge(experiment, &read, line, context).verdict;
}

static void keep(void *context, const char *text) {
    snprintf(context, 256, "%s", text);
}

static void keep_all(void *context, const char *text) {
    strncat(context, text, 16000 - strlen(context));
    strncat(context, "\n", 16000 - strlen(context));
}

static void test_claims(void **state) {
    (void)state;
    char last[256] = "";
    dr_experiment *experiment;
    assert_int_equal(open_text(grid, NULL, &experiment), DR_OK);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    assert_string_equal(last, "");
    /* rows: gdn 0.001, gdn 0.01, pgdn 0.001, pgdn 0.01, three seeds each */
    static const double figures[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.6, 0.8, 0.0, 0.1, 0.2};
    for (int i = 0; i < 11; i++) measure(experiment, i, figures[i]);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN); /* one is missing: the best cannot be told */
    measure(experiment, 11, figures[11]);
    /* the best rows: gdn 0.4 0.5 0.6, pgdn 0.7 0.6 0.8; by seed 0.3 0.1 0.2 */
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_HOLDS);
    assert_non_null(strstr(last, "size a b, pgdn better than gdn by: 0.2 [0.1, 0.3], holds"));
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    assert_non_null(strstr(last, "0.7 [0.6, 0.8]"));
    measure(experiment, 7, 0.45); /* below gdn's of its seed, and below the bound */
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_IN_MEDIAN);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_IN_MEDIAN);
    measure(experiment, 6, 0.3);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_FAILS);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_FAILS);
    /* where less is better, the best rows are gdn 0.1 0.2 0.3 and pgdn 0.0 0.1 0.2: gdn is not lower */
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_FAILS);
    for (int s = 0; s < 3; s++) measure(experiment, s, -1 - 0.1 * s);
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_HOLDS);
    dr_experiment_close(experiment);
}

/* Of a claim over several places the worst counts, one that was not run too; a bound may be met; where leaves places out. */
static void test_places_of_claims(void **state) {
    (void)state;
    static const char places[] =
        HEAD "\"settings\": {\"task\": \"mqar\"}, \"seeds\": 1,"
             "\"grid\": {\"rule\": [\"gdn\", \"pgdn\", \"kda\"], \"size\": {\"s\": {\"lengths\": \"64/4\"}, \"l\": "
             "{\"lengths\": \"64/8\"}}},"
             "\"claims\": [{\"text\": \"all\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"pgdn\", \"gdn\", "
             "\"kda\"]},"
             "{\"text\": \"l\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"pgdn\", \"gdn\", \"kda\"], "
             "\"where\": {\"size\": "
             "\"l\"}},"
             "{\"text\": \"bound\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"of\": [\"gdn\"], \"at_least\": 0.5}]}";
    char last[256];
    dr_experiment *experiment;
    if (open_text(places, NULL, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    /* rows: gdn s, gdn l, pgdn s, pgdn l, kda s, kda l */
    measure(experiment, 1, 0.5);
    measure(experiment, 3, 0.7);
    measure(experiment, 5, 0.2);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_NOT_RUN);
    measure(experiment, 0, 0.5);
    measure(experiment, 2, 0.3);
    measure(experiment, 4, 0.1);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_FAILS);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_HOLDS);
    dr_experiment_close(experiment);
}

/* Excesses over another measure and quotients of two values: their verdicts, and what is not run. */
static void test_excesses_and_ratios(void **state) {
    (void)state;
    static const char text[] = HEAD
        "\"settings\": {\"task\": \"mqar\"}, \"seeds\": 3, \"grid\": {\"rule\": [\"gdn\", \"kda\"]},"
        "\"claims\": [{\"text\": \"more\", \"measure\": \"b\", \"than\": \"accuracy\", \"axis\": \"rule\", \"of\": [\"gdn\"]},"
        "{\"text\": \"much more\", \"measure\": \"b\", \"than\": \"accuracy\", \"axis\": \"rule\", \"of\": [\"gdn\"], "
        "\"at_least\": 0.15},"
        "{\"text\": \"as fast\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"ratio\": [\"gdn\", \"kda\"], \"at_least\": "
        "0.9},"
        "{\"text\": \"not twice\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"ratio\": [\"kda\", \"gdn\"], \"at_most\": "
        "2}]}";
    static const double of_gdn[] = {0.5, 0.6, 0.8}, of_kda[] = {0.5, 0.5, 0.9}, more[] = {0.1, 0.2, 0.3};
    char last[256] = "";
    dr_experiment *experiment;
    if (open_text(text, NULL, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    for (int s = 0; s < 3; s++) measure(experiment, s, of_gdn[s]);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN); /* b was not measured */
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_NOT_RUN);
    for (int s = 0; s < 3; s++) {
        json_object_set_new(experiment->cell[s].measures, "b", json_real(of_gdn[s] + more[s]));
        measure(experiment, 3 + s, of_kda[s]);
    }
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_HOLDS);
    assert_non_null(strstr(last, "gdn, at least 0: 0.2 [0.1, 0.3], holds"));
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_IN_MEDIAN);
    /* quotients 1, 1.2, 0.889 of the seeds */
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_IN_MEDIAN);
    assert_non_null(strstr(last, "gdn over kda, at least 0.9: 1 [0.8889, 1.2]"));
    assert_int_equal(judge(experiment, 3, keep, last), DR_CLAIM_HOLDS);
    measure(experiment, 3, 1.5);
    measure(experiment, 4, 1.5);
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_FAILS);
    assert_int_equal(judge(experiment, 3, keep, last), DR_CLAIM_FAILS);
    json_object_del(experiment->cell[1].measures, "b"); /* of one seed it is missing */
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    dr_experiment_close(experiment);
}

/* Where runs are missing: comparisons by the seeds that all of their runs have, and how many these are. */
static void test_partial(void **state) {
    (void)state;
    static const double figures[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.6, 0.8, 0.0, 0.1, 0.2};
    static char table[16384];
    char last[256] = "";
    dr_experiment *experiment;
    assert_int_equal(open_text(grid, &(dr_experiment_options){.partial = true}, &experiment), DR_OK);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    for (int i = 0; i < 11; i++) measure(experiment, i, figures[i]);
    /* the third seed of pgdn 0.01 is missing: the best rows are gdn 0.4 0.5 and pgdn 0.7 0.6 */
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_HOLDS);
    assert_non_null(strstr(last, "pgdn better than gdn by: 0.2 [0.1, 0.3], holds, by 2 of 3 seeds"));
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_TABLE, keep_all, table), DR_OK);
    assert_non_null(strstr(table, "holds: order (accuracy); so far 1 of 1 comparisons, by 2 or more of 3 seeds"));
    /* no seed that both sides have */
    for (int i = 3; i < 6; i++) experiment->cell[i].state = DR_CELL_MISSING, json_object_clear(experiment->cell[i].measures);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    dr_experiment_close(experiment);
}

/* Part of the grid, settings instead of the file's, and the order in which cells have their turn. */
static void test_choices(void **state) {
    (void)state;
    static const struct {
        const char *settings, *only, *says;
    } wrong[] = {{"{\"learning_rate\": 1}", NULL, "axis learning_rate sets learning_rate: choose among its values with only"},
                 {"{\"lengths\": \"64/8\"}", NULL, "axis size sets lengths"},
                 {"{\"hiden\": 1}", NULL, "did you mean \"hidden\"?"},
                 {"hidden 5", NULL, "settings"},
                 {"[]", NULL, "settings"},
                 {NULL, "{\"rule\": \"gdn\"}", "only: rule must be a list of values of that axis, such as [\"gdn\"]"},
                 {NULL, "{\"rule\": []}", "must be a list"},
                 {NULL, "{\"rule\": [\"kda\"]}", "only: axis rule has no value \"kda\"; its first is \"gdn\""},
                 {NULL, "{\"rule\": [null]}", "axis rule has no value"},
                 {NULL, "{\"rul\": [\"gdn\"]}", "only: \"rul\" is no axis of the grid"},
                 {NULL, "{", "only"}};
    dr_experiment *experiment;
    const long alive = allocation_alive;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const dr_experiment_options options = {.settings = wrong[i].settings, .only = wrong[i].only};
        assert_int_equal(open_text(grid, &options, &experiment), DR_ERROR_ARGUMENT);
        if (!strstr(dr_last_error(), wrong[i].says)) fail_msg("%s: %s", wrong[i].says, dr_last_error());
    }
    assert_int_equal(allocation_alive, alive);
    const dr_experiment_options options = {.settings = "{\"steps\": 7, \"hidden\": 4}",
                                           .only = "{\"learning_rate\": [0.01], \"rule\": [\"pgdn\", \"gdn\"]}"};
    assert_int_equal(open_text(grid, &options, &experiment), DR_OK);
    assert_int_equal(dr_experiment_cells(experiment), 6);
    assert_string_equal(dr_experiment_cell(experiment, 5), "rule=pgdn,learning_rate=0.01,size=a-b,seed=3");
    assert_int_equal(json_integer_value(json_object_get(experiment->cell[0].settings, "steps")), 7);
    assert_int_equal(json_integer_value(json_object_get(experiment->cell[0].settings, "hidden")), 4);
    static const int turns[] = {0, 3, 1, 4, 2, 5, -1};
    for (int i = 0; i < 7; i++) assert_int_equal(dr_experiment_turn(experiment, i), turns[i]);
    assert_int_equal(dr_experiment_turn(experiment, -1), -1);
    /* the claims are about what stays */
    for (int i = 0; i < 6; i++) measure(experiment, i, i < 3 ? 0.25 : 0.75);
    assert_int_equal(judge(experiment, 0, keep, (char[256]){""}), DR_CLAIM_HOLDS);
    dr_experiment_close(experiment);
}

static void count(void *context, const char *text) {
    assert_non_null(text);
    ++*(int *)context;
}

static void test_reports(void **state) {
    (void)state;
    dr_experiment *experiment;
    int lines = 0;
    assert_int_equal(open_text(grid, NULL, &experiment), DR_OK);
    measure(experiment, 4, 0.25);
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_CSV, count, &lines), DR_OK);
    assert_int_equal(lines, 5); /* a head, four rows */
    char last[256];
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_CSV, keep, last), DR_OK);
    assert_string_equal(last, "pgdn,0.01,a b,0,3,,,");
    lines = 0;
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_JSON, count, &lines), DR_OK);
    assert_int_equal(lines, 1 + 3); /* a cell, three claims */
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_TABLE, count, &lines), DR_OK);
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_PLOT, count, &lines), DR_OK);
    assert_int_equal(dr_experiment_report(experiment, (dr_report)9, count, &lines), DR_ERROR_ARGUMENT);
    dr_experiment_close(experiment);
}

/* The whole of a CSV report: labels with commas and quotes in quotes, numbers of done seeds, a median and both ends. */
static void test_csv(void **state) {
    (void)state;
    static const char text[] =
        HEAD "\"settings\": {\"task\": \"mqar\"}, \"seeds\": 3,"
             "\"grid\": {\"size\": {\"a, \\\"b\\\"\": {\"lengths\": \"64/4\"}, \"c\": {\"lengths\": \"64/8\"}}}}";
    static const double figures[] = {0.5, 0.25, 0.75};
    static char report[16384];
    dr_experiment *experiment;
    if (open_text(text, NULL, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    for (int s = 0; s < 3; s++) measure(experiment, s, figures[s]);
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_CSV, keep_all, report), DR_OK);
    assert_string_equal(report, "size,done,seeds,accuracy,accuracy:low,accuracy:high\n"
                                "\"a, \"\"b\"\"\",3,3,0.5,0.25,0.75\n"
                                "c,0,3,,,\n");
    dr_experiment_close(experiment);
}

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

static const char one[] = "{\"title\": \"t\", \"source\": \"s\", \"measures\": [\"accuracy\", \"loss\"], \"seeds\": 1, "
                          "\"settings\": {\"task\": \"mqar\", \"hidden\": %d, \"steps\": 40}}";

static void make_run(const char *metrics) {
    const char *name = "sweep/seed=1";
    mkdir(scratch_path("sweep"), 0777);
    mkdir(scratch_path(name), 0777);
    write_file("sweep/seed=1/settings.json",
               "{\"task\": \"mqar\", \"hidden\": 16, \"steps\": 40, \"seed\": 1, \"threads\": 2}");
    write_file("sweep/seed=1/metrics.csv", metrics);
    remove(scratch_path("sweep/seed=1/result.json"));
}

static dr_experiment *open_one(int hidden) {
    char text[512];
    dr_experiment *experiment;
    snprintf(text, sizeof text, one, hidden);
    assert_int_equal(open_text(text, NULL, &experiment), DR_OK);
    return experiment;
}

static double measured(const dr_experiment *experiment, const char *name) {
    return json_number_value(json_object_get(experiment->cell[0].measures, name));
}

static void test_results(void **state) {
    (void)state;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    make_run("step,loss,accuracy\n38,5,\n39,2,0.25\n40,4,0.5\n");
    dr_experiment *experiment = open_one(16);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_BEGUN);
    assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    /* the last evaluation; the loss of the last twentieth of 40 steps, 39 and 40 */
    assert_true(measured(experiment, "accuracy") == 0.5 && measured(experiment, "loss") == 3 &&
                measured(experiment, "steps") == 40);
    assert_int_equal(dr_experiment_finish(experiment, folder, 1), DR_ERROR_ARGUMENT);
    dr_experiment_close(experiment);
    experiment = open_one(16);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    assert_true(measured(experiment, "accuracy") == 0.5);
    dr_experiment_close(experiment);
    experiment = open_one(32);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "holds a run with hidden 16, and the experiment has 32"));
    dr_experiment_close(experiment);
}

static void test_broken_results(void **state) {
    (void)state;
    static const char *const broken[] = {"", "step,loss\n", "loss\n1\n"};
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    dr_experiment *experiment = open_one(16);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        make_run(broken[i]);
        assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_ERROR_FORMAT);
        assert_non_null(strstr(dr_last_error(), "it has no steps"));
        assert_int_not_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    }
    make_run("step,loss\n1,2\n");
    write_file("sweep/seed=1/result.json", "{\"measures\": 5}");
    assert_int_equal(dr_experiment_load(experiment, folder), DR_ERROR_FORMAT);
    write_file("sweep/seed=1/result.json", "{");
    assert_int_equal(dr_experiment_load(experiment, folder), DR_ERROR_FORMAT);
    dr_experiment_close(experiment);
}

/* ---- what follows a run --------------------------------------------------------------------------------------------- */

static const char followed[] =
    "{\"title\": \"t\", \"source\": \"s\", \"measures\": [\"accuracy\"], \"seeds\": 1, \"settings\": {\"task\": \"mqar\", "
    "\"hidden\": 16, \"steps\": 40, \"then\": [{\"probe\": \"erase\", \"tokens\": %d}, {\"evaluate\": "
    "\"needle-64\", "
    "\"max_length\": 9, \"format\": \"generate\"}, {\"bench\": \"op\"}]}}";

static const char figures_printed[] = "{\"layer\": 0, \"figure\": \"f\", \"count\": 2, \"mean\": 1, \"least\": 0, \"low\": 0, "
                                      "\"median\": 2, \"high\": 3, \"most\": 4}\n"
                                      "{\"layer\": 2, \"figure\": \"f\", \"count\": 2, \"mean\": 2, \"least\": -1, \"low\": 0, "
                                      "\"median\": 3, \"high\": 3, \"most\": 3}\n";

static dr_experiment *open_followed(int tokens, const dr_experiment_options *options) {
    char text[sizeof followed + 16];
    dr_experiment *experiment;
    snprintf(text, sizeof text, followed, tokens);
    if (open_text(text, options, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    return experiment;
}

static void expect_command(dr_experiment *experiment, const char *folder, const char *wanted) {
    const char *const *arguments;
    char joined[1024] = "";
    if (dr_experiment_next(experiment, folder, 0, &arguments) != DR_OK) fail_msg("%s", dr_last_error());
    for (int i = 0; arguments && arguments[i]; i++)
        snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "%s%s", i ? " " : "", arguments[i]);
    assert_string_equal(joined, wanted);
}

/* Of a cell whose results are there a probe of other flags is made again, and nothing else; a file that is none is refused. */
static void check_made_again(const char *folder, const dr_experiment_options *options) {
    dr_experiment *experiment;
    experiment = open_followed(10, options);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_TRAINED);
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, figures_printed), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    dr_experiment_close(experiment);
    write_file("sweep/seed=1/bench-op.json", "{}");
    experiment = open_followed(10, options);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_ERROR_FORMAT);
    dr_experiment_close(experiment);
}

/* One command after the other, their figures, and a folder that is read again at each point. */
static void test_what_follows(void **state) {
    (void)state;
    char folder[PATH_MAX], tasks[PATH_MAX], wanted[3 * PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    snprintf(tasks, sizeof tasks, "%s", scratch_path(""));
    const dr_experiment_options options = {.text = "words", .tasks = tasks};
    const char *const *arguments;
    make_run("step,loss,accuracy\n40,4,0.5\n");
    dr_experiment *experiment = open_followed(9, NULL);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_next(experiment, folder, 0, &arguments), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "give --tasks"));
    dr_experiment_close(experiment);
    experiment = open_followed(9, &options);
    assert_int_equal(dr_experiment_next(experiment, folder, 0, &arguments), DR_ERROR_IO); /* before anything has run */
    assert_non_null(strstr(dr_last_error(), "needle-64.jsonl is missing"));
    assert_int_equal(dr_experiment_next(experiment, folder, 1, &arguments), DR_ERROR_ARGUMENT);
    write_file("needle-64.jsonl", "{}\n");
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_BEGUN);
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, figures_printed), DR_ERROR_ARGUMENT); /* its run is not over */
    assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_TRAINED);
    snprintf(wanted, sizeof wanted, "probe erase --model %s/seed=1 --corpus words --tokens 9 --json", folder);
    expect_command(experiment, folder, wanted);
    static const char *const broken[] = {"", "5\n", "{\"layer\": 0}\n", "{\"layer\": 0, \"figure\": \"f\", \"mean\": null}\n",
                                         "{"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_int_equal(dr_experiment_keep(experiment, folder, 0, broken[i]), DR_ERROR_FORMAT);
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, figures_printed), DR_OK);
    assert_true(measured(experiment, "f") == 1.5 && measured(experiment, "f:median") == 2.5 &&
                measured(experiment, "f:least") == -1 && measured(experiment, "f:most") == 4 &&
                measured(experiment, "f:layer 2") == 2 && measured(experiment, "accuracy") == 0.5);
    snprintf(wanted, sizeof wanted, "evaluate %s/seed=1 %s/needle-64.jsonl --max-length 9 --format generate --json", folder,
             tasks);
    expect_command(experiment, folder, wanted);
    dr_experiment_close(experiment);
    experiment = open_followed(9, &options);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_TRAINED);
    assert_true(measured(experiment, "f:most") == 4);
    expect_command(experiment, folder, wanted);
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, "{\"format\": \"generate\", \"items\": 4, \"found\": 0.25}\n"),
                     DR_OK);
    assert_true(measured(experiment, "needle-64:found") == 0.25);
    expect_command(experiment, folder, "bench op --rule gdn --tokens 64 --sequences 64 --heads 4 --head-size 4 --json");
    static const char times[] =
        "{\"rule\": \"gdn\", \"forward\": {\"seconds\": 0.5}, \"forward_backward\": {\"seconds\": 2}}\n";
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, times), DR_OK);
    assert_true(measured(experiment, "recurrence_forward_ms") == 500 &&
                measured(experiment, "recurrence_forward_backward_ms") == 2000);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    expect_command(experiment, folder, "");
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, times), DR_ERROR_ARGUMENT);
    dr_experiment_close(experiment);
    check_made_again(folder, &options);
}

/* The rate of a run is that of its second half, where it has come to its pace. */
static void test_rates(void **state) {
    (void)state;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    make_run("step,loss,tokens_per_second\n37,1,10\n20,1,10\n30,1,20\n38,1,30\n40,1,40\n");
    dr_experiment *experiment = open_one(16);
    assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_OK);
    assert_true(measured(experiment, "tokens_per_second") == 25);
    dr_experiment_close(experiment);
}

/* Curves of the runs that have begun. */
static void test_curves(void **state) {
    (void)state;
    static char text[16384];
    dr_experiment *experiment;
    assert_int_equal(
        open_text(HEAD "\"curves\": \"loss\", \"seeds\": 2, \"grid\": {\"rule\": [\"gdn\", \"kda\"]}}", NULL, &experiment),
        DR_OK);
    text[0] = '\0';
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_PLOT, keep_all, text), DR_OK);
    assert_non_null(strstr(text, "plot [0:1] NaN notitle"));
    experiment->cell[2].state = DR_CELL_BEGUN;
    measure(experiment, 3, 1);
    text[0] = '\0';
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_PLOT, keep_all, text), DR_OK);
    assert_non_null(strstr(text, "plot 'rule=kda,seed=1/metrics.csv' using 'step':'loss' with lines linetype 2 title \"kda\""));
    assert_non_null(strstr(text, "    , 'rule=kda,seed=2/metrics.csv' using 'step':'loss' with lines linetype 2 notitle"));
    assert_null(strstr(text, "rule=gdn"));
    dr_experiment_close(experiment);
}

/* Each allocation of the library fails once: nothing stays, and the next try succeeds. */
static void test_allocations(void **state) {
    (void)state;
    const long alive = allocation_alive;
    dr_status status = DR_ERROR_MEMORY;
    long n = 1;
    for (; status == DR_ERROR_MEMORY && n < 2000; n++) {
        dr_experiment *experiment = NULL;
        allocation_fail_at(n);
        status = open_text(grid, NULL, &experiment);
        allocation_fail_at(0);
        if (status == DR_OK) dr_experiment_close(experiment);
        assert_int_equal(allocation_alive, alive);
    }
    assert_int_equal(status, DR_OK);
    assert_true(n > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spreads),
                                       cmocka_unit_test(test_refused_files),
                                       cmocka_unit_test(test_cells),
                                       cmocka_unit_test(test_claims),
                                       cmocka_unit_test(test_places_of_claims),
                                       cmocka_unit_test(test_partial),
                                       cmocka_unit_test(test_choices),
                                       cmocka_unit_test(test_reports),
                                       cmocka_unit_test(test_csv),
                                       cmocka_unit_test(test_excesses_and_ratios),
                                       cmocka_unit_test(test_what_follows),
                                       cmocka_unit_test(test_rates),
                                       cmocka_unit_test(test_curves),
                                       cmocka_unit_test(test_results),
                                       cmocka_unit_test(test_broken_results),
                                       cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
