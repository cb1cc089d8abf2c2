#include "generate/context.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum { WINDOW = 512, FIRST_ROOM = 1024 };

dr_status dr_context_create(const dr_model *model, dr_context *context) {
    void *memory;
    *context = (dr_context){.model = model};
    DR_TRY(dr_allocate((size_t)dr_model_get_config(model)->vocabulary * sizeof(float), "the logits", &memory));
    context->logits = memory;
    DR_TRY(dr_session_create(model, &context->session));
    return dr_model_state_create(model, 1, &context->state);
}

void dr_context_release(dr_context *context) {
    dr_model_state_destroy(context->state);
    dr_session_destroy(context->session);
    dr_release(context->logits);
    dr_release(context->ids);
    *context = (dr_context){0};
}

void dr_context_reset(dr_context *context) {
    dr_model_state_reset(context->state);
    context->count = 0;
}

static dr_status make_room(dr_context *context, int64_t more) {
    const int64_t needed = context->count + more;
    if (needed <= context->room) return DR_OK;
    const int64_t room = needed > FIRST_ROOM / 2 ? 2 * needed : FIRST_ROOM;
    void *memory = context->ids;
    const size_t bytes = (size_t)room * sizeof(int32_t);
    DR_TRY(memory ? dr_resize(&memory, (size_t)context->room * sizeof(int32_t), bytes, "the ids of a text")
                  : dr_allocate(bytes, "the ids of a text", &memory));
    context->ids = memory;
    context->room = room;
    return DR_OK;
}

dr_status dr_context_read(dr_context *context, const int32_t *ids, int64_t count) {
    DR_TRY(make_room(context, count));
    for (int64_t from = 0; from < count; from += WINDOW) {
        const int64_t rows = count - from < WINDOW ? count - from : WINDOW, last = rows - 1;
        dr_batch batch = {.layout = {.sequences = 1, .rows = rows}, .ids = ids + from, .targets = 1, .positions = &last};
        DR_TRY(dr_session_logits(context->session, &batch, context->state, DR_F32, context->logits));
        memcpy(context->ids + context->count, ids + from, (size_t)rows * sizeof(int32_t));
        context->count += rows;
    }
    return DR_OK;
}

dr_status dr_context_step(dr_context *context, int32_t id) {
    DR_TRY(make_room(context, 1));
    DR_TRY(dr_model_step(context->model, &id, context->state, context->logits));
    context->ids[context->count++] = id;
    return DR_OK;
}
