/* Which kernels the tests launched, and which of those that were compiled for this GPU nobody did. A backend keeps a table of
 * what it launched; the driver names every kernel of the modules that these come from. */
#include "instances.h"

#include "backends/cuda/cuda.h"

#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>

char *__cxa_demangle(const char *name, char *to, size_t *size, int *status); /* of the C++ runtime, which kernels bring */

enum { MOST = 2048, MOST_MODULES = 128 };
static struct {
    pthread_mutex_t lock;
    int count, modules;
    CUkernel launched[MOST];
    CUlibrary module[MOST_MODULES];
} noted = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The driver's functions, which nothing is linked to. */
static struct {
    CUresult (*module_of)(CUlibrary *, CUkernel);
    CUresult (*count)(unsigned *, CUlibrary);
    CUresult (*list)(CUkernel *, unsigned, CUlibrary);
    CUresult (*name)(const char **, CUkernel);
} driver;

static void *driver_function(const char *name) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult how;
    enum { SINCE = 12050 };
    if (cudaGetDriverEntryPointByVersion(name, &found, SINCE, cudaEnableDefault, &how) != cudaSuccess) cudaGetLastError();
    return found;
}

static bool find_driver(void) {
    if (driver.name) return true;
    *(void **)&driver.module_of = driver_function("cuKernelGetLibrary");
    *(void **)&driver.count = driver_function("cuLibraryGetKernelCount");
    *(void **)&driver.list = driver_function("cuLibraryEnumerateKernels");
    void *name = driver_function("cuKernelGetName");
    if (!driver.module_of || !driver.count || !driver.list || !name) return false;
    *(void **)&driver.name = name;
    return true;
}

static void note(CUkernel kernel) {
    CUlibrary library;
    for (int i = 0; i < noted.count; i++)
        if (noted.launched[i] == kernel) return;
    if (noted.count == MOST || driver.module_of(&library, kernel) != CUDA_SUCCESS) return;
    noted.launched[noted.count++] = kernel;
    for (int i = 0; i < noted.modules; i++)
        if (noted.module[i] == library) return;
    if (noted.modules < MOST_MODULES) noted.module[noted.modules++] = library;
}

void instances_note(const dr_backend *cuda) {
    const dr_cuda_kernels *kernels = dr_cuda_of(cuda)->stream.kernels;
    pthread_mutex_lock(&noted.lock);
    for (int i = 0; i < DR_CUDA_MOST_KERNELS && find_driver(); i++) {
        const void *at = __atomic_load_n(&kernels->kernel[i].kernel, __ATOMIC_ACQUIRE);
        cudaKernel_t kernel;
        if (at && cudaGetKernel(&kernel, at) == cudaSuccess) note((CUkernel)kernel);
    }
    pthread_mutex_unlock(&noted.lock);
}

/* "gradients<__nv_bfloat16, 2, 2, 1, true>": what stands before the parameters. */
static void name_of(CUkernel kernel, char *text, size_t size) {
    const char *mangled = "?";
    int status = 0, depth = 0;
    driver.name(&mangled, kernel);
    char *plain = __cxa_demangle(mangled, NULL, NULL, &status);
    const char *name = plain ? plain : mangled;
    if (strncmp(name, "void ", 5) == 0) name += 5;
    int length = 0;
    for (; name[length] && (depth > 0 || name[length] != '('); length++) depth += (name[length] == '<') - (name[length] == '>');
    snprintf(text, size, "%.*s", length, name);
    free(plain);
}

/* Instances that no suite reaches, known as such: a test for one takes its line away. */
static bool is_known(const char *name) {
    static const char *const known[] = {
#include "unreached.inc"
        NULL};
    for (int i = 0; known[i]; i++)
        if (strcmp(known[i], name) == 0) return true;
    return false;
}

static bool was_launched(CUkernel kernel) {
    for (int i = 0; i < noted.count; i++)
        if (noted.launched[i] == kernel) return true;
    return false;
}

bool instances_report(bool every, fault *what) {
    int missed = 0, known = 0, compiled = 0;
    if (!find_driver()) return fault_is(what, "the driver cannot name kernels: it is older than CUDA 12.5");
    for (int m = 0; m < noted.modules; m++) {
        CUkernel kernels[MOST];
        unsigned count = 0;
        if (driver.count(&count, noted.module[m]) != CUDA_SUCCESS || count > MOST ||
            driver.list(kernels, count, noted.module[m]) != CUDA_SUCCESS)
            return fault_is(what, "the driver does not list a module's kernels");
        compiled += (int)count;
        for (unsigned i = 0; i < count; i++) {
            char name[256];
            const bool ran = was_launched(kernels[i]);
            name_of(kernels[i], name, sizeof name);
            const bool excused = !ran && is_known(name);
            missed += !ran && !excused;
            known += excused;
            if (ran || every) printf("    %s %s\n", ran ? "ran    " : excused ? "unreached" : "NEVER  ", name);
        }
    }
    printf("instances: %d ran of %d that were compiled, %d are known not to be reached\n", noted.count, compiled, known);
    return !every || missed == 0 || fault_is(what, "%d compiled instances never ran, above", missed);
}
