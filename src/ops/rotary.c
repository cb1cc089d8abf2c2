/* The frequencies of a rotary embedding. With f = base^(-2i/dim):
 *
 *     linear   f / s
 *     llama3   w = 2 pi / f positions make a turn. w < o/high: f;  w > o/low: f / s;  between: (1 - m) f / s + m f with
 *              m = (o/w - low) / (high - low)
 *     yarn     a pair that makes r turns in o positions is pair p(r) = dim ln(o / (2 pi r)) / (2 ln base). From p(fast) to
 *              p(slow) a ramp m rises from 0 to 1: m f / s + (1 - m) f
 *
 * where s is the stretch and o the original length. */
#include "ops/rotary.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>

#define TWO_PI 6.283185307179586476925

static dr_status check_stretched(const dr_rotary_spectrum *s) {
    if (!(s->stretch > 0) || !isfinite(s->stretch))
        return dr_fail(DR_ERROR_ARGUMENT, "the rotary scaling's factor is %g: it must be positive", s->stretch);
    if (s->kind == DR_ROTARY_LINEAR) return DR_OK;
    if (!(s->original >= 1) || !isfinite(s->original))
        return dr_fail(DR_ERROR_ARGUMENT, "the rotary scaling's original length is %g: it must be 1 or more", s->original);
    if (s->kind == DR_ROTARY_LLAMA3 && !(s->low > 0 && s->high > s->low && isfinite(s->high)))
        return dr_fail(DR_ERROR_ARGUMENT, "low_freq_factor %g and high_freq_factor %g: they must be positive and rising",
                       s->low, s->high);
    if (s->kind == DR_ROTARY_YARN && !(s->slow > 0 && s->fast > s->slow && isfinite(s->fast)))
        return dr_fail(DR_ERROR_ARGUMENT, "beta_slow %g and beta_fast %g: they must be positive and rising", s->slow, s->fast);
    if (s->kind == DR_ROTARY_YARN && !(s->attention_factor >= 0 && isfinite(s->attention_factor)))
        return dr_fail(DR_ERROR_ARGUMENT, "the rotary attention factor is %g: it must be positive", s->attention_factor);
    return DR_OK;
}

dr_status dr_rotary_check(const dr_rotary_spectrum *s) {
    if (s->dim < 2 || s->dim % 2 != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld elements of a head cannot be turned in pairs: they must be 2, 4, 6, ...",
                       (long long)s->dim);
    if (!(s->base > 1) || !isfinite(s->base))
        return dr_fail(DR_ERROR_ARGUMENT, "the rotary base is %g: it must be greater than 1", s->base);
    return s->kind == DR_ROTARY_PLAIN ? DR_OK : check_stretched(s);
}

static double counted(const dr_rotary_spectrum *s) {
    return (double)(s->counted > 0 ? s->counted : s->dim);
}

static double llama3(const dr_rotary_spectrum *s, double f) {
    const double turns = s->original * f / TWO_PI; /* in the original length */
    if (turns > s->high) return f;
    if (turns < s->low) return f / s->stretch;
    const double m = (turns - s->low) / (s->high - s->low);
    return (1 - m) * f / s->stretch + m * f;
}

/* The pair, as a real number, that makes so many turns in the original length. */
static double pair_of(const dr_rotary_spectrum *s, double turns) {
    return counted(s) * log(s->original / (TWO_PI * turns)) / (2 * log(s->base));
}

static double yarn(const dr_rotary_spectrum *s, double f, double pair) {
    double first = pair_of(s, s->fast), last = pair_of(s, s->slow);
    if (!s->exact_ends) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, counted(s) - 1);
    if (first == last) last += 0.001;
    const double m = fmin(fmax((pair - first) / (last - first), 0), 1);
    return m * f / s->stretch + (1 - m) * f;
}

static double frequency(const dr_rotary_spectrum *s, int64_t i) {
    const double f = pow(s->base, -2 * (double)i / counted(s));
    switch (s->kind) {
    case DR_ROTARY_PLAIN:
        return f;
    case DR_ROTARY_LINEAR:
        return f / s->stretch;
    case DR_ROTARY_LLAMA3:
        return llama3(s, f);
    case DR_ROTARY_YARN:
        return yarn(s, f, (double)i);
    }
    return (double)NAN;
}

static double magnitude(double stretch, double mscale) {
    return stretch <= 1 ? 1 : 0.1 * mscale * log(stretch) + 1;
}

void dr_rotary_table(const dr_rotary_spectrum *s, double *frequencies, double *factor) {
    for (int64_t i = 0; i < s->dim / 2; i++) frequencies[i] = frequency(s, i);
    *factor = 1;
    if (s->kind != DR_ROTARY_YARN) return;
    if (s->attention_factor > 0)
        *factor = s->attention_factor;
    else if (s->mscale > 0 && s->mscale_dims > 0)
        *factor = magnitude(s->stretch, s->mscale) / magnitude(s->stretch, s->mscale_dims);
    else
        *factor = magnitude(s->stretch, 1);
}

dr_status dr_rotary_make(const dr_rotary_spectrum *spectrum, double **frequencies, double *factor) {
    void *memory = NULL;
    DR_TRY(dr_rotary_check(spectrum));
    DR_TRY(dr_allocate((size_t)(spectrum->dim / 2) * sizeof(double), "the frequencies of a rotary embedding", &memory));
    *frequencies = memory;
    dr_rotary_table(spectrum, *frequencies, factor);
    return DR_OK;
}
