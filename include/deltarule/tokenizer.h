/* Text to token ids and back: the tokenizers of published models, read from tokenizer.json.
 *
 * Models of type BPE are read, byte-level (GPT-2, GPT-NeoX, OLMo, Qwen, Llama 3, DeepSeek, Kimi, StarCoder) and with byte
 * fallback (Llama 2, Mistral, Gemma), with their normalizers, pre-tokenizers, added tokens, template and decoder; ids and texts
 * are those of Hugging Face's `tokenizers`. What is not known and would change ids is refused by name. docs/tokenizers.md says
 * more.
 *
 * Threads. A tokenizer never changes once it is made: any number of threads may use one at once. An encoder, a decoder or a
 * trainer is for one thread at a time; different ones may be used at once, also of one tokenizer. */
#ifndef DELTARULE_TOKENIZER_H
#define DELTARULE_TOKENIZER_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_tokenizer dr_tokenizer;

/* Reads tokenizer.json, and what else is there of tokenizer_config.json and special_tokens_map.json, of a folder; or the file
 * that path names. DR_ERROR_IO, DR_ERROR_FORMAT, DR_ERROR_UNSUPPORTED with what was found. */
DR_API dr_status dr_tokenizer_load(const char *path, dr_tokenizer **tokenizer);
/* The same from the text of a tokenizer.json; source names it in messages. */
DR_API dr_status dr_tokenizer_parse(const char *text, size_t bytes, const char *source, dr_tokenizer **tokenizer);
/* Bytes: ids 0 to 255 are the bytes, 256 begins a document (and is the beginning of a sequence). */
DR_API dr_status dr_tokenizer_bytes(dr_tokenizer **tokenizer);
DR_API void dr_tokenizer_destroy(dr_tokenizer *tokenizer); /* NULL is allowed */

/* How many ids there are: one more than the largest. A model's vocab_size must not be less. 0 of NULL. */
DR_API int64_t dr_tokenizer_size(const dr_tokenizer *tokenizer);
/* The id of a token as the vocabulary writes it ("\xc4\xa0the" in a byte-level one), or -1; also where a
 * pointer is missing. */
DR_API int32_t dr_tokenizer_id(const dr_tokenizer *tokenizer, const char *token, size_t bytes);
/* The token of an id as the vocabulary writes it, not ended by a zero byte; NULL if the id has none, or a pointer is missing.
 * Lives as long as the tokenizer. */
DR_API const char *dr_tokenizer_token(const dr_tokenizer *tokenizer, int32_t id, size_t *bytes);

typedef enum {
    DR_TOKEN_BOS, /* begins a sequence */
    DR_TOKEN_EOS, /* ends one */
    DR_TOKEN_UNK, /* unknown */
    DR_TOKEN_PAD, /* fills up */
    DR_TOKEN_SEP,
    DR_TOKEN_CLS,
    DR_TOKEN_MASK,
    DR_TOKEN_ROLES
} dr_token_role;

/* The id that tokenizer_config.json or special_tokens_map.json gives a role; -1: none, or no tokenizer. */
DR_API int32_t dr_tokenizer_special(const dr_tokenizer *tokenizer, dr_token_role role);
/* Whether decoding without special tokens leaves the id out; false of NULL. */
DR_API bool dr_tokenizer_is_special(const dr_tokenizer *tokenizer, int32_t id);

/* Working memory of encoding, and a cache of words: one a thread. The tokenizer must outlive it. */
typedef struct dr_encoder dr_encoder;
DR_API dr_status dr_encoder_create(const dr_tokenizer *tokenizer, dr_encoder **encoder);
DR_API void dr_encoder_destroy(dr_encoder *encoder); /* NULL is allowed */

/* The ids of a text; valid until the next call. special: with what the template adds (a beginning of sequence, for most). Added
 * tokens written in the text become their ids either way. Bytes that are not UTF-8 are encoded one by one where the vocabulary
 * has bytes, else DR_ERROR_FORMAT. */
DR_API dr_status dr_encoder_encode(dr_encoder *encoder, const char *text, size_t bytes, bool special, const int32_t **ids,
                                   size_t *count);

/* What a decoder gives. */
typedef enum {
    DR_DECODE_TEXT = 0,      /* UTF-8; U+FFFD stands for what is broken */
    DR_DECODE_BYTES = 1,     /* bytes as they are: those of any text come back, broken or not */
    DR_DECODE_NO_SPECIAL = 2 /* special tokens are left out; may be added to either */
} dr_decode_flags;

/* Working memory of decoding, and the state of a stream: one a stream. The tokenizer must outlive it. */
typedef struct dr_decoder dr_decoder;
DR_API dr_status dr_decoder_create(const dr_tokenizer *tokenizer, int flags, dr_decoder **decoder);
DR_API void dr_decoder_destroy(dr_decoder *decoder); /* NULL is allowed */

/* The text of ids, not ended by a zero byte; valid until the next call. Ids without a token are passed over. */
DR_API dr_status dr_decoder_decode(dr_decoder *decoder, const int32_t *ids, size_t count, const char **text, size_t *bytes);

/* One more id of a stream, as they are generated: the text that has become certain, *bytes 0 if none has. A character is never
 * split. What all pieces give together is what dr_decoder_decode gives, but for broken characters. DR_ERROR_FORMAT where the id
 * changes text that was given before (bytes of a fallback that were valid alone): the stream goes on from the next id. */
DR_API dr_status dr_decoder_step(dr_decoder *decoder, int32_t id, const char **text, size_t *bytes);
/* The end of a stream: what still waits, broken characters as U+FFFD. The next step begins a new one. */
DR_API dr_status dr_decoder_finish(dr_decoder *decoder, const char **text, size_t *bytes);

/* Making a byte-level tokenizer of texts. */
typedef struct dr_tokenizer_trainer dr_tokenizer_trainer;

typedef struct {
    int64_t ids;             /* how many: 256 bytes, what merges make, and end_of_text */
    int64_t least_count;     /* a pair that is rarer is not merged */
    const char *end_of_text; /* the token that begins and ends texts */
    /* called now and then with how many ids there are and will be; returns false to stop. NULL: none */
    bool (*progress)(void *context, int64_t done, int64_t total);
    void *context;
} dr_tokenizer_training;

DR_API dr_tokenizer_training dr_tokenizer_training_defaults(void);
DR_API dr_status dr_tokenizer_trainer_create(dr_tokenizer_trainer **trainer);
DR_API void dr_tokenizer_trainer_destroy(dr_tokenizer_trainer *trainer); /* NULL is allowed */
/* Counts the words of a text; what is not UTF-8 in it counts nothing. */
DR_API dr_status dr_tokenizer_trainer_add(dr_tokenizer_trainer *trainer, const char *text, size_t bytes);
/* Makes the vocabulary and writes tokenizer.json and tokenizer_config.json into a folder, which is made if need be. The same
 * texts give the same files, whatever their order. *size: how many ids there are, fewer than asked for where the texts have no
 * more. DR_ERROR_ARGUMENT, DR_ERROR_IO, DR_ERROR_INTERRUPTED. */
DR_API dr_status dr_tokenizer_trainer_write(dr_tokenizer_trainer *trainer, const dr_tokenizer_training *options,
                                            const char *folder, int64_t *size);

#ifdef __cplusplus
}
#endif
#endif
