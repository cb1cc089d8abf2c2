/* Headers of files of token ids. A file without one is taken as nanoGPT's, which is nothing but ids: so what looks like a
 * header that is not known must be refused, or it would be trained on. */
#include "shards/layout.h"

#include "base/error.h"

#include <string.h>

enum { MAGIC_16 = 20240520, VERSION_16 = 1, MAGIC_32 = 20240801, VERSION_32 = 7, MAGIC_CHOICES = 20240522, NUMBERS = 12 };

/* After magic, version and count a header is empty, and no text begins with 506 times the id 0. */
static bool looks_like_header(const uint8_t *data, int64_t bytes) {
    static const uint8_t zeros[DR_SHARD_HEADER - NUMBERS];
    return bytes >= DR_SHARD_HEADER && memcmp(data + NUMBERS, zeros, sizeof zeros) == 0;
}

static dr_status read_header(const uint8_t *data, int64_t bytes, const char *name, dr_shard_layout *layout) {
    const uint32_t magic = dr_shard_u32(data);
    const int32_t version = (int32_t)dr_shard_u32(data + 4), tokens = (int32_t)dr_shard_u32(data + 8);
    const int32_t known = magic == MAGIC_16 ? VERSION_16 : VERSION_32;
    layout->header = DR_SHARD_HEADER;
    layout->width = magic == MAGIC_16 ? 2 : 4;
    layout->tokens = tokens;
    if (bytes < DR_SHARD_HEADER)
        return dr_fail(DR_ERROR_FORMAT, "%s is cut short: its header has %d bytes, and the file %lld", name, DR_SHARD_HEADER,
                       (long long)bytes);
    if (version != known)
        return dr_fail(DR_ERROR_FORMAT, "%s has version %d of the header with magic %u, and %d is read", name, version, magic,
                       known);
    if (tokens < 1) return dr_fail(DR_ERROR_FORMAT, "%s has %d tokens by its header: there must be one or more", name, tokens);
    int64_t wanted = DR_SHARD_HEADER + layout->width * layout->tokens;
    if (bytes == wanted) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "%s has %lld bytes: %d tokens of %d bytes and the header make %lld, so it is %s", name,
                   (long long)bytes, tokens, layout->width, (long long)wanted,
                   bytes < wanted ? "cut short" : "no file of these tokens alone");
}

dr_status dr_shard_layout_read(const uint8_t *data, int64_t bytes, const char *name, dr_shard_layout *layout) {
    const uint32_t magic = bytes >= 4 ? dr_shard_u32(data) : 0;
    *layout = (dr_shard_layout){0};
    if (bytes >= NUMBERS && (magic == MAGIC_16 || magic == MAGIC_32)) return read_header(data, bytes, name, layout);
    if (magic == MAGIC_CHOICES)
        return dr_fail(DR_ERROR_FORMAT, "%s holds questions with choices (magic %d), not text", name, MAGIC_CHOICES);
    if (looks_like_header(data, bytes))
        return dr_fail(DR_ERROR_FORMAT, "%s has a header with magic %u: %d (ids of 16 bits) and %d (of 32) are read", name,
                       magic, MAGIC_16, MAGIC_32);
    if (bytes < 2 || bytes % 2 != 0)
        return dr_fail(DR_ERROR_FORMAT, "%s has %lld bytes: a file of ids of 16 bits has an even number of them", name,
                       (long long)bytes);
    *layout = (dr_shard_layout){.width = 2, .tokens = bytes / 2};
    return DR_OK;
}

void dr_shard_header_write(int width, int64_t tokens, uint8_t header[DR_SHARD_HEADER]) {
    memset(header, 0, DR_SHARD_HEADER);
    dr_shard_put(width == 2 ? MAGIC_16 : MAGIC_32, 4, header);
    dr_shard_put(width == 2 ? VERSION_16 : VERSION_32, 4, header + 4);
    dr_shard_put((uint64_t)tokens, 4, header + 8);
}
