/* The named rules: one line a rule, its option on each axis. A rule has no other place; engines, layers, the command line and
 * the documentation all read it here. docs/adding-a-rule.md says how to add a line. */
#include <deltarule/rule.h>

/* clang-format off */

/* rows:                  read key                       write key                          gain             value */
#define LINEAR         {.read = DR_READ_NONE,           .write = DR_WRITE_KEY,            .gain = DR_GAIN_ONE,   .value = DR_VALUE_V}
#define DELTA          {.read = DR_READ_KEY,            .write = DR_WRITE_KEY,            .gain = DR_GAIN_BETA,  .value = DR_VALUE_GAIN}
#define QUERY_DELTA    {.read = DR_READ_KEY_PLUS_QUERY, .write = DR_WRITE_KEY,            .gain = DR_GAIN_BETA,  .value = DR_VALUE_GAIN}
#define PRECONDITIONED {.read = DR_READ_KEY,            .write = DR_WRITE_PRECONDITIONED, .gain = DR_GAIN_BETA,  .value = DR_VALUE_GAIN}
#define ERASE          {.read = DR_READ_ERASE_KEY,      .write = DR_WRITE_ERASE_KEY,      .gain = DR_GAIN_GAMMA, .value = DR_VALUE_NONE}

#define SQUASH             .squash = {.x = 1.5, .eps = 1e-6}
#define ONE(first)         .row = {first}, .rows = 1, .repeat = 1, SQUASH
#define TWO(first, second) .row = {first, second}, .rows = 2, .repeat = 1, SQUASH

/* papers; an equation or table number follows */
#define Q "Q-Delta (arXiv 2606.08804) "
#define P "Preconditioned DeltaNet (arXiv 2604.21100) "
#define E "Erase-then-Delta Attention (arXiv 2606.26560) "

static const dr_rule table[] = {
    {.name = "linear_attention", .title = "Linear attention", .source = Q "eq. 1; " E "eq. 1; " P "section 2.1",
     .decay = DR_DECAY_NONE, ONE(LINEAR)},
    {.name = "retnet", .title = "RetNet", .source = P "table 2",
     .decay = DR_DECAY_CONSTANT, ONE(LINEAR)},
    {.name = "mamba2", .title = "Mamba-2", .source = P "table 8",
     .decay = DR_DECAY_SCALAR, ONE(LINEAR)},
    {.name = "gla", .title = "Gated linear attention", .source = P "section 3.4",
     .decay = DR_DECAY_CHANNEL, ONE(LINEAR)},
    {.name = "delta_net", .title = "DeltaNet", .source = Q "eq. 2; " P "eq. 4; " E "eq. 3",
     .decay = DR_DECAY_NONE, ONE(DELTA)},
    {.name = "gdn", .title = "Gated DeltaNet", .source = Q "eq. 3; " E "eq. 4",
     .decay = DR_DECAY_SCALAR, ONE(DELTA)},
    {.name = "kda", .title = "Kimi Delta Attention", .source = E "eq. 5 and 7",
     .decay = DR_DECAY_CHANNEL, ONE(DELTA)},
    {.name = "qdelta", .title = "Q-Delta", .source = Q "eq. 19 and 20",
     .decay = DR_DECAY_SCALAR, ONE(QUERY_DELTA)},
    {.name = "pdn", .title = "Preconditioned DeltaNet", .source = P "eq. 9, appendix F.2.1",
     .decay = DR_DECAY_NONE, ONE(PRECONDITIONED), .scan = DR_SCAN_DIAGONAL},
    {.name = "pgdn", .title = "Preconditioned Gated DeltaNet", .source = P "section 3.5, appendix E.1",
     .decay = DR_DECAY_SCALAR, ONE(PRECONDITIONED), .scan = DR_SCAN_DIAGONAL},
    {.name = "pkda", .title = "Preconditioned Kimi Delta Attention", .source = P "section 3.5, appendix F.2.1",
     .decay = DR_DECAY_CHANNEL, ONE(PRECONDITIONED), .scan = DR_SCAN_DIAGONAL},
    {.name = "eda", .title = "Erase-then-Delta Attention", .source = E "eq. 8 and 17",
     .decay = DR_DECAY_CHANNEL, TWO(ERASE, DELTA)},
};
/* clang-format on */

int dr_rule_count(void) {
    return (int)(sizeof table / sizeof table[0]);
}

const dr_rule *dr_rule_at(int index) {
    return index >= 0 && index < dr_rule_count() ? &table[index] : NULL;
}

dr_rule dr_rule_blank(void) {
    return (dr_rule){.repeat = 1, SQUASH};
}
