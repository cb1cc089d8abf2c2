/* Scanners: the expressions that published tokenizers cut text with, by hand. Each gives the same pieces as its expression. */
#ifndef DR_TOKENIZE_SCAN_H
#define DR_TOKENIZE_SCAN_H

#include "tokenize/characters.h"

/* The end of the piece that begins at text[at]; at < bytes, text is valid UTF-8. The expressions match everywhere. */
typedef size_t (*dr_scanner)(const dr_classes *classes, const char *text, size_t bytes, size_t at);

/* The scanner that stands for an expression, or NULL. */
dr_scanner dr_scanner_of(const char *expression, size_t bytes);

/* The expression of number i that has a scanner, or NULL: for tests. */
const char *dr_scanner_expression(int i);

size_t dr_scan_gpt2(const dr_classes *classes, const char *text, size_t bytes, size_t at);  /* ByteLevel's expression */
size_t dr_scan_words(const dr_classes *classes, const char *text, size_t bytes, size_t at); /* \w+|[^\w]+ of Rust */

#endif
