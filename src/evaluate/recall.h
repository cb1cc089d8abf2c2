/* Associative recall in the memory of a session: what dr_score_recall does with one of its own, and training with the run's. */
#ifndef DR_EVALUATE_RECALL_H
#define DR_EVALUATE_RECALL_H

#include <deltarule/evaluate.h>

/* As dr_score_recall; options must be given. */
dr_status dr_score_recall_in(dr_session *session, const dr_recall_options *options,
                             bool (*progress)(void *context, int64_t done, int64_t total), void *context,
                             dr_recall_score *score);

#endif
