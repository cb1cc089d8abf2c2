/* The threads of a block as fibers, and what they do together (block.h). A fiber that has to wait gives its turn to the next;
 * where all of them wait, the copies that are still to be made are made one after another until one of them can go on. A fiber
 * begins by setcontext, and from then on takes turns by _longjmp, which asks nothing of the system: swapcontext sets the mask
 * of signals each time, and there are hundreds of millions of turns. */
#undef _FORTIFY_SOURCE /* it takes a jump to another stack for a fault */
#include "block.h"

#include <deque>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <utility>
#include <vector>

grid_manner manner;
uint3 thread_index, block_index, block_count, block_size;
alignas(1024) thread_local char shared[SHARED_SIZE];

enum { MOST_THREADS = 1024, WARPS = MOST_THREADS / 32, STACK = 16 * 1024, STACK_END = 64, BARRIERS = 16 };

typedef struct {
    ucontext_t context; /* it begins there */
    jmp_buf place;      /* where it has given its turn away */
    std::vector<char> stack;
    bool begun;
} fiber;

/* What is looked at to find whose turn it is, apart from the rest of a fiber, which is large. */
typedef struct {
    const uint32_t *turns; /* waits until these have another parity than `turn`; NULL: for nothing */
    uint32_t turn;
    bool done;
} state;

typedef struct {
    unsigned arrived, threads;
    uint32_t turns; /* how often all have met */
} barrier;

/* 8 bytes of shared memory. */
typedef struct {
    uint16_t arrivals, missing;
    uint32_t turns;
} gate;

typedef std::vector<std::function<void()>> product_group;

typedef struct {
    int arrived;
    warp_task task;
    uint32_t turns;
    bool rests; /* its threads take no turns for a while */
    bool slow;  /* it rests nearly always, of even seeds */
    void *brought[32];
    product_group open;              /* products since the last commit */
    std::deque<product_group> asked; /* those before it that were not waited for */
} warp;

typedef struct {
    unsigned thread;
    std::function<void()> make;
} copy;

static fiber fibers[MOST_THREADS];
static state states[MOST_THREADS]; /* of the fibers */
static warp warps[WARPS];
static barrier barriers[BARRIERS];
static std::deque<copy> copies;
static jmp_buf scheduler; /* where the fiber whose turn it is was called */
static std::function<void()> entry;
static uint64_t gate_turns; /* of all gates */
static uint64_t drawn;      /* the last random number */
static unsigned unfinished_threads;

void grid_fail(const char *sentence) {
    printf("block %u, thread %u: %s\n", block_index.x, thread_index.x, sentence);
    exit(1);
}

/* ---- a grid ------------------------------------------------------------------------------------------------------------- */

static bool has_to_wait(const state &s) {
    return s.turns && (*s.turns & 1) == (s.turn & 1);
}

/* Waits until what is counted in `turns` has another parity than `turn`. */
static void wait_for(const uint32_t *turns, uint32_t turn) {
    state *s = &states[thread_index.x];
    s->turns = turns;
    s->turn = turn;
    if (has_to_wait(*s) && !_setjmp(fibers[thread_index.x].place)) _longjmp(scheduler, 1);
    s->turns = NULL;
}

/* Returns when the fiber waits or is done. (Functions that call _setjmp are not inlined.) */
static void give_turn(fiber *f) {
    if (_setjmp(scheduler)) return;
    if (f->begun) _longjmp(f->place, 1);
    f->begun = true;
    setcontext(&f->context);
}

static void take_thread() {
    entry();
    for (int i = 0; i < STACK_END; i++)
        if (fibers[thread_index.x].stack[i] != (char)manner.fill) grid_fail("the stack of a thread is too small (STACK)");
    states[thread_index.x].done = true;
    unfinished_threads--;
    _longjmp(scheduler, 1);
}

static void begin_thread(fiber *f) {
    if (f->stack.empty()) getcontext(&f->context); /* once: it asks the system for the mask of signals */
    f->stack.assign(STACK, (char)manner.fill);
    states[f - fibers] = {};
    f->begun = false;
    f->context.uc_stack.ss_sp = f->stack.data();
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, take_thread, 0);
}

static unsigned draw_below(unsigned bound) {
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(drawn >> 33) % bound;
}

static std::vector<unsigned> order_of_threads(unsigned threads) {
    std::vector<unsigned> order(threads);
    for (unsigned i = 0; i < threads; i++) order[i] = i;
    for (unsigned i = threads - 1; i > 0 && manner.seed; i--) std::swap(order[i], order[draw_below(i + 1)]);
    return order;
}

/* Warps begin and end to rest by chance, so that some are ahead of others; of even seeds a quarter of them rests nearly always,
 * so that all others are as far ahead as they may be: where copies are made at once, since late ones wait for everybody. */
static void draw_rests() {
    for (warp &w : warps)
        if (manner.seed % 2 == 0)
            w.rests = w.slow && draw_below(200) != 0;
        else if (draw_below(8) == 0)
            w.rests = !w.rests;
}

/* Until a gate turns. */
static void make_copies() {
    if (copies.empty()) grid_fail("no thread of the block can go on");
    const uint64_t before = gate_turns;
    while (gate_turns == before && !copies.empty()) {
        const copy next = std::move(copies.front());
        copies.pop_front();
        next.make();
    }
}

static void block_run(const std::vector<unsigned> &order) {
    memset(shared, manner.fill, sizeof shared);
    for (barrier &b : barriers) b = {};
    for (warp &w : warps) w.rests = false, w.slow = manner.seed && draw_below(4) == 0;
    for (unsigned thread : order) begin_thread(&fibers[thread]);
    unfinished_threads = (unsigned)order.size();
    while (unfinished_threads > 0) {
        bool some = false;
        if (manner.seed) draw_rests();
        for (unsigned thread : order) {
            if (states[thread].done || has_to_wait(states[thread])) continue;
            some = true;
            if (warps[thread / 32].rests) continue;
            thread_index = {thread, 0, 0};
            give_turn(&fibers[thread]);
        }
        if (!some) make_copies();
    }
    for (const barrier &b : barriers)
        if (b.arrived) grid_fail("the block ends while threads wait at a barrier");
    for (const warp &w : warps) {
        if (w.arrived) grid_fail("the block ends while lanes of a warp wait");
        if (!w.open.empty() || !w.asked.empty()) grid_fail("the block ends with products that were not waited for");
    }
    if (!copies.empty()) grid_fail("the block ends with copies that were not waited for");
}

void grid_run(unsigned blocks, unsigned threads, const std::function<void()> &kernel) {
    if (threads > MOST_THREADS || threads % 32) grid_fail("a block is not of 32 to 1024 threads in whole warps");
    entry = kernel;
    drawn = manner.seed;
    block_count = {blocks, 1, 1}, block_size = {threads, 1, 1};
    const std::vector<unsigned> order = order_of_threads(threads);
    for (unsigned i = 0; i < blocks; i++) {
        block_index = {i, 0, 0};
        block_run(order);
    }
}

/* ---- shared memory and copies to it ------------------------------------------------------------------------------------- */

char *shared_at(unsigned address, unsigned bytes) {
    if (address < SHARED_BEGIN || address + bytes > SHARED_BEGIN + SHARED_SIZE)
        grid_fail("an address lies outside of shared memory");
    if (address % bytes) grid_fail("an address in shared memory is not aligned");
    return shared + (address - SHARED_BEGIN);
}

void copy_later(const std::function<void()> &make) {
    if (manner.late)
        copies.push_back({thread_index.x, make});
    else
        make();
}

void copy_ask(unsigned to, const void *from, unsigned bytes, bool valid) {
    if (valid && (uintptr_t)from % bytes) grid_fail("what is copied to shared memory is not aligned");
    copy_later([=] {
        if (valid)
            memcpy(shared_at(to, bytes), from, bytes);
        else
            memset(shared_at(to, bytes), 0, bytes);
    });
}

void copy_wait() {
    for (size_t i = 0; i < copies.size();) {
        if (copies[i].thread == thread_index.x) {
            copies[i].make();
            copies.erase(copies.begin() + (std::ptrdiff_t)i);
        } else {
            i++;
        }
    }
}

/* ---- threads that wait for one another ---------------------------------------------------------------------------------- */

static warp *own_warp() {
    return &warps[thread_index.x / 32];
}

void warp_meet(warp_task task, void *mine, const std::function<void(void **)> &together) {
    warp *w = own_warp();
    if (w->arrived && w->task != task) grid_fail("lanes of a warp do different things");
    w->task = task;
    w->brought[thread_index.x % 32] = mine;
    if (++w->arrived == 32) {
        if (together) together(w->brought);
        w->arrived = 0;
        w->turns++;
        return;
    }
    wait_for(&w->turns, w->turns);
}

void block_barrier(unsigned number, unsigned threads) {
    if (number >= BARRIERS) grid_fail("there is no barrier of that number");
    barrier *b = &barriers[number];
    if (b->arrived && b->threads != threads) grid_fail("threads wait at a barrier for different numbers of threads");
    b->threads = threads;
    if (++b->arrived == threads) {
        b->arrived = 0;
        b->turns++;
        return;
    }
    wait_for(&b->turns, b->turns);
}

static gate *gate_at(unsigned address) {
    return (gate *)shared_at(address, sizeof(gate));
}

void gate_open(unsigned address, int arrivals) {
    *gate_at(address) = {(uint16_t)arrivals, (uint16_t)arrivals, 0};
}

void gate_arrive(unsigned address) {
    gate *g = gate_at(address);
    if (g->missing == 0) grid_fail("a thread arrives at a gate that is not open");
    if (--g->missing > 0) return;
    g->missing = g->arrivals;
    g->turns++;
    gate_turns++;
}

void gate_arrive_copied(unsigned address) {
    copy_later([=] { gate_arrive(address); });
}

void gate_wait(unsigned address, unsigned turn) {
    wait_for(&gate_at(address)->turns, turn);
}

/* ---- what warps do ------------------------------------------------------------------------------------------------------ */

uint32_t warp_shuffle(uint32_t mask, uint32_t x, int from) {
    typedef struct {
        uint32_t given, got;
        int from;
    } exchange;
    if (mask != 0xffffffffu) grid_fail("a shuffle of some lanes only");
    exchange mine = {x, x, from};
    warp_meet(WARP_SHUFFLE, &mine, [](void **lanes) {
        for (int l = 0; l < 32; l++) {
            exchange *to = (exchange *)lanes[l];
            if (to->from >= 0 && to->from < 32) to->got = ((exchange *)lanes[to->from])->given;
        }
    });
    return mine.got;
}

uint32_t __ballot_sync(uint32_t mask, int x) {
    typedef struct {
        bool given;
        uint32_t all;
    } vote;
    if (mask != 0xffffffffu) grid_fail("a vote of some lanes only");
    vote mine = {x != 0, 0};
    warp_meet(WARP_BALLOT, &mine, [](void **lanes) {
        uint32_t all = 0;
        for (int l = 0; l < 32; l++) all |= (uint32_t)((vote *)lanes[l])->given << l;
        for (int l = 0; l < 32; l++) ((vote *)lanes[l])->all = all;
    });
    return mine.all;
}

void warp_matrices(unsigned (&x)[4], unsigned address, bool load, bool transposed) {
    typedef struct {
        unsigned *x, address;
    } part;
    part mine = {x, address};
    const warp_task tasks[2][2] = {{WARP_STORE, WARP_STORE_TRANSPOSED}, {WARP_LOAD, WARP_LOAD_TRANSPOSED}};
    warp_meet(tasks[load][transposed], &mine, [=](void **lanes) {
        for (int i = 0; i < 4 * 64; i++) {
            const int matrix = i / 64, lane = i / 2 % 32, half = i % 2, left = lane / 4, right = lane % 4 * 2 + half;
            const int row = transposed ? right : left, column = transposed ? left : right;
            uint16_t *there = (uint16_t *)shared_at(((part *)lanes[8 * matrix + row])->address, 16) + column;
            uint16_t *own = (uint16_t *)&((part *)lanes[lane])->x[matrix] + half;
            if (load)
                *own = *there;
            else
                *there = *own;
        }
    });
}

static float cut(unsigned word) {
    return dr_float_of_bits(word & ~0x1fffu);
}

/* Element (k, n) of an operand, k of the 16 that are contracted (8 of tf32); contiguous: those along k are. */
static float operand_element(uint64_t operand, bool contiguous, int n, int k, bool tf32) {
    const unsigned begin = (unsigned)(operand & 0x3fff) << 4, leading = (unsigned)(operand >> 16 & 0x3fff) << 4,
                   stride = (unsigned)(operand >> 32 & 0x3fff) << 4;
    if (operand >> 62 != 1 || (operand >> 49 & 7)) grid_fail("an operand of a product without the 128-byte swizzle");
    const int row = contiguous ? n : k, column = contiguous ? k : n, width = tf32 ? 32 : 64;
    unsigned at = begin + (unsigned)(column / width) * leading + (unsigned)(row / 8) * stride + (unsigned)(row % 8) * 128 +
                  (unsigned)(column % width) * (128 / width);
    at ^= (at >> 7 & 7) << 4;
    return tf32 ? cut(*(unsigned *)shared_at(at, 4)) : dr_bf16_to_float(*(uint16_t *)shared_at(at, 2));
}

/* What a lane brings to a product; of A, where it is in registers, 4 of its words. */
typedef struct {
    float (*c)[4];
    int columns;
    const unsigned *a;
    uint64_t a_tile, b;
    bool turned, along, add, tf32;
} product;

typedef struct {
    product lane[32];
    unsigned a[32][4];
    int warp; /* of its group */
} warp_product;

/* Products of two numbers of 16 bits, or of two that are cut, are whole in a float. */
static void multiply(const warp_product &p) {
    const product &first = p.lane[0];
    const int contracted = first.tf32 ? 8 : 16, columns = first.columns * 8;
    static float a[16][16], b[16][128], sum[128]; /* stacks of threads are small */
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < contracted; k++) {
            const unsigned word = first.a ? p.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] : 0;
            a[row][k] = first.a ? dr_bf16_to_float((uint16_t)(word >> k % 2 * 16))
                                : operand_element(first.a_tile, !first.turned, p.warp * 16 + row, k, first.tf32);
        }
    for (int k = 0; k < contracted; k++)
        for (int n = 0; n < columns; n++) b[k][n] = operand_element(first.b, first.along, n, k, first.tf32);
    for (int row = 0; row < 16; row++) {
        const auto c = [&](int n) { return &p.lane[row % 8 * 4 + n % 8 / 2].c[n / 8][row / 8 * 2 + n % 2]; };
        for (int n = 0; n < columns; n++) sum[n] = first.add ? *c(n) : 0;
        for (int k = 0; k < contracted; k++)
            for (int n = 0; n < columns; n++) sum[n] += a[row][k] * b[k][n];
        for (int n = 0; n < columns; n++) *c(n) = sum[n];
    }
}

void group_multiply(float (*c)[4], int columns, const unsigned *a, uint64_t a_tile, bool turned, uint64_t b, bool along,
                    bool add, bool tf32) {
    product mine = {c, columns, a, a_tile, b, turned, along, add, tf32};
    warp_meet(WARP_MULTIPLY, &mine, [](void **lanes) {
        static warp_product p;
        p.warp = (int)(thread_index.x / 32 % 4);
        for (int l = 0; l < 32; l++) {
            p.lane[l] = *(product *)lanes[l];
            const product &x = p.lane[l], &y = p.lane[0];
            if (x.columns != y.columns || x.a_tile != y.a_tile || x.b != y.b || x.add != y.add)
                grid_fail("lanes of a warp ask for different products");
            if (x.a) memcpy(p.a[l], x.a, sizeof p.a[l]);
        }
        if (manner.late)
            own_warp()->open.push_back([p = p] { multiply(p); });
        else
            multiply(p);
    });
}

void group_commit() {
    warp_meet(WARP_COMMIT, NULL, [](void **) {
        warp *w = own_warp();
        w->asked.push_back(std::move(w->open));
        w->open.clear();
    });
}

void group_wait(int unfinished) {
    warp_meet(WARP_WAIT, NULL, [=](void **) {
        warp *w = own_warp();
        while ((int)w->asked.size() > unfinished) {
            for (const auto &make : w->asked.front()) make();
            w->asked.pop_front();
        }
    });
}

void warp_multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool tf32) {
    typedef struct {
        float *c;
        unsigned a[4], b[2];
    } part;
    part mine = {c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    warp_meet(tf32 ? WARP_MULTIPLY_TF32 : WARP_MULTIPLY_BF16, &mine, [=](void **lanes) {
        const int each = tf32 ? 1 : 2; /* numbers of a word */
        const auto number = [=](unsigned word, int k) {
            return tf32 ? cut(word) : dr_bf16_to_float((uint16_t)(word >> k % 2 * 16));
        };
        const auto lane = [&](int g, int t) { return (part *)lanes[g * 4 + t]; };
        float left[16][16], right[16][8]; /* [row][k], [k][column] */
        for (int k = 0; k < 8 * each; k++) {
            const int t = k / each % 4, half = k / each / 4;
            for (int row = 0; row < 16; row++) left[row][k] = number(lane(row % 8, t)->a[row / 8 + half * 2], k);
            for (int column = 0; column < 8; column++) right[k][column] = number(lane(column, t)->b[half], k);
        }
        for (int row = 0; row < 16; row++) {
            float sum[8] = {0};
            for (int k = 0; k < 8 * each; k++)
                for (int column = 0; column < 8; column++) sum[column] += left[row][k] * right[k][column];
            for (int column = 0; column < 8; column++) lane(row % 8, column / 2)->c[row / 8 * 2 + column % 2] += sum[column];
        }
    });
}
