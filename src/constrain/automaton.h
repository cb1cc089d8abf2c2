/* The bytes that an answer may go on with: a compiled schema is read byte by byte. Where several readings are possible all are
 * followed. Every reading that is followed can be brought to an end, so that an answer never runs into a wall. */
#ifndef DR_CONSTRAIN_AUTOMATON_H
#define DR_CONSTRAIN_AUTOMATON_H

#include "constrain/schema.h"

/* A value that has begun. What the numbers mean depends on the node's kind. */
typedef struct {
    int32_t node;
    uint8_t phase, blanks;
    uint16_t choice; /* of a property or a text; of a string: what the next byte must be */
    int32_t place;   /* bytes of the choice that were read */
    int32_t count;   /* items, characters, digits, properties */
} dr_open_value;

typedef struct {
    int32_t depth; /* 0: the value is over */
    dr_open_value open[DR_SCHEMA_DEPTH];
} dr_reading;

typedef struct {
    int32_t count; /* 0: the text was wrong */
    dr_reading readings[DR_SCHEMA_ALTERNATIVES];
} dr_automaton;

/* Before the first byte. */
void dr_automaton_begin(const dr_schema *schema, dr_automaton *automaton);
/* to: behind one more byte; another object than from. false: no text of the schema goes on so. */
bool dr_automaton_take(const dr_schema *schema, const dr_automaton *from, uint8_t byte, dr_automaton *to);
/* Whether the text is whole. It may be possible to go on nevertheless: behind a digit. */
bool dr_automaton_complete(const dr_schema *schema, const dr_automaton *automaton);

#endif
