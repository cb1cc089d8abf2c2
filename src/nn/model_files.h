/* The files of a model within a change of a folder, so that a checkpoint can publish them together with its own. */
#ifndef DR_NN_MODEL_FILES_H
#define DR_NN_MODEL_FILES_H

#include "formats/folder.h"
#include <deltarule/model.h>

/* Writes config.json and model.safetensors into a change begun with dr_folder_begin; the caller commits or abandons it. */
dr_status dr_model_write(const dr_model *model, dr_folder *change);

/* The same with weights of a floating type, in files of at most so many bytes but of one tensor at least; 0: one file. */
dr_status dr_model_write_as(const dr_model *model, dr_folder *change, dr_dtype dtype, int64_t file_bytes);

#endif
