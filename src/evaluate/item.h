/* Lines of a file of tasks as what a model is asked, whatever data set they are of. */
#ifndef DR_EVALUATE_ITEM_H
#define DR_EVALUATE_ITEM_H

#include <deltarule/evaluate.h>
#include <jansson.h>

enum { DR_MOST_CHOICES = 64 };

/* The texts are owned by the item. */
typedef struct {
    dr_item_kind kind;
    int64_t count;                       /* of choices; 1 of a last word, a text and a prompt */
    char *context[DR_MOST_CHOICES];      /* what stands before; of a choice, a last word; the prompt of an answer */
    char *continuation[DR_MOST_CHOICES]; /* what is scored, with the blank that begins it; of rolling the text */
    double length[DR_MOST_CHOICES];      /* characters of a choice, without that blank; 0: none, as of other contexts */
    int64_t gold;                        /* the right choice */
    int64_t words, bytes;                /* of the original text of rolling */
    char *question;                      /* of an answer: the end of the prompt, which no cut takes away */
    char *alias[DR_MOST_CHOICES];        /* [aliases] texts that are the answer */
    int64_t aliases;
} dr_item;

/* The name of the format whose keys this object has; NULL: of none, or of several. */
const char *dr_item_format(const json_t *object);
/* The names of all formats, blanks between. */
const char *dr_item_formats(void);
/* The name of the format of that name, as long as the program lives; NULL: there is none. */
const char *dr_item_format_named(const char *name);
/* An object of a format as an item. Release it, also after a failure. DR_ERROR_FORMAT names what is missing. */
dr_status dr_item_read(const json_t *object, const char *format, dr_item *item);
void dr_item_release(dr_item *item);

#endif
