/* Opening OpenBLAS. Debian's libopenblas.so.0 holds BLAS, CBLAS and LAPACK; the variable DELTARULE_OPENBLAS names another file.
 *
 * OpenBLAS chooses its kernels by the processor's model. A model that is newer than it gets kernels for a processor of 2004,
 * a fifth as fast: measured against them every share would be too high. While it is loaded it takes 128 MiB of addresses a
 * thread, and where they are not to be had it never returns: so it is asked first whether they are. */
#include "check/blas.h"

#include "base/cpu.h"
#include "base/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MEBIBYTE = 1 << 20, MEBIBYTES_A_THREAD = 128, MEBIBYTES_BESIDE = 128, MOST_THREADS = 128 };
enum { HAS_OWN_THREADS = 1 }; /* what openblas_get_parallel says of a build with threads that are not OpenMP's */

/* Cores without AVX2, and those with AVX2 that lack AVX-512; all others have both, or are no x86-64. */
static const char *const old_cores[] = {"Katmai",      "Coppermine",  "Northwood", "Prescott",     "Banias",    "Core2",
                                        "Penryn",      "Dunnington",  "Nehalem",   "Athlon",       "Opteron",   "Bobcat",
                                        "Atom",        "Nano",        "Barcelona", "Opteron_SSE3", "Bulldozer", "Piledriver",
                                        "Steamroller", "Sandybridge", "Unknown"};
static const char *const avx2_cores[] = {"Haswell", "Zen", "Excavator"};

static bool is_one_of(const char *core, const char *const *cores, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(core, cores[i]) == 0) return true;
    return false;
}

void dr_blas_judge(const char *core, bool avx2, bool avx512, char *text, size_t size) {
    bool is_old = is_one_of(core, old_cores, sizeof old_cores / sizeof old_cores[0]);
    bool has_avx2 = is_one_of(core, avx2_cores, sizeof avx2_cores / sizeof avx2_cores[0]);
    text[0] = '\0';
    if (avx512 ? is_old || has_avx2 : avx2 && is_old)
        snprintf(text, size, "OpenBLAS chose kernels for %s, and this processor has %s: set OPENBLAS_CORETYPE=%s", core,
                 avx512 ? "AVX-512" : "AVX2", avx512 ? "SkylakeX" : "Haswell");
}

/* ---- opening --------------------------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dr_blas opened;
static char reason[256]; /* why it is not open; "": it is */

/* Whether addresses are to be had for as many threads as it starts with. */
static bool fits_address_space(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
    long threads = sysconf(_SC_NPROCESSORS_ONLN);
    if (threads < 1) threads = 1;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    size_t mebibytes = (size_t)threads * MEBIBYTES_A_THREAD + MEBIBYTES_BESIDE, bytes = mebibytes * MEBIBYTE;
    void *addresses = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addresses == MAP_FAILED) {
        snprintf(reason, sizeof reason,
                 "OpenBLAS needs %zu MiB of address space to start, more than the process may have left "
                 "(ulimit -v)",
                 mebibytes);
        return false;
    }
    munmap(addresses, bytes);
    return true;
}

/* POSIX's way of storing what dlsym finds: as bytes, since ISO C knows no such conversion. */
static bool find(void *library, const char *name, void *function, const char *file) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    if (!found) snprintf(reason, sizeof reason, "%s has no function %s: it is no whole OpenBLAS", file, name);
    return found != NULL;
}

static void describe(const char *config) {
    int length = (int)strcspn(config, " "); /* "OpenBLAS", then its version */
    if (config[length] == ' ') length += 1 + (int)strcspn(config + length + 1, " ");
    snprintf(opened.description, sizeof opened.description, "%.*s, kernels for %s", length, config, opened.core);
    dr_cpu_features features = dr_cpu_detect();
    dr_blas_judge(opened.core, features.avx2, features.avx512, opened.weak, sizeof opened.weak);
}

static void open_once(void) {
    const char *named = getenv("DELTARULE_OPENBLAS"), *file = named && *named ? named : "libopenblas.so.0";
    if (!fits_address_space()) return;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, sizeof reason, "there is no OpenBLAS (Debian's package libopenblas0-openmp): %s", dlerror());
        return;
    }
    char *(*core)(void), *(*config)(void);
    int (*parallel)(void);
    if (!find(library, "cblas_sgemm", &opened.sgemm, file) || !find(library, "dgesv_", &opened.solve, file) ||
        !find(library, "dgeev_", &opened.eigenvalues, file) || !find(library, "openblas_get_corename", &core, file) ||
        !find(library, "openblas_get_config", &config, file) || !find(library, "openblas_get_parallel", &parallel, file) ||
        !find(library, "openblas_get_num_threads", &opened.threads, file) ||
        !find(library, "openblas_set_num_threads", &opened.set_threads, file))
        return;
    opened.own_threads = parallel() == HAS_OWN_THREADS;
    snprintf(opened.core, sizeof opened.core, "%s", core());
    describe(config());
}

dr_status dr_blas_open(const dr_blas **blas) {
    pthread_once(&once, open_once);
    if (reason[0]) return dr_fail(DR_ERROR_UNSUPPORTED, "%s", reason);
    *blas = &opened;
    return DR_OK;
}
