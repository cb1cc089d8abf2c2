/* Language models: embedding, blocks of norm, mixer, norm and SwiGLU, final norm, head. The mixer follows from the rule's axes.
 * A model lives in one backend's memory and type: float32 on the CPU, double on the reference.
 *
 * Threads. A model is only read by what computes: any number of sessions and states may share one, each used by one thread at a
 * time, while nothing writes the parameters. Destroying it, and writing its block, needs it alone; its sessions and states go
 * first. Different models may be used at once, also on one backend. */
#ifndef DELTARULE_MODEL_H
#define DELTARULE_MODEL_H

#include <deltarule/recurrence.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a layer decides beside its rule. Zero, -1 and "auto" values follow the rule's family (docs/adding-a-rule.md). */
typedef struct {
    dr_rule rule;
    int64_t vocabulary, hidden, layers;
    int64_t heads;        /* key heads H */
    int64_t value_heads;  /* HV; 0: H */
    int64_t key_size;     /* K per head; 0: hidden / heads */
    int64_t value_size;   /* V per head; 0: K times the family's expansion */
    int64_t intermediate; /* width of the MLP; -1: 256 ceil(8/3 hidden / 256) like the peers; 0: no MLP */
    int64_t conv_size;    /* width of the short convolution; 0: none */
    int output_gate;      /* 1, 0, or -1: as the family has it */
    bool tied;            /* the head is the embedding */
    dr_gates gates;
    bool force;                    /* accept negative eigenvalues with a preconditioner */
    bool a_log_per_channel;        /* of a channel decay: A_log [HV, K] instead of [HV] */
    double lambda_bias;            /* constant, subtracted before the sigmoid of lambda, 0.9 as published */
    double norm_eps;               /* 1e-6 */
    double initializer_range;      /* standard deviation of linear weights, 0.02 */
    double conv_initializer_range; /* short convolutions start uniform in [-range, range]; 0: as linear weights */
    const char *layer_list;        /* of a hybrid its layers one by one, such as "(eda*3 attention)*6", or a JSON list with
                                    * numbers of their own (docs/models.md); the other fields are what a layer has that
                                    * says nothing. NULL: `layers` layers alike. A model keeps a copy. */
} dr_model_config;

typedef struct dr_model dr_model;
typedef struct dr_model_state dr_model_state; /* what a model carries from token to token, of some sequences */

/* The defaults for a rule: gdn-like sizes 0 or -1 as above, conv_size 4 where the family has it. NULL: all zeros, which
 * dr_model_create refuses. */
DR_API dr_model_config dr_model_config_default(const dr_rule *rule);

/* A model with random parameters (docs/architecture.md tells the distributions), the same for the same seed on every machine
 * and backend up to rounding. DR_ERROR_ARGUMENT names the field that cannot be. */
DR_API dr_status dr_model_create(dr_backend *backend, const dr_model_config *config, uint64_t seed, dr_model **model);
DR_API void dr_model_destroy(dr_model *model); /* NULL is allowed */

/* Reads and writes `config.json` and `model.safetensors` in the Hugging Face layout. Saving is atomic: a kill at any moment
 * leaves the old or the new model whole. A model in several files with `model.safetensors.index.json` is read too. A model of a
 * published type is saved as that type. */
DR_API dr_status dr_model_load(dr_backend *backend, const char *folder, dr_model **model);
DR_API dr_status dr_model_save(const dr_model *model, const char *folder);
/* The same with weights of type F32, F64, F16 or BF16, rounded to the nearest, in files of at most so many bytes each, but of
 * one tensor at least, with an index; 0: one file. DR_ERROR_ARGUMENT if the folder has a single file already, which would be
 * read in place of several. */
DR_API dr_status dr_model_save_as(const dr_model *model, const char *folder, dr_dtype dtype, int64_t file_bytes);

/* Tensors of the loaded file that the model does not use, since they cannot change what it computes: tables of positions,
 * angles and masks, and the head of a tied model where it equals the embedding. Any other tensor without a place is refused. */
DR_API int64_t dr_model_ignored_count(const dr_model *model);
DR_API const char *dr_model_ignored_name(const dr_model *model, int64_t index); /* NULL: no such index, or no model */

/* What a model is asked; of NULL, NULL and 0. */
/* With every 0, -1 and auto filled in. Of a model whose layers are not all alike, recurrent mixers and feed-forwards as a
 * rule's family has them: the sizes of the model, and rule and sizes of its first recurrent layer, if it has one, else zeros.
 */
DR_API const dr_model_config *dr_model_get_config(const dr_model *model);
DR_API dr_backend *dr_model_backend(const dr_model *model);

/* One tensor of parameters: part of one block. */
typedef struct {
    char name[96]; /* as in model.safetensors */
    int rank;
    int64_t shape[DR_MAX_RANK];
    /* Elements, from the block's start, at multiples of 16. Of a matrix whose weights have a type of their own
     * (dr_backend_options) the offset is -1: it is not in the block. */
    int64_t offset, count;
    bool decays; /* weight decay applies: matrices, not norms, biases or gate parameters */
} dr_parameter;

DR_API int64_t dr_model_parameters(const dr_model *model, const dr_parameter **parameters); /* how many; they may be NULL */
DR_API int64_t dr_model_parameter_count(const dr_model *model);                             /* elements, gaps not counted */
DR_API int64_t dr_model_block_count(const dr_model *model);                                 /* elements of the block */
DR_API void *dr_model_parameter_block(dr_model *model);
/* To be called after the block was written. A backend that stores vectors in a narrower type than its own computes with copies
 * of the matrices, which this makes anew; on the others it does nothing. */
DR_API dr_status dr_model_changed(dr_model *model);
/* A block for gradients with the same layout, zero, in the backend's memory; free it with dr_backend_free. */
DR_API dr_status dr_model_gradients_create(const dr_model *model, void **gradients);

/* How a model of a configuration computes, as JSON, for programs that compute it by other means than a backend's. config is the
 * text of a config.json, of model_type "deltarule" or a published one that this can say. The object has "config", the same as
 * "deltarule" with every size and gate filled in; "published", what dr_model_save would write; "trunk", the parameters of no
 * layer, and "norm", that in front of the head; "layers", the kind of each layer, and "kinds", of each its "parameters" with
 * names, shapes and first values, and its "parts": a norm and a module. The module of a rule is a list of nodes over values,
 * which docs/outline.md tells.
 *
 * Like snprintf: at most size bytes are written, the length is returned; text may be NULL if size is 0. -1 with dr_last_error
 * where the configuration cannot be, or no outline says it. backend: any that computes networks. */
DR_API int dr_model_outline(dr_backend *backend, const char *config, char *text, size_t size);

/* A number that two models share only if they compute the same: a hash of the configuration, of the type of weights if the
 * backend has one, and of every parameter, which is read whole for it. */
DR_API dr_status dr_model_identity(const dr_model *model, uint64_t *identity);

/* State for so many sequences, zero: recurrent states, convolution tails and scans, which do not grow, and the keys and values
 * of attention, which do. The model must outlive it. */
DR_API dr_status dr_model_state_create(const dr_model *model, int64_t sequences, dr_model_state **state);
DR_API void dr_model_state_reset(dr_model_state *state);   /* NULL is allowed */
DR_API void dr_model_state_destroy(dr_model_state *state); /* likewise */

/* What a state knows of each of its sequences. */
typedef struct {
    int64_t tokens;  /* read, which is the position of the next one */
    int64_t decoded; /* how many of them one by one through the decode engine, which rounds differently from chunks */
    uint64_t hash;   /* of the tokens' ids, in order: dr_tokens_hash */
} dr_position;
DR_API dr_status dr_model_state_about(const dr_model_state *state, int64_t sequence, dr_position *about);
DR_API int64_t dr_model_state_sequences(const dr_model_state *state); /* 0 of NULL, as the next two */
DR_API size_t dr_model_state_bytes(const dr_model_state *state);      /* of the backend's memory */
DR_API const dr_model *dr_model_state_model(const dr_model_state *state);
/* The hash of ids [count], as a sequence has it that read them; of NULL that of no tokens. */
DR_API uint64_t dr_tokens_hash(const int32_t *ids, int64_t count);

/* A state of its own with the same numbers; of the sequences first .. first + count - 1, count at least 1; of all sequences of
 * all parts, in order, which must be of one model. */
DR_API dr_status dr_model_state_clone(const dr_model_state *state, dr_model_state **copy);
DR_API dr_status dr_model_state_slice(const dr_model_state *state, int64_t first, int64_t count, dr_model_state **part);
DR_API dr_status dr_model_state_concatenate(const dr_model_state *const *parts, int64_t count, dr_model_state **whole);
/* Copies sequences first .. first + count - 1 over those from `begin` on of another state of the same model, or of the same
 * one where the two ranges share none. */
DR_API dr_status dr_model_state_copy(const dr_model_state *from, int64_t first, int64_t count, dr_model_state *to,
                                     int64_t begin);
/* Back to a snapshot: a clone that was made before, of as many sequences. The snapshot stays. */
DR_API dr_status dr_model_state_restore(dr_model_state *state, const dr_model_state *snapshot);

/* One safetensors file with every tensor, and metadata: format "deltarule.model_state", the model's identity and rule, the
 * layout, tokens, decoded tokens and hash of each sequence, and a checksum of all of it. Saving replaces a file at once: a kill
 * leaves the old one or the new one. Loading trusts nothing in the file: DR_ERROR_FORMAT if it is damaged or no such file,
 * DR_ERROR_ARGUMENT if it is whole and of another model, with what differs. Both read the model for its identity. */
DR_API dr_status dr_model_state_save(const dr_model_state *state, const char *file);
DR_API dr_status dr_model_state_load(const dr_model *model, const char *file, dr_model_state **state);

/* What such a file, or one of a store of prefixes (prefix.h), says of itself. */
typedef struct {
    uint64_t model;      /* dr_model_identity of the model that can go on from it */
    uint64_t checksum;   /* of the tensors, the rule and the model */
    int64_t sequences;   /* at least 1 */
    int64_t ids;         /* token ids of its only sequence, which a store of prefixes keeps beside the state; else 0 */
    int64_t file_bytes;  /* of the whole file */
    int64_t fixed_bytes; /* of the tensors whose size does not depend on tokens */
    int64_t grown_bytes; /* of the keys and values of attention */
    int fixed_tensors, grown_tensors;
    dr_dtype fixed_dtype, grown_dtype; /* of their elements; DR_F32 where there are none */
    char rule[4096];                   /* as JSON; empty: of a model without recurrent layers */
} dr_model_state_file;

/* Reads that without the model, and computes the checksum anew. positions [most], or NULL where most is 0: of the first
 * sequences. DR_ERROR_FORMAT if the file is damaged or no such file, DR_ERROR_IO if it cannot be read. */
DR_API dr_status dr_model_state_file_about(const char *file, dr_model_state_file *about, dr_position *positions, int64_t most);

/* A call's tokens, and where to predict. All in host memory. */
typedef struct {
    dr_layout layout;
    const int32_t *ids;       /* [rows], 0 <= id < vocabulary */
    int64_t targets;          /* positions at which the next token is predicted */
    const int64_t *positions; /* [targets] rows, rising; NULL: targets = rows, all of them */
    const int32_t *labels;    /* [targets] */
} dr_batch;

/* A session: the memory of calls over one model, which grows with their sizes and is kept. */
typedef struct dr_session dr_session;
DR_API dr_status dr_session_create(const dr_model *model, dr_session **session);
DR_API void dr_session_destroy(dr_session *session);                /* NULL is allowed */
DR_API const dr_model *dr_session_model(const dr_session *session); /* NULL of NULL */

/* Sum over targets of the cross-entropy in nats, and how many were predicted right (hits may be NULL). state: carried in and
 * out, NULL: from zero. per_target: [targets] losses, or NULL. per_hit: [targets] 0 or 1, or NULL. */
DR_API dr_status dr_session_loss(dr_session *session, const dr_batch *batch, dr_model_state *state, double *loss, int64_t *hits,
                                 double *per_target, uint8_t *per_hit);

/* The same from zero state, and adds factor times the gradient of the summed loss to a block of gradients
 * (dr_model_gradients_create). loss and hits may be NULL: with neither, nothing waits for the backend to compute them. */
DR_API dr_status dr_session_gradient(dr_session *session, const dr_batch *batch, double factor, void *gradients, double *loss,
                                     int64_t *hits);
/* Loss and hits of the last call of the two above; NULL: not wanted. */
DR_API dr_status dr_session_result(const dr_session *session, double *loss, int64_t *hits);

/* Losses of the layers' own in the last gradient, summed over the layers, which are no part of its loss: mixtures of experts
 * have one for being used evenly, times its factor. 0 without any, and after another call. A gradient with factor f is that of
 * f (loss + targets times this). */
DR_API dr_status dr_session_extra_loss(const dr_session *session, double *loss);

/* Logits [targets, vocabulary] (labels unused) into host memory as float or double by dtype. */
DR_API dr_status dr_session_logits(dr_session *session, const dr_batch *batch, dr_model_state *state, dr_dtype dtype,
                                   void *logits);

/* One token for each of the state's sequences through the decode engine; logits [sequences, vocabulary] float in host memory.
 */
DR_API dr_status dr_model_step(const dr_model *model, const int32_t *ids, dr_model_state *state, float *logits);

#ifdef __cplusplus
}
#endif
#endif
