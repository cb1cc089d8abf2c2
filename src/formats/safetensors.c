/* Reading and writing safetensors.
 *
 * Reading: the file is mapped, not copied, since checkpoints are large. Then, in this order: the header's length against the
 * file's, the header as JSON, each tensor by itself (dtype, shape, offsets that match), and last all tensors together: sorted
 * by where they begin, each must begin where the one before ends and the last must end where the file ends, which refuses
 * overlaps and gaps alike. After that every view lies inside the mapping, whatever the file says. What no check can help: if
 * another process cuts the file short while it is mapped, touching the lost pages raises SIGBUS. Our own writers never do that
 * to a file that is in use: they replace files by renaming (formats/folder.c), which leaves the old mapping whole.
 *
 * Writing: tensors go by falling element size, then in the order given, and the header is padded with spaces to a multiple of
 * 8, so every tensor is aligned to its type. The same tensors give the same bytes. */
#include "formats/safetensors.h"
#include "formats/quantised.h"

#include "base/error.h"
#include "base/half.h"
#include "base/memory.h"
#include "base/tasks.h"
#include "formats/file.h"
#include "formats/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000, ALIGNMENT = 8, LARGEST_ELEMENT = 8 };
enum { PIECE_ELEMENTS = 1 << 17, SPAN_ELEMENTS = 8 * PIECE_ELEMENTS, WRITING_THREADS = 4 };

static const char METADATA[] = "__metadata__";

typedef struct {
    const char *name; /* lives in the header's JSON */
    dr_tensor tensor;
    int64_t begin, end; /* bytes from the end of the header */
} entry;

struct dr_safetensors {
    char *map;
    size_t size;
    json_t *header;
    entry *entries;
    int64_t count;
};

/* A name from a file as it may stand in a message: cut, and without control characters that a terminal would obey. */
typedef struct {
    char text[84];
} label;

static label label_of(const char *name) {
    label result;
    snprintf(result.text, sizeof result.text, "%s", name);
    for (char *c = result.text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return result;
}

static dr_status parse_dtype(const char *name, const json_t *value, dr_dtype *dtype) {
    static const dr_dtype known[] = {DR_F32, DR_F64, DR_F16, DR_BF16, DR_I32, DR_I64, DR_U8, DR_I8};
    const char *text = json_string_value(value);
    if (!text) return dr_fail(DR_ERROR_FORMAT, "tensor '%s' has no dtype", label_of(name).text);
    if (strcmp(text, "BOOL") == 0) text = dr_dtype_name(DR_U8); /* a byte that is 0 or 1 */
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(text, dr_dtype_name(known[i])) == 0) {
            *dtype = known[i];
            return DR_OK;
        }
    DR_TRY(dr_quantised_check_dtype(name, text));
    return dr_fail(DR_ERROR_FORMAT, "tensor '%s' has dtype %s; known are F32, F64, F16, BF16, I32, I64, U8, I8 and BOOL",
                   label_of(name).text, label_of(text).text);
}

static dr_status parse_shape(const char *name, const json_t *value, dr_tensor *tensor) {
    if (!json_is_array(value)) return dr_fail(DR_ERROR_FORMAT, "tensor '%s' has no shape", label_of(name).text);
    size_t rank = json_array_size(value);
    if (rank > DR_MAX_RANK)
        return dr_fail(DR_ERROR_FORMAT, "tensor '%s' has %zu dimensions: at most %d are read", label_of(name).text, rank,
                       DR_MAX_RANK);
    tensor->rank = (int)rank;
    for (int i = 0; i < tensor->rank; i++) {
        const json_t *size = json_array_get(value, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            char found[96];
            dr_json_describe(size, found, sizeof found);
            return dr_fail(DR_ERROR_FORMAT, "tensor '%s': dimension %d is %s; sizes are integers from 0", label_of(name).text,
                           i, found);
        }
        tensor->shape[i] = json_integer_value(size);
    }
    return DR_OK;
}

/* The two offsets of a tensor, against its shape and the bytes of data in the file. */
static dr_status parse_offsets(const json_t *value, int64_t data_bytes, entry *item) {
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    label name = label_of(item->name);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return dr_fail(DR_ERROR_FORMAT, "tensor '%s' needs data_offsets of two integers", name.text);
    item->begin = json_integer_value(begin);
    item->end = json_integer_value(end);
    if (item->begin < 0 || item->end < item->begin || item->end > data_bytes)
        return dr_fail(DR_ERROR_FORMAT,
                       "tensor '%s' claims bytes %" PRId64 " to %" PRId64 " of the data, which has %" PRId64
                       " bytes: the file is truncated or damaged",
                       name.text, item->begin, item->end, data_bytes);
    int64_t factors[] = {0, (int64_t)dr_dtype_size(item->tensor.dtype)}, bytes = 0;
    if (!dr_product(item->tensor.shape, item->tensor.rank, &factors[0]) || !dr_product(factors, 2, &bytes))
        return dr_fail(DR_ERROR_FORMAT, "the shape of tensor '%s' overflows 64 bits", name.text);
    if (bytes != item->end - item->begin)
        return dr_fail(DR_ERROR_FORMAT, "tensor '%s' needs %" PRId64 " bytes by its shape, but its offsets give %" PRId64,
                       name.text, bytes, item->end - item->begin);
    return DR_OK;
}

static dr_status parse_entry(const char *name, const json_t *value, int64_t data_bytes, entry *item) {
    item->name = name;
    if (!json_is_object(value)) return dr_fail(DR_ERROR_FORMAT, "tensor '%s' is not a JSON object", label_of(name).text);
    DR_TRY(parse_dtype(name, json_object_get(value, "dtype"), &item->tensor.dtype));
    DR_TRY(parse_shape(name, json_object_get(value, "shape"), &item->tensor));
    return parse_offsets(json_object_get(value, "data_offsets"), data_bytes, item);
}

static dr_status check_metadata(json_t *metadata) {
    if (!json_is_object(metadata)) return dr_fail(DR_ERROR_FORMAT, "%s is not a JSON object", METADATA);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return dr_fail(DR_ERROR_FORMAT, "the value of '%s' in %s is not a string", label_of(key).text, METADATA);
    }
    return DR_OK;
}

static int by_begin(const void *left, const void *right) {
    const entry *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end); /* an empty tensor comes before the one that begins at the same byte */
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const entry *)left)->name, ((const entry *)right)->name);
}

/* Each tensor begins where the one before ends, the last ends with the file. */
static dr_status check_cover(const entry *entries, int64_t count, int64_t data_bytes) {
    int64_t reached = 0;
    for (int64_t i = 0; i < count; i++) {
        if (entries[i].begin != reached)
            return dr_fail(DR_ERROR_FORMAT, "tensor '%s' begins at byte %" PRId64 " of the data, %s at byte %" PRId64,
                           label_of(entries[i].name).text, entries[i].begin,
                           entries[i].begin < reached ? "but the one before it ends" : "leaving a gap after the one that ends",
                           reached);
        reached = entries[i].end;
    }
    if (reached != data_bytes)
        return dr_fail(DR_ERROR_FORMAT, "the tensors end at byte %" PRId64 " of the data, which has %" PRId64 " bytes", reached,
                       data_bytes);
    return DR_OK;
}

/* Fills the entries from the header, whose JSON is checked, and sorts them by name. */
static dr_status parse_entries(dr_safetensors *tensors, size_t data_begin) {
    int64_t data_bytes = (int64_t)(tensors->size - data_begin);
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(json_object_size(tensors->header) * sizeof(entry), "the list of tensors", &memory));
    tensors->entries = memory;
    const char *key;
    json_t *value;
    json_object_foreach(tensors->header, key, value) {
        if (strcmp(key, METADATA) == 0)
            DR_TRY(check_metadata(value));
        else
            DR_TRY(parse_entry(key, value, data_bytes, &tensors->entries[tensors->count++]));
    }
    size_t count = (size_t)tensors->count;
    if (count > 0) qsort(tensors->entries, count, sizeof(entry), by_begin);
    DR_TRY(check_cover(tensors->entries, tensors->count, data_bytes));
    if (count > 0) qsort(tensors->entries, count, sizeof(entry), by_name);
    for (size_t i = 0; i < count; i++) tensors->entries[i].tensor.data = tensors->map + data_begin + tensors->entries[i].begin;
    return DR_OK;
}

static dr_status parse_file(dr_safetensors *tensors) {
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | (unsigned char)tensors->map[i];
    if (length == 0 || length > MAX_HEADER_BYTES)
        return dr_fail(DR_ERROR_FORMAT,
                       "its header length is %" PRIu64 ": it must be from 2 to %d bytes; not a safetensors file?", length,
                       MAX_HEADER_BYTES);
    if (length > tensors->size - LENGTH_BYTES)
        return dr_fail(DR_ERROR_FORMAT, "its header should have %" PRIu64 " bytes, but the file has only %zu: truncated?",
                       length, tensors->size);
    DR_TRY(dr_json_parse(tensors->map + LENGTH_BYTES, (size_t)length, "the header", &tensors->header));
    return parse_entries(tensors, LENGTH_BYTES + (size_t)length);
}

/* Maps a regular file of at least LENGTH_BYTES. */
static dr_status map_file(int descriptor, dr_safetensors *tensors) {
    struct stat about;
    if (fstat(descriptor, &about) != 0) return dr_fail(DR_ERROR_IO, "cannot read: %s", dr_system_text(errno));
    if (!S_ISREG(about.st_mode)) return dr_fail(DR_ERROR_IO, "not a regular file");
    if (about.st_size < LENGTH_BYTES)
        return dr_fail(DR_ERROR_FORMAT, "%" PRId64 " bytes are too few for a safetensors file: truncated?",
                       (int64_t)about.st_size);
    tensors->size = (size_t)about.st_size;
    void *map = mmap(NULL, tensors->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (map == MAP_FAILED) return dr_fail(DR_ERROR_IO, "cannot map the file: %s", dr_system_text(errno));
    tensors->map = map;
    return DR_OK;
}

dr_status dr_safetensors_open(const char *file, dr_safetensors **tensors) {
    int descriptor = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hang us */
    if (descriptor < 0) return dr_fail(DR_ERROR_IO, "%s: cannot open: %s", file, dr_system_text(errno));
    void *memory = NULL;
    dr_status status = dr_allocate_zero(sizeof(dr_safetensors), "a list of tensors", &memory);
    dr_safetensors *opened = memory;
    if (status == DR_OK) status = map_file(descriptor, opened);
    close(descriptor); /* the mapping stays */
    if (status == DR_OK) status = parse_file(opened);
    if (status != DR_OK) {
        dr_safetensors_close(opened);
        return dr_fail_in(status, "%s", file);
    }
    *tensors = opened;
    return DR_OK;
}

void dr_safetensors_close(dr_safetensors *tensors) {
    if (!tensors) return;
    if (tensors->map) munmap(tensors->map, tensors->size);
    json_decref(tensors->header);
    dr_release(tensors->entries);
    dr_release(tensors);
}

int64_t dr_safetensors_count(const dr_safetensors *tensors) {
    return tensors->count;
}

int64_t dr_safetensors_bytes(const dr_safetensors *tensors) {
    return (int64_t)tensors->size;
}

const char *dr_safetensors_name(const dr_safetensors *tensors, int64_t index) {
    return tensors->entries[index].name;
}

dr_tensor dr_safetensors_tensor(const dr_safetensors *tensors, int64_t index) {
    return tensors->entries[index].tensor;
}

int64_t dr_safetensors_index(const dr_safetensors *tensors, const char *name) {
    if (tensors->count == 0) return -1;
    entry wanted = {.name = name};
    const entry *found = bsearch(&wanted, tensors->entries, (size_t)tensors->count, sizeof(entry), by_name);
    return found ? found - tensors->entries : -1;
}

int dr_safetensors_find(const dr_safetensors *tensors, const char *name, dr_tensor *tensor) {
    const int64_t index = dr_safetensors_index(tensors, name);
    if (index >= 0) *tensor = dr_safetensors_tensor(tensors, index);
    return index >= 0;
}

const char *dr_safetensors_metadata(const dr_safetensors *tensors, const char *key) {
    return json_string_value(json_object_get(json_object_get(tensors->header, METADATA), key));
}

void dr_safetensors_expect(const dr_tensor *tensor) {
#ifdef MADV_POPULATE_READ
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), behind = (uintptr_t)tensor->data % page; /* its page's start */
    const size_t bytes = (size_t)dr_tensor_count(tensor) * dr_dtype_size(tensor->dtype);
    if (bytes > 0) madvise((char *)tensor->data - behind, bytes + behind, MADV_POPULATE_READ);
#else
    (void)tensor;
#endif
}

void dr_safetensors_forget(const dr_tensor *tensor) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = (size_t)dr_tensor_count(tensor) * dr_dtype_size(tensor->dtype);
    const uintptr_t before = (page - (uintptr_t)tensor->data % page) % page; /* bytes before the first whole page */
    if (bytes < before + page) return;
    madvise((char *)tensor->data + before, (bytes - before) / page * page, MADV_DONTNEED);
}

double dr_tensor_element(const dr_tensor *tensor, int64_t index) {
    const char *at = (const char *)tensor->data + (size_t)index * dr_dtype_size(tensor->dtype);
    union {
        float f32;
        double f64;
        uint16_t half;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
        int8_t i8;
    } bits;
    memcpy(&bits, at, dr_dtype_size(tensor->dtype)); /* it may be unaligned */
    switch (tensor->dtype) {
    case DR_F32:
        return (double)bits.f32;
    case DR_F64:
        return bits.f64;
    case DR_F16:
        return (double)dr_f16_to_float(bits.half);
    case DR_BF16:
        return (double)dr_bf16_to_float(bits.half);
    case DR_I32:
        return bits.i32;
    case DR_I64:
        return (double)bits.i64;
    case DR_U8:
        return bits.u8;
    case DR_I8:
        return bits.i8;
    }
    return 0;
}

/* Whether one of count elements is not finite: its exponent is all ones, so that adding the lowest bit of the exponent to the
 * exponent alone carries into the bit of the sign. Aligned or not. */
#define SOME_NOT_FINITE(name, type, exponent, lowest)                                                                          \
    static bool name(const char *at, int64_t count) {                                                                          \
        type carried = 0;                                                                                                      \
        for (int64_t i = 0; i < count; i++) {                                                                                  \
            type bits;                                                                                                         \
            memcpy(&bits, at + (size_t)i * sizeof bits, sizeof bits);                                                          \
            carried = (type)(carried | (type)((type)(bits & (type)(exponent)) + (type)(lowest)));                              \
        }                                                                                                                      \
        return carried >> (8 * sizeof(type) - 1) != 0;                                                                         \
    }
SOME_NOT_FINITE(some_f32, uint32_t, 0x7f800000, 0x00800000)
SOME_NOT_FINITE(some_f64, uint64_t, 0x7ff0000000000000, 0x0010000000000000)
SOME_NOT_FINITE(some_f16, uint16_t, 0x7c00, 0x0400)
SOME_NOT_FINITE(some_bf16, uint16_t, 0x7f80, 0x0080)

static bool some_not_finite(dr_dtype dtype, const char *at, int64_t count) {
    switch (dtype) {
    case DR_F32:
        return some_f32(at, count);
    case DR_F64:
        return some_f64(at, count);
    case DR_F16:
        return some_f16(at, count);
    case DR_BF16:
        return some_bf16(at, count);
    case DR_I32:
    case DR_I64:
    case DR_U8:
    case DR_I8:
        break;
    }
    return false;
}

int64_t dr_tensor_not_finite(const dr_tensor *tensor, int64_t first, int64_t count, int least) {
    enum { STRETCH = 4096 };
    const size_t item = dr_dtype_size(tensor->dtype);
    for (int64_t from = first; from < first + count; from += STRETCH) {
        const int64_t some = first + count - from < STRETCH ? first + count - from : STRETCH;
        if (!some_not_finite(tensor->dtype, (const char *)tensor->data + (size_t)from * item, some)) continue;
        for (int64_t i = from; i < from + some; i++) {
            const double value = dr_tensor_element(tensor, i);
            if (!isfinite(value) && !(least && isinf(value) && value < 0)) return i;
        }
    }
    return -1;
}

/* The header's JSON for one tensor that begins at *offset; moves *offset behind it. NULL without memory. */
static json_t *header_of(const dr_tensor *tensor, int64_t bytes, int64_t *offset) {
    json_t *shape = json_array();
    for (int i = 0; i < tensor->rank; i++)
        if (json_array_append_new(shape, json_integer(tensor->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    json_int_t begin = *offset;
    *offset += bytes;
    json_int_t end = *offset;
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", dr_dtype_name(tensor->dtype), "shape", shape, "data_offsets", begin, end);
}

static dr_status byte_size(const char *name, const dr_tensor *tensor, int64_t *bytes) {
    int64_t factors[] = {0, (int64_t)dr_dtype_size(tensor->dtype)};
    if (tensor->rank < 0 || tensor->rank > DR_MAX_RANK || factors[1] == 0 ||
        !dr_product(tensor->shape, tensor->rank, &factors[0]) || !dr_product(factors, 2, bytes))
        return dr_fail(DR_ERROR_ARGUMENT, "tensor '%s' cannot be written: its dtype, rank or shape is impossible",
                       label_of(name).text);
    return DR_OK;
}

static dr_status add_metadata(json_t *header, const char *const *metadata) {
    if (!metadata) return DR_OK;
    json_t *object = json_object();
    for (int i = 0; metadata[i]; i += 2)
        if (json_object_set_new(object, metadata[i], json_string(metadata[i + 1])) != 0) {
            json_decref(object);
            return dr_fail(DR_ERROR_ARGUMENT, "the metadata '%s' is not valid UTF-8 (or memory ran out)",
                           label_of(metadata[i]).text);
        }
    if (json_object_set_new(header, METADATA, object) != 0) return dr_fail(DR_ERROR_MEMORY, "there is no memory for a header");
    return DR_OK;
}

/* The order of writing is by falling element size, so tensors are walked once a size. */
static dr_status build_header(int64_t count, const char *const *names, const dr_tensor *tensors, const char *const *metadata,
                              json_t *header) {
    int64_t offset = 0;
    DR_TRY(add_metadata(header, metadata));
    for (size_t size = LARGEST_ELEMENT; size > 0; size /= 2)
        for (int64_t i = 0; i < count; i++) {
            int64_t bytes = 0;
            DR_TRY(byte_size(names[i], &tensors[i], &bytes));
            if (dr_dtype_size(tensors[i].dtype) != size) continue;
            if (strcmp(names[i], METADATA) == 0 || json_object_get(header, names[i]))
                return dr_fail(DR_ERROR_ARGUMENT, "the tensor name '%s' is taken", label_of(names[i]).text);
            if (json_object_set_new(header, names[i], header_of(&tensors[i], bytes, &offset)) != 0)
                return dr_fail(DR_ERROR_ARGUMENT, "the tensor name '%s' is not valid UTF-8 (or memory ran out)",
                               label_of(names[i]).text);
        }
    return DR_OK;
}

/* Returns where the data begin. */
static int64_t write_header(dr_file *file, const char *text) {
    static const char spaces[ALIGNMENT] = "       ";
    size_t used = strlen(text), padding = (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT;
    unsigned char length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) length[i] = (unsigned char)((used + padding) >> 8 * i);
    dr_file_write(file, length, sizeof length);
    dr_file_write(file, text, used);
    dr_file_write(file, spaces, padding);
    return (int64_t)(LENGTH_BYTES + used + padding);
}

static bool is_zero(const char *bytes, size_t count) {
    return count > 0 && bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0;
}

/* ---- writing what a source gives ------------------------------------------------------------------------------------ */

/* A part of a tensor, which one thread writes a piece at a time. */
typedef struct {
    int64_t tensor, first, count;
    int64_t offset; /* in the file */
} span;

typedef struct {
    const dr_file *file;
    const dr_tensor *tensors;
    dr_tensor_source source;
    void *context;
    span *spans;
} span_writing;

static dr_status write_pieces(const span_writing *w, const span *s, void *piece) {
    const size_t size = dr_dtype_size(w->tensors[s->tensor].dtype);
    for (int64_t done = 0; done < s->count; done += PIECE_ELEMENTS) {
        const int64_t some = s->count - done < PIECE_ELEMENTS ? s->count - done : PIECE_ELEMENTS;
        const int64_t offset = s->offset + done * (int64_t)size;
        const size_t bytes = (size_t)some * size;
        DR_TRY(w->source(w->context, s->tensor, s->first + done, some, piece));
        DR_TRY(is_zero(piece, bytes) ? dr_file_zeros_at(w->file, offset, bytes) /* as the means of a run that begins are */
                                     : dr_file_write_at(w->file, offset, piece, bytes));
    }
    return DR_OK;
}

static dr_status write_span(void *context, int64_t index) {
    const span_writing *w = context;
    const span *s = &w->spans[index];
    void *piece = NULL;
    DR_TRY(dr_allocate((size_t)PIECE_ELEMENTS * dr_dtype_size(w->tensors[s->tensor].dtype), "a piece of a tensor", &piece));
    const dr_status status = write_pieces(w, s, piece);
    dr_release(piece);
    return status;
}

/* Fills in the spans of all tensors in the order of the file, from `offset` on, and returns how many; spans NULL: counts only.
 */
static int64_t make_spans(int64_t count, const dr_tensor *tensors, int64_t offset, span *spans) {
    int64_t made = 0;
    for (size_t size = LARGEST_ELEMENT; size > 0; size /= 2)
        for (int64_t i = 0; i < count; i++) {
            const int64_t elements = dr_dtype_size(tensors[i].dtype) == size ? dr_tensor_count(&tensors[i]) : 0;
            for (int64_t first = 0; first < elements; first += SPAN_ELEMENTS, made++) {
                const int64_t some = elements - first < SPAN_ELEMENTS ? elements - first : SPAN_ELEMENTS;
                if (spans) spans[made] = (span){i, first, some, offset};
                offset += some * (int64_t)size;
            }
        }
    return made;
}

static dr_status write_spans(const dr_file *file, int64_t offset, int64_t count, const dr_tensor *tensors,
                             dr_tensor_source source, void *context) {
    const int64_t spans = make_spans(count, tensors, 0, NULL);
    void *memory = NULL;
    if (spans == 0) return DR_OK;
    DR_TRY(dr_allocate((size_t)spans * sizeof(span), "the parts of a file", &memory));
    span_writing w = {file, tensors, source, context, memory};
    make_spans(count, tensors, offset, w.spans);
    const dr_status status = dr_run_tasks(WRITING_THREADS, spans, &w, write_span);
    dr_release(memory);
    return status;
}

/* text: the header. source: or NULL, and then the tensors have data. */
static dr_status write_file(const char *file, const char *text, int64_t count, const dr_tensor *tensors,
                            dr_tensor_source source, void *context) {
    dr_file out;
    dr_file_create(file, &out);
    const int64_t begin = write_header(&out, text);
    if (source && out.status == DR_OK) out.status = write_spans(&out, begin, count, tensors, source, context);
    for (size_t size = LARGEST_ELEMENT; size > 0 && !source; size /= 2)
        for (int64_t i = 0; i < count; i++)
            if (dr_dtype_size(tensors[i].dtype) == size)
                dr_file_write(&out, tensors[i].data, (size_t)dr_tensor_count(&tensors[i]) * size);
    return dr_file_finish(&out);
}

dr_status dr_safetensors_write_from(const char *file, int64_t count, const char *const *names, const dr_tensor *tensors,
                                    const char *const *metadata, dr_tensor_source source, void *context) {
    json_t *header = json_object();
    dr_status status = build_header(count, names, tensors, metadata, header);
    char *text = status == DR_OK ? dr_json_format(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (status != DR_OK) return dr_fail_in(status, "%s", file);
    if (!text) return dr_fail(DR_ERROR_MEMORY, "%s: there is no memory for its header", file);
    status = write_file(file, text, count, tensors, source, context);
    free(text);
    return status;
}

dr_status dr_safetensors_write(const char *file, int64_t count, const char *const *names, const dr_tensor *tensors,
                               const char *const *metadata) {
    return dr_safetensors_write_from(file, count, names, tensors, metadata, NULL, NULL);
}
