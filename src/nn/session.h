/* A session: the memory of calls over one model. The model is only read, so that any number of sessions may use it at once. */
#ifndef DR_NN_SESSION_H
#define DR_NN_SESSION_H

#include "base/for_check.h"

#include "nn/model.h"
#include "nn/rows.h"

/* The head's products go through so many targets at a time, so that logits never take more than this many rows; on a GPU, which
 * needs more for its products and adds to the head's gradient less often so, through DR_HEAD_ROWS_DEVICE. */
enum { DR_HEAD_ROWS = 1024, DR_HEAD_ROWS_DEVICE = 8192 };

/* What a call's memory is planned for: a forward, which keeps nothing; a gradient, which keeps what each layer's backward
 * reads; one token a sequence through the decode engine, or several of one sequence, one after another. */
typedef enum { DR_PHASE_FORWARD, DR_PHASE_GRADIENT, DR_PHASE_DECODE } dr_phase;

/* What the work of a gradient follows from, once its batch is in the backend's memory. */
typedef struct {
    const void *block, *gradients;
    int64_t rows, sequences, longest, targets;
    double factor;
    int level;
    bool packed, selects;
} dr_gradient_form;

/* The same of a step: what it computes, of which state, where that lies. */
typedef struct {
    dr_status (*compute)(void *context);
    const void *block;
    const dr_model_state *state;
    int64_t moves, sequences, allowed;
} dr_step_form;

/* The block grows when a call needs more and is kept; all pointers are into it. A forward needs one layer's memory, a gradient
 * that of every layer. */
struct dr_session {
    const dr_model *model;
    dr_backend *backend;
    dr_phase phase;    /* of the planned call */
    int64_t head_rows; /* targets that a call takes through the head at a time */
    int level;         /* of what a gradient keeps: dr_session_keep */
    bool keeps;        /* a gradient also keeps what it could make again with little work */
    bool recomputes;   /* a gradient keeps only what each layer begins with, and makes the rest again in the backward */
    void *block;
    size_t capacity;
    dr_rows tokens;
    void *host;                       /* the modules' structs */
    dr_layer_memory *layers;          /* [layers] */
    dr_layer_scratch *kinds;          /* [kinds of layers] */
    dr_depth_sums depth;              /* where parts attend to earlier outputs, else zero */
    void *embedded;                   /* [rows, hidden] before the embedding's norm, or `first` */
    void *first;                      /* [rows, hidden] what layers begin with: the first one's stream, or depth's first sum */
    void *passed, *d_passed;          /* [rows, the model's passed] from layer to layer, or NULL; of a gradient */
    void *x;                          /* [rows, hidden] after the last layer; the gradient of the stream in a backward */
    void *selected, *d_selected;      /* [targets, hidden] rows of x at the positions */
    void *normed, *d_normed, *logits; /* [up to head_rows, hidden or vocabulary] */
    void *d_x;                        /* [rows, hidden] */
    double *losses;                   /* [up to head_rows] of targets; like all of these in the backend's memory */
    uint8_t *hits;
    dr_draw *draws; /* [targets] of a decode call, with `chosen`, where the backend chooses tokens; else NULL */
    int32_t *chosen;
    dr_loss_sum *sum;    /* over the targets of the call */
    void *extra;         /* [1], a number: the losses of the modules' own, of a gradient's call */
    double extra_factor; /* of their gradient: that of a target's loss, times the targets */
    bool measured;       /* whether the last call left one */
    void *kept;          /* of gradients or steps of the form of the last one, by the backend's replay; NULL: nothing */
    dr_gradient_form last;
    dr_step_form last_step;
};

/* Bytes of the backend's memory that a call over such a layout needs; nothing is allocated there. */
dr_status dr_session_bytes(dr_session *session, dr_phase phase, const dr_layout *layout, int64_t targets, bool selects,
                           bool labelled, size_t *bytes);
/* What a gradient keeps from its forward; all levels give the same bits. 0: everything; 1: all but outputs of norms and of the
 * gates of feed-forwards, which take little work to make again and on the host are never kept; 2: also not what the recurrences
 * of a rule's mixers save, whose forward runs again; 3: also not what convolutions make for these; 4: what each layer begins
 * with, for a second forward of each. DR_ERROR_ARGUMENT if there is no such level, DR_ERROR_UNSUPPORTED of 4 where parts of the
 * model attend to earlier outputs. */
DR_FOR_CHECK dr_status dr_session_keep(dr_session *session, int64_t level);

/* Plans and, where that is more than before, allocates the memory of a call over such a layout. selects: targets are not all
 * rows; labelled: there are labels. */
dr_status dr_session_prepare(dr_session *session, dr_phase phase, const dr_layout *layout, int64_t targets, bool selects,
                             bool labelled);
/* Takes the batch of a prepared call over to the backend, or all of it but its ids, where these are NULL. seen: [sequences]
 * tokens that the state has seen, NULL: none. slot: [sequences] of what grows in the state, NULL: in order. */
dr_status dr_session_upload(dr_session *session, const dr_batch *batch, const int64_t *seen, const int64_t *slot);

/* From ids to session->x through all layers. state: carried in and out, or NULL: from zero. */
dr_status dr_session_run(dr_session *session, dr_model_state *state);
/* count tokens of a state of one sequence through the decode engine, one after another but with each weight read once for all
 * of them; the bits of as many calls of dr_model_step on the reference and the CPU. logits [wanted, vocabulary] of the last
 * `wanted` of them, in host memory. The session's memory grows with count. */
dr_status dr_session_steps(dr_session *session, const int32_t *ids, int64_t count, dr_model_state *state, int64_t wanted,
                           float *logits);

/* dr_model_step, of which the backend chooses the tokens, from ids below `allowed` by draws [sequences] in host memory. ids
 * NULL: the step takes what the one before it chooses, so that it may begin before the host knows that. One step may be under
 * way at a time or, where the backend has `fetch`, two. Of a model whose backend has the operation `choose`. */
DR_FOR_CHECK dr_status dr_model_choose_begin(const dr_model *model, const int32_t *ids, dr_model_state *state, int64_t allowed,
                                             const dr_draw *draws);
/* What the first of the steps under way chose, [sequences] in host memory; DR_ERROR_NUMERIC where logits are not numbers. */
DR_FOR_CHECK dr_status dr_model_choose_end(dr_model_state *state, int32_t *chosen);
/* Ends the steps under way, of which nobody wants to know. */
void dr_model_choose_forget(dr_model_state *state);

/* From session->d_x to the block of gradients, after a run of phase DR_PHASE_GRADIENT. */
dr_status dr_session_run_back(dr_session *session, char *gradients);

/* Logits of targets begin .. begin + count into session->logits; rows: [targets, hidden] before the final norm. */
dr_status dr_session_head(dr_session *session, const void *rows, int64_t begin, int64_t count);
/* The gradient of the same rows into d_rows from that of session->logits, and the head's and the final norm's. */
dr_status dr_session_head_back(dr_session *session, const void *rows, void *d_rows, int64_t begin, int64_t count,
                               char *gradients);

#endif
