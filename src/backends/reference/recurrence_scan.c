/* The diagonal scan A_t = alpha A_{t-1} + b key * key of a key head, forward and backward. alpha = exp(scan_log_decay) and
 * b = scan_gain, or, tied, exp(log_decay) and beta of the value head of the same index. Every A is kept: write keys and queries
 * read A_t or A_{t-1}, and add to its gradient before the scan runs back. */
#include "backends/reference/recurrence_head.h"
#include <math.h>

static dr_input decay_input(const dr_reference_head *head) {
    return head->recurrence->rule->tied_scan ? DR_INPUT_LOG_DECAY : DR_INPUT_SCAN_LOG_DECAY;
}

static dr_input gain_input(const dr_reference_head *head) {
    return head->recurrence->rule->tied_scan ? DR_INPUT_BETA : DR_INPUT_SCAN_GAIN;
}

void dr_reference_scan_forward(const dr_reference_head *head) {
    int64_t K = head->recurrence->key_size;
    for (int64_t t = 0; t < head->tokens; t++) {
        const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *before = head->A + t * K;
        double alpha = exp(*dr_reference_input(head, decay_input(head), t, 0));
        double b = *dr_reference_input(head, gain_input(head), t, 0);
        double *after = head->A + (t + 1) * K;
        for (int64_t i = 0; i < K; i++) after[i] = alpha * before[i] + b * key[i] * key[i];
    }
}

void dr_reference_scan_backward(const dr_reference_head *head) {
    int64_t K = head->recurrence->key_size;
    for (int64_t t = head->tokens - 1; t >= 0; t--) {
        const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *before = head->A + t * K;
        double alpha = exp(*dr_reference_input(head, decay_input(head), t, 0));
        double b = *dr_reference_input(head, gain_input(head), t, 0);
        const double *d_after = head->d_A + (t + 1) * K;
        double d_alpha = 0, d_b = 0, *d_before = head->d_A + t * K;
        double *d_key = dr_reference_gradient(head, DR_INPUT_KEY, t, 0);
        for (int64_t i = 0; i < K; i++) {
            d_alpha += d_after[i] * before[i];
            d_b += d_after[i] * key[i] * key[i];
            d_before[i] += alpha * d_after[i];
            if (d_key) d_key[i] += 2 * b * d_after[i] * key[i];
        }
        double d_log_decay = alpha * d_alpha;
        dr_reference_add(1, 1, &d_log_decay, dr_reference_gradient(head, decay_input(head), t, 0));
        dr_reference_add(1, 1, &d_b, dr_reference_gradient(head, gain_input(head), t, 0));
    }
}
