/* Levenshtein's distance with one row of its table: row[j] is the distance of what was read of one to the first j letters of
 * the other. */
#include "base/near.h"

#include <string.h>

enum { LONGEST = 63 };

static int least_of(int a, int b) {
    return a < b ? a : b;
}

int dr_edit_distance(const char *one, const char *other) {
    size_t rows = strlen(one), columns = strlen(other);
    if (rows > LONGEST || columns > LONGEST) return LONGEST + 1;
    int row[LONGEST + 1];
    for (size_t j = 0; j <= columns; j++) row[j] = (int)j;
    for (size_t i = 0; i < rows; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < columns; j++) {
            int replaced = diagonal + (one[i] != other[j]);
            diagonal = row[j + 1];
            row[j + 1] = least_of(replaced, least_of(row[j], diagonal) + 1);
        }
    }
    return row[columns];
}
