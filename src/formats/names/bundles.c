/* From rows of a table to tensors and parameters, both ways. A row is bound to a layer if the model has all its parameters, and
 * reading needs all its tensors in the file; of rows with the same parameters the first that can be bound is taken. */
#include "formats/names/names.h"

#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const dr_description *description;
    const dr_names *names;
    const dr_named_parameter *parameters;
    const dr_named_parameter **sorted; /* [count] by layer and name */
    bool *done;                        /* [count] */
    int64_t count;
    const dr_weights *weights; /* NULL: writing */
    bool *taken;               /* tensors of the weights */
    dr_name_plan *plan;
} binder;

/* A row of a section in a layer, or with layer -1 of the model; mixer: which of the layer's, for the parameters' prefix. */
typedef struct {
    const dr_name_section *section;
    const dr_name_row *row;
    int64_t layer;
    int mixer;
} binding;

static int by_layer_and_name(const void *left, const void *right) {
    const dr_named_parameter *a = *(const dr_named_parameter *const *)left, *b = *(const dr_named_parameter *const *)right;
    return a->layer != b->layer ? (a->layer > b->layer) - (a->layer < b->layer) : strcmp(a->name, b->name);
}

static int64_t find_parameter(const binder *b, const binding *at, const char *name) {
    static const char *const mixers[DR_LAYER_MIXERS] = {"attn.", "attn2."};
    char whole[DR_NAME_BYTES];
    const char *prefix = at->section->part == DR_PART_MIXER  ? mixers[at->mixer]
                         : at->section->part == DR_PART_FEED ? "mlp."
                                                             : "";
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    const dr_named_parameter wanted = {.name = whole, .layer = at->layer}, *key = &wanted;
    const dr_named_parameter **found =
        bsearch(&key, b->sorted, (size_t)b->count, sizeof(const dr_named_parameter *), by_layer_and_name);
    return found ? *found - b->parameters : -1;
}

static int64_t elements_of(const dr_named_parameter *parameter) {
    int64_t count = 1;
    for (int i = 0; i < parameter->rank; i++) count *= parameter->shape[i];
    return count;
}

static const dr_layer_description *layer_of(const binder *b, const binding *at) {
    return at->layer < 0 ? NULL : &b->description->layers[at->layer];
}

static int64_t turns_of(const binder *b, const binding *at) {
    const dr_layer_description *layer = layer_of(b, at);
    if (!layer) return 1; /* rows of the model take no turns */
    const dr_mixer_description *mixer = &layer->mixer[at->mixer];
    switch (at->row->turns) {
    case DR_TURNS_ONE:
        return 1;
    case DR_TURNS_EXPERTS:
        return layer->feed.of.experts.router.of.experts;
    case DR_TURNS_HEADS:
        return mixer->kind == DR_MIXER_RECURRENT ? mixer->of.recurrent.heads : mixer->of.attention.heads;
    }
    return 1;
}

/* Tensors of a row; each expert has its own where the name has a '%'. */
static int64_t tensors_of(const binder *b, const binding *at) {
    if (strchr(at->row->tensor[0], '%')) return layer_of(b, at)->feed.of.experts.router.of.experts;
    int count = 0;
    while (count < DR_NAME_TENSORS && at->row->tensor[count]) count++;
    return count;
}

static void name_tensor(const binder *b, const binding *at, int64_t index, char name[DR_NAME_BYTES]) {
    const char *text = at->row->tensor[0], *number = strchr(text, '%');
    char own[DR_NAME_BYTES], before[DR_NAME_BYTES] = "";
    if (number)
        snprintf(own, sizeof own, "%.*s%" PRId64 "%s", (int)(number - text), text, index, number + 1);
    else
        snprintf(own, sizeof own, "%s", at->row->tensor[index]);
    if (own[0] == '/') {
        snprintf(name, DR_NAME_BYTES, "%s", own + 1);
        return;
    }
    if (at->layer >= 0) snprintf(before, sizeof before, "%s%" PRId64 ".", b->names->layers, at->layer);
    const int room = DR_NAME_BYTES / 4;
    snprintf(name, DR_NAME_BYTES, "%.*s%.*s%.*s", room, at->layer < 0 ? b->names->root : before, room, at->section->prefix,
             2 * room - 1, own);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------ */

/* The shape of one of a row's `tensors` tensors as it is written. */
static void shape_tensor(const binder *b, const binding *at, const dr_name_bundle *bundle, int64_t tensors, dr_tensor *tensor) {
    const dr_named_parameter *first = &b->parameters[bundle->parameter[0]];
    int64_t sum = 0, count = 0;
    const int along =
        at->row->turns == DR_TURNS_EXPERTS && first->rank > 2 ? 1 : 0; /* the size in which pieces lie side by side */
    for (int i = 0; i < bundle->pieces; i++) {
        sum += b->parameters[bundle->parameter[i]].shape[along];
        count += elements_of(&b->parameters[bundle->parameter[i]]);
    }
    count /= tensors;
    switch (at->row->shape) {
    case DR_SHAPE_OWN:
        tensor->rank = first->rank;
        memcpy(tensor->shape, first->shape, sizeof first->shape);
        tensor->shape[along] = sum;
        if (tensors == 1) return;
        tensor->rank--;
        memmove(tensor->shape, tensor->shape + 1, (size_t)tensor->rank * sizeof(int64_t));
        return;
    case DR_SHAPE_FLAT:
        tensor->rank = 1;
        tensor->shape[0] = count;
        return;
    case DR_SHAPE_CONV:
        tensor->rank = 3;
        tensor->shape[2] = first->shape[first->rank - 1];
        tensor->shape[1] = 1;
        tensor->shape[0] = count / tensor->shape[2];
        return;
    case DR_SHAPE_MIDDLE:
        *tensor = (dr_tensor){.rank = 3, .shape = {1, 1, count}};
        return;
    case DR_SHAPE_HEADS:
        *tensor = (dr_tensor){.rank = 4, .shape = {1, 1, count, 1}};
        return;
    }
}

static int squeeze(const dr_tensor *tensor, int64_t shape[DR_MAX_RANK]) {
    int rank = 0;
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] != 1) shape[rank++] = tensor->shape[i];
    return rank;
}

static bool same_shape(const dr_tensor *left, const dr_tensor *right) {
    int64_t a[DR_MAX_RANK], b[DR_MAX_RANK];
    const int rank = squeeze(left, a);
    return rank == squeeze(right, b) && memcmp(a, b, (size_t)rank * sizeof(int64_t)) == 0;
}

static void write_shape(char *text, size_t size, const dr_tensor *tensor) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < tensor->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", tensor->shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
}

static dr_status fail_shape(const char *name, const dr_tensor *found, const dr_tensor *wanted) {
    char have[128], want[128];
    write_shape(have, sizeof have, found);
    write_shape(want, sizeof want, wanted);
    return dr_fail(DR_ERROR_FORMAT, "the tensor %s has the shape %s; the configuration asks for %s", name, have, want);
}

/* Of tensors that are cut elsewhere than parameters only the sizes behind the first are known. */
static bool same_columns(const dr_tensor *found, const dr_tensor *wanted) {
    dr_tensor a = *found, b = *wanted;
    if (a.rank < 1 || b.rank < 1) return false;
    a.shape[0] = b.shape[0] = 2;
    return same_shape(&a, &b);
}

static dr_status check_tensor(const binding *at, const char *name, const dr_tensor *found, const dr_tensor *wanted) {
    if (found->dtype != DR_F32 && found->dtype != DR_F64 && found->dtype != DR_F16 && found->dtype != DR_BF16)
        return dr_fail(DR_ERROR_FORMAT, "the tensor %s is of type %s; it must be F32, F64, F16 or BF16", name,
                       dr_dtype_name(found->dtype));
    return (at->row->recut ? same_columns : same_shape)(found, wanted) ? DR_OK : fail_shape(name, found, wanted);
}

/* ---- bundles ----------------------------------------------------------------------------------------------------------- */

/* Whether the model has the row's parameters, none of which is done. */
static bool has_parameters(const binder *b, const binding *at, dr_name_bundle *bundle) {
    *bundle = (dr_name_bundle){.row = at->row, .turns = 1};
    for (int i = 0; i < DR_NAME_PIECES && at->row->parameter[i]; i++) {
        const int64_t parameter = find_parameter(b, at, at->row->parameter[i]);
        if (parameter < 0 || b->done[parameter]) return false;
        bundle->parameter[bundle->pieces++] = parameter;
    }
    return true;
}

static bool has_tensors(const binder *b, const binding *at, int64_t tensors) {
    char name[DR_NAME_BYTES];
    for (int64_t i = 0; i < tensors; i++) {
        name_tensor(b, at, i, name);
        if (dr_weights_index(b->weights, name) < 0) return false;
    }
    return true;
}

static dr_status add_tensor(binder *b, const binding *at, const char *name, const dr_tensor *shape, int64_t *reached) {
    dr_name_plan *plan = b->plan;
    dr_named_tensor added = {.bundle = plan->bundle_count - 1, .first = *reached, .tensor = *shape};
    if (b->weights) {
        const int64_t index = dr_weights_index(b->weights, name);
        added.tensor = dr_weights_tensor(b->weights, index);
        DR_TRY(check_tensor(at, name, &added.tensor, shape));
        b->taken[index] = true;
    }
    void *list = plan->tensors;
    DR_TRY(dr_grow(&list, plan->tensor_count, sizeof added, "the list of a model's tensors"));
    plan->tensors = list;
    added.count = dr_tensor_count(&added.tensor);
    *reached += added.count;
    DR_TRY(dr_copy_string(name, &added.name));
    plan->tensors[plan->tensor_count++] = added;
    return DR_OK;
}

static dr_status keep_bundle(binder *b, const dr_name_bundle *bundle) {
    void *list = b->plan->bundles;
    DR_TRY(dr_grow(&list, b->plan->bundle_count, sizeof *bundle, "the list of a model's tensors"));
    b->plan->bundles = list;
    b->plan->bundles[b->plan->bundle_count++] = *bundle;
    return DR_OK;
}

static dr_status add_bundle(binder *b, const binding *at, dr_name_bundle *bundle, int64_t tensors) {
    int64_t whole = 0, reached = 0;
    bundle->turns = turns_of(b, at);
    for (int i = 0; i < bundle->pieces; i++) {
        bundle->part[i] = elements_of(&b->parameters[bundle->parameter[i]]) / bundle->turns;
        whole += bundle->part[i] * bundle->turns;
        b->done[bundle->parameter[i]] = true;
    }
    DR_TRY(keep_bundle(b, bundle));
    dr_tensor shape = {.rank = 0};
    char name[DR_NAME_BYTES] = "";
    shape_tensor(b, at, bundle, tensors, &shape);
    for (int64_t i = 0; i < tensors; i++) {
        name_tensor(b, at, i, name);
        DR_TRY(add_tensor(b, at, name, &shape, &reached));
    }
    if (reached == whole) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT,
                   "the tensor %s and those before it have %" PRId64 " elements together; the configuration asks for %" PRId64,
                   name, reached, whole);
}

/* A tied model may be stored by its head alone: the two names are of one matrix. */
static const dr_name_row head_row = {.parameter = {"model.embeddings.weight"}, .tensor = {"/lm_head.weight"}};

static bool is_tied_embedding(const binder *b, int64_t index) {
    return b->description->tied && strcmp(b->parameters[index].name, head_row.parameter[0]) == 0 &&
           dr_weights_index(b->weights, head_row.tensor[0] + 1) >= 0;
}

/* The row of a table in which all names are the same; a parameter's name stands behind the layer's. */
static dr_status bind_same(binder *b, int64_t index) {
    const dr_named_parameter *parameter = &b->parameters[index];
    dr_name_bundle bundle = {.pieces = 1, .parameter = {index}, .part = {elements_of(parameter)}, .turns = 1};
    static const dr_name_row row = {.shape = DR_SHAPE_OWN};
    const binding at = {.row = &row, .layer = parameter->layer};
    char name[DR_NAME_BYTES], text[128];
    dr_tensor shape = {.rank = parameter->rank};
    int64_t reached = 0;
    bundle.row = &row;
    memcpy(shape.shape, parameter->shape, sizeof parameter->shape);
    if (parameter->layer < 0)
        snprintf(name, sizeof name, "%s", parameter->name);
    else
        snprintf(name, sizeof name, "%s%" PRId64 ".%s", b->names->layers, parameter->layer, parameter->name);
    if (b->weights && dr_weights_index(b->weights, name) < 0 && is_tied_embedding(b, index)) return DR_OK;
    if (b->weights && dr_weights_index(b->weights, name) < 0) {
        write_shape(text, sizeof text, &shape);
        return dr_fail(DR_ERROR_FORMAT, "the tensor %s of shape %s is missing", name, text);
    }
    b->done[index] = true;
    DR_TRY(keep_bundle(b, &bundle));
    return add_tensor(b, &at, name, &shape, &reached);
}

static bool joins_norm(const binder *b, const binding *at) {
    const dr_recurrent_description *is = &layer_of(b, at)->mixer[at->mixer].of.recurrent;
    return is->gated && !is->norm_apart;
}

static dr_status bind_row(binder *b, const binding *at) {
    dr_name_bundle bundle;
    if (!b->weights && (at->row->recut || (at->row->joined && !joins_norm(b, at)))) return DR_OK;
    if (!has_parameters(b, at, &bundle)) return DR_OK;
    const int64_t tensors = tensors_of(b, at);
    if (b->weights && !has_tensors(b, at, tensors)) return DR_OK;
    return add_bundle(b, at, &bundle, tensors);
}

static bool applies(const dr_name_section *section, const dr_layer_description *layer, int mixer) {
    switch (section->part) {
    case DR_PART_MODEL:
        return !layer;
    case DR_PART_LAYER:
        return layer && mixer == 0;
    case DR_PART_MIXER:
        return layer && mixer < layer->mixers && layer->mixer[mixer].kind == (dr_mixer_kind)section->of;
    case DR_PART_FEED:
        return layer && mixer == 0 && layer->feed.kind == (dr_feed_kind)section->of;
    }
    return false;
}

/* Calls visit for each row that may stand in a layer (-1: in the model). */
static dr_status each_row(binder *b, int64_t layer, dr_status (*visit)(binder *b, const binding *at)) {
    const dr_layer_description *described = layer < 0 ? NULL : &b->description->layers[layer];
    for (int mixer = 0; mixer < (described ? DR_LAYER_MIXERS : 1); mixer++)
        for (int s = 0; s < b->names->count; s++) {
            const dr_name_section *section = &b->names->sections[s];
            if (!applies(section, described, mixer)) continue;
            for (int r = 0; r < section->count; r++)
                DR_TRY(visit(b, &(binding){.section = section, .row = &section->rows[r], .layer = layer, .mixer = mixer}));
        }
    return DR_OK;
}

/* Fails if the row is the first that could have given a parameter which nothing gave. */
static dr_status name_missing(binder *b, const binding *at) {
    dr_name_bundle bundle;
    dr_tensor shape = {.rank = 0};
    char name[DR_NAME_BYTES], text[128];
    if (at->row->recut || !has_parameters(b, at, &bundle)) return DR_OK;
    const int64_t tensors = tensors_of(b, at);
    int64_t missing = 0;
    for (name_tensor(b, at, 0, name); missing + 1 < tensors && dr_weights_index(b->weights, name) >= 0;)
        name_tensor(b, at, ++missing, name);
    shape_tensor(b, at, &bundle, tensors, &shape);
    write_shape(text, sizeof text, &shape);
    return dr_fail(DR_ERROR_FORMAT, "the tensor %s of shape %s is missing", name, text);
}

/* Each parameter must be somewhere. */
static dr_status check_whole(binder *b) {
    for (int64_t i = 0; i < b->count; i++) {
        if (b->done[i]) continue;
        if (b->weights) DR_TRY(each_row(b, b->parameters[i].layer, name_missing));
        return dr_fail(DR_ERROR_UNSUPPORTED, "the files of model type %s have no name for the parameter %s",
                       b->names->model_type, b->parameters[i].name);
    }
    return DR_OK;
}

static bool is_ignored(const dr_names *names, const dr_description *description, const char *name) {
    for (int i = 0; names->ignored && names->ignored[i]; i++)
        if (strncmp(name, names->ignored[i], strlen(names->ignored[i])) == 0) return true;
    const size_t length = strlen(names->layers);
    if (!names->more_layers || strncmp(name, names->layers, length) != 0) return false;
    return strtoll(name + length, NULL, 10) >= description->count;
}

static dr_status list_unused(binder *b) {
    const int64_t count = dr_weights_count(b->weights);
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)(count + 1) * sizeof(int64_t), "tensors that are not used", &memory));
    dr_name_plan *plan = b->plan;
    plan->unused = memory;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < count; i++) {
            if (b->taken[i] || is_ignored(b->names, b->description, dr_weights_name(b->weights, i)) != (pass == 1)) continue;
            plan->unused[plan->unused_count + plan->ignored_count] = i;
            ++*(pass == 0 ? &plan->unused_count : &plan->ignored_count);
        }
    return DR_OK;
}

static dr_status bind_all(binder *b) {
    for (int64_t i = 0; i < b->count; i++) b->sorted[i] = &b->parameters[i];
    qsort(b->sorted, (size_t)b->count, sizeof(const dr_named_parameter *), by_layer_and_name);
    if (b->names->same)
        for (int64_t i = 0; i < b->count; i++) DR_TRY(bind_same(b, i));
    else
        for (int64_t layer = -1; layer < b->description->count; layer++) DR_TRY(each_row(b, layer, bind_row));
    if (b->weights && b->description->tied) {
        static const dr_name_section section = {.part = DR_PART_MODEL, .prefix = ""};
        DR_TRY(bind_row(b, &(binding){.section = &section, .row = &head_row, .layer = -1}));
    }
    DR_TRY(check_whole(b));
    return b->weights ? list_unused(b) : DR_OK;
}

static dr_status make_plan(binder *b) {
    void *sorted = NULL, *done = NULL, *taken = NULL;
    dr_status status = DR_OK;
    *b->plan = (dr_name_plan){0};
    b->names = dr_names_of(b->description->model_type);
    if (!b->names) return dr_fail(DR_ERROR_UNSUPPORTED, "model type %s has no table of names", b->description->model_type);
    DR_GO(dr_allocate((size_t)(b->count + 1) * sizeof(const dr_named_parameter *), "a list of parameters", &sorted));
    DR_GO(dr_allocate_zero((size_t)(b->count + 1) * sizeof(bool), "a list of parameters", &done));
    if (b->weights)
        DR_GO(dr_allocate_zero((size_t)(dr_weights_count(b->weights) + 1) * sizeof(bool), "a list of tensors", &taken));
    b->sorted = sorted;
    b->done = done;
    b->taken = taken;
    status = bind_all(b);
done:
    dr_release(sorted);
    dr_release(done);
    dr_release(taken);
    if (status != DR_OK) dr_name_plan_release(b->plan);
    return status;
}

dr_status dr_names_plan_read(const dr_description *description, const dr_named_parameter *parameters, int64_t count,
                             const dr_weights *weights, dr_name_plan *plan) {
    binder b = {.description = description, .parameters = parameters, .count = count, .weights = weights, .plan = plan};
    return make_plan(&b);
}

dr_status dr_names_plan_write(const dr_description *description, const dr_named_parameter *parameters, int64_t count,
                              dr_name_plan *plan) {
    binder b = {.description = description, .parameters = parameters, .count = count, .plan = plan};
    return make_plan(&b);
}

void dr_name_plan_release(dr_name_plan *plan) {
    for (int64_t i = 0; i < plan->tensor_count; i++) dr_release(plan->tensors[i].name);
    dr_release(plan->tensors);
    dr_release(plan->bundles);
    dr_release(plan->unused);
    *plan = (dr_name_plan){0};
}

dr_name_place dr_name_bundle_place(const dr_name_bundle *bundle, int64_t element) {
    int64_t turn = bundle->part[0];
    for (int i = 1; i < bundle->pieces; i++) turn += bundle->part[i];
    if (bundle->pieces == 1) return (dr_name_place){bundle->parameter[0], element, turn * bundle->turns - element};
    int64_t within = element % turn;
    const int64_t number = element / turn;
    if (bundle->turns == 1) within = element;
    int piece = 0;
    while (within >= bundle->part[piece]) within -= bundle->part[piece++];
    return (dr_name_place){bundle->parameter[piece], number * bundle->part[piece] + within, bundle->part[piece] - within};
}

int64_t dr_name_bundle_element(const dr_name_bundle *bundle, int piece, int64_t at, int64_t *count) {
    int64_t turn = 0, before = 0;
    for (int i = 0; i < bundle->pieces; i++) {
        if (i < piece) before += bundle->part[i];
        turn += bundle->part[i];
    }
    const int64_t part = bundle->part[piece], within = at % part;
    *count = bundle->pieces == 1 ? turn * bundle->turns - at : part - within;
    return bundle->pieces == 1 ? at : at / part * turn + before + within;
}
