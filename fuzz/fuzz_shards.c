/* Opens a file of token ids, as other programs write them, and reads all of it; and reads shards.json. */
#include "fuzz.h"
#include "shards/manifest.h"
#include "shards/shards.h"

static void read_ids(const char *path) {
    enum { AT_ONCE = 1000 };
    const dr_shards_of of = {.vocabulary = 50257, .start = 7};
    dr_shards *shards;
    dr_token_documents documents;
    int32_t ids[AT_ONCE];
    uint8_t marks[AT_ONCE];
    if (dr_shards_open(path, &of, &shards) != DR_OK) return;
    dr_tokens *tokens = dr_shard_set_tokens(shards->sets[0]);
    for (int64_t from = 0; from < tokens->count; from += AT_ONCE) {
        int64_t count = tokens->count - from < AT_ONCE ? tokens->count - from : AT_ONCE;
        if (tokens->read(tokens, from, count, ids, marks) != DR_OK) abort();
        for (int64_t i = 0; i < count; i++)
            if (ids[i] < 0 || ids[i] >= of.vocabulary || (marks[i] == DR_TOKEN_BEGINS) != (ids[i] == of.start)) abort();
    }
    if (dr_shard_set_documents(shards->sets[0], &documents) != DR_OK) abort();
    if (documents.begin[documents.count] != tokens->count) abort();
    dr_token_documents_release(&documents);
    dr_shards_close(shards);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dr_shard_manifest manifest;
    fuzz_with_file(data, size, read_ids);
    dr_shard_manifest_parse((const char *)data, size, "shards.json", &manifest);
    dr_shard_manifest_release(&manifest);
    return 0;
}
