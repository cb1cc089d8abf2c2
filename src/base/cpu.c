/* Which instruction sets may be used: those that the processor has and whose registers the operating system saves. The
 * compiler's own detection asks both (CPUID and XGETBV); F16C, which not every compiler knows by name, is asked directly and
 * needs no more than AVX from the system. */
#include "base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

dr_cpu_features dr_cpu_detect(void) {
    __builtin_cpu_init();
    dr_cpu_features features = {0};
    features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return features;
}

#else

dr_cpu_features dr_cpu_detect(void) {
    return (dr_cpu_features){0};
}

#endif
