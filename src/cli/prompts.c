#include "cli/prompts.h"

#include "base/number.h"
#include "cli/input.h"
#include "cli/json_line.h"

#include <stdlib.h>
#include <string.h>

static int out_of_memory(const cli_command *command) {
    fprintf(stderr, "deltarule %s: not enough memory for the prompts\n", command->name);
    return 1;
}

static bool make_room(cli_prompts *prompts, int64_t count) {
    prompts->prompts = calloc((size_t)count, sizeof *prompts->prompts);
    prompts->ids = calloc((size_t)count, sizeof *prompts->ids);
    return prompts->prompts && prompts->ids;
}

void cli_prompts_release(cli_prompts *prompts) {
    for (int64_t i = 0; prompts->ids && i < prompts->count; i++) free(prompts->ids[i]);
    free(prompts->ids);
    free(prompts->prompts);
    free(prompts->text);
    *prompts = (cli_prompts){0};
}

/* To the next id of "1 2, 3". Returns how many commas stand before it. */
static int skip_between(const char **at) {
    int commas = 0;
    for (; **at && strchr(" ,\t\n", **at); (*at)++) commas += **at == ',';
    return commas;
}

/* "1 2 3" or "1,2,3": blanks or one comma between. */
static int read_ids(const cli_command *command, const char *text, cli_prompts *prompts) {
    const size_t most = strlen(text) / 2 + 1;
    int32_t *ids = calloc(most, sizeof *ids);
    int64_t count = 0;
    if (!ids) return out_of_memory(command);
    prompts->ids[prompts->count] = ids;
    for (const char *at = text;;) {
        const int commas = skip_between(&at);
        if (commas > (*at && count > 0)) {
            prompts->count++;
            return cli_usage(command, "--prompt-ids: '%s' has a comma with no id beside it: give \"1 2 3\" or \"1,2,3\"", text);
        }
        if (!*at) break;
        const size_t length = strcspn(at, " ,\t\n");
        char number[32];
        int64_t id = -1;
        snprintf(number, sizeof number, "%.*s", (int)(length < 31 ? length : 31), at);
        if (length > 31 || !dr_integer_parse(number, &id) || id < 0 || id > INT32_MAX) {
            prompts->count++;
            return cli_usage(command, "--prompt-ids: '%s' is no token id: give ids with blanks between, \"1 2 3\"", number);
        }
        ids[count++] = (int32_t)id;
        at += length;
    }
    prompts->prompts[prompts->count++] = (dr_prompt){.ids = ids, .count = count};
    return count > 0 ? 0 : cli_usage(command, "--prompt-ids has no ids: give them with blanks between, \"1 2 3\"");
}

static int read_flags(const cli_command *command, const cli_flag *texts, const cli_flag *ids, cli_prompts *prompts) {
    if (!make_room(prompts, texts->value_count + ids->value_count + 1)) return out_of_memory(command);
    for (int i = 0; i < texts->value_count; i++)
        prompts->prompts[prompts->count++] = (dr_prompt){.text = texts->values[i], .bytes = strlen(texts->values[i])};
    for (int i = 0; i < ids->value_count; i++) {
        const int status = read_ids(command, ids->values[i], prompts);
        if (status) return status;
    }
    if (prompts->count == 0) prompts->count = 1; /* an empty one */
    return 0;
}

/* A line of a file of prompts. */
static int read_line(const cli_command *command, const char *file, int64_t number, char *line, size_t bytes,
                     cli_prompts *prompts) {
    const size_t blanks = strspn(line, " \t\r");
    const char *what;
    if (blanks >= bytes) return 0; /* an empty line */
    dr_prompt *prompt = &prompts->prompts[prompts->count];
    if (line[blanks] != '[') {
        if (cli_json_string(line, bytes, &prompt->bytes, &what)) {
            prompt->text = line;
            prompts->count++;
            return 0;
        }
    } else {
        size_t room = 1, count;
        for (size_t i = 0; i < bytes; i++) room += line[i] == ',';
        int32_t *ids = calloc(room, sizeof *ids);
        if (!ids) return out_of_memory(command);
        prompts->ids[prompts->count] = ids;
        prompts->count++;
        if (cli_json_ids(line, bytes, ids, &count, &what) && count > 0) {
            *prompt = (dr_prompt){.ids = ids, .count = (int64_t)count};
            return 0;
        }
        what = "it must be a JSON list of token ids, [1, 2], of one at least";
    }
    return cli_usage(command, "line %lld of %s: %s", (long long)number, strcmp(file, "-") == 0 ? "standard input" : file, what);
}

static int read_lines(const cli_command *command, const char *file, size_t bytes, cli_prompts *prompts) {
    int64_t lines = 1, number = 1;
    for (size_t i = 0; i < bytes; i++) lines += prompts->text[i] == '\n';
    if (!make_room(prompts, lines)) return out_of_memory(command);
    for (char *line = prompts->text, *const end = line + bytes; line < end; number++) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        const int status = read_line(command, file, number, line, (size_t)(stop - line), prompts);
        if (status) return status;
        line = stop + 1;
    }
    if (prompts->count > 0) return 0;
    return cli_usage(command, "%s has no prompts: a line must be a JSON string or a list of token ids",
                     strcmp(file, "-") == 0 ? "standard input" : file);
}

int cli_prompts_read(const cli_command *command, const cli_flag *texts, const cli_flag *ids, const cli_flag *file,
                     const cli_flag *lines, cli_prompts *prompts) {
    size_t bytes;
    *prompts = (cli_prompts){0};
    if ((texts->given || ids->given) + file->given + lines->given > 1)
        return cli_usage(command, "prompts of arguments, --prompt-file and --prompts are different prompts: leave one out");
    if (!file->given && !lines->given) return read_flags(command, texts, ids, prompts);
    const char *name = file->given ? file->value : lines->value;
    const int status = cli_read_input(command, name, CLI_MOST_PROMPT, &prompts->text, &bytes);
    if (status) return status;
    if (lines->given) return read_lines(command, name, bytes, prompts);
    if (!make_room(prompts, 1)) return out_of_memory(command);
    prompts->prompts[0] = (dr_prompt){.text = prompts->text, .bytes = bytes};
    prompts->count = 1;
    return 0;
}
