/* Loss of a softmax and its gradient: with m the largest logit and Z = sum exp(l - m),
 *
 *     loss = ln Z - (l[label] - m),   softmax = exp(l - m) / Z,   d_l = factor (softmax - onehot)
 *
 * Nothing overflows, since l - m <= 0, and Z >= 1. A logit that is NaN or +infinity makes the loss NaN. */
#include "backends/reference/reference.h"

#include <math.h>

dr_status dr_reference_cross_entropy(dr_backend *backend, int64_t count, int64_t vocabulary, const void *logits_,
                                     const int32_t *labels, double factor, double *loss, uint8_t *hit, void *d_logits_) {
    (void)backend;
    for (int64_t i = 0; i < count; i++) {
        const double *logits = (const double *)logits_ + i * vocabulary;
        double *d_logits = d_logits_ ? (double *)d_logits_ + i * vocabulary : NULL;
        int64_t largest = 0;
        for (int64_t v = 1; v < vocabulary; v++)
            if (logits[v] > logits[largest]) largest = v;
        double most = logits[largest], sum = 0;
        for (int64_t v = 0; v < vocabulary; v++) sum += exp(logits[v] - most);
        loss[i] = log(sum) - (logits[labels[i]] - most);
        hit[i] = largest == labels[i];
        for (int64_t v = 0; d_logits && v < vocabulary; v++)
            d_logits[v] = factor * (exp(logits[v] - most) / sum - (v == labels[i] ? 1 : 0));
    }
    return DR_OK;
}
