/* All of the library in one header. What holds it to results, to the papers and to the machine's limits is a library of its
 * own, deltarule_check, with the headers verify.h, theory.h, bench.h, experiment.h and probe.h. */
#ifndef DELTARULE_DELTARULE_H
#define DELTARULE_DELTARULE_H

#include <deltarule/backend.h>
#include <deltarule/chat.h>
#include <deltarule/conversation.h>
#include <deltarule/convert.h>
#include <deltarule/evaluate.h>
#include <deltarule/forms.h>
#include <deltarule/generate.h>
#include <deltarule/model.h>
#include <deltarule/plan.h>
#include <deltarule/pool.h>
#include <deltarule/prefill.h>
#include <deltarule/prefix.h>
#include <deltarule/recurrence.h>
#include <deltarule/rule.h>
#include <deltarule/sample.h>
#include <deltarule/shards.h>
#include <deltarule/state.h>
#include <deltarule/status.h>
#include <deltarule/tensor.h>
#include <deltarule/tokenizer.h>
#include <deltarule/train.h>

#endif
