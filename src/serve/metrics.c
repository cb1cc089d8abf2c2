/* Numbers behind one lock: they are counted some times a token at most. */
#include "serve/metrics.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
enum { BOUNDS = sizeof bounds / sizeof *bounds, PAGE = 1 << 15 };

struct dr_metrics {
    pthread_mutex_t lock;
    int64_t counter[DR_COUNTERS], gauge[DR_GAUGES];
    struct {
        int64_t bucket[BOUNDS + 1]; /* the last: above every bound */
        double sum;
    } histogram[DR_HISTOGRAMS];
};

dr_status dr_metrics_create(dr_metrics **metrics) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_metrics), "the metrics", &memory));
    *metrics = memory;
    pthread_mutex_init(&(*metrics)->lock, NULL);
    return DR_OK;
}

void dr_metrics_destroy(dr_metrics *metrics) {
    if (!metrics) return;
    pthread_mutex_destroy(&metrics->lock);
    dr_release(metrics);
}

void dr_metrics_add(dr_metrics *metrics, int counter, int64_t amount) {
    pthread_mutex_lock(&metrics->lock);
    metrics->counter[counter] += amount;
    pthread_mutex_unlock(&metrics->lock);
}

void dr_metrics_set(dr_metrics *metrics, dr_gauge gauge, int64_t value) {
    pthread_mutex_lock(&metrics->lock);
    metrics->gauge[gauge] = value;
    pthread_mutex_unlock(&metrics->lock);
}

void dr_metrics_change(dr_metrics *metrics, dr_gauge gauge, int64_t amount) {
    pthread_mutex_lock(&metrics->lock);
    metrics->gauge[gauge] += amount;
    pthread_mutex_unlock(&metrics->lock);
}

void dr_metrics_observe(dr_metrics *metrics, dr_histogram histogram, double seconds) {
    int bucket = 0;
    while (bucket < BOUNDS && seconds > bounds[bucket]) bucket++;
    pthread_mutex_lock(&metrics->lock);
    metrics->histogram[histogram].bucket[bucket]++;
    metrics->histogram[histogram].sum += seconds;
    pthread_mutex_unlock(&metrics->lock);
}

void dr_metrics_store(dr_metrics *metrics, const dr_prefix_counts *before, const dr_prefix_counts *after) {
    pthread_mutex_lock(&metrics->lock);
    metrics->counter[DR_COUNTER_STORE_HITS] += after->hits - before->hits;
    metrics->counter[DR_COUNTER_STORE_EMPTY] += after->empty - before->empty;
    metrics->counter[DR_COUNTER_STORE_UNKNOWN] += after->unknown - before->unknown;
    metrics->counter[DR_COUNTER_STORE_GONE] += after->gone - before->gone;
    metrics->counter[DR_COUNTER_STORE_ADDED] += after->added - before->added;
    metrics->counter[DR_COUNTER_STORE_EVICTED] += after->evicted - before->evicted;
    metrics->counter[DR_COUNTER_FILES_EVICTED] += after->files_evicted - before->files_evicted;
    metrics->counter[DR_COUNTER_FILES_DAMAGED] += after->files_damaged - before->files_damaged;
    metrics->gauge[DR_GAUGE_STORE_SNAPSHOTS] += after->snapshots - before->snapshots;
    metrics->gauge[DR_GAUGE_STORE_BYTES] += (int64_t)after->bytes - (int64_t)before->bytes;
    metrics->gauge[DR_GAUGE_STORE_FILES] += after->files - before->files;
    metrics->gauge[DR_GAUGE_STORE_FILE_BYTES] += (int64_t)after->file_bytes - (int64_t)before->file_bytes;
    pthread_mutex_unlock(&metrics->lock);
}

/* ---- the page ---- */

typedef struct {
    char *text; /* [PAGE], more than all lines together take */
    size_t used;
} page;

static void __attribute__((format(printf, 2, 3))) line(page *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int bytes = dr_format_list(out->text + out->used, PAGE - out->used, format, arguments);
    va_end(arguments);
    if (bytes > 0 && (size_t)bytes < PAGE - out->used) out->used += (size_t)bytes;
}

static void head(page *out, const char *name, const char *type, const char *meaning) {
    line(out, "# HELP deltarule_%s %s\n# TYPE deltarule_%s %s\n", name, meaning, name, type);
}

static void print_counters(page *out, const dr_metrics *m) {
    static const struct {
        dr_counter counter;
        const char *name, *meaning;
    } plain[] = {
        {DR_COUNTER_PROMPT_TOKENS, "prompt_tokens_total", "Tokens of prompts that were read."},
        {DR_COUNTER_CACHED_TOKENS, "cached_tokens_total",
         "Tokens of prompts whose state was kept and that were not read again."},
        {DR_COUNTER_ANSWER_TOKENS, "answer_tokens_total", "Tokens that were made."},
        {DR_COUNTER_STORE_HITS, "store_hits_total", "Prompts that began where a state was kept."},
        {DR_COUNTER_STORE_ADDED, "store_added_total", "States that were kept."},
        {DR_COUNTER_STORE_EVICTED, "store_evicted_total", "Kept states that left the memory for its bound."},
        {DR_COUNTER_FILES_EVICTED, "store_files_evicted_total", "Files of kept states that were removed for their bound."},
        {DR_COUNTER_FILES_DAMAGED, "store_files_damaged_total", "Files of kept states that were damaged and removed."},
        {DR_COUNTER_FILES_FAILED, "store_files_failed_total", "Kept states whose files could not be written."},
        {DR_COUNTER_REFUSED, "refused_total", "Requests that were refused because the queue had no room."},
        {DR_COUNTER_SLOW, "slow_connections_total", "Connections that were closed because their clients took too long."},
        {DR_COUNTER_RELOADS, "reloads_total", "Times that the models were read anew."},
    };
    static const char *const outcomes[] = {"none", "stop", "length", "timeout", "gone", "failed"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        head(out, plain[i].name, "counter", plain[i].meaning);
        line(out, "deltarule_%s %lld\n", plain[i].name, (long long)m->counter[plain[i].counter]);
    }
    static const char *const reasons[] = {"empty", "unknown", "gone", "scored"};
    head(out, "store_misses_total", "counter", "Prompts that were read from their first token on, by why.");
    for (int i = 0; i < 4; i++)
        line(out, "deltarule_store_misses_total{reason=\"%s\"} %lld\n", reasons[i],
             (long long)m->counter[(int)DR_COUNTER_STORE_EMPTY + i]);
    head(out, "sequences_total", "counter", "Sequences that ended, by how.");
    for (int i = 1; i < 6; i++)
        line(out, "deltarule_sequences_total{outcome=\"%s\"} %lld\n", outcomes[i],
             (long long)m->counter[(int)DR_COUNTER_OUTCOME + i]);
    head(out, "responses_total", "counter", "Responses by the class of their status.");
    for (int i = 2; i < 6; i++)
        line(out, "deltarule_responses_total{status=\"%dxx\"} %lld\n", i, (long long)m->counter[(int)DR_COUNTER_STATUS + i]);
}

/* Bytes of memory that the process has in use, 0 if the system does not tell. */
static int64_t resident_bytes(void) {
    char text[128];
    int64_t pages = 0;
    static const char place[] = "/proc/self/statm";
    FILE *file = fopen(place, "re");
    if (!file) return 0;
    char *blank = fgets(text, sizeof text, file) ? strchr(text, ' ') : NULL;
    fclose(file);
    if (!blank) return 0;
    char *end = strchr(blank + 1, ' ');
    if (end) *end = 0;
    return dr_integer_parse(blank + 1, &pages) ? pages * sysconf(_SC_PAGESIZE) : 0;
}

static void print_gauges(page *out, const dr_metrics *m) {
    static const struct {
        dr_gauge gauge;
        const char *name, *meaning;
    } plain[] = {
        {DR_GAUGE_QUEUED, "queued_sequences", "Sequences that wait for a slot."},
        {DR_GAUGE_SLOTS_USED, "slots_used", "Sequences that are computed."},
        {DR_GAUGE_SLOTS, "slots", "Sequences that can be computed at once."},
        {DR_GAUGE_CONNECTIONS, "connections", "Open connections."},
        {DR_GAUGE_STORE_SNAPSHOTS, "store_snapshots", "Kept states in memory."},
        {DR_GAUGE_STORE_BYTES, "store_bytes", "Memory of kept states."},
        {DR_GAUGE_STORE_FILES, "store_files", "Files of kept states."},
        {DR_GAUGE_STORE_FILE_BYTES, "store_file_bytes", "Size of the files of kept states."},
    };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        head(out, plain[i].name, "gauge", plain[i].meaning);
        line(out, "deltarule_%s %lld\n", plain[i].name, (long long)m->gauge[plain[i].gauge]);
    }
    head(out, "resident_bytes", "gauge", "Memory of the process.");
    line(out, "deltarule_resident_bytes %lld\n", (long long)resident_bytes());
}

static void print_histograms(page *out, const dr_metrics *m) {
    static const char *const names[][2] = {
        {"first_token_seconds", "Time from a request to the first token of a sequence."},
        {"next_token_seconds", "Time from one token of a sequence to the next."},
        {"request_seconds", "Time of a whole request."},
    };
    for (int h = 0; h < DR_HISTOGRAMS; h++) {
        const char *name = names[h][0];
        int64_t count = 0;
        head(out, name, "histogram", names[h][1]);
        for (int b = 0; b < BOUNDS; b++) {
            count += m->histogram[h].bucket[b];
            line(out, "deltarule_%s_bucket{le=\"%g\"} %lld\n", name, bounds[b], (long long)count);
        }
        count += m->histogram[h].bucket[BOUNDS];
        line(out, "deltarule_%s_bucket{le=\"+Inf\"} %lld\n", name, (long long)count);
        line(out, "deltarule_%s_sum %.6f\ndeltarule_%s_count %lld\n", name, m->histogram[h].sum, name, (long long)count);
    }
}

dr_status dr_metrics_print(dr_metrics *metrics, char **text, size_t *bytes) {
    void *memory;
    DR_TRY(dr_allocate(PAGE, "the metrics", &memory));
    page out = {.text = memory};
    pthread_mutex_lock(&metrics->lock);
    print_counters(&out, metrics);
    print_gauges(&out, metrics);
    print_histograms(&out, metrics);
    pthread_mutex_unlock(&metrics->lock);
    *text = out.text;
    *bytes = out.used;
    return DR_OK;
}
