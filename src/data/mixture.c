/* Windows come in blocks of DR_MIXTURE_BLOCK. Each block holds as many windows of each member as its quota says, in an order
 * that the block's number shuffles. So how many windows of a member were given before a block is a product, and nothing has to
 * be remembered to go on anywhere. */
#include "data/mixture.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/streams.h"

typedef struct {
    dr_windows *windows;
    int64_t quota; /* windows of a block */
} member;

struct dr_mixture {
    member *members; /* [count] */
    int64_t count;
    uint64_t seed;
    int64_t block;                      /* whose order this is; -1: none */
    uint32_t owner[DR_MIXTURE_BLOCK];   /* the member that each window of the block is of */
    uint32_t earlier[DR_MIXTURE_BLOCK]; /* windows of that member before it in the block */
};

/* Whole parts first, then one more window to those with the largest rest until the block is full. */
static void share_out(dr_mixture *mixture, const double *weights) {
    double sum = 0;
    int64_t given = 0;
    for (int64_t i = 0; i < mixture->count; i++) sum += weights[i];
    for (int64_t i = 0; i < mixture->count; i++) {
        mixture->members[i].quota = (int64_t)(weights[i] / sum * DR_MIXTURE_BLOCK);
        given += mixture->members[i].quota;
    }
    for (; given < DR_MIXTURE_BLOCK; given++) {
        int64_t best = 0;
        double most = -1;
        for (int64_t i = 0; i < mixture->count; i++) {
            double rest = weights[i] / sum * DR_MIXTURE_BLOCK - (double)mixture->members[i].quota;
            if (rest > most) most = rest, best = i;
        }
        mixture->members[best].quota++;
    }
}

dr_status dr_mixture_create(dr_windows *const *windows, const double *weights, int64_t count, uint64_t seed,
                            dr_mixture **mixture) {
    void *memory;
    *mixture = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_mixture), "a mixture", &memory));
    dr_mixture *made = memory;
    dr_status status;
    DR_GO(dr_allocate_zero((size_t)count * sizeof(member), "the members of a mixture", &memory));
    made->members = memory;
    made->count = count, made->seed = seed, made->block = -1;
    for (int64_t i = 0; i < count; i++) made->members[i].windows = windows[i];
    share_out(made, weights);
    for (int64_t i = 0; i < count; i++) {
        if (made->members[i].quota > 0) continue;
        status = dr_fail(DR_ERROR_ARGUMENT,
                         "member %lld of the mixture has a weight so small that it would never come up: each needs one %dth of "
                         "the sum of the weights",
                         (long long)i, DR_MIXTURE_BLOCK);
        goto done;
    }
    *mixture = made;
    return DR_OK;
done:
    dr_mixture_destroy(made);
    return status;
}

void dr_mixture_destroy(dr_mixture *mixture) {
    if (!mixture) return;
    dr_release(mixture->members);
    dr_release(mixture);
}

/* Makes the order of a block. */
static void enter_block(dr_mixture *mixture, int64_t block) {
    dr_random random = dr_stream(mixture->seed, DR_STREAM_MIXTURE, block);
    int64_t place = 0;
    if (mixture->block == block) return;
    for (int64_t i = 0; i < mixture->count; i++)
        for (int64_t k = 0; k < mixture->members[i].quota; k++) mixture->owner[place++] = (uint32_t)i;
    for (int64_t i = DR_MIXTURE_BLOCK - 1; i > 0; i--) {
        int64_t j = (int64_t)dr_random_below(&random, (uint64_t)i + 1);
        uint32_t other = mixture->owner[i];
        mixture->owner[i] = mixture->owner[j];
        mixture->owner[j] = other;
    }
    for (int64_t i = 0; i < mixture->count; i++) {
        uint32_t seen = 0;
        for (int64_t k = 0; k < DR_MIXTURE_BLOCK; k++)
            if (mixture->owner[k] == i) mixture->earlier[k] = seen++;
    }
    mixture->block = block;
}

/* The windows that number index is of, and its number there. */
static dr_windows *find(dr_mixture *mixture, int64_t index, int64_t *own) {
    const int64_t block = index / DR_MIXTURE_BLOCK, place = index % DR_MIXTURE_BLOCK;
    *own = index;
    if (mixture->count == 1) return mixture->members[0].windows;
    enter_block(mixture, block);
    const member *owner = &mixture->members[mixture->owner[place]];
    *own = block * owner->quota + mixture->earlier[place];
    return owner->windows;
}

void dr_mixture_prepare(dr_mixture *mixture, int64_t index) {
    int64_t own;
    for (int64_t i = 0; i < mixture->count; i++)
        dr_windows_prepare(mixture->members[i].windows, index / DR_MIXTURE_BLOCK * mixture->members[i].quota);
    dr_windows *windows = find(mixture, index, &own);
    dr_windows_prepare(windows, own);
}

dr_status dr_mixture_get(dr_mixture *mixture, int64_t index, int32_t *ids, int32_t *labels, uint8_t *marks) {
    int64_t own;
    dr_windows *windows = find(mixture, index, &own);
    return dr_windows_get(windows, own, ids, labels, marks);
}
