/* Reading a command line against a table of flags: --name VALUE, --name=VALUE, and --name alone for switches and for booleans
 * that are to be true. Dashes and underscores are the same in names, so that a configuration's keys can be typed as they are.
 */
#include "cli/flags.h"

#include "base/number.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 30, HELP_WIDTH = 100, NEAR = 3, LONGEST_NAME = 63 };

int cli_usage(const cli_command *command, const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "deltarule %s: ", command->name);
    va_start(arguments, format);
    dr_print_list(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nTry 'deltarule %s --help'.\n", command->name);
    return CLI_STATUS_REFUSED;
}

int cli_failure(const cli_command *command, dr_status status) {
    fprintf(stderr, "deltarule %s: %s\n", command->name, dr_last_error());
    return status == DR_ERROR_ARGUMENT ? CLI_STATUS_REFUSED : 1;
}

bool cli_closed(FILE *stream) {
    return (fcntl(fileno(stream), F_GETFL) & O_ACCMODE) == O_RDONLY;
}

int cli_finish_output(const cli_command *command) {
    static bool said; /* --help says it before its command ends */
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || said) return 0;
    if (command->makes_files && cli_closed(stdout)) return 0;
    said = true;
    fprintf(stderr, "deltarule%s%s: cannot write to standard output%s%s\n", *command->name ? " " : "", command->name,
            errno ? ": " : "", errno ? strerror(errno) : "");
    return 1;
}

/* Levenshtein's distance with one row of the table; names are short, longer ones count as far. */
static int distance(const char *a, const char *b) {
    int row[LONGEST_NAME + 1];
    size_t length_a = strlen(a), length_b = strlen(b);
    if (length_a > LONGEST_NAME || length_b > LONGEST_NAME) return LONGEST_NAME;
    for (size_t j = 0; j <= length_b; j++) row[j] = (int)j;
    for (size_t i = 1; i <= length_a; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= length_b; j++) {
            int above = row[j];
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best) best = above + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[length_b];
}

const char *cli_nearest(const char *typed, const char *(*name)(const void *context, int i), const void *context) {
    const char *nearest = NULL, *candidate;
    int least = NEAR + 1;
    for (int i = 0; (candidate = name(context, i)); i++) {
        int far = distance(typed, candidate);
        if (far < least && far < (int)strlen(typed)) {
            least = far;
            nearest = candidate;
        }
    }
    return nearest;
}

typedef struct {
    cli_flag *flags;
    int count;
} flag_table;

/* Candidates for cli_nearest, dashes for underscores; the copy lives in `text` until the next call. */
static char *dashed(const char *name, char text[LONGEST_NAME + 1]) {
    snprintf(text, LONGEST_NAME + 1, "%s", name);
    for (char *c = text; *c; c++)
        if (*c == '_') *c = '-';
    return text;
}

static const char *visible_name(const void *context, int i) {
    const flag_table *table = context;
    for (int k = 0; k < table->count; k++)
        if (!table->flags[k].hidden && i-- == 0) return table->flags[k].setting.name;
    return NULL;
}

/* Prints text from the current column on, broken at spaces, later lines indented to HELP_COLUMN. */
static void print_wrapped(const char *text, int column) {
    const char *word = text;
    while (*word) {
        int length = (int)strcspn(word, " ");
        if (column > HELP_COLUMN && column + 1 + length > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (word != text) {
            putchar(' ');
            column++;
        }
        printf("%.*s", length, word);
        column += length;
        word += length;
        while (*word == ' ') word++;
    }
    putchar('\n');
}

/* A boolean of the table without a placeholder: --name alone means true. */
static bool is_switch(const cli_flag *flag) {
    return flag->setting.type == DR_SETTING_BOOLEAN && !flag->placeholder;
}

static void print_flag(const cli_flag *flag) {
    char name[LONGEST_NAME + 1], text[1024];
    const dr_setting *setting = &flag->setting;
    bool lone = is_switch(flag);
    int column = printf("  --%s%s%s", dashed(setting->name, name), lone ? "" : " ", lone ? "" : flag->placeholder);
    int used = snprintf(text, sizeof text, "%s", setting->help);
    bool is_number = setting->type == DR_SETTING_INTEGER || setting->type == DR_SETTING_REAL;
    if (is_number && used < (int)sizeof text)
        used += dr_format(text + used, sizeof text - (size_t)used,
                          setting->type == DR_SETTING_INTEGER ? " [%.0f to %.0f]" : " [%.10g to %.10g]", setting->least,
                          setting->most);
    if (setting->choices && used < (int)sizeof text)
        used += snprintf(text + used, sizeof text - (size_t)used, " [%s]", setting->choices);
    if (used < (int)sizeof text) {
        if (flag->required)
            snprintf(text + used, sizeof text - (size_t)used, " (required)");
        else if (setting->fallback && *setting->fallback && !lone)
            snprintf(text + used, sizeof text - (size_t)used, " (default %s)", setting->fallback);
    }
    if (column >= HELP_COLUMN - 1) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", HELP_COLUMN - column, "");
    print_wrapped(text, HELP_COLUMN);
}

static void print_help(const cli_command *command, const cli_flag *flags, int count) {
    printf("Usage: deltarule %s%s%s\n\n%s\n", command->name, *command->arguments ? " " : "", command->arguments,
           command->summary);
    if (command->details) printf("\n%s\n", command->details);
    const char *group = "Flags";
    bool heading_due = true;
    for (int i = 0; i < count; i++) {
        if (flags[i].hidden) continue;
        if (flags[i].setting.group && strcmp(flags[i].setting.group, group) != 0) {
            group = flags[i].setting.group;
            heading_due = true;
        }
        if (heading_due) printf("\n%s:\n", group);
        heading_due = false;
        print_flag(&flags[i]);
    }
}

static bool same_name(const char *typed, size_t length, const char *name) {
    if (strlen(name) != length) return false;
    for (size_t i = 0; i < length; i++)
        if ((typed[i] == '-' ? '_' : typed[i]) != name[i]) return false;
    return true;
}

static bool is_choice(const char *choices, const char *value) {
    size_t length = strlen(value);
    for (const char *word = choices; *word; word += strspn(word, " ")) {
        size_t size = strcspn(word, " ");
        if (size == length && strncmp(word, value, size) == 0) return true;
        word += size;
    }
    return false;
}

/* Whether the value is of the flag's type and range; if not, says so and sets *status. */
static bool check_value(const cli_command *command, const cli_flag *flag, int *status) {
    const dr_setting *setting = &flag->setting;
    char name[LONGEST_NAME + 1];
    if (flag->delegated) return true;
    dashed(setting->name, name);
    switch (setting->type) {
    case DR_SETTING_INTEGER: {
        int64_t number;
        if (!dr_integer_parse(flag->value, &number) || (double)number < setting->least || (double)number > setting->most) {
            *status = cli_usage(command, "--%s takes a whole number from %.0f to %.0f, not '%s'", name, setting->least,
                                setting->most, flag->value);
            return false;
        }
        return true;
    }
    case DR_SETTING_REAL: {
        double number;
        if (!dr_number_parse(flag->value, DR_NUMBER_FINITE, &number) || number < setting->least || number > setting->most) {
            *status = cli_usage(command, "--%s takes a number from %g to %g, not '%s'", name, setting->least, setting->most,
                                flag->value);
            return false;
        }
        return true;
    }
    case DR_SETTING_BOOLEAN:
        if (strcmp(flag->value, "true") == 0 || strcmp(flag->value, "false") == 0) return true;
        *status = cli_usage(command, "--%s takes true or false, not '%s'", name, flag->value);
        return false;
    case DR_SETTING_TEXT:
        if (!setting->choices || is_choice(setting->choices, flag->value)) return true;
        *status = cli_usage(command, "--%s takes one of: %s; not '%s'", name, setting->choices, flag->value);
        return false;
    }
    return true;
}

static cli_flag *find_flag(cli_flag *flags, int count, const char *typed, size_t length) {
    for (int i = 0; i < count; i++)
        if (same_name(typed, length, flags[i].setting.name)) return &flags[i];
    return NULL;
}

static bool unknown_flag(const cli_command *command, const flag_table *table, const char *typed, size_t length, int *status) {
    char name[LONGEST_NAME + 1];
    snprintf(name, sizeof name, "%.*s", (int)length, typed);
    for (char *c = name; *c; c++)
        if (*c == '-') *c = '_';
    const char *near = cli_nearest(name, visible_name, table);
    if (near)
        *status = cli_usage(command, "there is no flag --%.*s; did you mean --%s?", (int)length, typed, dashed(near, name));
    else
        *status = cli_usage(command, "there is no flag --%.*s", (int)length, typed);
    return false;
}

/* Reads the flag at argv[*i] and its value, moving *i to the last argument used. */
static bool parse_flag(const cli_command *command, const flag_table *table, char **argv, int argc, int *i, int *status) {
    const char *typed = argv[*i] + 2;
    size_t length = strcspn(typed, "=");
    cli_flag *flag = find_flag(table->flags, table->count, typed, length);
    if (!flag) return unknown_flag(command, table, typed, length, status);
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (typed[length] == '=') {
        flag->value = typed + length + 1;
    } else if (is_switch(flag) || (flag->setting.type == DR_SETTING_BOOLEAN && (!next || strncmp(next, "--", 2) == 0))) {
        flag->value = "true";
    } else if (next) {
        flag->value = argv[++*i];
    } else {
        *status =
            cli_usage(command, "--%.*s needs a value: --%.*s %s", (int)length, typed, (int)length, typed, flag->placeholder);
        return false;
    }
    flag->given = true;
    if (flag->values && flag->value_count == flag->most_values) {
        *status = cli_usage(command, "--%.*s stands more than %d times", (int)length, typed, flag->most_values);
        return false;
    }
    if (flag->values) flag->values[flag->value_count++] = flag->value;
    return check_value(command, flag, status);
}

bool cli_flags_parse(const cli_command *command, cli_flag *flags, int count, int argc, char **argv, int *operands,
                     int *status) {
    flag_table table = {flags, count};
    bool only_operands = false;
    *operands = 0;
    for (int i = 0; i < count; i++) {
        flags[i].value = flags[i].setting.fallback;
        flags[i].given = false;
    }
    for (int i = 1; i < argc; i++) {
        if (only_operands || strncmp(argv[i], "-", 1) != 0 || strcmp(argv[i], "-") == 0) {
            argv[++*operands] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_operands = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(command, flags, count);
            *status = cli_finish_output(&(cli_command){.name = command->name}); /* the help is the result of any command */
            return false;
        } else if (strncmp(argv[i], "--", 2) != 0) {
            *status = cli_usage(command, "there is no flag %s; flags have long names only", argv[i]);
            return false;
        } else if (!parse_flag(command, &table, argv, argc, &i, status)) {
            return false;
        }
    }
    for (int i = 0; i < count; i++) {
        if (flags[i].required && !flags[i].given) {
            *status = cli_usage(command, "--%s %s is missing", flags[i].setting.name, flags[i].placeholder);
            return false;
        }
    }
    if (*operands > command->most_operands) {
        *status = cli_usage(command, "one argument too many: '%s'", argv[command->most_operands + 1]);
        return false;
    }
    if (*operands < command->least_operands) {
        *status = cli_usage(command, "an argument is missing: deltarule %s %s", command->name, command->arguments);
        return false;
    }
    return true;
}

int64_t cli_flag_integer(const cli_flag *flag) {
    int64_t number = 0;
    dr_integer_parse(flag->value, &number);
    return number;
}
double cli_flag_real(const cli_flag *flag) {
    double number = 0;
    dr_number_parse(flag->value, DR_NUMBER_FINITE, &number);
    return number;
}
bool cli_flag_boolean(const cli_flag *flag) {
    return strcmp(flag->value, "true") == 0;
}

dr_dtype cli_flag_dtype(const cli_flag *flag) {
    return strcmp(flag->value, "bf16") == 0 ? DR_BF16 : strcmp(flag->value, "fp16") == 0 ? DR_F16 : DR_F32;
}
