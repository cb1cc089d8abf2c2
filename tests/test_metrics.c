/* The page of numbers that a server shows: what stands in which line. */
#include "allocation.h"
#include "serve/metrics.h"

#include "base/memory.h"

/* Each line must stand in the page, whole. */
static void assert_lines(dr_metrics *metrics, const char *const *lines, size_t count) {
    char *text = NULL;
    size_t bytes;
    assert_int_equal(dr_metrics_print(metrics, &text, &bytes), DR_OK);
    assert_int_equal(strlen(text), bytes);
    for (size_t i = 0; i < count; i++) {
        const char *found = strstr(text, lines[i]);
        if (!found || (found > text && found[-1] != '\n') || found[strlen(lines[i])] != '\n')
            fail_msg("no line %s in\n%s", lines[i], text);
    }
    dr_release(text);
}

/* A time that equals a bound lies within it; each bucket has those below it too; the last has all. */
static void test_histograms(void **state) {
    (void)state;
    static const char *const lines[] = {"deltarule_first_token_seconds_bucket{le=\"0.001\"} 1",
                                        "deltarule_first_token_seconds_bucket{le=\"0.0025\"} 1",
                                        "deltarule_first_token_seconds_bucket{le=\"0.005\"} 2",
                                        "deltarule_first_token_seconds_bucket{le=\"60\"} 2",
                                        "deltarule_first_token_seconds_bucket{le=\"300\"} 3",
                                        "deltarule_first_token_seconds_bucket{le=\"+Inf\"} 4",
                                        "deltarule_first_token_seconds_count 4",
                                        "deltarule_first_token_seconds_sum 1300.004000",
                                        "deltarule_next_token_seconds_count 0",
                                        "deltarule_request_seconds_bucket{le=\"+Inf\"} 0"};
    static const double seconds[] = {0.001, 0.003, 300, 1000};
    dr_metrics *metrics;
    assert_int_equal(dr_metrics_create(&metrics), DR_OK);
    for (int i = 0; i < 4; i++) dr_metrics_observe(metrics, DR_HISTOGRAM_FIRST_TOKEN, seconds[i]);
    assert_lines(metrics, lines, sizeof lines / sizeof *lines);
    dr_metrics_destroy(metrics);
}

/* Every counter and gauge has a number of its own. */
static void test_counters(void **state) {
    (void)state;
    static const char *const lines[] = {
        "deltarule_prompt_tokens_total 1000",
        "deltarule_cached_tokens_total 1001",
        "deltarule_answer_tokens_total 1002",
        "deltarule_store_hits_total 1003",
        "deltarule_store_misses_total{reason=\"empty\"} 1004",
        "deltarule_store_misses_total{reason=\"unknown\"} 1005",
        "deltarule_store_misses_total{reason=\"gone\"} 1006",
        "deltarule_store_misses_total{reason=\"scored\"} 1007",
        "deltarule_store_added_total 1008",
        "deltarule_store_evicted_total 1009",
        "deltarule_store_files_evicted_total 1010",
        "deltarule_store_files_damaged_total 1011",
        "deltarule_store_files_failed_total 1012",
        "deltarule_refused_total 1013",
        "deltarule_slow_connections_total 1014",
        "deltarule_reloads_total 1015",
        "deltarule_sequences_total{outcome=\"stop\"} 1017",
        "deltarule_sequences_total{outcome=\"failed\"} 1021",
        "deltarule_responses_total{status=\"2xx\"} 1024",
        "deltarule_responses_total{status=\"3xx\"} 1025",
        "deltarule_responses_total{status=\"4xx\"} 1026",
        "deltarule_responses_total{status=\"5xx\"} 1027",
        "deltarule_queued_sequences 50",
        "deltarule_slots_used 51",
        "deltarule_slots 52",
        "deltarule_connections 53",
        "deltarule_store_snapshots 54",
        "deltarule_store_bytes 55",
        "deltarule_store_files 56",
        "deltarule_store_file_bytes 57",
    };
    dr_metrics *metrics;
    assert_int_equal(dr_metrics_create(&metrics), DR_OK);
    for (int i = 0; i < DR_COUNTERS; i++) dr_metrics_add(metrics, i, 1000 + i);
    for (int i = 0; i < DR_GAUGES; i++) dr_metrics_set(metrics, (dr_gauge)i, 40 + i);
    for (int i = 0; i < DR_GAUGES; i++) dr_metrics_change(metrics, (dr_gauge)i, 10);
    assert_lines(metrics, lines, sizeof lines / sizeof *lines);
    dr_metrics_destroy(metrics);
}

/* Of a store the differences between two counts are added. */
static void test_store(void **state) {
    (void)state;
    static const char *const lines[] = {"deltarule_store_hits_total 9",
                                        "deltarule_store_misses_total{reason=\"empty\"} 18",
                                        "deltarule_store_misses_total{reason=\"unknown\"} 27",
                                        "deltarule_store_misses_total{reason=\"gone\"} 36",
                                        "deltarule_store_added_total 45",
                                        "deltarule_store_evicted_total 54",
                                        "deltarule_store_files_evicted_total 63",
                                        "deltarule_store_files_damaged_total 72",
                                        "deltarule_store_snapshots -1",
                                        "deltarule_store_bytes -2",
                                        "deltarule_store_files -3",
                                        "deltarule_store_file_bytes -4"};
    const dr_prefix_counts before = {.hits = 1,
                                     .empty = 2,
                                     .unknown = 3,
                                     .gone = 4,
                                     .added = 5,
                                     .evicted = 6,
                                     .files_evicted = 7,
                                     .files_damaged = 8,
                                     .snapshots = 11,
                                     .bytes = 12,
                                     .files = 13,
                                     .file_bytes = 14};
    const dr_prefix_counts after = {.hits = 10,
                                    .empty = 20,
                                    .unknown = 30,
                                    .gone = 40,
                                    .added = 50,
                                    .evicted = 60,
                                    .files_evicted = 70,
                                    .files_damaged = 80,
                                    .snapshots = 10,
                                    .bytes = 10,
                                    .files = 10,
                                    .file_bytes = 10};
    dr_metrics *metrics;
    assert_int_equal(dr_metrics_create(&metrics), DR_OK);
    dr_metrics_store(metrics, &before, &after);
    assert_lines(metrics, lines, sizeof lines / sizeof *lines);
    dr_metrics_destroy(metrics);
}

static void test_no_memory(void **state) {
    (void)state;
    const long alive = allocation_alive;
    dr_metrics *metrics;
    char *text;
    size_t bytes;
    allocation_fail_at(1);
    assert_int_equal(dr_metrics_create(&metrics), DR_ERROR_MEMORY);
    allocation_fail_at(0);
    assert_int_equal(dr_metrics_create(&metrics), DR_OK);
    allocation_fail_at(1);
    assert_int_equal(dr_metrics_print(metrics, &text, &bytes), DR_ERROR_MEMORY);
    allocation_fail_at(0);
    dr_metrics_destroy(metrics);
    assert_int_equal(allocation_alive, alive);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histograms),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
