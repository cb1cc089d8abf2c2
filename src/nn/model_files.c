/* Reading and writing `config.json` and weights in the Hugging Face layout.
 *
 * A file is not trusted: the configuration is checked first, then the list of tensors against the parameters that it asks for,
 * and only then is memory taken for them. Which tensors are which parameters is told by the tables of formats/names. Weights
 * are written in the backend's type unless another is asked for, so a saved model is the same to the bit; they are read from
 * any floating type, some elements at a time, each tensor from the mapped file into its place, so that a model is in memory
 * once. Tensors that have no place in the model are refused, but for tables that are no weights, parts of larger models that
 * are no part of the language model, and a tied head that equals the embedding: those are passed over and named. */
#include "nn/model_files.h"
#include "base/error.h"
#include "base/tasks.h"
#include "formats/json.h"
#include "formats/names/names.h"
#include "formats/quantised.h"
#include "formats/safetensors.h"
#include "formats/weights.h"
#include "nn/config.h"
#include "nn/model.h"
#include "nn/published.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char CONFIG_FILE[] = "config.json", WEIGHTS_FILE[] = "model.safetensors",
                  INDEX_FILE[] = "model.safetensors.index.json", LAYERS[] = "model.layers.";

/* ---- names ------------------------------------------------------------------------------------------------------------ */

/* The model's parameters as the tables of names know them: behind the layer's beginning. */
static dr_status list_names(const dr_model *model, dr_named_parameter **list) {
    void *memory = NULL;
    DR_TRY(dr_allocate_zero((size_t)model->listed * sizeof(dr_named_parameter), "names of parameters", &memory));
    *list = memory;
    for (int64_t i = 0; i < model->listed; i++) {
        const dr_parameter *parameter = &model->parameters[i];
        dr_named_parameter *named = &(*list)[i];
        *named = (dr_named_parameter){.name = parameter->name, .layer = -1, .rank = parameter->rank};
        memcpy(named->shape, parameter->shape, sizeof parameter->shape);
        if (strncmp(parameter->name, LAYERS, strlen(LAYERS)) != 0) continue;
        char *end = NULL;
        named->layer = strtoll(parameter->name + strlen(LAYERS), &end, 10);
        named->name = end + 1;
    }
    return DR_OK;
}

/* The model's description under the type of a configuration, whose table of names then holds. */
static dr_description described_as(const dr_model *model, const json_t *config) {
    dr_description description = model->description;
    description.model_type = json_string_value(json_object_get(config, "model_type"));
    return description;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const dr_model *model;
    const dr_name_plan *plan;
    dr_folder *change;
    dr_dtype dtype;
    int64_t first; /* tensor of the plan that is the first of the file being written */
} writing;

/* The configuration that the model is saved with; NULL if there is no memory. */
static json_t *make_config(const dr_model *model, dr_dtype dtype) {
    const char *name = dtype == DR_F64 ? "float64" : dtype == DR_BF16 ? "bfloat16" : dtype == DR_F16 ? "float16" : "float32";
    if (!model->published) return dr_config_write(&model->config, name);
    json_t *config = json_deep_copy(model->published);
    const char *key = json_object_get(config, "torch_dtype") ? "torch_dtype" : "dtype";
    if (config && json_object_set_new(config, key, json_string(name)) == 0) return config;
    json_decref(config);
    return NULL;
}

/* Elements of a tensor, from the parameters that its bundle joins. */
static dr_status read_parameter(void *context, int64_t index, int64_t first, int64_t count, void *to) {
    const writing *w = context;
    const dr_named_tensor *tensor = &w->plan->tensors[w->first + index];
    for (int64_t done = 0; done < count;) {
        const dr_name_place place = dr_name_bundle_place(&w->plan->bundles[tensor->bundle], tensor->first + first + done);
        const int64_t some = place.count < count - done ? place.count : count - done;
        DR_TRY(dr_model_elements(w->model, place.parameter, place.at, some, w->dtype,
                                 (char *)to + (size_t)done * dr_dtype_size(w->dtype)));
        done += some;
    }
    return DR_OK;
}

/* One file, of tensors first .. first + count - 1 of the plan. */
static dr_status write_file(writing *w, const char *name, int64_t first, int64_t count) {
    static const char *const metadata[] = {"format", "pt", NULL};
    void *names_memory = NULL, *tensors_memory = NULL;
    dr_status status = DR_OK;
    DR_GO(dr_allocate((size_t)count * sizeof(char *), "names of tensors", &names_memory));
    DR_GO(dr_allocate((size_t)count * sizeof(dr_tensor), "tensors", &tensors_memory));
    const char **names = names_memory;
    dr_tensor *tensors = tensors_memory;
    for (int64_t i = 0; i < count; i++) {
        names[i] = w->plan->tensors[first + i].name;
        tensors[i] = w->plan->tensors[first + i].tensor;
        tensors[i].dtype = w->dtype;
    }
    w->first = first;
    DR_GO(dr_safetensors_write_from(dr_folder_path(w->change, name), count, names, tensors, metadata, read_parameter, w));
done:
    dr_release(names_memory);
    dr_release(tensors_memory);
    return status;
}

/* The tensors from `first` on that go into one file of at most `most` bytes, but one at least. */
static int64_t shard_length(const writing *w, int64_t first, int64_t most) {
    int64_t bytes = 0, count = 0;
    while (first + count < w->plan->tensor_count) {
        bytes += w->plan->tensors[first + count].count * (int64_t)dr_dtype_size(w->dtype);
        if (count > 0 && bytes > most) break;
        count++;
    }
    return count;
}

enum { SHARD_NAME_BYTES = 80 };

static void name_shard(char name[SHARD_NAME_BYTES], int64_t number, int64_t shards) {
    snprintf(name, SHARD_NAME_BYTES, "model-%05" PRId64 "-of-%05" PRId64 ".safetensors", number + 1, shards);
}

static dr_status write_index(const writing *w, int64_t most, int64_t shards) {
    json_t *map = json_object(), *index = NULL;
    int64_t bytes = 0;
    bool failed = !map;
    for (int64_t shard = 0, first = 0; shard < shards; shard++) {
        char name[SHARD_NAME_BYTES];
        name_shard(name, shard, shards);
        for (int64_t left = shard_length(w, first, most); left > 0; left--, first++) {
            const dr_named_tensor *tensor = &w->plan->tensors[first];
            bytes += tensor->count * (int64_t)dr_dtype_size(w->dtype);
            failed |= json_object_set_new(map, tensor->name, json_string(name)) != 0;
        }
    }
    if (!failed) index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    json_decref(map);
    if (!index) return dr_fail(DR_ERROR_MEMORY, "there is no memory for %s", INDEX_FILE);
    const dr_status status = dr_json_write(dr_folder_path(w->change, INDEX_FILE), index);
    json_decref(index);
    return status;
}

static dr_status write_weights(writing *w, int64_t most) {
    int64_t shards = 0;
    for (int64_t first = 0; first < w->plan->tensor_count; shards++) first += shard_length(w, first, most);
    if (shards == 1) return write_file(w, WEIGHTS_FILE, 0, w->plan->tensor_count);
    for (int64_t shard = 0, first = 0; shard < shards; shard++) {
        char name[SHARD_NAME_BYTES];
        const int64_t count = shard_length(w, first, most);
        name_shard(name, shard, shards);
        DR_TRY(write_file(w, name, first, count));
        first += count;
    }
    return write_index(w, most, shards);
}

static dr_status write_model(const dr_model *model, dr_folder *change, dr_dtype dtype, int64_t most) {
    dr_named_parameter *list = NULL;
    dr_name_plan plan = {0};
    dr_status status = DR_OK;
    json_t *config = make_config(model, dtype);
    if (!config) return dr_fail(DR_ERROR_MEMORY, "there is no memory for %s", CONFIG_FILE);
    const dr_description description = described_as(model, config);
    DR_GO(list_names(model, &list));
    DR_GO(dr_names_plan_write(&description, list, model->listed, &plan));
    DR_GO(dr_json_write_lenient(dr_folder_path(change, CONFIG_FILE), config));
    writing w = {.model = model, .plan = &plan, .change = change, .dtype = dtype};
    status = write_weights(&w, most);
done:
    dr_name_plan_release(&plan);
    dr_release(list);
    json_decref(config);
    return status;
}

dr_status dr_model_write(const dr_model *model, dr_folder *change) {
    return write_model(model, change, model->backend->ops->dtype, INT64_MAX);
}

dr_status dr_model_write_as(const dr_model *model, dr_folder *change, dr_dtype dtype, int64_t file_bytes) {
    return write_model(model, change, dtype, file_bytes > 0 ? file_bytes : INT64_MAX);
}

static dr_status save(const dr_model *model, const char *folder, dr_dtype dtype, int64_t most) {
    dr_folder *change = NULL;
    DR_TRY(dr_folder_begin(folder, &change));
    dr_status status = write_model(model, change, dtype, most);
    if (status == DR_OK) return dr_folder_commit(change);
    dr_folder_abandon(change);
    return status;
}

dr_status dr_model_save(const dr_model *model, const char *folder) {
    DR_NEED(model);
    DR_NEED(folder);
    return save(model, folder, model->backend->ops->dtype, INT64_MAX);
}

/* A single file in a folder goes before an index, so that shards beside one would never be read. */
static dr_status check_no_single_file(const char *folder) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, WEIGHTS_FILE) >= (int)sizeof path || access(path, F_OK) != 0) return DR_OK;
    return dr_fail(
        DR_ERROR_ARGUMENT,
        "%s has a %s, beside which a model in several files would not be read: save it in another folder, or without "
        "a bound of bytes",
        folder, WEIGHTS_FILE);
}

dr_status dr_model_save_as(const dr_model *model, const char *folder, dr_dtype dtype, int64_t file_bytes) {
    DR_NEED(model);
    DR_NEED(folder);
    if (dtype != DR_F32 && dtype != DR_F64 && dtype != DR_F16 && dtype != DR_BF16)
        return dr_fail(DR_ERROR_ARGUMENT, "weights cannot be saved as %s: only as F32, F64, F16 and BF16",
                       dr_dtype_name(dtype));
    if (file_bytes < 0) return dr_fail(DR_ERROR_ARGUMENT, "files of %" PRId64 " bytes: give 0 for no bound", file_bytes);
    if (file_bytes > 0) DR_TRY(check_no_single_file(folder));
    return save(model, folder, dtype, file_bytes > 0 ? file_bytes : INT64_MAX);
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

/* Tables that modules of other programs compute from their settings and may store: positions, angles, masks. None is a weight,
 * and no layer here reads one. Compared with the last part of a tensor's name. */
static bool is_buffer(const char *name) {
    static const char *const buffers[] = {"inv_freq",     "original_inv_freq", "cos_cached",     "sin_cached",
                                          "cos_k_cached", "sin_k_cached",      "cos_sin_cache",  "freqs_cis",
                                          "position_ids", "masked_bias",       "attention_mask", "causal_mask"};
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (strcmp(last, buffers[i]) == 0) return true;
    return false;
}

static const char HEAD[] = "lm_head.weight", EMBEDDING[] = "model.embeddings.weight";

/* The tensor that the embedding is read from. */
static const dr_named_tensor *find_embedding(const dr_model *model, const dr_name_plan *plan) {
    for (int64_t i = 0; i < plan->tensor_count; i++) {
        const int64_t parameter = plan->bundles[plan->tensors[i].bundle].parameter[0];
        if (strcmp(model->parameters[parameter].name, EMBEDDING) == 0) return &plan->tensors[i];
    }
    return NULL;
}

/* The head that a tied model's file stores beside the embedding must be the same matrix: else the file and the configuration
 * say two things, and nobody knows which of them was trained. */
static dr_status check_stored_head(const dr_model *model, const dr_name_plan *plan, const dr_tensor *head) {
    const dr_named_tensor *stored = find_embedding(model, plan);
    const dr_tensor *embedding = &stored->tensor;
    bool same =
        head->rank == embedding->rank && memcmp(head->shape, embedding->shape, (size_t)head->rank * sizeof(int64_t)) == 0;
    const int64_t count = dr_tensor_count(embedding);
    if (same && head->dtype == embedding->dtype)
        same = memcmp(head->data, embedding->data, (size_t)count * dr_dtype_size(head->dtype)) == 0;
    else
        for (int64_t i = 0; i < count && same; i++) same = dr_tensor_element(head, i) == dr_tensor_element(embedding, i);
    if (same) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT,
                   "%s is stored and differs from %s, though %s says that they are tied: set \"tie_word_embeddings\" "
                   "(\"tied\") to false to use it, or take it out of the file",
                   HEAD, stored->name, CONFIG_FILE);
}

/* Remembers a tensor that is not used; there are at most so many as the file has. */
static dr_status pass_over(dr_model *model, const dr_weights *weights, const char *name) {
    if (!model->ignored) {
        void *memory;
        size_t bytes = (size_t)dr_weights_count(weights) * sizeof(char *);
        DR_TRY(dr_allocate(bytes, "the names of tensors that are not used", &memory));
        model->ignored = memory;
    }
    DR_TRY(dr_copy_string(name, &model->ignored[model->ignored_count]));
    model->ignored_count++;
    return DR_OK;
}

static dr_status check_unused(dr_model *model, const dr_weights *weights, const dr_name_plan *plan) {
    for (int64_t i = 0; i < plan->unused_count + plan->ignored_count; i++) {
        const char *name = dr_weights_name(weights, plan->unused[i]);
        if (i < plan->unused_count) {
            const bool is_head = model->description.tied && strcmp(name, HEAD) == 0;
            const dr_tensor tensor = dr_weights_tensor(weights, plan->unused[i]);
            if (!is_head && !is_buffer(name))
                return dr_fail(DR_ERROR_FORMAT, "the tensor %.200s has no place in the model that %s tells", name, CONFIG_FILE);
            if (is_head) DR_TRY(check_stored_head(model, plan, &tensor));
        }
        DR_TRY(pass_over(model, weights, name));
    }
    return DR_OK;
}

/* A logarithm of zero is a decay that never decays, which publishers draw now and then. */
static bool may_be_log_of_zero(const char *name) {
    return strstr(name, "A_log") != NULL;
}

/* Where a parameter whose weights are stored apart is read from: its rows must be whole before they are rounded, so that these
 * parameters are read row by row, and the others tensor by tensor. */
typedef struct {
    int64_t parameter, bundle, tensor; /* tensor: the bundle's first one */
    int piece;
} rows_of;

typedef struct {
    dr_model *model;
    const dr_name_plan *plan;
    int64_t *begins; /* [count + 1] the first task of each tensor, or of each of `rows` */
    rows_of *rows;   /* [rows_count] */
    int64_t rows_count;
} reading;

/* A piece is what the processor still has, when it is copied, of what was checked; a task is some pieces, so that two threads
 * seldom write to one large page. */
enum { PIECE_ELEMENTS = 1 << 18, TASK_ELEMENTS = 1 << 22 };

/* Elements first .. first + count - 1 of a tensor, at `from`, which lie together in a parameter too. */
static dr_status upload(const reading *r, const dr_named_tensor *tensor, const void *from, const dr_name_place *place,
                        int64_t count) {
    dr_backend *backend = r->model->backend;
    const int64_t begin = r->model->parameters[place->parameter].offset + place->at;
    return backend->ops->upload(backend, r->model->values + dr_kind_bytes(backend, DR_NUMBER, begin), from,
                                tensor->tensor.dtype, count);
}

static dr_status check_finite(const dr_named_tensor *tensor, int64_t first, int64_t count) {
    const int64_t bad = dr_tensor_not_finite(&tensor->tensor, first, count, may_be_log_of_zero(tensor->name));
    if (bad < 0) return DR_OK;
    const double value = dr_tensor_element(&tensor->tensor, bad);
    return dr_fail(DR_ERROR_FORMAT, "element %" PRId64 " of the tensor %.200s is %s: weights must be finite", bad, tensor->name,
                   value != value ? "a NaN" : "infinite");
}

/* A piece of the tensor: checked, put into its places, and forgotten. aligned: room for it where it lies in its file as its
 * type must not, else NULL. */
static dr_status read_piece(const reading *r, const dr_named_tensor *tensor, int64_t first, int64_t count, void *aligned) {
    const size_t item = dr_dtype_size(tensor->tensor.dtype);
    const dr_tensor piece = {
        .dtype = tensor->tensor.dtype, .rank = 1, .shape = {count}, .data = (char *)tensor->tensor.data + (size_t)first * item};
    const char *from = piece.data;
    dr_safetensors_expect(&piece);
    DR_TRY(check_finite(tensor, first, count));
    if (aligned) from = memcpy(aligned, from, (size_t)count * item);
    for (int64_t done = 0; done < count;) {
        const dr_name_place place = dr_name_bundle_place(&r->plan->bundles[tensor->bundle], tensor->first + first + done);
        const int64_t some = place.count < count - done ? place.count : count - done;
        if (r->model->parameters[place.parameter].offset >= 0)
            DR_TRY(upload(r, tensor, from + (size_t)done * item, &place, some));
        done += some;
    }
    dr_safetensors_forget(&piece);
    return DR_OK;
}

/* What a task is of, of so many: the last that begins at it or before. */
static int64_t subject_of(const reading *r, int64_t task, int64_t count) {
    int64_t low = 0, high = count;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (r->begins[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Whether all that a bundle fills is stored apart. */
static bool is_apart(const reading *r, const dr_name_bundle *bundle) {
    for (int i = 0; i < bundle->pieces; i++)
        if (r->model->parameters[bundle->parameter[i]].offset >= 0) return false;
    return true;
}

static dr_status read_task(void *context, int64_t task) {
    const reading *r = context;
    const int64_t index = subject_of(r, task, r->plan->tensor_count);
    const dr_named_tensor *tensor = &r->plan->tensors[index];
    const int64_t begin = (task - r->begins[index]) * TASK_ELEMENTS;
    const int64_t end = tensor->count - begin < TASK_ELEMENTS ? tensor->count : begin + TASK_ELEMENTS;
    void *aligned = NULL;
    dr_status status = DR_OK;
    if (is_apart(r, &r->plan->bundles[tensor->bundle])) return DR_OK;
    if ((uintptr_t)tensor->tensor.data % dr_dtype_size(tensor->tensor.dtype) != 0)
        DR_TRY(dr_allocate(PIECE_ELEMENTS * sizeof(double), "a piece of an unaligned tensor", &aligned));
    for (int64_t first = begin; first < end && status == DR_OK; first += PIECE_ELEMENTS)
        status = read_piece(r, tensor, first, end - first < PIECE_ELEMENTS ? end - first : PIECE_ELEMENTS, aligned);
    dr_release(aligned);
    return status;
}

/* By as many threads as the backend has, where its memory is the host's. */
static dr_status read_tensors(reading *r) {
    const dr_backend *backend = r->model->backend;
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)(r->plan->tensor_count + 1) * sizeof(int64_t), "the tasks of reading a model", &memory));
    r->begins = memory;
    r->begins[0] = 0;
    for (int64_t i = 0; i < r->plan->tensor_count; i++)
        r->begins[i + 1] = r->begins[i] + (r->plan->tensors[i].count + TASK_ELEMENTS - 1) / TASK_ELEMENTS;
    const bool alone = backend->ops->device || r->model->count < 2 * TASK_ELEMENTS; /* too little for threads */
    return dr_run_tasks(alone ? 1 : backend->threads, r->begins[r->plan->tensor_count], r, read_task);
}

/* count elements of a bundle's run from `at` on, within one tensor and one parameter, to numbers; aligned as above. */
static dr_status read_run(const reading *r, const dr_named_tensor *tensor, int64_t at, int64_t count, void *aligned, void *to) {
    const size_t item = dr_dtype_size(tensor->tensor.dtype);
    const char *from = (const char *)tensor->tensor.data + (size_t)(at - tensor->first) * item;
    DR_TRY(check_finite(tensor, at - tensor->first, count));
    if ((uintptr_t)from % item != 0) from = memcpy(aligned, from, (size_t)count * item);
    return r->model->backend->ops->upload(r->model->backend, to, from, tensor->tensor.dtype, count);
}

/* Elements [first, end) of a parameter that is stored apart, whole rows, to numbers. */
static dr_status gather_rows(const reading *r, const rows_of *rows, int64_t first, int64_t end, void *aligned, char *to) {
    const dr_named_tensor *tensor = &r->plan->tensors[rows->tensor];
    for (int64_t done = first; done < end;) {
        int64_t some;
        const int64_t at = dr_name_bundle_element(&r->plan->bundles[rows->bundle], rows->piece, done, &some);
        while (at < tensor->first || at >= tensor->first + tensor->count)
            tensor += at < tensor->first ? -1 : 1; /* a bundle's tensors follow each other */
        if (some > end - done) some = end - done;
        if (some > tensor->first + tensor->count - at) some = tensor->first + tensor->count - at;
        if (some > PIECE_ELEMENTS) some = PIECE_ELEMENTS;
        DR_TRY(read_run(r, tensor, at, some, aligned, to + dr_kind_bytes(r->model->backend, DR_NUMBER, done - first)));
        done += some;
    }
    return DR_OK;
}

/* Rows that are gathered at once: a piece, or one. */
static int64_t rows_at_once(const dr_parameter *parameter) {
    const int64_t columns = parameter->shape[parameter->rank - 1];
    return columns < PIECE_ELEMENTS ? PIECE_ELEMENTS / columns : 1;
}

static dr_status read_rows_task(void *context, int64_t task) {
    const reading *r = context;
    const int64_t index = subject_of(r, task, r->rows_count);
    const rows_of *rows = &r->rows[index];
    const dr_parameter *parameter = &r->model->parameters[rows->parameter];
    const int64_t columns = parameter->shape[parameter->rank - 1], all = parameter->count / columns;
    const int64_t row = (task - r->begins[index]) * rows_at_once(parameter), left = all - row;
    const int64_t count = left < rows_at_once(parameter) ? left : rows_at_once(parameter);
    void *numbers = NULL, *aligned = NULL;
    dr_status status = DR_OK;
    DR_GO(dr_allocate(dr_kind_bytes(r->model->backend, DR_NUMBER, count * columns), "rows of a weight", &numbers));
    DR_GO(dr_allocate(PIECE_ELEMENTS * sizeof(double), "a piece of an unaligned tensor", &aligned));
    DR_GO(gather_rows(r, rows, row * columns, (row + count) * columns, aligned, numbers));
    status = dr_model_put_rows(r->model, rows->parameter, row, count, numbers);
done:
    dr_release(aligned);
    dr_release(numbers);
    return status;
}

/* The parameters that are stored apart, in the order of the tensors. */
static void list_rows(reading *r) {
    for (int64_t t = 0; t < r->plan->tensor_count; t++) {
        const int64_t bundle = r->plan->tensors[t].bundle;
        if (t > 0 && r->plan->tensors[t - 1].bundle == bundle) continue;
        for (int i = 0; i < r->plan->bundles[bundle].pieces; i++) {
            const int64_t parameter = r->plan->bundles[bundle].parameter[i];
            if (r->model->parameters[parameter].offset >= 0) continue;
            r->rows[r->rows_count++] = (rows_of){.parameter = parameter, .bundle = bundle, .tensor = t, .piece = i};
        }
    }
}

static dr_status read_rows(reading *r) {
    void *memory = NULL;
    if (!dr_weights_apart(r->model->backend)) return DR_OK;
    DR_TRY(dr_allocate((size_t)r->model->listed * sizeof(rows_of), "the list of weights", &memory));
    r->rows = memory;
    list_rows(r);
    dr_release(r->begins);
    r->begins = NULL;
    DR_TRY(dr_allocate((size_t)(r->rows_count + 1) * sizeof(int64_t), "the tasks of reading a model", &memory));
    r->begins = memory;
    r->begins[0] = 0;
    for (int64_t i = 0; i < r->rows_count; i++) {
        const dr_parameter *parameter = &r->model->parameters[r->rows[i].parameter];
        const int64_t rows = parameter->count / parameter->shape[parameter->rank - 1], some = rows_at_once(parameter);
        r->begins[i + 1] = r->begins[i] + (rows + some - 1) / some;
    }
    const bool alone = r->model->count < 2 * TASK_ELEMENTS;
    return dr_run_tasks(alone ? 1 : r->model->backend->threads, r->begins[r->rows_count], r, read_rows_task);
}

static dr_status read_weights(dr_model *model, const json_t *config, const dr_weights *weights) {
    dr_named_parameter *list = NULL;
    dr_name_plan plan = {0};
    dr_status status = DR_OK;
    const dr_description description = described_as(model, config);
    reading r = {.model = model, .plan = &plan};
    DR_GO(list_names(model, &list));
    DR_GO(dr_names_plan_read(&description, list, model->listed, weights, &plan));
    DR_GO(check_unused(model, weights, &plan));
    DR_GO(dr_model_allocate(model));
    DR_GO(read_tensors(&r));
    DR_GO(read_rows(&r));
    status = dr_model_changed(model);
done:
    dr_release(r.begins);
    dr_release(r.rows);
    dr_name_plan_release(&plan);
    dr_release(list);
    return status;
}

/* A configuration that cannot be built is the file's fault here, not the caller's. */
static dr_status of_file(dr_status status, const char *file) {
    return dr_fail_in(status == DR_ERROR_ARGUMENT ? DR_ERROR_FORMAT : status, "%s", file);
}

static dr_status read_model(dr_backend *backend, const char *config_file, json_t **config, dr_model **model) {
    DR_TRY(dr_json_read(config_file, config));
    dr_status status = dr_quantised_check_config(*config);
    if (status == DR_OK) status = dr_model_build_published(backend, *config, model);
    return status == DR_OK ? DR_OK : of_file(status, config_file);
}

static dr_status join(const char *folder, const char *name, char **path) {
    void *memory = NULL;
    size_t size = strlen(folder) + strlen(name) + 2;
    DR_TRY(dr_allocate(size, "a path", &memory));
    snprintf(memory, size, "%s/%s", folder, name);
    *path = memory;
    return DR_OK;
}

dr_status dr_model_load(dr_backend *backend, const char *folder, dr_model **model) {
    DR_NEED(backend);
    DR_NEED(folder);
    DR_NEED(model);
    char *config_file = NULL;
    dr_model *made = NULL;
    dr_weights *weights = NULL;
    json_t *config = NULL;
    dr_status status = DR_OK;
    DR_GO(dr_quantised_check_path(folder));
    DR_GO(join(folder, CONFIG_FILE, &config_file));
    DR_GO(dr_folder_recover(folder));
    DR_GO(read_model(backend, config_file, &config, &made));
    DR_GO(dr_weights_open(folder, &weights));
    status = dr_quantised_check_tensors(weights);
    if (status == DR_OK) status = read_weights(made, config, weights);
    if (status != DR_OK) status = of_file(status, dr_weights_file(weights));
done:
    dr_weights_close(weights);
    dr_release(config_file);
    json_decref(config);
    if (status == DR_OK)
        *model = made;
    else
        dr_model_destroy(made);
    return status;
}
