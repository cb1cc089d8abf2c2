/* Reads the body of a request as each kind that there is; what is taken has what the server counts on. */
#include "fuzz.h"
#include "serve/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (dr_request_kind kind = DR_REQUEST_COMPLETION; kind <= DR_REQUEST_DETOKENIZE; kind++) {
        dr_request request;
        dr_status status = dr_request_parse(kind, (const char *)data, size, &request);
        if (status == DR_OK) {
            if ((kind == DR_REQUEST_CHAT) != (request.messages != NULL)) abort();
            if (kind != DR_REQUEST_CHAT && request.prompt_count < 1) abort();
            if (request.choices < 1 || request.choices > DR_MOST_CHOICES || request.top > DR_MOST_SHOWN) abort();
            for (int64_t i = 0; i < request.prompt_count; i++)
                for (int64_t t = 0; t < request.prompts[i].count; t++)
                    if (request.prompts[i].ids[t] < 0) abort();
            for (int64_t i = 0; i < request.options.stop_count; i++)
                if (!*request.stops[i]) abort();
        } else if (!*dr_last_error()) {
            abort();
        }
        dr_request_release(&request);
    }
    return 0;
}
