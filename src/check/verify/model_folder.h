/* A model's folder with `expected.safetensors`, what the model's own class computes: logits of two sequences, their loss, and
 * the likeliest tokens behind two prompts. It is computed in every way in which tokens may come. */
#ifndef DR_VERIFY_MODEL_FOLDER_H
#define DR_VERIFY_MODEL_FOLDER_H

#include <deltarule/backend.h>
#include <stdbool.h>

typedef enum {
    DR_WAY_WHOLE,  /* all tokens in one call */
    DR_WAY_STEPS,  /* one token a call */
    DR_WAY_PARTS,  /* the first half, then the rest */
    DR_WAY_PACKED, /* a part of each sequence, of unlike lengths, packed in one call; then one token a call */
    DR_WAYS
} dr_way;

extern const char *const dr_way_names[DR_WAYS];

typedef struct {
    double logits[DR_WAYS];  /* relative L2 error over all positions */
    double loss;             /* relative error of the mean loss, of whole sequences */
    int64_t greedy, matched; /* tokens recorded, 0: none; of them the first that are the same */
    double logits_most, loss_most;
    bool passed;
} dr_model_result;

/* Whether a folder is such a one. */
bool dr_is_model_folder(const char *folder);

/* DR_ERROR_UNSUPPORTED if the model needs what is not built; DR_ERROR_FORMAT, DR_ERROR_IO if a file cannot be read. */
dr_status dr_model_folder_check(dr_backend *backend, const char *folder, dr_model_result *result);

#endif
