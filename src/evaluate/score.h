/* Scoring documents that are in memory already: what dr_score_files does after reading, and what training does to held-out
 * text. */
#ifndef DR_EVALUATE_SCORE_H
#define DR_EVALUATE_SCORE_H

#include "data/corpus.h"

#include <deltarule/evaluate.h>

/* As dr_score_files, but a loss that is not finite is no failure. most: so many tokens, from the beginning of each document by
 * its share of the text; 0: all. */
dr_status dr_score_documents(dr_session *session, const dr_documents *documents, int64_t most, const dr_score_options *options,
                             dr_score *score);

#endif
