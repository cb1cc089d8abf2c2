/* The named rules: one line a rule, its option on each axis and the family of its layers. A rule has no other place; engines,
 * layers, the command line and the documentation all read it here. docs/adding-a-rule.md says how to add a line. delta_product
 * stands for any number of steps: whoever wants another one copies the line and sets repeat. */
#include <deltarule/rule.h>

/* clang-format off */

/* rows:                    read key                       write key                             gain                    value */
#define LINEAR           {.read = DR_READ_NONE,           .write = DR_WRITE_KEY,              .gain = DR_GAIN_ONE,         .value = DR_VALUE_V}
#define LINEAR_BETA      {.read = DR_READ_NONE,           .write = DR_WRITE_KEY,              .gain = DR_GAIN_BETA,        .value = DR_VALUE_GAIN}
#define LINEAR_SQUASHED  {.read = DR_READ_NONE,           .write = DR_WRITE_PRECONDITIONED,   .gain = DR_GAIN_ONE,         .value = DR_VALUE_V}
#define DELTA            {.read = DR_READ_KEY,            .write = DR_WRITE_KEY,              .gain = DR_GAIN_BETA,        .value = DR_VALUE_GAIN}
#define IMPLICIT         {.read = DR_READ_KEY,            .write = DR_WRITE_KEY,              .gain = DR_GAIN_IMPLICIT,    .value = DR_VALUE_GAIN}
#define NORMALIZED       {.read = DR_READ_KEY,            .write = DR_WRITE_KEY,              .gain = DR_GAIN_NORMALIZED,  .value = DR_VALUE_GAIN}
#define EXPONENTIAL      {.read = DR_READ_KEY,            .write = DR_WRITE_KEY,              .gain = DR_GAIN_EXPONENTIAL, .value = DR_VALUE_GAIN}
#define GATED            {.read = DR_READ_GATED_KEY,      .write = DR_WRITE_KEY,              .gain = DR_GAIN_ONE,         .value = DR_VALUE_GATED}
#define FEEDBACK         {.read = DR_READ_FEEDBACK,       .write = DR_WRITE_KEY,              .gain = DR_GAIN_BETA,        .value = DR_VALUE_GAIN, .undecayed = true}
#define FREE             {.read = DR_READ_FREE,           .write = DR_WRITE_FREE,             .gain = DR_GAIN_ONE,         .value = DR_VALUE_NONE, .undecayed = true}
#define RATE             {.read = DR_READ_FEEDBACK,       .write = DR_WRITE_RATE_READ,        .gain = DR_GAIN_ONE,         .value = DR_VALUE_NONE, .undecayed = true}
#define QUERY_DELTA      {.read = DR_READ_KEY_PLUS_QUERY, .write = DR_WRITE_KEY,              .gain = DR_GAIN_BETA,        .value = DR_VALUE_GAIN}
#define ERASE            {.read = DR_READ_ERASE_KEY,      .write = DR_WRITE_ERASE_KEY,        .gain = DR_GAIN_GAMMA,       .value = DR_VALUE_NONE}
#define PRECONDITIONED   {.read = DR_READ_KEY,            .write = DR_WRITE_PRECONDITIONED,   .gain = DR_GAIN_BETA,        .value = DR_VALUE_GAIN}
#define SQUASHED_SHRUNK  {.read = DR_READ_KEY,            .write = DR_WRITE_PRECONDITIONED,   .gain = DR_GAIN_IMPLICIT,    .value = DR_VALUE_GAIN}
#define SHERMAN_MORRISON {.read = DR_READ_KEY,            .write = DR_WRITE_SHERMAN_MORRISON, .gain = DR_GAIN_BETA,        .value = DR_VALUE_GAIN}
#define EXACT            {.read = DR_READ_KEY,            .write = DR_WRITE_EXACT,            .gain = DR_GAIN_ONE,         .value = DR_VALUE_V}

#define DEFAULTS           .squash = {.x = 1.5, .eps = 1e-6}, .cg_iters = 30
#define ONE(first)         .row = {first}, .rows = 1, .repeat = 1, DEFAULTS
#define TWO(first, second) .row = {first, second}, .rows = 2, .repeat = 1, DEFAULTS
#define REPEATED(step, n)  .row = {step}, .rows = 1, .repeat = n, DEFAULTS

/* papers; an equation or table number follows */
#define Q "Q-Delta (arXiv 2606.08804) "
#define P "Preconditioned DeltaNet (arXiv 2604.21100) "
#define E "Erase-then-Delta Attention (arXiv 2606.26560) "

static const dr_rule table[] = {
    {.name = "linear_attention", .title = "Linear attention", .source = Q "eq. 1; " E "eq. 1; " P "section 2.1",
     .decay = DR_DECAY_NONE, ONE(LINEAR), .family = DR_FAMILY_LINEAR_ATTENTION},
    {.name = "retnet", .title = "RetNet", .source = P "table 2",
     .decay = DR_DECAY_CONSTANT, ONE(LINEAR), .family = DR_FAMILY_RETNET},
    {.name = "mamba2", .title = "Mamba-2", .source = P "table 8",
     .decay = DR_DECAY_SCALAR, ONE(LINEAR), .family = DR_FAMILY_MAMBA2},
    {.name = "gla", .title = "Gated linear attention", .source = P "section 3.4",
     .decay = DR_DECAY_CHANNEL, ONE(LINEAR), .family = DR_FAMILY_GLA},
    {.name = "delta_net", .title = "DeltaNet", .source = Q "eq. 2; " P "eq. 4; " E "eq. 3",
     .decay = DR_DECAY_NONE, ONE(DELTA), .family = DR_FAMILY_DELTA_NET},
    {.name = "longhorn", .title = "Longhorn", .source = Q "table 1; " P "table 8",
     .decay = DR_DECAY_NONE, ONE(IMPLICIT), .family = DR_FAMILY_LONGHORN},
    {.name = "nlms", .title = "Normalized least mean squares", .source = P "table 2",
     .decay = DR_DECAY_NONE, ONE(NORMALIZED), .family = DR_FAMILY_LONGHORN},
    {.name = "efla", .title = "Error-free linear attention", .source = P "table 2",
     .decay = DR_DECAY_NONE, ONE(EXPONENTIAL), .family = DR_FAMILY_LONGHORN},
    {.name = "gdn", .title = "Gated DeltaNet", .source = Q "eq. 3; " E "eq. 4",
     .decay = DR_DECAY_SCALAR, ONE(DELTA), .family = DR_FAMILY_GDN},
    {.name = "kda", .title = "Kimi Delta Attention", .source = E "eq. 5 and 7",
     .decay = DR_DECAY_CHANNEL, ONE(DELTA), .family = DR_FAMILY_KDA},
    {.name = "gdn2", .title = "Gated DeltaNet 2", .source = E "eq. 6",
     .decay = DR_DECAY_CHANNEL, ONE(GATED), .family = DR_FAMILY_KDA},
    {.name = "comba", .title = "Comba", .source = P "table 2",
     .decay = DR_DECAY_SCALAR, ONE(FEEDBACK), .query = DR_QUERY_CORRECTED, .family = DR_FAMILY_COMBA},
    {.name = "delta_product", .title = "Gated DeltaProduct, 2 Householder steps", .source = E "section 2.3",
     .decay = DR_DECAY_SCALAR, REPEATED(DELTA, 2), .family = DR_FAMILY_GDN},
    {.name = "dplr", .title = "Diagonal plus low rank", .source = P "appendix D.2.1",
     .decay = DR_DECAY_CHANNEL, TWO(FREE, LINEAR), .family = DR_FAMILY_COMPOSITION},
    {.name = "rwkv7", .title = "RWKV-7", .source = P "table 3",
     .decay = DR_DECAY_CHANNEL, TWO(RATE, LINEAR), .family = DR_FAMILY_COMPOSITION},
    {.name = "qdelta", .title = "Q-Delta", .source = Q "eq. 19 and 20",
     .decay = DR_DECAY_SCALAR, ONE(QUERY_DELTA), .family = DR_FAMILY_QDELTA},
    {.name = "eda", .title = "Erase-then-Delta Attention", .source = E "eq. 8 and 17",
     .decay = DR_DECAY_CHANNEL, TWO(ERASE, DELTA), .family = DR_FAMILY_EDA},
    {.name = "pla_exact", .title = "Preconditioned linear attention, exact", .source = P "eq. 3",
     .decay = DR_DECAY_NONE, ONE(LINEAR), .scan = DR_SCAN_GRAM, .query = DR_QUERY_EXACT, .family = DR_FAMILY_PLA_EXACT},
    {.name = "pdn_exact", .title = "Preconditioned DeltaNet, exact", .source = P "eq. 5, appendix C.4",
     .decay = DR_DECAY_NONE, ONE(EXACT), .scan = DR_SCAN_INVERSE_GRAM, .family = DR_FAMILY_PLA_EXACT},
    {.name = "pla", .title = "Preconditioned linear attention", .source = P "eq. 7 and 8, appendices F.1.1 and F.2.2",
     .decay = DR_DECAY_NONE, ONE(LINEAR), .scan = DR_SCAN_DIAGONAL, .query = DR_QUERY_RIDGE, .family = DR_FAMILY_LINEAR_ATTENTION},
    {.name = "pmamba2", .title = "Preconditioned Mamba-2", .source = P "appendices E.3 and F.2.2",
     .decay = DR_DECAY_SCALAR, ONE(LINEAR_BETA), .scan = DR_SCAN_DIAGONAL, .query = DR_QUERY_RIDGE, .family = DR_FAMILY_MAMBA2},
    {.name = "pgla", .title = "Preconditioned gated linear attention", .source = P "table 2, appendix F.2.2",
     .decay = DR_DECAY_CHANNEL, ONE(LINEAR_BETA), .scan = DR_SCAN_DIAGONAL, .query = DR_QUERY_RIDGE, .family = DR_FAMILY_GLA},
    {.name = "pdn_unstable", .title = "Preconditioned DeltaNet, unstable form", .source = P "eq. 8, appendix F.1.2",
     .decay = DR_DECAY_NONE, ONE(SHERMAN_MORRISON), .scan = DR_SCAN_DIAGONAL, .family = DR_FAMILY_DELTA_NET},
    {.name = "pgdn_unstable", .title = "Preconditioned Gated DeltaNet, unstable form", .source = P "appendix E.3",
     .decay = DR_DECAY_SCALAR, ONE(SHERMAN_MORRISON), .scan = DR_SCAN_DIAGONAL, .family = DR_FAMILY_DELTA_NET},
    {.name = "pkda_unstable", .title = "Preconditioned Kimi Delta Attention, unstable form", .source = P "appendix F.1.2",
     .decay = DR_DECAY_CHANNEL, ONE(SHERMAN_MORRISON), .scan = DR_SCAN_DIAGONAL, .family = DR_FAMILY_KDA},
    {.name = "pdn", .title = "Preconditioned DeltaNet", .source = P "eq. 9, appendix F.2.1",
     .decay = DR_DECAY_NONE, ONE(PRECONDITIONED), .scan = DR_SCAN_DIAGONAL, .family = DR_FAMILY_DELTA_NET},
    {.name = "pgdn", .title = "Preconditioned Gated DeltaNet", .source = P "section 3.5, appendix E.1",
     .decay = DR_DECAY_SCALAR, ONE(PRECONDITIONED), .scan = DR_SCAN_DIAGONAL, .family = DR_FAMILY_PGDN},
    {.name = "pkda", .title = "Preconditioned Kimi Delta Attention", .source = P "section 3.5, appendix F.2.1",
     .decay = DR_DECAY_CHANNEL, ONE(PRECONDITIONED), .scan = DR_SCAN_DIAGONAL, .family = DR_FAMILY_PKDA},
    {.name = "plonghorn", .title = "Preconditioned Longhorn", .source = P "table 8, appendix G.2",
     .decay = DR_DECAY_NONE, ONE(SQUASHED_SHRUNK), .scan = DR_SCAN_DIAGONAL, .family = DR_FAMILY_LONGHORN},
    {.name = "pmamba2_key", .title = "Preconditioned Mamba-2, write key", .source = P "appendix G.3",
     .decay = DR_DECAY_SCALAR, ONE(LINEAR_SQUASHED), .scan = DR_SCAN_DIAGONAL, .family = DR_FAMILY_MAMBA2},
    {.name = "mesanet", .title = "MesaNet", .source = P "table 2, appendix C.4",
     .decay = DR_DECAY_SCALAR, ONE(LINEAR_BETA), .scan = DR_SCAN_GRAM, .query = DR_QUERY_EXACT, .family = DR_FAMILY_MESANET},
};
/* clang-format on */

int dr_rule_count(void) {
    return (int)(sizeof table / sizeof table[0]);
}

const dr_rule *dr_rule_at(int index) {
    return index >= 0 && index < dr_rule_count() ? &table[index] : NULL;
}

dr_rule dr_rule_blank(void) {
    return (dr_rule){.repeat = 1, DEFAULTS};
}
