/* Flags of a command: one table gives parsing, --help and the messages about what was wrong.
 *
 * A flag is described like a setting of a training run (dr_setting), so that those of `train` come straight from the library's
 * table: the setting learning_rate is the flag --learning-rate. */
#ifndef DR_CLI_FLAGS_H
#define DR_CLI_FLAGS_H

#include <deltarule/train.h>
#include <stdio.h>

typedef struct {
    dr_setting setting;      /* a fallback of NULL: no default */
    const char *placeholder; /* "DIR"; NULL makes a boolean a switch */
    bool required;
    bool hidden;    /* works, but --help does not tell */
    bool delegated; /* the library judges the value */
    bool given;
    const char *value;   /* as given, else the fallback; of a flag that may be repeated the last */
    const char **values; /* [most_values] of a flag that may be repeated: all that were given; NULL: the last one counts */
    int most_values, value_count;
} cli_flag;

typedef struct {
    const char *name;      /* "score" */
    const char *arguments; /* of the usage line: "--model DIR --corpus PATH [flags]" */
    const char *summary;   /* one line */
    const char *details;   /* paragraphs below it in --help, or NULL */
    int (*run)(int argc, char **argv);
    int least_operands, most_operands;
    bool makes_files; /* what it prints is progress: standard output may be closed from the start */
} cli_command;

/* Reads the flags of argv[1..] into the table and gathers the operands, in order, at the front of argv from argv[1] on. Returns
 * true to go on; else the command ends with *status (0 after --help). */
bool cli_flags_parse(const cli_command *command, cli_flag *flags, int count, int argc, char **argv, int *operands, int *status);

/* The value of a flag that the table declares as a number or a boolean and that has a value. */
int64_t cli_flag_integer(const cli_flag *flag);
double cli_flag_real(const cli_flag *flag);
bool cli_flag_boolean(const cli_flag *flag);

/* The exit status of a command that refuses its flags or its input. */
enum { CLI_STATUS_REFUSED = 2 };

/* Prints "deltarule COMMAND: sentence" and where help is; returns CLI_STATUS_REFUSED. */
int cli_usage(const cli_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The value of CLI_FLAG_DTYPE. */
dr_dtype cli_flag_dtype(const cli_flag *flag);
/* Prints the library's last message; returns the exit status that fits: CLI_STATUS_REFUSED for an argument, 1 for anything
 * else. */
int cli_failure(const cli_command *command, dr_status status);
/* Whether the stream was closed when the program began (main.c put something in its place that cannot be written). */
bool cli_closed(FILE *stream);
/* Flushes standard output; prints a message and returns 1 if not all of it could be written, else 0. */
int cli_finish_output(const cli_command *command);

/* The name nearest to a mistyped one, or NULL if none is near. name(context, i) gives the candidates until NULL. */
const char *cli_nearest(const char *typed, const char *(*name)(const void *context, int i), const void *context);

/* Flags that several commands have. */
#define CLI_FLAG_BACKEND                                                                                                       \
    {                                                                                                                          \
        .setting = {"backend", DR_SETTING_TEXT,                                                                                \
                    "cpu",     0,                                                                                              \
                    0,         "cpu reference cuda",                                                                           \
                    NULL,      "where to compute: cpu is float32, reference double, cuda a GPU in float32"},                   \
        .placeholder = "NAME"                                                                                                  \
    }
#define CLI_FLAG_THREADS                                                                                                       \
    {                                                                                                                          \
        .setting = {"threads", DR_SETTING_INTEGER,                                                                             \
                    "0",       0,                                                                                              \
                    1024,      NULL,                                                                                           \
                    NULL,      "threads; 0: as OMP_NUM_THREADS says, else one a core. Results do not depend on it"},           \
        .placeholder = "N"                                                                                                     \
    }
#define CLI_FLAG_VERBOSE                                                                                                       \
    {                                                                                                                          \
        .setting = {                                                                                                           \
            "verbose",                                                                                                         \
            DR_SETTING_BOOLEAN,                                                                                                \
            "false",                                                                                                           \
            0,                                                                                                                 \
            0,                                                                                                                 \
            NULL,                                                                                                              \
            NULL,                                                                                                              \
            "name the stored tensors that the model does not use"                                                              \
        }                                                                                                                      \
    }
#define CLI_FLAG_ISA                                                                                                           \
    {                                                                                                                          \
        .setting = {"isa", DR_SETTING_TEXT, NULL, 0, 0, "portable avx2 avx512", NULL, "instruction set of the cpu backend"},   \
        .placeholder = "NAME", .hidden = true                                                                                  \
    }
#define CLI_FLAG_DTYPE                                                                                                         \
    {                                                                                                                          \
        .setting = {"dtype", DR_SETTING_TEXT, "float32", 0, 0, "float32 bf16 fp16", NULL, "how backend cuda stores vectors"},  \
        .placeholder = "NAME"                                                                                                  \
    }
#define CLI_FLAG_DEVICE                                                                                                        \
    { .setting = {"device", DR_SETTING_INTEGER, "0", 0, 1023, NULL, NULL, "GPU of backend cuda"}, .placeholder = "N" }

#endif
