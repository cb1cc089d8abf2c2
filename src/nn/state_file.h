/* A model's state as a file, with what a store of prefixes keeps beside it. */
#ifndef DR_NN_STATE_FILE_H
#define DR_NN_STATE_FILE_H

#include "formats/safetensors.h"
#include "nn/state.h"

/* Of the model whose identity is known. ids [count] of the one sequence that there is, or NULL: they are not in the file. */
dr_status dr_state_file_write(const dr_model_state *state, uint64_t identity, const int32_t *ids, int64_t count,
                              const char *file);
/* Whether an opened file is such a state, of that model; its checksum is not looked at. ids: a copy in host memory, to be
 * released, or NULL where there are none; sequence: of the first one. */
dr_status dr_state_file_peek(const dr_safetensors *file, uint64_t identity, int32_t **ids, dr_position *sequence);
dr_status dr_state_file_read(const dr_model *model, uint64_t identity, const char *file, dr_model_state **state);

#endif
