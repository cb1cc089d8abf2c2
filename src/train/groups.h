/* Groups of parameters that the optimizer treats differently, from a text:
 *
 *     PATTERN KEY=VALUE ..; PATTERN KEY=VALUE ..
 *
 * A pattern is the name of a parameter in model.safetensors, in which * stands for any characters. Keys are rate, a factor of
 * the learning rate; decay, in place of weight_decay; optimizer, adamw or muon. Of several patterns that a name fits, a later
 * one goes before an earlier one, key by key. */
#ifndef DR_TRAIN_GROUPS_H
#define DR_TRAIN_GROUPS_H

#include "nn/model.h"

enum { DR_MOST_GROUPS = 32 };

typedef struct {
    const char *pattern;
    bool has_rate, has_decay, has_optimizer; /* whether the key is there */
    double rate, decay;
    bool muon;
} dr_group;

typedef struct {
    char *text; /* cut into words, to which patterns point */
    dr_group at[DR_MOST_GROUPS];
    int count;
} dr_groups;

/* How one parameter is updated. */
typedef struct {
    double rate, decay;
    bool muon;
} dr_treatment;

/* DR_ERROR_ARGUMENT tells what cannot be read. Release it, also after a failure. */
dr_status dr_groups_parse(const char *text, dr_groups *groups);
void dr_groups_release(dr_groups *groups);

/* Whether Muon can update it: a matrix, or a stack of them, that is no filter of a convolution. *rows, *columns: of one matrix.
 */
bool dr_is_matrix(const dr_parameter *parameter, int64_t *rows, int64_t *columns);

/* Of each parameter [dr_model_parameters]. muon: matrices have Muon where no group says another, but for the embedding and the
 * head. DR_ERROR_ARGUMENT for a pattern that fits no parameter, and for a group with Muon that has no matrix. */
dr_status dr_groups_treat(const dr_groups *groups, const dr_model *model, double decay, bool muon, dr_treatment *treatments);

#endif
