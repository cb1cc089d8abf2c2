/* Categories come from utf8proc, and from a table where its Unicode is older than that of the expressions. */
#include "tokenize/characters.h"

#include "tokenize/unicode_ranges.h"

#include <string.h>
#include <utf8proc.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

const dr_category_range *const dr_newer_categories = added_since_14;
const int dr_newer_category_count = COUNT(added_since_14);
const dr_range *const dr_han_ranges = han;
const int dr_han_range_count = COUNT(han);

static bool among(const dr_range *ranges, int count, uint32_t character) {
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (character > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && character >= ranges[low].first;
}

/* Two letters. */
static const char *category(uint32_t character) {
    int low = 0, high = COUNT(added_since_14);
    while (low < high) {
        int middle = (low + high) / 2;
        if (character > added_since_14[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < COUNT(added_since_14) && character >= added_since_14[low].first) return added_since_14[low].category;
    return utf8proc_category_string((utf8proc_int32_t)character);
}

bool dr_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

bool dr_is_word(uint32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    if (c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
        (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189))
        return true;
    const char *name = category(c);
    return name[0] == 'L' || name[0] == 'M' || strcmp(name, "Nd") == 0 || strcmp(name, "Nl") == 0 || strcmp(name, "Pc") == 0;
}

bool dr_is_number(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    return category(c)[0] == 'N' || (c >= 0x11de0 && c <= 0x11de9) || (c >= 0x16ff4 && c <= 0x16ff6);
}

bool dr_is_punctuation(uint32_t c) {
    if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    if (c == 0x166d || c == 0x111c9) return true;
    return category(c)[0] == 'P' && !among(not_punctuation, COUNT(not_punctuation), c);
}

bool dr_is_accent(uint32_t c) {
    if (c < 0x300) return false;
    if (c == 0x1cf2 || c == 0x1cf3) return true;
    return category(c)[0] == 'M' && !among(not_accents, COUNT(not_accents), c);
}

bool dr_is_nonspacing(uint32_t c) {
    return c >= 0x300 && strcmp(category(c), "Mn") == 0;
}

bool dr_is_chinese(uint32_t c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

bool dr_is_control(uint32_t c) {
    if (c == '\t' || c == '\n' || c == '\r') return false;
    const char *name = category(c);
    return name[0] == 'C' && name[1] != 'n';
}

bool dr_is_inert(uint32_t c) {
    return among(without_normal_form, COUNT(without_normal_form), c);
}

uint8_t dr_class_of(uint32_t c) {
    const char *name = category(c);
    uint8_t class = 0;
    if (name[0] == 'L') class = DR_LETTER;
    if (name[0] == 'N') class = DR_NUMBER;
    if (name[0] == 'M') class = DR_MARK;
    if (name[0] == 'P' || name[0] == 'S') class = DR_SIGN;
    if (class == DR_LETTER && (name[1] == 'u' || name[1] == 't')) class |= DR_UPPER;
    if (class == DR_LETTER && name[1] == 'l') class |= DR_LOWER;
    if (dr_is_space(c)) class |= DR_SPACE;
    if (among(han, COUNT(han), c)) class |= DR_HAN;
    return class;
}

void dr_classes_fill(dr_classes *classes) {
    for (uint32_t c = 0; c < 0x10000; c++) classes->below[c] = dr_class_of(c);
}

/* ---- lower case ------------------------------------------------------------------------------------------------------ */

/* Runs of capital letters that Unicode 16 and 17 gained, and how far their small letters are away. */
static const struct {
    uint32_t first, last;
    int32_t away;
} newer_capitals[] = {{0x1c89, 0x1c89, 1},      {0xa7cb, 0xa7cb, 0x264 - 0xa7cb},
                      {0xa7cc, 0xa7cc, 1},      {0xa7ce, 0xa7ce, 1},
                      {0xa7d2, 0xa7d2, 1},      {0xa7d4, 0xa7d4, 1},
                      {0xa7da, 0xa7da, 1},      {0xa7dc, 0xa7dc, 0x19b - 0xa7dc},
                      {0x10d50, 0x10d65, 0x20}, {0x16ea0, 0x16eb8, 0x1b}};

int dr_lower(uint32_t character, uint32_t lower[2]) {
    lower[0] = character;
    if (character < 0x80) {
        if (character >= 'A' && character <= 'Z') lower[0] = character + 32;
        return 1;
    }
    if (character == 0x130) { /* the only one of two characters */
        lower[0] = 'i';
        lower[1] = 0x307;
        return 2;
    }
    for (int i = 0; i < COUNT(newer_capitals); i++)
        if (character >= newer_capitals[i].first && character <= newer_capitals[i].last) {
            lower[0] = (uint32_t)((int32_t)character + newer_capitals[i].away);
            return 1;
        }
    lower[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)character);
    return 1;
}
