/* Renders a chat template with messages and tools; it renders or is refused with its line. */
#include "fuzz.h"

#include <deltarule/chat.h>

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char messages[] =
        "[{\"role\": \"system\", \"content\": \" Be br\xc3\xa9"
        "f \"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"{{ 1 }}\"}]}, "
        "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", "
        "\"arguments\": {\"a\": [1, 2.5, true]}}}]}]";
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"a\": {}}}}]";
    const dr_chat_options options = {.size = sizeof options,
                                     .messages = messages,
                                     .tools = tools,
                                     .variables = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"n\": 7}",
                                     .add_generation_prompt = true,
                                     .has_time = true};
    dr_chat *chat;
    char *text;
    size_t length;
    if (dr_chat_create((const char *)data, size, &chat) != DR_OK) return 0;
    dr_status status = dr_chat_render(chat, &options, &text, &length);
    if (status == DR_OK) {
        if (strlen(text) > length) abort();
        dr_chat_free_text(text);
    } else if (status == DR_ERROR_FORMAT && !strstr(dr_last_error(), "line ")) {
        abort();
    }
    dr_chat_destroy(chat);
    return 0;
}
