/* A reading is a stack of values that have begun. The topmost takes the byte, or is over and leaves it to the one below. A
 * value is begun only if its least text still fits into the stack. */
#include "constrain/automaton.h"

#include <string.h>

/* What a value makes of a byte. */
typedef enum {
    NO,     /* it cannot come here */
    TAKEN,  /* and the value goes on */
    LAST,   /* taken, and the value is over with it */
    BEHIND, /* the value was over before it */
    CHILD   /* it belongs to a value within this one, or to one that takes its place */
} verdict;

enum { MOST_DIGITS = 15, MOST_EXPONENT = 2, MOST_BLANKS = 20 };

/* ---- blanks ---- */

/* A single blank, or a line end and some blanks or tabs. */
static bool take_blank(dr_open_value *value, uint8_t byte) {
    if (value->blanks == 0 && byte == ' ') {
        value->blanks = MOST_BLANKS + 1;
        return true;
    }
    if ((value->blanks == 0 && byte == '\n') ||
        (value->blanks > 0 && value->blanks <= MOST_BLANKS && (byte == ' ' || byte == '\t'))) {
        value->blanks++;
        return true;
    }
    return false;
}

static void go_to(dr_open_value *value, uint8_t phase) {
    value->phase = phase;
    value->blanks = 0;
}

/* ---- texts ---- */

/* The first text from `from` on that begins as the first `place` bytes of text `like` and goes on with the byte; -1: none. */
static int32_t find_text(const dr_schema_node *node, int32_t from, int32_t like, int32_t place, uint8_t byte) {
    for (int32_t i = from; i < node->text_count; i++) {
        const dr_schema_text *text = &node->texts[i];
        if (text->count > place && (uint8_t)text->bytes[place] == byte &&
            (place == 0 || memcmp(text->bytes, node->texts[like].bytes, (size_t)place) == 0))
            return i;
    }
    return -1;
}

/* Whether one of the texts is just what was read. */
static bool text_may_end(const dr_schema_node *node, const dr_open_value *value) {
    for (int32_t i = 0; i < node->text_count && value->place > 0; i++)
        if (node->texts[i].count == value->place &&
            memcmp(node->texts[i].bytes, node->texts[value->choice].bytes, (size_t)value->place) == 0)
            return true;
    return false;
}

static bool text_may_go_on(const dr_schema_node *node, const dr_open_value *value) {
    for (int32_t i = 0; i < node->text_count; i++)
        if (node->texts[i].count > value->place &&
            memcmp(node->texts[i].bytes, node->texts[value->choice].bytes, (size_t)value->place) == 0)
            return true;
    return false;
}

static verdict take_text(const dr_schema_node *node, dr_open_value *value, uint8_t byte) {
    const int32_t found = find_text(node, 0, value->choice, value->place, byte);
    if (found < 0) return text_may_end(node, value) ? BEHIND : NO;
    value->choice = (uint16_t)found;
    value->place++;
    return text_may_go_on(node, value) ? TAKEN : LAST;
}

/* ---- strings ---- */

enum { BEFORE_QUOTE, WITHIN, ESCAPED, DIGIT_1, DIGIT_2, DIGIT_3, DIGIT_4 };
enum { PLAIN, SURROGATE, ZEROS }; /* what the digits of an escape may become */

/* The second byte of a character, by the first: its bounds as low << 8 | high (Unicode 15, table 3-7). */
static uint16_t second_byte(uint8_t first) {
    switch (first) {
    case 0xe0:
        return 0xa0bf;
    case 0xed:
        return 0x809f; /* no surrogates */
    case 0xf0:
        return 0x90bf;
    case 0xf4:
        return 0x808f;
    default:
        return 0x80bf;
    }
}

static int32_t bytes_behind(uint8_t first) {
    return first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
}

static bool is_hexadecimal(uint8_t byte) {
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

/* place: bytes of a character that are still to come, the next within the bounds `choice`. */
static verdict take_character(const dr_schema_node *node, dr_open_value *value, uint8_t byte) {
    if (value->place > 0) {
        if (byte < value->choice >> 8 || byte > (value->choice & 0xff)) return NO;
        value->choice = 0x80bf;
        if (--value->place == 0) value->count++;
        return TAKEN;
    }
    if (byte == '"') return value->count >= node->least ? LAST : NO;
    if (byte < 0x20 || value->count >= node->most) return NO;
    if (byte == '\\') {
        value->phase = ESCAPED;
        return TAKEN;
    }
    value->place = byte < 0x80 ? 0 : bytes_behind(byte);
    if (byte < 0x80) value->count++;
    value->choice = second_byte(byte);
    return byte < 0x80 || value->place > 0 ? TAKEN : NO;
}

static verdict take_digit_of_escape(dr_open_value *value, uint8_t byte) {
    if (!is_hexadecimal(byte)) return NO;
    if (value->phase == DIGIT_1) value->choice = byte == 'd' || byte == 'D' ? SURROGATE : byte == '0' ? ZEROS : PLAIN;
    if (value->phase == DIGIT_2 && value->choice == SURROGATE && byte > '7') return NO;
    if (value->phase > DIGIT_1 && byte != '0') value->choice = PLAIN;
    if (value->phase < DIGIT_4) {
        value->phase++;
        return TAKEN;
    }
    if (value->choice == ZEROS) return NO;
    value->phase = WITHIN;
    value->count++;
    return TAKEN;
}

static verdict take_string(const dr_schema_node *node, dr_open_value *value, uint8_t byte) {
    switch (value->phase) {
    case BEFORE_QUOTE:
        value->phase = WITHIN;
        return byte == '"' ? TAKEN : NO;
    case WITHIN:
        return take_character(node, value, byte);
    case ESCAPED:
        if (byte == 'u') {
            value->phase = DIGIT_1;
            return TAKEN;
        }
        if (!byte || !strchr("\"\\/bfnrt", byte)) return NO;
        value->phase = WITHIN;
        value->count++;
        return TAKEN;
    default:
        return take_digit_of_escape(value, byte);
    }
}

/* ---- numbers ---- */

enum { BEGIN, MINUS, ZERO, WHOLE, POINT, FRACTION, EXPONENT, SIGN, POWER };

static bool number_may_end(const dr_open_value *value) {
    return value->phase == ZERO || value->phase == WHOLE || value->phase == FRACTION || value->phase == POWER;
}

static verdict more_digits(dr_open_value *value, uint8_t phase, int32_t most) {
    if (value->phase != phase) value->count = 0;
    value->phase = phase;
    return value->count++ < most ? TAKEN : NO;
}

static verdict take_number(const dr_schema_node *node, dr_open_value *value, uint8_t byte) {
    const bool digit = byte >= '0' && byte <= '9', real = node->kind == DR_NODE_NUMBER;
    const uint8_t phase = value->phase;
    if (phase == BEGIN && byte == '-') {
        value->phase = MINUS;
        return TAKEN;
    }
    if (digit && phase <= MINUS && byte == '0') {
        value->phase = ZERO;
        return TAKEN;
    }
    if (digit && (phase <= MINUS || phase == WHOLE)) return more_digits(value, WHOLE, MOST_DIGITS);
    if (digit && (phase == POINT || phase == FRACTION)) return more_digits(value, FRACTION, MOST_DIGITS);
    if (digit && phase >= EXPONENT) return more_digits(value, POWER, MOST_EXPONENT);
    if (real && byte == '.' && (phase == ZERO || phase == WHOLE)) {
        value->phase = POINT;
        return TAKEN;
    }
    if (real && (byte == 'e' || byte == 'E') && (phase == ZERO || phase == WHOLE || phase == FRACTION)) {
        value->phase = EXPONENT;
        return TAKEN;
    }
    if (phase == EXPONENT && (byte == '+' || byte == '-')) {
        value->phase = SIGN;
        return TAKEN;
    }
    return !digit && number_may_end(value) ? BEHIND : NO;
}

/* ---- objects and lists ---- */

/* Phases of what has parts. OPEN is behind the bracket, NEXT behind a comma. */
enum { START, OPEN, NAME, COLON, VALUE, AFTER, NEXT };

/* Whether a value of the node can stand within the topmost of the reading. */
static bool fits(const dr_schema *schema, const dr_reading *reading, int32_t node) {
    return schema->nodes[node].height <= DR_SCHEMA_DEPTH - reading->depth;
}

/* The property whose name goes on with the byte, from the count-th on and none behind the first that is required; -1: none. */
static int32_t find_property(const dr_schema *schema, const dr_reading *reading, const dr_open_value *value, int32_t place,
                             uint8_t byte) {
    const dr_schema_node *node = &schema->nodes[value->node];
    int32_t end = value->count;
    while (end < node->text_count && !node->texts[end].required) end++;
    for (int32_t i = place > 0 ? value->choice : value->count; i <= end; i++) {
        i = find_text(node, i, value->choice, place, byte);
        if (i < 0 || i > end) return -1;
        if (fits(schema, reading, node->children[i])) return i;
    }
    return -1;
}

static bool nothing_required(const dr_schema_node *node, int32_t from) {
    for (int32_t i = from; i < node->text_count; i++)
        if (node->texts[i].required) return false;
    return true;
}

static verdict take_name(const dr_schema *schema, const dr_reading *reading, dr_open_value *value, uint8_t byte) {
    const dr_schema_node *node = &schema->nodes[value->node];
    const int32_t place = value->phase == NAME ? value->place : 0, found = find_property(schema, reading, value, place, byte);
    if (found < 0) return NO;
    go_to(value, NAME);
    value->choice = (uint16_t)found;
    value->place = place + 1;
    if (value->place == node->texts[found].count) {
        go_to(value, COLON);
        value->count = found + 1;
    }
    return TAKEN;
}

/* One node of the list for the byte. */
static verdict begin_part(dr_open_value *value, uint8_t phase, int32_t part, int32_t *child) {
    go_to(value, phase);
    *child = part;
    return CHILD;
}

static verdict take_object(const dr_schema *schema, const dr_reading *reading, dr_open_value *value, uint8_t byte,
                           int32_t *child) {
    const dr_schema_node *node = &schema->nodes[value->node];
    switch (value->phase) {
    case START:
        go_to(value, OPEN);
        return byte == '{' ? TAKEN : NO;
    case OPEN:
    case AFTER:
        if (take_blank(value, byte)) return TAKEN;
        if (byte == '}') return nothing_required(node, value->count) ? LAST : NO;
        if (value->phase == OPEN) return take_name(schema, reading, value, byte);
        if (byte != ',' || find_property(schema, reading, value, 0, '"') < 0) return NO;
        go_to(value, NEXT);
        return TAKEN;
    case NEXT:
        return take_blank(value, byte) ? TAKEN : take_name(schema, reading, value, byte);
    case NAME:
        return take_name(schema, reading, value, byte);
    case COLON:
        go_to(value, VALUE);
        return byte == ':' ? TAKEN : NO;
    default:
        if (take_blank(value, byte)) return TAKEN;
        return begin_part(value, AFTER, node->children[value->choice], child);
    }
}

static verdict take_map(const dr_schema *schema, const dr_reading *reading, dr_open_value *value, uint8_t byte,
                        int32_t *child) {
    const int32_t part = schema->nodes[value->node].children[0];
    switch (value->phase) {
    case START:
        go_to(value, OPEN);
        return byte == '{' ? TAKEN : NO;
    case OPEN:
    case AFTER:
        if (take_blank(value, byte)) return TAKEN;
        if (byte == '}') return LAST;
        if (!fits(schema, reading, part) || !fits(schema, reading, schema->string)) return NO;
        if (value->phase == OPEN) return begin_part(value, COLON, schema->string, child);
        go_to(value, NEXT);
        return byte == ',' ? TAKEN : NO;
    case NEXT:
        return take_blank(value, byte) ? TAKEN : begin_part(value, COLON, schema->string, child);
    case COLON:
        go_to(value, VALUE);
        return byte == ':' ? TAKEN : NO;
    default:
        return take_blank(value, byte) ? TAKEN : begin_part(value, AFTER, part, child);
    }
}

static verdict take_array(const dr_schema *schema, const dr_reading *reading, dr_open_value *value, uint8_t byte,
                          int32_t *child) {
    const dr_schema_node *node = &schema->nodes[value->node];
    const bool more = value->count < node->most && fits(schema, reading, node->children[0]);
    switch (value->phase) {
    case START:
        go_to(value, OPEN);
        return byte == '[' ? TAKEN : NO;
    case OPEN:
    case AFTER:
        if (take_blank(value, byte)) return TAKEN;
        if (byte == ']') return value->count >= node->least ? LAST : NO;
        if (!more) return NO;
        if (value->phase == AFTER) {
            go_to(value, NEXT);
            return byte == ',' ? TAKEN : NO;
        }
        break;
    default:
        if (take_blank(value, byte)) return TAKEN;
    }
    value->count++;
    return begin_part(value, AFTER, node->children[0], child);
}

/* ---- readings ---- */

static verdict take(const dr_schema *schema, const dr_reading *reading, dr_open_value *value, uint8_t byte, int32_t *child) {
    const dr_schema_node *node = &schema->nodes[value->node];
    switch (node->kind) {
    case DR_NODE_STRING:
        return take_string(node, value, byte);
    case DR_NODE_NUMBER:
    case DR_NODE_INTEGER:
        return take_number(node, value, byte);
    case DR_NODE_TEXTS:
        return take_text(node, value, byte);
    case DR_NODE_OBJECT:
        return take_object(schema, reading, value, byte, child);
    case DR_NODE_MAP:
        return take_map(schema, reading, value, byte, child);
    case DR_NODE_ARRAY:
        return take_array(schema, reading, value, byte, child);
    case DR_NODE_SEQUENCE:
        *child = node->children[value->count++];
        return CHILD;
    case DR_NODE_NONE:
    case DR_NODE_ANY_OF:
        break;
    }
    return NO;
}

static bool same_reading(const dr_reading *a, const dr_reading *b) {
    return a->depth == b->depth && memcmp(a->open, b->open, (size_t)a->depth * sizeof *a->open) == 0;
}

/* Readings that are there already, or have no room, are dropped: the others lead to an end too. */
static void add_reading(dr_automaton *automaton, const dr_reading *reading) {
    if (automaton->count == DR_SCHEMA_ALTERNATIVES) return;
    for (int32_t i = 0; i < automaton->count; i++)
        if (same_reading(&automaton->readings[i], reading)) return;
    dr_reading *added = &automaton->readings[automaton->count++];
    added->depth = reading->depth;
    memcpy(added->open, reading->open, (size_t)reading->depth * sizeof *reading->open);
}

static bool open_value(const dr_schema *schema, dr_reading *reading, int32_t node) {
    if (!fits(schema, reading, node)) return false;
    dr_open_value *value = &reading->open[reading->depth++];
    memset(value, 0, sizeof *value);
    value->node = node;
    return true;
}

/* Adds what a reading, which is changed, becomes with a byte. */
static void follow(const dr_schema *schema, dr_reading *reading, uint8_t byte, dr_automaton *to) {
    while (reading->depth > 0) {
        int32_t child = 0;
        dr_open_value *value = &reading->open[reading->depth - 1];
        const verdict made = take(schema, reading, value, byte, &child);
        if (made == NO) return;
        if (made == TAKEN || made == LAST) {
            reading->depth -= made == LAST;
            add_reading(to, reading);
            return;
        }
        if (made == BEHIND) {
            reading->depth--;
            continue;
        }
        const dr_schema_node *node = &schema->nodes[value->node], *part = &schema->nodes[child];
        if (node->kind == DR_NODE_SEQUENCE && value->count == node->child_count)
            reading->depth--; /* its last takes its place */
        if (part->kind == DR_NODE_ANY_OF) {
            for (int32_t i = 0; i < part->child_count; i++) {
                dr_reading other = {.depth = reading->depth};
                memcpy(other.open, reading->open, (size_t)reading->depth * sizeof *reading->open);
                if (open_value(schema, &other, part->children[i])) follow(schema, &other, byte, to);
            }
            return;
        }
        if (!open_value(schema, reading, child)) return;
    }
}

void dr_automaton_begin(const dr_schema *schema, dr_automaton *automaton) {
    const dr_schema_node *root = &schema->nodes[schema->root];
    const bool several = root->kind == DR_NODE_ANY_OF;
    automaton->count = 0;
    for (int32_t i = 0; i < (several ? root->child_count : 1); i++) {
        dr_reading reading = {.depth = 0};
        if (open_value(schema, &reading, several ? root->children[i] : schema->root)) add_reading(automaton, &reading);
    }
}

bool dr_automaton_take(const dr_schema *schema, const dr_automaton *from, uint8_t byte, dr_automaton *to) {
    to->count = 0;
    for (int32_t i = 0; i < from->count; i++) {
        dr_reading reading = {.depth = from->readings[i].depth};
        memcpy(reading.open, from->readings[i].open, (size_t)reading.depth * sizeof *reading.open);
        follow(schema, &reading, byte, to);
    }
    return to->count > 0;
}

static bool may_end(const dr_schema *schema, const dr_reading *reading) {
    if (reading->depth == 0) return true;
    if (reading->depth > 1) return false;
    const dr_open_value *value = &reading->open[0];
    const dr_schema_node *node = &schema->nodes[value->node];
    if (node->kind == DR_NODE_TEXTS) return text_may_end(node, value);
    return (node->kind == DR_NODE_NUMBER || node->kind == DR_NODE_INTEGER) && number_may_end(value);
}

bool dr_automaton_complete(const dr_schema *schema, const dr_automaton *automaton) {
    for (int32_t i = 0; i < automaton->count; i++)
        if (may_end(schema, &automaton->readings[i])) return true;
    return false;
}
