/* Every setting of a run: name, type, default, range, help. A default that depends on the task reads "lm 1, mqar 2, else 3";
 * "auto" leaves the choice to the rule's family, or to the task.
 *
 * The defaults train what the README shows without any flag: for lm a small byte-level model in a few minutes on two cores, for
 * mqar the recall task by which the rules are told apart. Those of the other tasks follow the papers where docs/tasks.md says
 * so. */
#include "train/settings.h"

static const char RUN[] = "Run", TRAINING[] = "Training", MODEL[] = "Model", RECALL[] = "Task mqar", GROUP[] = "Task group",
                  DRAWN[] = "All tasks but lm";

#define INTEGER(key, value, low, high, heading, line)                                                                          \
    { .name = key, .type = DR_SETTING_INTEGER, .fallback = value, .least = low, .most = high, .group = heading, .help = line }
#define REAL(key, value, low, high, heading, line)                                                                             \
    { .name = key, .type = DR_SETTING_REAL, .fallback = value, .least = low, .most = high, .group = heading, .help = line }
#define BOOLEAN(key, value, heading, line)                                                                                     \
    { .name = key, .type = DR_SETTING_BOOLEAN, .fallback = value, .group = heading, .help = line }
#define TEXT(key, value, words, heading, line)                                                                                 \
    { .name = key, .type = DR_SETTING_TEXT, .fallback = value, .choices = words, .group = heading, .help = line }

const dr_setting dr_setting_table[DR_SETTINGS] = {
    [DR_SET_TASK] =
        TEXT("task", "lm", "lm mqar parity arithmetic arithmetic_brackets group", RUN,
             "lm: predict the next token of a corpus; mqar: multi-query associative recall; parity of bits; arithmetic modulo "
             "5, without and with brackets; group: products of a group's elements"),
    [DR_SET_RULE] = TEXT("rule", "gdn", NULL, RUN,
                         "the recurrence: a name that `deltarule rules` lists with a layer, or a JSON file that composes one"),
    [DR_SET_INIT] =
        TEXT("init", "", NULL, RUN,
             "go on from the model in this folder, an own or a published one, with a new optimizer: its rule, sizes "
             "and tokenizer are the run's, all else may differ"),
    [DR_SET_CORPUS] = TEXT("corpus", "", NULL, RUN,
                           "of task lm: a UTF-8 text file or a folder of them, links followed; shards (`deltarule tokenize "
                           "--shards`, or .bin files of token ids); or a JSON file that mixes several by weight"),
    [DR_SET_TOKENIZER] = TEXT("tokenizer", "", NULL, RUN,
                              "of task lm: folder of the tokenizer that encodes the text, or that made shards which come "
                              "without one; none: bytes, or what the shards have"),
    [DR_SET_SKIP_UNREADABLE] = BOOLEAN("skip_unreadable", "false", RUN,
                                       "of task lm: go on without the files of a folder that cannot be read or are no text"),
    [DR_SET_HELD_OUT] = TEXT("held_out", "lm auto, else 1000", NULL, RUN,
                             "of task lm: which text is never trained on, a share of the corpus (0.1) or the path of other "
                             "text or shards; auto: the validation sets of shards, else 5%, at least 100 KB; of other "
                             "tasks: how many examples an evaluation asks of each size"),
    [DR_SET_HELD_OUT_SEED] = INTEGER("held_out_seed", "1", 0, 9007199254740992, RUN,
                                     "of the held-out choice, the same for every seed so that their losses compare"),
    [DR_SET_STEPS] = INTEGER("steps", "lm 1500, mqar 1200, else 20000", 1, 1e9, RUN, "optimizer steps"),
    [DR_SET_SEED] = INTEGER("seed", "1", 0, 9007199254740992, RUN, "of the parameters and the data order"),
    [DR_SET_THREADS] =
        INTEGER("threads", "0", 0, 1024, RUN, "0: as OMP_NUM_THREADS says, else one a core; results do not depend on it"),
    [DR_SET_SAVE_EVERY] = INTEGER("save_every", "250", 0, 1e9, RUN, "steps from checkpoint to checkpoint; 0: only at the end"),
    [DR_SET_SAVE_KEEP] = INTEGER("save_keep", "0", 0, 1e6, RUN,
                                 "of the last so many checkpoints a copy each stays in the run folder, as "
                                 "checkpoints/step-000250; 0: none"),
    [DR_SET_EVALUATE_EVERY] = INTEGER("evaluate_every", "lm 250, mqar 50, else 500", 0, 1e9, RUN,
                                      "steps between evaluations on held-out data; 0: only at the end"),
    [DR_SET_EVALUATE_TOKENS] =
        INTEGER("evaluate_tokens", "32768", 0, 1e12, RUN,
                "of task lm: held-out tokens an evaluation scores of each set: of text from the beginning of each file, of "
                "token ids from documents all over it; 0: all of them"),

    [DR_SET_BATCH] = INTEGER("batch", "lm 8, mqar 64, else 256", 1, 1e6, TRAINING, "sequences a step"),
    [DR_SET_SEQ_LEN] =
        INTEGER("seq_len", "lm 256, mqar 64, else 256", 1, 1e7, TRAINING, "tokens a sequence, of tasks lm and mqar"),
    [DR_SET_TOKENS_PER_STEP] = INTEGER("tokens_per_step", "0", 0, 1e12, TRAINING,
                                       "instead of batch: sequences of the longest length there is; 0: as batch says"),
    [DR_SET_ACCUMULATE] = INTEGER("accumulate", "1", 1, 1e6, TRAINING,
                                  "parts of a step's batch that are computed one after another, in memory for one of them; "
                                  "their gradients add up to the same but for rounding"),
    [DR_SET_KEEP_LEVEL] = INTEGER(
        "keep_level", "0", 0, 4, TRAINING,
        "what a step's backward finds kept: 0: everything; 1: all but outputs of norms and gates, which the CPU never "
        "keeps; 2: also not what recurrences save; 3: also not what convolutions give these; 4: what each layer begins with, "
        "from which the rest is made again. Results are the same"),
    [DR_SET_RESET_AT_DOCUMENTS] =
        BOOLEAN("reset_at_documents", "true", TRAINING,
                "of task lm: within a sequence the state begins anew at each document; false: it is carried on"),
    [DR_SET_LEARNING_RATE] =
        REAL("learning_rate", "lm 0.004, mqar 0.004, else 0.001", 0, 10, TRAINING, "at its peak, after the warm-up"),
    [DR_SET_MIN_LEARNING_RATE_RATIO] = REAL("min_learning_rate_ratio", "lm 0.1, mqar 0.1, else 0.001", 0, 1, TRAINING,
                                            "the last step's learning rate, as a share of the peak"),
    [DR_SET_WARMUP] = REAL("warmup", "lm 0.05, mqar 0.05, else 0.1", 0, 1, TRAINING,
                           "share of the steps in which the learning rate rises to its peak"),
    [DR_SET_WARMUP_STEPS] = INTEGER("warmup_steps", "0", 0, 1e9, TRAINING, "the same in steps; 0: as warmup says"),
    [DR_SET_SCHEDULE] =
        TEXT("schedule", "cosine", "cosine linear constant wsd", TRAINING,
             "of the learning rate behind the warm-up; wsd (warm-up, stable, decay): it falls in the last steps"),
    [DR_SET_DECAY] =
        REAL("decay", "0.2", 0, 1, TRAINING, "of schedule wsd: share of the steps in which the learning rate falls"),
    [DR_SET_DECAY_SHAPE] = TEXT("decay_shape", "linear", "linear cosine sqrt", TRAINING,
                                "of schedule wsd: how it falls; sqrt: by one minus the root of the way"),
    [DR_SET_OPTIMIZER] =
        TEXT("optimizer", "adamw", "adamw muon", TRAINING, "muon: for the matrices of layers, AdamW for all other parameters"),
    [DR_SET_MUON_MOMENTUM] = REAL("muon_momentum", "0.95", 0, 0.999999, TRAINING, "of gradients, in Muon"),
    [DR_SET_GROUPS] =
        TEXT("groups", "", NULL, TRAINING,
             "parameters by pattern of their names, apart by semicolons, with rate=FACTOR, decay=X, optimizer=NAME, such as "
             "\"*embeddings* rate=0.5 decay=0; *.mlp.* optimizer=muon\"; later ones go before"),
    [DR_SET_WEIGHT_DECAY] = REAL("weight_decay", "0.1", 0, 10, TRAINING, "of matrices, times the learning rate"),
    [DR_SET_BETA1] = REAL("beta1", "0.9", 0, 0.999999, TRAINING, "decay of the mean of gradients"),
    [DR_SET_BETA2] = REAL("beta2", "0.95", 0, 0.999999, TRAINING, "decay of the mean of squared gradients"),
    [DR_SET_EPS] = REAL("eps", "1e-8", 0, 1, TRAINING, "added to the root of the mean of squared gradients"),
    [DR_SET_CLIP] = REAL("clip", "1", 0, 1e9, TRAINING, "largest norm of the whole gradient; 0: any"),

    [DR_SET_HIDDEN] = INTEGER("hidden", "lm 128, mqar 64, else 128", 1, 1e6, MODEL, "width"),
    [DR_SET_LAYERS] = INTEGER("layers", "lm 3, mqar 2, else 2", 1, 1e4, MODEL, "how many, all alike"),
    [DR_SET_LAYER_LIST] =
        TEXT("layer_list", "", NULL, MODEL, "instead of layers: each of them, such as \"(eda*3 attention)*6\", or a JSON list"),
    [DR_SET_HEADS] = INTEGER("heads", "lm 2, mqar 4, else 4", 1, 1e5, MODEL, "query and key heads"),
    [DR_SET_VALUE_HEADS] = INTEGER("value_heads", "0", 0, 1e5, MODEL, "a multiple of heads; 0: as many"),
    [DR_SET_KEY_SIZE] = INTEGER("key_size", "0", 0, 1e5, MODEL, "of a head; 0: hidden / heads"),
    [DR_SET_VALUE_SIZE] =
        INTEGER("value_size", "0", 0, 1e5, MODEL, "of a head; 0: key_size times the expansion of the rule's family"),
    [DR_SET_INTERMEDIATE] = INTEGER("intermediate", "lm 256, mqar 128, else 256", -1, 1e7, MODEL,
                                    "width of the MLP; -1: 8/3 of hidden, rounded up to a multiple of 256; 0: no MLP"),
    [DR_SET_CONV_SIZE] = INTEGER("conv_size", "lm auto, mqar 4, else 4", 0, 16, MODEL,
                                 "width of the short convolution; 0: none; auto: as the rule's family has it"),
    [DR_SET_TIED] = BOOLEAN("tied", "true", MODEL, "the head is the embedding"),
    [DR_SET_OUTPUT_GATE] = BOOLEAN("output_gate", "auto", MODEL, "of the mixer; auto: as the rule's family has it"),
    [DR_SET_NEGATIVE_EIGENVALUES] = BOOLEAN("negative_eigenvalues", "auto", MODEL,
                                            "beta in [0, 2] instead of [0, 1]; auto: as the rule's object says, else false"),
    [DR_SET_FORCE] = BOOLEAN("force", "false", MODEL, "accept negative eigenvalues with a preconditioner"),
    [DR_SET_GATE] = TEXT("gate", "auto", "auto log kda_bounded eda_bounded", MODEL, "form of the decay gate"),
    [DR_SET_LOWER_BOUND] = REAL("lower_bound", "auto", -100, -1e-3, MODEL, "of a bounded decay gate"),
    [DR_SET_LAMBDA_BIAS] = REAL("lambda_bias", "auto", -100, 100, MODEL, "subtracted before the sigmoid of lambda"),
    [DR_SET_INITIALIZER_RANGE] =
        REAL("initializer_range", "auto", 1e-6, 10, MODEL, "standard deviation of linear weights at first"),
    [DR_SET_CONV_INITIALIZER_RANGE] = REAL("conv_initializer_range", "0", 0, 10, MODEL,
                                           "short convolutions are uniform within it at first; 0: as linear weights"),

    [DR_SET_VOCABULARY] = INTEGER("vocabulary", "8192", 5, 16777216, RECALL,
                                  "token ids, more than seq_len; of task lm: of shards that come without a tokenizer"),
    [DR_SET_PAIRS] = INTEGER("pairs", "4", 1, 1e6, RECALL, "keys with their values; 4 tokens of seq_len each"),
    [DR_SET_LEAST_PAIRS] =
        INTEGER("least_pairs", "0", 0, 1e6, RECALL,
                "training examples have this many pairs, twice as many and so on up to pairs, drawn alike; 0: all have pairs"),
    [DR_SET_POWER_A] = REAL("power_a", "0.01", 1e-6, 100, RECALL, "slot g of the queries has weight (g + 1)^(power_a - 1)"),
    [DR_SET_RANDOM_FILLERS] = BOOLEAN("random_fillers", "true", RECALL, "other tokens are random, not 0"),
    [DR_SET_UPDATES] = INTEGER("updates", "0", 0, 1e6, RECALL,
                               "forgetting recall: so many keys get a second value, which then counts; at most pairs"),

    [DR_SET_GROUP] = TEXT("group", "S3", NULL, GROUP,
                          "S1 to S6, A1 to A6, Z1 to Z1024, or a product such as A4xZ5, of 1024 elements or fewer"),
    [DR_SET_MOVES] =
        INTEGER("moves", "0", 0, 1e6, GROUP, "only elements that move at most so many points are shown; 2: swaps; 0: all"),
    [DR_SET_ELEMENT_TOKENS] =
        INTEGER("element_tokens", "1", 1, 64, GROUP, "tokens of an element; the product so far is asked for at the last"),
    [DR_SET_REPEAT_ELEMENTS] = BOOLEAN("repeat_elements", "false", GROUP,
                                       "the further tokens of an element repeat it; false: all have one id of their own"),

    [DR_SET_LENGTHS] =
        TEXT("lengths", "auto", NULL, DRAWN,
             "of training: a list of lengths and ranges, such as \"3-40\"; *N: that one comes N times as often; of "
             "task mqar length/pairs, such as \"64/4*5 128/8 256/16\", instead of seq_len, pairs and "
             "least_pairs; auto: as the task was published"),
    [DR_SET_HELD_OUT_LENGTHS] = TEXT("held_out_lengths", "auto", NULL, DRAWN,
                                     "the same of held-out sets, one for each item, told apart; auto: as the task was "
                                     "published, of task mqar those of lengths"),
    [DR_SET_STOP_ACCURACY] = REAL("stop_accuracy", "0.99", 0, 1, DRAWN,
                                  "the run ends when an evaluation reaches it, as the mean of all held-out sets; 0: never"),
};

int dr_train_settings(const dr_setting **settings) {
    if (settings) *settings = dr_setting_table;
    return DR_SETTINGS;
}
