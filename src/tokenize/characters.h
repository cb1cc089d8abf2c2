/* What a character is: general categories and the classes that pre-tokenizers and normalizers ask for. */
#ifndef DR_TOKENIZE_CHARACTERS_H
#define DR_TOKENIZE_CHARACTERS_H

#include "tokenize/text.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint32_t first, last;
} dr_range;

typedef struct {
    uint32_t first, last;
    char category[3]; /* "Lu" */
} dr_category_range;

/* Code points whose category PCRE2 may not know, in order. */
extern const dr_category_range *const dr_newer_categories;
extern const int dr_newer_category_count;
extern const dr_range *const dr_han_ranges;
extern const int dr_han_range_count;

/* Bits of a character's classes. */
enum {
    DR_LETTER = 1, /* L */
    DR_NUMBER = 2, /* N */
    DR_MARK = 4,   /* M */
    DR_SPACE = 8,  /* White_Space */
    DR_SIGN = 16,  /* P and S */
    DR_UPPER = 32, /* Lu and Lt */
    DR_LOWER = 64, /* Ll */
    DR_HAN = 128   /* script Han */
};

/* Classes of all characters below 0x10000; those above are looked up. */
typedef struct {
    uint8_t below[0x10000];
} dr_classes;

void dr_classes_fill(dr_classes *classes);
uint8_t dr_class_of(uint32_t character); /* the slow way */

static inline uint8_t dr_class(const dr_classes *classes, uint32_t character) {
    return character < 0x10000 ? classes->below[character] : dr_class_of(character);
}

bool dr_is_space(uint32_t character);       /* White_Space */
bool dr_is_word(uint32_t character);        /* \w of Rust: letters, marks, Nd, Nl, Pc, other alphabetic, the joiners */
bool dr_is_number(uint32_t character);      /* N */
bool dr_is_punctuation(uint32_t character); /* ASCII punctuation and P */
bool dr_is_accent(uint32_t character);      /* M */
bool dr_is_nonspacing(uint32_t character);  /* Mn */
bool dr_is_chinese(uint32_t character);     /* BERT's ideographs */
bool dr_is_control(uint32_t character);     /* BERT's: Cc, Cf, Co, without tab, line feed and carriage return */

/* Whether normal forms leave the character as it is and nothing moves past it or composes with it. */
bool dr_is_inert(uint32_t character);

/* The lower-case mapping, one character after another; at most two. Returns how many. */
int dr_lower(uint32_t character, uint32_t lower[2]);

#endif
