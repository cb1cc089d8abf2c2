/* Locales for tests: tools/make_locales.sh made them in the folder that the environment variable LOCPATH names. "comma" can be
 * made everywhere, the others where their sources are installed. */
#ifndef DR_TESTS_FOREIGN_LOCALE_H
#define DR_TESTS_FOREIGN_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { FOREIGN_LOCALES = 4, SKIPPED = 77 /* the exit status of a test program that could not set a locale */ };
static const char *const foreign_locales[FOREIGN_LOCALES] = {"comma", "de_DE.UTF-8", "ps_AF.UTF-8", "tr_TR.UTF-8"};

/* Whether it could be set, for the whole process, and writes numbers as "C" does not; else says what would bring it. */
static inline bool foreign_locale_set(int i) {
    char text[16];
    setlocale(LC_ALL, "C");
    if (!setlocale(i == 0 ? LC_NUMERIC : LC_ALL, foreign_locales[i])) {
        printf("no locale %s: tools/install-packages check brings its source\n", foreign_locales[i]);
        return false;
    }
    snprintf(text, sizeof text, "%.1f", 0.5);
    return strcmp(text, "0.5") != 0;
}

#endif
