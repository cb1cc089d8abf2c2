/* How far two names are apart, for messages that guess what was meant. */
#ifndef DR_BASE_NEAR_H
#define DR_BASE_NEAR_H

/* Levenshtein's distance: letters to insert, drop or replace. Names longer than 63 bytes are 64 away from any other. */
int dr_edit_distance(const char *one, const char *other);

#endif
