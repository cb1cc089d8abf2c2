/* Entries stand in a list, the last used first. A prompt is compared with the tokens of each, which ends at the first that
 * differs: that is nothing beside a step of a model. */
#include "serve/kept.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

typedef struct entry {
    struct entry *next;
    dr_model_state *state;
    int32_t *ids; /* [count] */
    int64_t count, bytes;
} entry;

struct dr_kept_states {
    entry *first; /* the last used */
    int64_t bytes, most;
};

dr_status dr_kept_states_create(int64_t bytes, dr_kept_states **kept) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_kept_states), "the kept states", &memory));
    *kept = memory;
    (*kept)->most = bytes;
    return DR_OK;
}

static void destroy_entry(entry *old) {
    dr_model_state_destroy(old->state);
    dr_release(old->ids);
    dr_release(old);
}

void dr_kept_states_destroy(dr_kept_states *kept) {
    if (!kept) return;
    while (kept->first) {
        entry *old = kept->first;
        kept->first = old->next;
        destroy_entry(old);
    }
    dr_release(kept);
}

bool dr_kept_states_takes(const dr_kept_states *kept) {
    return kept->most > 0;
}

static bool begins(const entry *old, const int32_t *ids, int64_t count) {
    return old->count <= count && memcmp(old->ids, ids, (size_t)old->count * sizeof(int32_t)) == 0;
}

static void use(dr_kept_states *kept, entry **place) {
    entry *used = *place;
    *place = used->next;
    used->next = kept->first;
    kept->first = used;
}

/* Drops what was not used for longest until the rest is within the bound. */
static void make_room(dr_kept_states *kept) {
    while (kept->bytes > kept->most && kept->first) {
        entry **last = &kept->first;
        while ((*last)->next) last = &(*last)->next;
        kept->bytes -= (*last)->bytes;
        destroy_entry(*last);
        *last = NULL;
    }
}

static entry *make_entry(const int32_t *ids, int64_t count, dr_model_state *state) {
    void *memory;
    if (dr_allocate_zero(sizeof(entry), "a kept state", &memory) != DR_OK) return NULL;
    entry *made = memory;
    if (dr_allocate((size_t)count * sizeof(int32_t), "a kept state", &memory) != DR_OK) {
        dr_release(made);
        return NULL;
    }
    made->ids = memory;
    memcpy(made->ids, ids, (size_t)count * sizeof(int32_t));
    made->count = count;
    made->state = state;
    made->bytes = (int64_t)dr_model_state_bytes(state) + count * (int64_t)sizeof(int32_t) + (int64_t)sizeof(entry);
    return made;
}

void dr_kept_states_add(dr_kept_states *kept, const int32_t *ids, int64_t count, dr_model_state *state) {
    entry *made;
    for (entry **place = &kept->first; *place; place = &(*place)->next)
        if ((*place)->count == count && begins(*place, ids, count)) {
            use(kept, place);
            dr_model_state_destroy(state);
            return;
        }
    made = make_entry(ids, count, state);
    if (!made) {
        dr_model_state_destroy(state);
        return;
    }
    made->next = kept->first;
    kept->first = made;
    kept->bytes += made->bytes;
    make_room(kept);
}

const dr_model_state *dr_kept_states_find(dr_kept_states *kept, const int32_t *ids, int64_t count, int64_t *tokens) {
    entry **best = NULL;
    for (entry **place = &kept->first; *place; place = &(*place)->next)
        if (begins(*place, ids, count) && (!best || (*place)->count > (*best)->count)) best = place;
    if (!best) return NULL;
    use(kept, best);
    *tokens = kept->first->count;
    return kept->first->state;
}
