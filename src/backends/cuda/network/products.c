/* Products of matrices by cuBLASLt, which is opened when a network first multiplies: nothing is linked with its 500 MB. Its
 * interface is declared here as far as it is needed; the numbers are those of cublasLt.h.
 *
 * A product plan is made once for each form of product: its descriptors and the algorithm, of those that the library's
 * heuristics propose the first, or the first of a tile that was faster (preferred). They look at the form and the device only,
 * so that every run has the same algorithm and the same bits; nothing is timed. Products whose depth is split add their parts
 * up in float, in an order of their own (reduction schemes none and compute type only), and find their workspace in the
 * backend's memory. float32 is not cut to TF32.
 *
 * cuBLASLt goes column by column: row by row, c = a b is what it takes for c' = b' a'. */
#include "backends/cuda/network/products.h"

#include "backends/cuda/network/network.h"

#include <dlfcn.h>
#include <library_types.h>
#include <pthread.h>

enum { COMPUTE_32F = 68, TRANSPOSED = 1, SCHEME_NONE = 0, SCHEME_COMPUTE_TYPE = 2 };
enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4 };  /* of a description */
enum { BATCH_COUNT = 5, BATCH_OFFSET = 6 }; /* of a layout */
enum { MOST_WORKSPACE = 1, SCHEMES = 3, ALIGNMENT_OF_A = 5, ALIGNMENT_OF_B, ALIGNMENT_OF_C, ALIGNMENT_OF_D }; /* a preference */
enum { TILE = 1, TILE_128X160 = 29, TILE_176X128 = 201 }; /* of an algorithm */
enum { WORKSPACE = 1 << 26, MOST_ALIGNMENT = 256, PROPOSALS = 12 };

typedef struct {
    uint64_t data[8];
} algorithm;

/* cublasLtMatmulHeuristicResult_t */
typedef struct {
    algorithm chosen;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} proposal;

/* What a plan follows from: all but the addresses. */
typedef struct {
    int64_t rows, columns, depth, a_row, b_row, c_row, batch, a_apart, b_apart, c_apart;
    int64_t a_turned, b_turned, add, from, to;
    int64_t a_aligned, b_aligned, c_aligned; /* bytes */
} form;

typedef struct plan {
    form of;
    void *description, *a, *b, *c; /* as the library takes them: a is the product's b */
    algorithm chosen;
    struct plan *next;
} plan;

struct dr_cuda_products {
    void *library, *handle, *workspace;
    plan *plans;
    pthread_mutex_t lock; /* of the plans */
    int (*destroy)(void *handle);
    int (*describe)(void **description, int compute, int scale);
    int (*set_description)(void *description, int attribute, const void *value, size_t size);
    int (*lay)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t row);
    int (*set_layout)(void *layout, int attribute, const void *value, size_t size);
    int (*prefer)(void **preference);
    int (*set_preference)(void *preference, int attribute, const void *value, size_t size);
    int (*forget_description)(void *description), (*forget_layout)(void *layout), (*forget_preference)(void *preference);
    int (*propose)(void *handle, void *description, void *a, void *b, void *c, void *d, void *preference, int most,
                   proposal *proposals, int *count);
    int (*tell)(const algorithm *of, int attribute, void *value, size_t size, size_t *written);
    int (*multiply)(void *handle, void *description, const void *alpha, const void *a, void *a_layout, const void *b,
                    void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                    const algorithm *chosen, void *workspace, size_t bytes, cudaStream_t stream);
};

/* ---- the library ------------------------------------------------------------------------------------------------------ */

/* POSIX gives functions as pointers to data. */
static bool find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found;
}

static dr_status start(struct dr_cuda_products *lt) {
    int (*create)(void **handle);
    const bool there = find(lt->library, "cublasLtCreate", &create) && find(lt->library, "cublasLtDestroy", &lt->destroy) &&
                       find(lt->library, "cublasLtMatmulDescCreate", &lt->describe) &&
                       find(lt->library, "cublasLtMatmulDescSetAttribute", &lt->set_description) &&
                       find(lt->library, "cublasLtMatmulDescDestroy", &lt->forget_description) &&
                       find(lt->library, "cublasLtMatrixLayoutCreate", &lt->lay) &&
                       find(lt->library, "cublasLtMatrixLayoutSetAttribute", &lt->set_layout) &&
                       find(lt->library, "cublasLtMatrixLayoutDestroy", &lt->forget_layout) &&
                       find(lt->library, "cublasLtMatmulPreferenceCreate", &lt->prefer) &&
                       find(lt->library, "cublasLtMatmulPreferenceSetAttribute", &lt->set_preference) &&
                       find(lt->library, "cublasLtMatmulPreferenceDestroy", &lt->forget_preference) &&
                       find(lt->library, "cublasLtMatmulAlgoGetHeuristic", &lt->propose) &&
                       find(lt->library, "cublasLtMatmulAlgoConfigGetAttribute", &lt->tell) &&
                       find(lt->library, "cublasLtMatmul", &lt->multiply);
    if (!there) return dr_fail(DR_ERROR_UNSUPPORTED, "the cuBLASLt of this machine lacks a function that networks need");
    DR_CUDA(cudaMalloc(&lt->workspace, WORKSPACE));
    return create(&lt->handle) == 0 ? DR_OK : dr_fail(DR_ERROR_UNSUPPORTED, "cuBLASLt did not start on this GPU");
}

static void forget(const struct dr_cuda_products *lt, plan *p) {
    void *const layouts[] = {p->a, p->b, p->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i]) lt->forget_layout(layouts[i]);
    if (p->description) lt->forget_description(p->description);
    dr_release(p);
}

void dr_cuda_products_close(struct dr_cuda_products *lt) {
    if (!lt) return;
    while (lt->plans) {
        plan *const first = lt->plans;
        lt->plans = first->next;
        forget(lt, first);
    }
    if (lt->handle) lt->destroy(lt->handle);
    if (lt->workspace) cudaFree(lt->workspace);
    pthread_mutex_destroy(&lt->lock);
    dlclose(lt->library);
    dr_release(lt);
}

dr_status dr_cuda_products_open(const dr_cuda *gpu, struct dr_cuda_products **products) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void *memory = NULL, *library = NULL;
    DR_TRY(dr_cuda_refuse_capture(gpu, "a first product, which opens cuBLASLt,"));
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "networks on backend cuda need libcublasLt.so.13 or .12 in the loader's path: install libcublas, or add "
                       "its folder to LD_LIBRARY_PATH; or use backend cpu");
    dr_status status = dr_allocate_zero(sizeof(struct dr_cuda_products), "a library", &memory);
    if (status != DR_OK) {
        dlclose(library);
        return status;
    }
    struct dr_cuda_products *const lt = memory;
    lt->library = library;
    pthread_mutex_init(&lt->lock, NULL);
    status = start(lt);
    if (status == DR_OK)
        *products = lt;
    else
        dr_cuda_products_close(lt);
    return status;
}

/* ---- plans ------------------------------------------------------------------------------------------------------------ */

static int64_t alignment_of(const void *at) {
    const uintptr_t address = (uintptr_t)at;
    int64_t bytes = MOST_ALIGNMENT;
    while (address % (uintptr_t)bytes) bytes /= 2;
    return bytes;
}

static form form_of(const dr_cuda_multiplication *p) {
    return (form){.rows = p->rows,
                  .columns = p->columns,
                  .depth = p->depth,
                  .a_row = p->a_row,
                  .b_row = p->b_row,
                  .c_row = p->c_row,
                  .batch = p->batch,
                  .a_apart = p->a_apart,
                  .b_apart = p->b_apart,
                  .c_apart = p->c_apart,
                  .a_turned = p->a_turned,
                  .b_turned = p->b_turned,
                  .add = p->add || p->plus,
                  .from = p->from,
                  .to = p->to,
                  .a_aligned = alignment_of(p->a),
                  .b_aligned = alignment_of(p->b),
                  .c_aligned =
                      p->plus && alignment_of(p->plus) < alignment_of(p->c) ? alignment_of(p->plus) : alignment_of(p->c)};
}

static int type_of(int64_t dtype) {
    return dtype == DR_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A layout of what lies row by row as [rows][columns]. */
static int lay(const struct dr_cuda_products *lt, const form *of, int64_t dtype, int64_t rows, int64_t columns, int64_t row,
               int64_t apart, void **layout) {
    const int32_t batch = (int32_t)of->batch;
    int failed = lt->lay(layout, type_of(dtype), (uint64_t)columns, (uint64_t)rows, row);
    if (failed || batch == 1) return failed;
    failed = lt->set_layout(*layout, BATCH_COUNT, &batch, sizeof batch);
    return failed ? failed : lt->set_layout(*layout, BATCH_OFFSET, &apart, sizeof apart);
}

static int describe(const struct dr_cuda_products *lt, plan *p) {
    const form *of = &p->of;
    const int32_t turned = TRANSPOSED;
    int failed = lt->describe(&p->description, COMPUTE_32F, CUDA_R_32F);
    if (!failed && of->b_turned) failed = lt->set_description(p->description, TRANSPOSE_A, &turned, sizeof turned);
    if (!failed && of->a_turned) failed = lt->set_description(p->description, TRANSPOSE_B, &turned, sizeof turned);
    if (!failed)
        failed = lay(lt, of, of->from, of->b_turned ? of->columns : of->depth, of->b_turned ? of->depth : of->columns,
                     of->b_row, of->b_apart, &p->a);
    if (!failed)
        failed = lay(lt, of, of->from, of->a_turned ? of->depth : of->rows, of->a_turned ? of->rows : of->depth, of->a_row,
                     of->a_apart, &p->b);
    return failed ? failed : lay(lt, of, of->to, of->rows, of->columns, of->c_row, of->c_apart, &p->c);
}

/* The tiles, best first, that were up to 13% faster on an H100 than the first proposal where many rows of up to 2,048 elements
 * meet weights (docs/lab/cuda/networks.md); other forms have none. */
static int preferred(const form *of, const int **tiles) {
    static const int wide[] = {TILE_128X160, TILE_176X128};
    *tiles = wide;
    return !of->a_turned && of->batch == 1 && of->from == DR_BF16 && of->to == DR_BF16 && of->rows >= 8192 &&
                   of->columns >= 1024 && of->depth <= 2048
               ? (int)(sizeof wide / sizeof *wide)
               : 0;
}

static algorithm pick(const struct dr_cuda_products *lt, const form *of, const proposal *proposals, int count) {
    const int *tiles;
    const int preferences = preferred(of, &tiles);
    for (int t = 0; t < preferences; t++)
        for (int i = 0; i < count; i++) {
            uint32_t tile = 0;
            size_t written;
            if (lt->tell(&proposals[i].chosen, TILE, &tile, sizeof tile, &written) == 0 && tile == (uint32_t)tiles[t])
                return proposals[i].chosen;
        }
    return proposals[0].chosen;
}

static int choose(const struct dr_cuda_products *lt, plan *p, void *preference, int *found) {
    const uint64_t workspace = WORKSPACE;
    const uint32_t schemes = SCHEME_NONE | SCHEME_COMPUTE_TYPE;
    const uint32_t aligned[] = {(uint32_t)p->of.b_aligned, (uint32_t)p->of.a_aligned, (uint32_t)p->of.c_aligned,
                                (uint32_t)p->of.c_aligned};
    proposal proposals[PROPOSALS];
    int failed = lt->set_preference(preference, MOST_WORKSPACE, &workspace, sizeof workspace);
    if (!failed) failed = lt->set_preference(preference, SCHEMES, &schemes, sizeof schemes);
    for (int i = 0; i < 4 && !failed; i++)
        failed = lt->set_preference(preference, ALIGNMENT_OF_A + i, &aligned[i], sizeof aligned[i]);
    if (!failed)
        failed = lt->propose(lt->handle, p->description, p->a, p->b, p->c, p->c, preference, PROPOSALS, proposals, found);
    if (!failed && *found > 0) p->chosen = pick(lt, &p->of, proposals, *found);
    return failed;
}

static dr_status make_plan(const dr_cuda *gpu, const struct dr_cuda_products *lt, const form *of, plan **made) {
    void *memory = NULL, *preference = NULL;
    int found = 0;
    DR_TRY(dr_cuda_refuse_capture(gpu, "a product's first call, whose algorithm is chosen,"));
    DR_TRY(dr_allocate_zero(sizeof(plan), "the plan of a product", &memory));
    plan *const p = memory;
    p->of = *of;
    int failed = describe(lt, p);
    if (!failed) failed = lt->prefer(&preference);
    if (!failed) failed = choose(lt, p, preference, &found);
    if (preference) lt->forget_preference(preference);
    if (!failed && found > 0) {
        *made = p;
        return DR_OK;
    }
    forget(lt, p);
    return dr_fail(DR_ERROR_UNSUPPORTED,
                   "cuBLASLt has no algorithm for a product of %lld x %lld by %lld x %lld in %s (status %d)",
                   (long long)of->rows, (long long)of->depth, (long long)of->depth, (long long)of->columns,
                   dr_dtype_name((dr_dtype)of->from), failed);
}

/* The plan of a form, made where there is none yet. The most recent stand in front. */
static dr_status find_plan(const dr_cuda *gpu, struct dr_cuda_products *lt, const form *of, plan **found) {
    dr_status status = DR_OK;
    pthread_mutex_lock(&lt->lock);
    plan **at = &lt->plans;
    while (*at && memcmp(&(*at)->of, of, sizeof *of) != 0) at = &(*at)->next;
    plan *p = *at;
    if (p)
        *at = p->next;
    else
        status = make_plan(gpu, lt, of, &p);
    if (status == DR_OK) {
        p->next = lt->plans;
        lt->plans = p;
    }
    pthread_mutex_unlock(&lt->lock);
    *found = p;
    return status;
}

dr_status dr_cuda_multiply(dr_backend *backend, const dr_cuda_multiplication *product) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    const void *added = product->plus ? product->plus : product->c;
    const float one = 1, beta = product->add || product->plus ? 1 : 0;
    const form of = form_of(product);
    struct dr_cuda_products *lt;
    plan *p = NULL;
    DR_TRY(dr_cuda_products_of(backend, &lt));
    DR_TRY(find_plan(gpu, lt, &of, &p));
    const int failed = lt->multiply(lt->handle, p->description, &one, product->b, p->a, product->a, p->b, &beta, added, p->c,
                                    product->c, p->c, &p->chosen, lt->workspace, WORKSPACE, gpu->stream.at);
    return failed ? dr_fail(DR_ERROR_DEVICE, "cuBLASLt failed with status %d", failed) : DR_OK;
}
