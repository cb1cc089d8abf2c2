/* Reads the documents of JSON lines, and of the same bytes as gzip and zstd, as corpora come. */
#include "fuzz.h"
#include "shards/source.h"

#include <fcntl.h>
#include <string.h>

enum { DESCRIPTOR = 200, MOST_DOCUMENTS = 100000 };

/* Documents of the bytes, by the kind that the ending says; they may end with a failure. */
static void read_as(const char *path) {
    const dr_source_options options = {.field = "text", .longest_document = 1 << 16};
    const dr_found_file file = {.path = (char *)path};
    dr_source_document document;
    dr_source *source;
    bool more = true;
    if (dr_source_open(&file, &options, &source) != DR_OK) return;
    for (int i = 0; more; i++) {
        if (i > MOST_DOCUMENTS) abort();
        dr_source_next(source, &document, &more);
        for (int64_t k = 0; k < document.count; k++)
            if (document.pieces[k].bytes < 0 || document.bytes > options.longest_document) abort();
    }
    dr_source_close(source);
}

static char folder[] = "/tmp/fuzz-lines-XXXXXX", links[4][64];

static void remove_links(void) {
    for (int i = 0; i < 4; i++) unlink(links[i]);
    rmdir(folder);
}

static void read_all(const char *path) {
    static const char *const names[] = {"lines.jsonl", "lines.jsonl.gz", "text.gz", "text.zst"};
    int descriptor = open(path, O_RDONLY);
    if (descriptor < 0 || dup2(descriptor, DESCRIPTOR) < 0) abort();
    close(descriptor);
    for (int i = 0; i < 4; i++) {
        if (!*links[i]) { /* links to the descriptor, under names that say a kind */
            if (i == 0 && (!mkdtemp(folder) || atexit(remove_links) != 0)) abort();
            snprintf(links[i], sizeof links[i], "%s/%s", folder, names[i]);
            if (symlink("/proc/self/fd/200", links[i]) != 0) abort();
        }
        read_as(links[i]);
    }
    close(DESCRIPTOR);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_with_file(data, size, read_all);
    return 0;
}
