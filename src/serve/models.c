/* What is answered without computing: health, the models, their tokenizers, the metrics, the page to try it. */
#include "base/error.h"
#include "base/memory.h"
#include "serve/http.h"
#include "serve/page.h"
#include "serve/request.h"

#include <stdlib.h>
#include <string.h>

enum MHD_Result dr_answer_health(dr_exchange *exchange) {
    return dr_http_send_constant(exchange, 200, "application/json", "{\"status\":\"ok\"}\n");
}

enum MHD_Result dr_answer_page(dr_exchange *exchange) {
    return dr_http_send_constant(exchange, 200, "text/html; charset=utf-8", dr_page);
}

static json_t *describe(const dr_server *server, const dr_served *served) {
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:b}", "id", served->name, "object", "model", "created",
                     (json_int_t)served->created, "owned_by", "deltarule", "max_model_len", (json_int_t)server->options.context,
                     "chat", served->chat != NULL);
}

enum MHD_Result dr_answer_models(dr_exchange *exchange) {
    dr_server *server = exchange->server;
    json_t *list = json_array();
    pthread_mutex_lock(&server->lock);
    for (int64_t i = 0; i < server->options.model_count; i++) json_array_append_new(list, describe(server, server->served[i]));
    pthread_mutex_unlock(&server->lock);
    return dr_http_send_json(exchange, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

enum MHD_Result dr_answer_model(dr_exchange *exchange) {
    dr_served *served = dr_server_acquire(exchange->server, exchange->path + strlen("/v1/models/"));
    if (!served)
        return dr_http_send_error(exchange, 404, "there is no such model: /v1/models lists those that there are", "model",
                                  "model_not_found");
    json_t *json = describe(exchange->server, served);
    dr_server_release(exchange->server, served);
    return dr_http_send_json(exchange, json);
}

enum MHD_Result dr_answer_metrics(dr_exchange *exchange) {
    char *text;
    size_t bytes;
    dr_status status = dr_metrics_print(exchange->server->metrics, &text, &bytes);
    if (status != DR_OK) return dr_http_send_failure(exchange, status, NULL);
    struct MHD_Response *response = MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_COPY);
    dr_release(text);
    return dr_http_queue(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", response);
}

/* ---- tokenizers ---- */

/* Reads the body and finds the model; *served NULL: a response was sent. */
static enum MHD_Result begin(dr_exchange *exchange, dr_request_kind kind, dr_request *request, dr_served **served) {
    *served = NULL;
    dr_status status = dr_request_parse(kind, exchange->body ? exchange->body : "", exchange->bytes, request);
    if (status != DR_OK) return dr_http_send_failure(exchange, status, request->param);
    *served = dr_server_acquire(exchange->server, request->model);
    if (*served) return MHD_YES;
    return dr_http_send_error(exchange, 404, "there is no such model: /v1/models lists those that there are", "model",
                              "model_not_found");
}

enum MHD_Result dr_answer_tokenize(dr_exchange *exchange) {
    dr_request request;
    dr_served *served;
    dr_encoder *encoder = NULL;
    const int32_t *ids = NULL;
    size_t count = 0;
    enum MHD_Result result = begin(exchange, DR_REQUEST_TOKENIZE, &request, &served);
    if (served) {
        dr_status status = dr_encoder_create(served->tokenizer, &encoder);
        if (status == DR_OK)
            status = dr_encoder_encode(encoder, request.prompts->text, request.prompts->bytes, request.special, &ids, &count);
        json_t *list = json_array();
        for (size_t i = 0; i < count && status == DR_OK; i++) json_array_append_new(list, json_integer(ids[i]));
        json_t *json = json_pack("{s:o, s:I, s:I}", "tokens", list, "count", (json_int_t)count, "max_model_len",
                                 (json_int_t)exchange->server->options.context);
        if (status == DR_OK) {
            result = dr_http_send_json(exchange, json);
        } else {
            json_decref(json);
            result = dr_http_send_failure(exchange, status, "prompt");
        }
    }
    dr_encoder_destroy(encoder);
    dr_server_release(exchange->server, served);
    dr_request_release(&request);
    return result;
}

enum MHD_Result dr_answer_detokenize(dr_exchange *exchange) {
    dr_request request;
    dr_served *served;
    char *text = NULL;
    size_t bytes = 0;
    enum MHD_Result result = begin(exchange, DR_REQUEST_DETOKENIZE, &request, &served);
    if (served) {
        dr_status status = dr_served_check_ids(served, request.prompts->ids, request.prompts->count);
        if (status == DR_OK) status = dr_served_decode(served, request.prompts->ids, request.prompts->count, &text, &bytes);
        result = status == DR_OK ? dr_http_send_json(exchange, json_pack("{s:o}", "prompt", json_stringn(text, bytes)))
                                 : dr_http_send_failure(exchange, status, "tokens");
    }
    dr_release(text);
    dr_server_release(exchange->server, served);
    dr_request_release(&request);
    return result;
}

enum MHD_Result dr_answer_tokenizer_info(dr_exchange *exchange) {
    static const struct {
        dr_token_role role;
        const char *name;
    } roles[] = {
        {DR_TOKEN_BOS, "bos_token"}, {DR_TOKEN_EOS, "eos_token"}, {DR_TOKEN_UNK, "unk_token"}, {DR_TOKEN_PAD, "pad_token"}};
    const char *name = MHD_lookup_connection_value(exchange->connection, MHD_GET_ARGUMENT_KIND, "model");
    dr_served *served = dr_server_acquire(exchange->server, name);
    if (!served)
        return dr_http_send_error(exchange, 404, "there is no such model: /v1/models lists those that there are", "model",
                                  "model_not_found");
    json_t *json = json_object();
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        size_t bytes;
        const int32_t id = dr_tokenizer_special(served->tokenizer, roles[i].role);
        const char *token = id < 0 ? NULL : dr_tokenizer_token(served->tokenizer, id, &bytes);
        json_object_set_new(json, roles[i].name, token ? json_stringn(token, bytes) : json_null());
    }
    json_object_set_new(json, "vocab_size", json_integer(dr_tokenizer_size(served->tokenizer)));
    json_object_set_new(json, "max_model_len", json_integer(exchange->server->options.context));
    json_object_set_new(json, "chat", json_boolean(served->chat != NULL));
    dr_server_release(exchange->server, served);
    return dr_http_send_json(exchange, json);
}
