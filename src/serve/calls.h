/* Calls of tools in the text of an answer. How a model writes them stands in its chat template only: the form is learned by
 * rendering a call of a known function with known arguments. */
#ifndef DR_SERVE_CALLS_H
#define DR_SERVE_CALLS_H

#include <deltarule/chat.h>
#include <deltarule/tokenizer.h>
#include <jansson.h>

typedef enum {
    DR_CALL_OBJECT,    /* {"name": "f", "arguments": {...}}, in brackets of some kind, or several as a list */
    DR_CALL_WORDS,     /* words around the name, and the arguments as an object */
    DR_CALL_PARAMETERS /* <function=f><parameter=x>1</parameter></function> */
} dr_call_kind;

typedef struct {
    dr_call_kind kind;
    char *before, *middle, *behind; /* the texts before the name, between it and the arguments, and behind these */
    char *marker;                   /* what a call begins with; "": an answer is a call if it begins with an object or a list */
    char *end;                      /* what ends it, behind the object */
    char *name_key, *arguments_key; /* of DR_CALL_OBJECT */
} dr_call_form;

/* *form NULL: the template renders no calls, or in a form that is not known. DR_ERROR_MEMORY. */
dr_status dr_call_form_learn(const dr_chat *chat, const dr_tokenizer *tokenizer, dr_call_form **form);
void dr_call_form_destroy(dr_call_form *form); /* NULL is allowed */

/* What an answer consists of. */
typedef struct {
    size_t text;   /* bytes of it before the first call, but for blanks */
    size_t rest;   /* where what stands behind the last call begins */
    json_t *calls; /* a list of {"name": ..., "arguments": TEXT}; empty: all of the answer is text */
} dr_calls;

/* tools: of the request, which tell the types of parameters. Release calls->calls with json_decref. DR_ERROR_MEMORY. */
dr_status dr_calls_read(const dr_call_form *form, const json_t *tools, const char *text, size_t bytes, dr_calls *calls);
/* How many bytes of an unfinished answer are certainly before its first call. */
size_t dr_calls_certain(const dr_call_form *form, const char *text, size_t bytes);

#endif
