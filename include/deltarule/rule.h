/* Rules: every delta-rule recurrence as decay, rows, scan and query.
 *
 *     for each token, for each row:   D = decay . S                 (decay at the first row of a token only)
 *                                     e = r^T D                     (or r^T S: "undecayed read")
 *                                     S = D + w (z - c e)^T
 *     then                            o = scale . S^T q~
 *
 * S [K,V] is the state of a value head; r read key, w write key, c gain, z value of a row; q~ the query. docs/notation.md fixes
 * the symbols. A rule is a value of type dr_rule: the named ones are rows of a table (src/rules/table.c), any other combination
 * is a dr_rule that the caller fills in. No engine knows a rule by name.
 *
 * Threads. The library never writes to a rule that it has been given, and its table is constant: any number of threads may read
 * one rule and call any function of this header at once. A rule, a handle or a text that a function writes, and a handle that
 * is destroyed, belong to that call alone. */
#ifndef DELTARULE_RULE_H
#define DELTARULE_RULE_H

#include <deltarule/tensor.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* alpha, the factor on the state: 1; exp(log_decay[head]); exp(log_decay[token, head]); exp(log_decay[token, head, channel]) */
typedef enum { DR_DECAY_NONE, DR_DECAY_CONSTANT, DR_DECAY_SCALAR, DR_DECAY_CHANNEL } dr_decay;

typedef enum {
    DR_READ_NONE,           /* the row erases nothing */
    DR_READ_KEY,            /* r = key */
    DR_READ_GATED_KEY,      /* r = erase_gate * key */
    DR_READ_KEY_PLUS_QUERY, /* r = key + lambda query; the query as given, without scale, correction or ridge */
    DR_READ_ERASE_KEY,      /* r = erase_key */
    DR_READ_FEEDBACK,       /* r = feedback_key */
    DR_READ_FREE,           /* r = -free_read, so that DPLR is S + free_write (S^T free_read)^T */
} dr_read;

typedef enum {
    DR_WRITE_KEY,              /* w = key */
    DR_WRITE_PRECONDITIONED,   /* w = B_t * key, B_t the squash of A_t */
    DR_WRITE_SHERMAN_MORRISON, /* w = m / (1 + key . m), m = key / (A_{t-1} + ridge) */
    DR_WRITE_ERASE_KEY,        /* w = erase_key */
    DR_WRITE_RATE_READ,        /* w = rate * r */
    DR_WRITE_FREE,             /* w = free_write */
    DR_WRITE_EXACT,            /* w = P_t key = P_{t-1} key / (1 + b key . P_{t-1} key) */
} dr_write;

typedef enum {
    DR_GAIN_ONE,         /* c = 1 */
    DR_GAIN_BETA,        /* c = beta */
    DR_GAIN_GAMMA,       /* c = erase_gain */
    DR_GAIN_IMPLICIT,    /* c = beta / (1 + beta r . w) */
    DR_GAIN_NORMALIZED,  /* c = 1 / (r . w + gain_eps), 0 where that is infinite: at a zero key without gain_eps */
    DR_GAIN_EXPONENTIAL, /* c = (1 - exp(-beta key . key)) / (key . key), beta at a zero key */
} dr_gain;

typedef enum {
    DR_VALUE_NONE,  /* z = 0 */
    DR_VALUE_V,     /* z = value */
    DR_VALUE_GAIN,  /* z = c value */
    DR_VALUE_GATED, /* z = write_gate * value, without c */
} dr_value;

/* What a rule gathers about its keys beside S, token by token and before the rows. The matrices weigh a key by b = beta if a
 * gain of the rule uses beta, else by 1. P = (K + Diag(ridge))^-1 by Sherman-Morrison; it goes with no decay, which would
 * divide by alpha. */
typedef enum {
    DR_SCAN_NONE,
    DR_SCAN_DIAGONAL,     /* A_t = alpha_A A_{t-1} + b key * key per key head, alpha_A = exp(scan_log_decay), b = scan_gain */
    DR_SCAN_GRAM,         /* K_t = alpha K_{t-1} + b key key^T per value head */
    DR_SCAN_INVERSE_GRAM, /* P_t = P_{t-1} - b p p^T / (1 + b key . p), p = P_{t-1} key, per value head */
} dr_scan;

typedef enum {
    DR_QUERY_PLAIN,     /* q~ = query */
    DR_QUERY_CORRECTED, /* q~ = query - correction key */
    DR_QUERY_RIDGE,     /* q~ = query / (A_t + ridge) */
    DR_QUERY_EXACT,     /* q~ = (K_t + Diag(ridge))^-1 query */
    /* The same by cg_iters steps of conjugate gradients; its gradient is that of the exact query. */
    DR_QUERY_CONJUGATE_GRADIENT,
} dr_query;

/* The first iterate: 0, or query / (diag K_t + ridge). */
typedef enum { DR_CG_ZERO, DR_CG_JACOBI } dr_cg_start;

/* B_t = exp(-ln x . s), s from r = ln(A_t + eps) - scan_centre: r / (1 + |r|) (rational) or tanh r. Intervals of B:
 * symmetric [1/x, x], amplify [1, x]: exp(ln x (1 - s)/2), dampen [1/x, 1]: exp(-ln x (1 + s)/2). */
typedef enum { DR_SQUASH_SYMMETRIC, DR_SQUASH_AMPLIFY, DR_SQUASH_DAMPEN } dr_squash_interval;
typedef enum { DR_SQUASH_RATIONAL, DR_SQUASH_TANH } dr_squash_function;
typedef struct {
    double x, eps; /* 1 <= x <= 2, eps > 0; published: 1.5, 1e-6 */
    dr_squash_interval interval;
    dr_squash_function function;
} dr_squash;

/* A factor on gain and value of each row with a preconditioned write key, m = key . (B_t * key): 1, 1/m, 1/(1 + m), or
 * 1/(alpha + beta m) where the gain is beta. 0 where that is infinite: 1/m at a zero key. */
typedef enum { DR_NORMALIZER_NONE, DR_NORMALIZER_INVERSE, DR_NORMALIZER_IMPLICIT, DR_NORMALIZER_DISCOUNTED } dr_normalizer;

/* How a layer treats what the rule's axes do not decide: convolutions, lengths of queries and keys, size of values, the decay's
 * projection, output gate, published names (src/nn/family.c has the table). A family has the name of the first rule that has
 * it. No engine sees it. */
typedef enum {
    DR_FAMILY_AUTO, /* that of the named rule with the same axes, if there is one, else composition */
    DR_FAMILY_COMPOSITION,
    DR_FAMILY_LINEAR_ATTENTION,
    DR_FAMILY_RETNET,
    DR_FAMILY_MAMBA2,
    DR_FAMILY_GLA,
    DR_FAMILY_DELTA_NET,
    DR_FAMILY_LONGHORN,
    DR_FAMILY_GDN,
    DR_FAMILY_COMBA,
    DR_FAMILY_QDELTA,
    DR_FAMILY_PGDN,
    DR_FAMILY_KDA,
    DR_FAMILY_PKDA,
    DR_FAMILY_EDA,
    DR_FAMILY_MESANET,
    DR_FAMILY_PLA_EXACT,
    DR_FAMILIES
} dr_family;

enum { DR_MAX_ROWS = 2 };

typedef struct {
    dr_read read;
    bool undecayed; /* read the state before the token's decay; first row only */
    dr_write write;
    dr_gain gain;
    dr_value value;
} dr_row;

typedef struct {
    const char *name;   /* "gdn"; NULL for a composition */
    const char *title;  /* "Gated DeltaNet" */
    const char *source; /* paper and equation */
    dr_decay decay;
    dr_row row[DR_MAX_ROWS];
    int rows;   /* 1 .. DR_MAX_ROWS */
    int repeat; /* n: the single row n times a token, with key, value and beta [rows, n, ...]; decay at the first only */
    dr_scan scan;
    dr_query query;
    dr_squash squash;
    dr_normalizer normalizer;
    double gain_eps; /* of DR_GAIN_NORMALIZED */
    int cg_iters;    /* of DR_QUERY_CONJUGATE_GRADIENT: steps, >= 1 */
    dr_cg_start cg_start;
    double cg_eps;    /* added to the denominators of both of a step's quotients (flash-linear-attention: 1e-5); textbook: 0 */
    bool tied_scan;   /* scan_log_decay = log_decay and scan_gain = beta; scalar decay and as many value heads as key heads */
    dr_family family; /* of its layers; a copy of a named rule has that rule's, whatever else is changed in it */
} dr_rule;

/* How a layer makes the gates that its rule reads. No engine sees it: the JSON of a rule may say it, dr_model_config holds it.
 */
typedef enum { DR_GATE_AUTO, DR_GATE_FORM_LOG, DR_GATE_FORM_KDA_BOUNDED, DR_GATE_FORM_EDA_BOUNDED } dr_gate_form;
typedef enum {
    DR_LAMBDA_PROJECTED, /* sigmoid of a projection and a bias */
    DR_LAMBDA_FIXED,     /* lambda_value for every token and head */
} dr_lambda_kind;
typedef struct {
    bool negative_eigenvalues; /* beta, lambda and the erase gate twice as large: beta in [0, 2] */
    dr_gate_form gate;         /* of the decay; auto: as the rule's family has it */
    double lower_bound;        /* of its bounded forms, < 0 */
    dr_lambda_kind lambda;
    double lambda_value;      /* 0 to 1 */
    bool lambda_bias_learned; /* a number of each layer, -0.8 at first; else the constant of dr_model_config */
} dr_gates;

/* Gate auto, bound -5, lambda projected with a constant bias. */
DR_API dr_gates dr_gates_default(void);

/* What a recurrence reads. One name has one meaning in every rule. */
typedef enum {
    DR_INPUT_QUERY,          /* [rows, H, K] */
    DR_INPUT_KEY,            /* [rows, H, K], repeat n: [rows, n, H, K] */
    DR_INPUT_VALUE,          /* [rows, HV, V], repeat n: [rows, n, HV, V] */
    DR_INPUT_LOG_DECAY,      /* constant [HV], scalar [rows, HV], channel [rows, HV, K]; natural log, <= 0, -inf allowed */
    DR_INPUT_BETA,           /* [rows, HV], repeat n: [rows, n, HV] */
    DR_INPUT_ERASE_KEY,      /* [rows, H, K] */
    DR_INPUT_ERASE_GAIN,     /* [rows, HV] */
    DR_INPUT_LAMBDA,         /* [rows, HV] */
    DR_INPUT_FEEDBACK_KEY,   /* [rows, H, K] */
    DR_INPUT_FREE_READ,      /* [rows, H, K] */
    DR_INPUT_FREE_WRITE,     /* [rows, H, K] */
    DR_INPUT_RATE,           /* [rows, H, K] */
    DR_INPUT_ERASE_GATE,     /* [rows, HV, K] */
    DR_INPUT_WRITE_GATE,     /* [rows, HV, V] */
    DR_INPUT_CORRECTION,     /* [H] */
    DR_INPUT_SCAN_LOG_DECAY, /* [rows, H] */
    DR_INPUT_SCAN_GAIN,      /* [rows, H] */
    DR_INPUT_SCAN_CENTRE,    /* [H] */
    DR_INPUT_RIDGE,          /* [H, K], > 0 */
    DR_INPUTS
} dr_input;

/* What it carries from token to token. */
typedef enum {
    DR_STATE_S, /* [sequences, HV, K, V] the matrix memory */
    DR_STATE_A, /* [sequences, H, K] the diagonal scan */
    DR_STATE_K, /* [sequences, HV, K, K] the Gram matrix without the ridge; symmetric */
    /* [sequences, HV, K, K] the inverse Gram matrix; symmetric. Zero, which no inverse is, stands for that before the first
     * token, Diag(1 / ridge): so does a missing initial state. Only then has the ridge a gradient. */
    DR_STATE_P,
    DR_STATES
} dr_state_kind;

/* The table of named rules, in the order in which `deltarule rules` prints it. */
DR_API int dr_rule_count(void);
DR_API const dr_rule *dr_rule_at(int index);

/* The rule of that name, or NULL; dr_last_error() then names near ones. */
DR_API const dr_rule *dr_rule_find(const char *name);

/* A rule to start a composition from: no decay, no rows, no scan, plain query, the published squash, 30 steps of conjugate
 * gradients from zero, family auto. */
DR_API dr_rule dr_rule_blank(void);

/* DR_ERROR_ARGUMENT with the reason if the combination makes no sense (docs/adding-a-rule.md lists them). */
DR_API dr_status dr_rule_check(const dr_rule *rule);

/* Steps of the recurrence a token takes: rows, or repeat; 0 of NULL. */
DR_API int dr_rule_steps(const dr_rule *rule);

/* Whether the rule reads that input, carries that state. NULL: false. */
DR_API bool dr_rule_uses(const dr_rule *rule, dr_input input);
DR_API bool dr_rule_carries(const dr_rule *rule, dr_state_kind state);

/* The name of an input ("erase_key"), of a state ("S"), of an option of an axis ("preconditioned"). */
DR_API const char *dr_input_name(dr_input input);
DR_API const char *dr_state_name(dr_state_kind state);
DR_API const char *dr_decay_name(dr_decay decay);
DR_API const char *dr_read_name(dr_read read);
DR_API const char *dr_write_name(dr_write write);
DR_API const char *dr_gain_name(dr_gain gain);
DR_API const char *dr_value_name(dr_value value);
DR_API const char *dr_scan_name(dr_scan scan);
DR_API const char *dr_query_name(dr_query query);
DR_API const char *dr_cg_start_name(dr_cg_start start);
DR_API const char *dr_squash_interval_name(dr_squash_interval interval);
DR_API const char *dr_squash_function_name(dr_squash_function function);
DR_API const char *dr_normalizer_name(dr_normalizer normalizer);
DR_API const char *dr_family_name(dr_family family);
DR_API const char *dr_gate_form_name(dr_gate_form form);
DR_API const char *dr_lambda_name(dr_lambda_kind kind);

/* A rule from JSON: an object of axes, as docs/adding-a-rule.md tells, in a text or in a file. gates: what it says about
 * layers; NULL: nobody asks. DR_ERROR_FORMAT: it is no such JSON (an unknown key or option is told with its place and what is
 * near), DR_ERROR_ARGUMENT: the combination makes no sense, DR_ERROR_IO. */
DR_API dr_status dr_rule_read_text(const char *text, dr_rule *rule, dr_gates *gates);
DR_API dr_status dr_rule_read_file(const char *file, dr_rule *rule, dr_gates *gates);

/* A rule as a handle, for callers that do not know the layout of dr_rule: from the name of a rule of the table, or from such an
 * object in JSON, which begins with a brace. Its texts are its own; what a handle is passed to copies what it needs, and
 * handles may be read by any number of threads. Errors as of dr_rule_find (DR_ERROR_ARGUMENT) and dr_rule_read_text;
 * DR_ERROR_MEMORY. */
DR_API dr_status dr_rule_create(const char *text, dr_rule **rule);
DR_API void dr_rule_destroy(dr_rule *rule); /* NULL is allowed; of dr_rule_create only */

/* What a handle is asked; NULL where there is none: a composition has no name, title and source. Of no handle NULL and 0. */
DR_API const char *dr_rule_get_name(const dr_rule *rule);
DR_API const char *dr_rule_get_title(const dr_rule *rule);
DR_API const char *dr_rule_get_source(const dr_rule *rule);
DR_API int dr_rule_get_repeat(const dr_rule *rule);

/* Writes the JSON that reads back the same, at most size bytes with the closing zero. gates may be NULL. Returns the length it
 * needs, like snprintf (text may be NULL if size is 0), or -1 if the rule makes no sense, a pointer is missing or there is no
 * memory. */
DR_API int dr_rule_write_text(const dr_rule *rule, const dr_gates *gates, char *text, size_t size);

/* Writes the rule's equation as text, e.g. "D = a S;  S = D + b k (v - D^T k)^T;  o = scale S^T q", at most size bytes with
 * the closing zero. Returns the length it needs, like snprintf (text may be NULL if size is 0); -1 if a pointer is missing. */
DR_API int dr_rule_equation(const dr_rule *rule, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
