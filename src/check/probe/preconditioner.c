/* The diagonal scan A, the preconditioner B that is its squash, and what they make of keys and transitions (Preconditioned
 * DeltaNet, figures 2, 7, 11 to 16).
 *
 * The transition of a token is alpha (I - b k~ k^T) with k~ = B * k, b the gain: eigenvalue alpha, and alpha (1 - b k.k~) once
 * (lemma E.1; of a decay a channel, alpha is its mean, which is no eigenvalue). The Gram spectrum is that of the sum G of k k^T
 * over the sequence, as shares of its trace; the preconditioned one that of P^1/2 G P^1/2, P the diagonal matrix of the last
 * token's B.
 */
#include "base/error.h"
#include "base/memory.h"
#include "check/probe/probe.h"

#include <math.h>
#include <string.h>

enum {
    SCAN,
    PRECONDITIONER,
    SATURATED,
    PRODUCT,
    GAINED,
    EIGENVALUE,
    NEGATIVE,
    CENTRE,
    BETA,
    GAIN,
    DECAY,
    SPECTRUM,
    RANK,
    PRECONDITIONED,
    PRECONDITIONED_RANK,
    FIGURES
};

static const char *const names[FIGURES] = {
    [SCAN] = "A, the scan",
    [PRECONDITIONER] = "B, the preconditioner",
    [SATURATED] = "share of B within 5% of a bound",
    [PRODUCT] = "key times preconditioned key",
    [GAINED] = "gain times that",
    [EIGENVALUE] = "eigenvalue of the transition along the key",
    [NEGATIVE] = "share of these below 0",
    [CENTRE] = "centre",
    [BETA] = "beta",
    [GAIN] = "gain, beta times its normaliser",
    [DECAY] = "alpha, the decay",
    [SPECTRUM] = "shares of the Gram matrix's eigenvalues",
    [RANK] = "effective rank of the Gram matrix",
    [PRECONDITIONED] = "shares of the preconditioned Gram matrix's eigenvalues",
    [PRECONDITIONED_RANK] = "effective rank of the preconditioned Gram matrix",
};

static bool applies(const dr_rule *rule) {
    return rule->scan == DR_SCAN_DIAGONAL && rule->rows == 1 && rule->repeat == 1 &&
           rule->row[0].write == DR_WRITE_PRECONDITIONED && rule->row[0].gain == DR_GAIN_BETA;
}

double dr_probe_squash(const dr_squash *squash, double scan, double centre) {
    const double r = log(scan + squash->eps) - centre, bound = log(squash->x);
    const double s = squash->function == DR_SQUASH_TANH ? tanh(r) : r / (1 + fabs(r));
    switch (squash->interval) {
    case DR_SQUASH_SYMMETRIC:
        return exp(-bound * s);
    case DR_SQUASH_AMPLIFY:
        return exp(bound * (1 - s) / 2);
    case DR_SQUASH_DAMPEN:
        return exp(-bound * (1 + s) / 2);
    }
    return (double)NAN;
}

/* How far ln B is from the middle of its interval, as a share of the way to its bounds: 1 at a bound. */
static double saturation(const dr_squash *squash, double preconditioner) {
    const double bound = log(squash->x), of = log(preconditioner);
    const bool symmetric = squash->interval == DR_SQUASH_SYMMETRIC;
    const double middle = symmetric ? 0 : squash->interval == DR_SQUASH_AMPLIFY ? bound / 2 : -bound / 2;
    return fabs(of - middle) / (symmetric ? bound : bound / 2);
}

/* The factor on beta where m = k.k~ (appendix E.3). */
static double normalizer(dr_normalizer kind, double m, double alpha, double beta) {
    switch (kind) {
    case DR_NORMALIZER_NONE:
        return 1;
    case DR_NORMALIZER_INVERSE:
        return 1 / m;
    case DR_NORMALIZER_IMPLICIT:
        return 1 / (1 + m);
    case DR_NORMALIZER_DISCOUNTED:
        return 1 / (alpha + beta * m);
    }
    return (double)NAN;
}

static void run_token(const dr_probe_layer *layer, int64_t token, int64_t j, double *scan, dr_probe_samples samples[FIGURES]) {
    const dr_rule *rule = layer->recurrence.rule;
    const int64_t K = layer->recurrence.key_size;
    const double *key = dr_probe_input(layer, DR_INPUT_KEY, token, j);
    const double beta = *dr_probe_input(layer, DR_INPUT_BETA, token, j),
                 centre = *dr_probe_input(layer, DR_INPUT_SCAN_CENTRE, token, j);
    const double decay =
        rule->tied_scan ? dr_probe_decay(layer, token, j, 0) : exp(*dr_probe_input(layer, DR_INPUT_SCAN_LOG_DECAY, token, j));
    const double gain = rule->tied_scan ? beta : *dr_probe_input(layer, DR_INPUT_SCAN_GAIN, token, j);
    double product = 0, alpha = 0;
    for (int64_t i = 0; i < K; i++) {
        scan[i] = decay * scan[i] + gain * key[i] * key[i];
        const double B = dr_probe_squash(&rule->squash, scan[i], centre);
        product += key[i] * B * key[i];
        alpha += dr_probe_decay(layer, token, j, i) / (double)K;
        dr_probe_add(&samples[SCAN], scan[i]);
        dr_probe_add(&samples[PRECONDITIONER], B);
        dr_probe_add(&samples[SATURATED], saturation(&rule->squash, B) > 0.95);
    }
    const double normalised = beta * normalizer(rule->normalizer, product, dr_probe_decay(layer, token, j, 0), beta);
    const double eigenvalue = alpha * (1 - normalised * product);
    dr_probe_add(&samples[PRODUCT], product);
    dr_probe_add(&samples[GAINED], normalised * product);
    dr_probe_add(&samples[EIGENVALUE], eigenvalue);
    dr_probe_add(&samples[NEGATIVE], eigenvalue < 0);
    dr_probe_add(&samples[BETA], beta);
    dr_probe_add(&samples[GAIN], normalised);
    dr_probe_add(&samples[DECAY], alpha);
}

/* The eigenvalues of a Gram matrix, which is overwritten, as shares of their sum, and exp of their entropy, which is how many
 * alike would have it: samples[0] and [1]. None without LAPACK. */
static dr_status add_spectrum(int64_t K, double *gram, double *eigenvalues, dr_probe_samples samples[2]) {
    double whole = 0, entropy = 0;
    for (int64_t i = 0; i < K; i++) whole += gram[i * K + i];
    if (!(whole > 0) || !isfinite(whole)) return DR_OK;
    const dr_status status = dr_probe_eigenvalues(K, gram, eigenvalues);
    if (status == DR_ERROR_UNSUPPORTED) return DR_OK;
    DR_TRY(status);
    for (int64_t i = 0; i < K; i++) {
        const double share = eigenvalues[i] / whole;
        dr_probe_add(&samples[0], share);
        if (share > 0) entropy -= share * log(share);
    }
    dr_probe_add(&samples[1], exp(entropy));
    return DR_OK;
}

/* Both spectra, of keys and of keys times the root of the last token's preconditioner [K]. */
static dr_status add_spectra(const dr_probe_layer *layer, int64_t j, double *gram, double *eigenvalues,
                             const double *preconditioner, dr_probe_samples samples[FIGURES]) {
    const int64_t K = layer->recurrence.key_size;
    for (int preconditioned = 0; preconditioned < 2; preconditioned++) {
        memset(gram, 0, (size_t)(K * K) * sizeof *gram);
        for (int64_t t = 0; t < layer->tokens; t++) {
            const double *key = dr_probe_input(layer, DR_INPUT_KEY, t, j);
            for (int64_t i = 0; i < K; i++)
                for (int64_t l = 0; l < K; l++)
                    gram[i * K + l] += key[i] * key[l] * (preconditioned ? sqrt(preconditioner[i] * preconditioner[l]) : 1);
        }
        DR_TRY(add_spectrum(K, gram, eigenvalues, &samples[preconditioned ? PRECONDITIONED : SPECTRUM]));
    }
    return DR_OK;
}

static dr_status run_head(const dr_probe_layer *layer, int64_t j, dr_probe_samples samples[FIGURES]) {
    const size_t K = (size_t)layer->recurrence.key_size;
    const double centre = *dr_probe_input(layer, DR_INPUT_SCAN_CENTRE, 0, j);
    void *memory;
    DR_TRY(dr_allocate_zero((K * K + 2 * K) * sizeof(double), "the scan of a probe", &memory));
    double *gram = memory, *scan = gram + K * K, *eigenvalues = scan + K;
    for (int64_t t = 0; t < layer->tokens; t++) run_token(layer, t, j, scan, samples);
    dr_probe_add(&samples[CENTRE], centre);
    for (size_t i = 0; i < K; i++) scan[i] = dr_probe_squash(&layer->recurrence.rule->squash, scan[i], centre);
    const dr_status status = add_spectra(layer, j, gram, eigenvalues, scan, samples);
    dr_release(memory);
    return status;
}

const dr_probe_kind_entry dr_probe_preconditioner = {
    "preconditioner", "a rule that preconditions the write key by a diagonal scan", applies, names, FIGURES, run_head};
