/* What a server has done, in the text format that Prometheus reads. Any thread may count at any time. */
#ifndef DR_SERVE_METRICS_H
#define DR_SERVE_METRICS_H

#include <deltarule/prefix.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dr_metrics dr_metrics;

/* Sums that only grow. Those of outcomes stand in the order of dr_outcome. */
typedef enum {
    DR_COUNTER_PROMPT_TOKENS, /* that were read */
    DR_COUNTER_CACHED_TOKENS, /* of prompts, that did not have to be read again */
    DR_COUNTER_ANSWER_TOKENS, /* that were made */
    DR_COUNTER_STORE_HITS,    /* prompts with a beginning whose state was kept */
    DR_COUNTER_STORE_EMPTY,   /* prompts without, by reason: nothing was kept */
    DR_COUNTER_STORE_UNKNOWN, /* no such beginning */
    DR_COUNTER_STORE_GONE,    /* it had to go for the bound */
    DR_COUNTER_STORE_SCORED,  /* each of the prompt's tokens had to be read, to be scored */
    DR_COUNTER_STORE_ADDED,
    DR_COUNTER_STORE_EVICTED,
    DR_COUNTER_FILES_EVICTED,
    DR_COUNTER_FILES_DAMAGED,
    DR_COUNTER_FILES_FAILED, /* could not be written */
    DR_COUNTER_REFUSED,      /* requests for which the queue had no room */
    DR_COUNTER_SLOW,         /* connections that were closed since their clients took too long */
    DR_COUNTER_RELOADS,
    DR_COUNTER_OUTCOME,
    DR_COUNTER_STATUS = DR_COUNTER_OUTCOME + 6, /* responses by the first digit of their status, 1 to 5 */
    DR_COUNTERS = DR_COUNTER_STATUS + 6
} dr_counter;

typedef enum {
    DR_GAUGE_QUEUED,
    DR_GAUGE_SLOTS_USED,
    DR_GAUGE_SLOTS,
    DR_GAUGE_CONNECTIONS,
    DR_GAUGE_STORE_SNAPSHOTS,
    DR_GAUGE_STORE_BYTES,
    DR_GAUGE_STORE_FILES,
    DR_GAUGE_STORE_FILE_BYTES,
    DR_GAUGES
} dr_gauge;

typedef enum {
    DR_HISTOGRAM_FIRST_TOKEN, /* seconds from the request to its first token */
    DR_HISTOGRAM_NEXT_TOKEN,  /* from token to token */
    DR_HISTOGRAM_REQUEST,     /* of a whole request */
    DR_HISTOGRAMS
} dr_histogram;

dr_status dr_metrics_create(dr_metrics **metrics);
void dr_metrics_destroy(dr_metrics *metrics); /* NULL is allowed */

void dr_metrics_add(dr_metrics *metrics, int counter, int64_t amount);
void dr_metrics_set(dr_metrics *metrics, dr_gauge gauge, int64_t value);
void dr_metrics_change(dr_metrics *metrics, dr_gauge gauge, int64_t amount);
void dr_metrics_observe(dr_metrics *metrics, dr_histogram histogram, double seconds);

/* What changed in a store of states between two counts of it. */
void dr_metrics_store(dr_metrics *metrics, const dr_prefix_counts *before, const dr_prefix_counts *after);

/* The page; free it with dr_release. */
dr_status dr_metrics_print(dr_metrics *metrics, char **text, size_t *bytes);

#endif
