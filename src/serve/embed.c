/* Embeddings: the model's last hidden state, behind its final norm, of the last token of each text. They are computed as jobs
 * like any other, in slots, without an answer. */
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "serve/complete.h"
#include "serve/http.h"

#include <stdlib.h>
#include <string.h>

static json_t *list_json(const float *values, int64_t count) {
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_real((double)values[i]));
    return list;
}

/* The bytes of the values in base64 (RFC 4648). */
static json_t *base64_json(const float *values, int64_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)values;
    const size_t size = (size_t)count * sizeof(float);
    char *text = malloc(4 * ((size + 2) / 3) + 1);
    size_t used = 0;
    if (!text) return NULL;
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        const uint32_t three =
            (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) | (left > 2 ? bytes[i + 2] : 0u);
        text[used++] = digits[three >> 18];
        text[used++] = digits[three >> 12 & 63];
        text[used++] = left > 1 ? digits[three >> 6 & 63] : '=';
        text[used++] = left > 2 ? digits[three & 63] : '=';
    }
    json_t *json = json_stringn_nocheck(text, used);
    free(text);
    return json;
}

static enum MHD_Result send_embeddings(dr_completion *c) {
    json_t *data = json_array();
    json_int_t tokens = 0;
    const int64_t hidden = dr_model_get_config(c->served->model)->hidden;
    for (int64_t i = 0; i < c->job->count; i++) {
        const dr_part *part = &c->job->parts[i];
        json_t *values = c->request.base64 ? base64_json(part->embedding, hidden) : list_json(part->embedding, hidden);
        json_array_append_new(data,
                              json_pack("{s:s, s:I, s:o}", "object", "embedding", "index", (json_int_t)i, "embedding", values));
        tokens += part->prompt_count;
    }
    return dr_http_send_json(c->exchange, json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", data, "model",
                                                    c->served->name, "usage", "prompt_tokens", tokens, "total_tokens", tokens));
}

enum MHD_Result dr_answer_embedding(dr_exchange *exchange) {
    return dr_complete(exchange, DR_REQUEST_EMBEDDING, send_embeddings);
}
