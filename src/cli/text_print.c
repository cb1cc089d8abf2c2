#include "cli/text_print.h"

#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is held ---- */

static bool hold(char **held, size_t *count, size_t *room, const char *bytes, size_t more) {
    if (*count + more > *room) {
        const size_t wanted = 2 * (*count + more);
        char *larger = realloc(*held, wanted);
        if (!larger) return false;
        *held = larger;
        *room = wanted;
    }
    if (more > 0) memcpy(*held + *count, bytes, more);
    *count += more;
    return true;
}

static bool hold_id(cli_made_text *made, int32_t id) {
    if (made->tokens == made->token_room) {
        const int64_t wanted = made->token_room > 0 ? 2 * made->token_room : 64;
        int32_t *larger = realloc(made->ids, (size_t)wanted * sizeof *larger);
        if (!larger) return false;
        made->ids = larger;
        made->token_room = wanted;
    }
    made->ids[made->tokens++] = id;
    return true;
}

static void write_logprob(char *text, size_t size, int32_t id, double logprob) {
    if (isfinite(logprob))
        dr_format(text, size, "{\"id\": %" PRId32 ", \"logprob\": %.17g", id, logprob);
    else
        snprintf(text, size, "{\"id\": %" PRId32 ", \"logprob\": null", id);
}

static bool hold_text(cli_made_text *made, const char *text) {
    return hold(&made->logprobs, &made->logprob_bytes, &made->logprob_room, text, strlen(text));
}

/* {"id": 5, "logprob": -0.5, "top": [{"id": 5, "logprob": -0.5}]} */
static bool hold_logprobs(cli_made_text *made, const dr_choice *choice) {
    char text[96];
    write_logprob(text, sizeof text, choice->id, choice->logprob);
    if (!hold_text(made, made->logprob_bytes > 0 ? ", " : "") || !hold_text(made, text) || !hold_text(made, ", \"top\": ["))
        return false;
    for (int64_t i = 0; i < choice->top_count; i++) {
        write_logprob(text, sizeof text, choice->top[i].id, choice->top[i].logprob);
        if (!hold_text(made, i > 0 ? ", " : "") || !hold_text(made, text) || !hold_text(made, "}")) return false;
    }
    return hold_text(made, "]}");
}

/* ---- printing ---- */

bool cli_text_print_begin(cli_text_print *print, const dr_prompt *prompts, int64_t prompt_count, int64_t samples,
                          const dr_tokenizer *tokenizer, bool echo, bool json, bool logprobs) {
    *print = (cli_text_print){.prompts = prompts,
                              .prompt_count = prompt_count,
                              .samples = samples,
                              .tokenizer = tokenizer,
                              .echo = echo,
                              .json = json,
                              .logprobs = logprobs,
                              .turn = -1};
    print->made = calloc((size_t)(prompt_count * samples), sizeof *print->made);
    return print->made != NULL;
}

static void release_text(cli_made_text *made) {
    free(made->bytes);
    free(made->ids);
    free(made->logprobs);
    *made = (cli_made_text){.finish = made->finish};
}

void cli_text_print_release(cli_text_print *print) {
    for (int64_t i = 0; print->made && i < print->prompt_count * print->samples; i++) release_text(&print->made[i]);
    free(print->made);
}

/* The text of ids that are a prompt. */
static bool print_ids(cli_text_print *print, const dr_prompt *prompt) {
    if (!print->tokenizer) {
        for (int64_t i = 0; i < prompt->count; i++) {
            const char byte = (char)prompt->ids[i];
            if (prompt->ids[i] < 256 && !cli_text_write(&print->printed, &byte, 1)) return false;
        }
        return true;
    }
    dr_decoder *decoder;
    const char *text;
    size_t bytes;
    if (dr_decoder_create(print->tokenizer, DR_DECODE_TEXT | DR_DECODE_NO_SPECIAL, &decoder) != DR_OK) return false;
    const bool good = dr_decoder_decode(decoder, prompt->ids, (size_t)prompt->count, &text, &bytes) == DR_OK &&
                      cli_text_write(&print->printed, text, bytes);
    dr_decoder_destroy(decoder);
    return good;
}

/* The heading of the text whose turn it is, and its prompt. */
static bool begin_text(cli_text_print *print) {
    const int64_t prompt = print->turn / print->samples, sample = print->turn % print->samples;
    print->printed = cli_text_begin(stdout);
    print->printed.last = '\n';
    if (print->prompt_count > 1 && print->samples > 1)
        printf("--- prompt %" PRId64 " of %" PRId64 ", sample %" PRId64 " of %" PRId64 " ---\n", prompt + 1,
               print->prompt_count, sample + 1, print->samples);
    else if (print->prompt_count > 1)
        printf("--- prompt %" PRId64 " of %" PRId64 " ---\n", prompt + 1, print->prompt_count);
    else if (print->samples > 1)
        printf("--- sample %" PRId64 " of %" PRId64 " ---\n", sample + 1, print->samples);
    const dr_prompt *begins = &print->prompts[prompt];
    if (!print->echo) return true;
    return begins->ids ? print_ids(print, begins) : cli_text_write(&print->printed, begins->text, begins->bytes);
}

static const char *finish_name(dr_finish finish) {
    switch (finish) {
    case DR_FINISH_NOT:
        return "interrupted";
    case DR_FINISH_LENGTH:
        return "length";
    case DR_FINISH_END:
        return "end";
    case DR_FINISH_STOP:
        return "stop";
    }
    return "";
}

static void print_object(const cli_text_print *print, int64_t number) {
    const cli_made_text *made = &print->made[number];
    printf("{\"prompt\": %" PRId64 ", \"sample\": %" PRId64 ", \"text\": ", number / print->samples, number % print->samples);
    cli_print_json_string(made->bytes ? made->bytes : "", made->count);
    printf(", \"finish\": \"%s\", \"tokens\": %" PRId64 ", \"ids\": [", finish_name(made->finish), made->tokens);
    for (int64_t i = 0; i < made->tokens; i++) printf(i > 0 ? ", %" PRId32 : "%" PRId32, made->ids[i]);
    printf("]");
    if (print->logprobs) {
        printf(", \"logprobs\": [");
        fwrite(made->logprobs, 1, made->logprob_bytes, stdout);
        printf("]");
    }
    printf("}\n");
}

/* Prints what is held of the text whose turn it is. */
static bool print_held(cli_text_print *print) {
    cli_made_text *made = &print->made[print->turn];
    if (print->json) return true;
    const size_t count = made->count;
    made->count = 0;
    return count == 0 || cli_text_write(&print->printed, made->bytes, count);
}

/* The text whose turn it is will not go on. */
static void close_text(cli_text_print *print) {
    if (print->json)
        print_object(print, print->turn);
    else if (print->printed.last != '\n')
        putchar('\n');
    release_text(&print->made[print->turn]);
}

/* Prints what is held of the texts whose turn it is or comes. */
static bool take_turns(cli_text_print *print) {
    const int64_t texts = print->prompt_count * print->samples;
    while (print->turn < texts) {
        if (print->turn < 0) {
            print->turn = 0;
            if (!print->json && !begin_text(print)) return false;
        }
        if (!print_held(print)) return false;
        if (print->made[print->turn].finish == DR_FINISH_NOT) break;
        close_text(print);
        if (++print->turn < texts && !print->json && !begin_text(print)) return false;
    }
    return fflush(stdout) == 0;
}

bool cli_text_print_add(cli_text_print *print, const dr_piece *piece) {
    cli_made_text *made = &print->made[piece->prompt * print->samples + piece->sample];
    bool held = hold(&made->bytes, &made->count, &made->room, piece->bytes, piece->count);
    if (held && print->json && piece->choice) held = hold_id(made, piece->choice->id);
    if (held && print->json && print->logprobs && piece->choice) held = hold_logprobs(made, piece->choice);
    print->out_of_memory |= !held;
    made->finish = piece->finish;
    return held && take_turns(print);
}

void cli_text_print_end(cli_text_print *print) {
    const int64_t texts = print->prompt_count * print->samples;
    if (print->turn < 0 || print->turn >= texts) return;
    close_text(print);
    while (print->json && ++print->turn < texts)
        if (print->made[print->turn].tokens > 0) close_text(print);
}

void cli_print_speed(FILE *stream, const dr_generate_speed *speed, bool json) {
    const double read = speed->prompt_seconds > 0 ? (double)speed->prompt_tokens / speed->prompt_seconds : 0;
    const double made = speed->token_seconds > 0 ? (double)speed->tokens / speed->token_seconds : 0;
    dr_print(stream,
             json ? "{\"prompt_tokens\": %" PRId64 ", \"prompt_tokens_per_second\": %.6g, \"first_token_seconds\": %.6g, "
                    "\"tokens\": %" PRId64 ", \"tokens_per_second\": %.6g"
                  : "prompt: %" PRId64 " tokens, %.1f a second; first token after %.3f s; made: %" PRId64
                    " tokens, %.1f a second",
             speed->prompt_tokens, read, speed->first_token_seconds, speed->tokens, made);
    if (speed->drafted > 0)
        dr_print(stream,
                 json ? ", \"drafted\": %" PRId64 ", \"accepted\": %" PRId64
                      : "; guessed: %" PRId64 " tokens, %" PRId64 " stayed",
                 speed->drafted, speed->accepted);
    fputs(json ? "}\n" : "\n", stream);
}
