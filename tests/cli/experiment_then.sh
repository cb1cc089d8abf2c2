#!/bin/sh
# What follows the runs of a sweep: probes, tasks and benchmarks in the same command, killed at any moment and gone on with; what
# is missing is told before a run begins, what fails by its name; runs that end early; several at once.
. "$(dirname "$0")/expect.sh"
make_corpus
printf 'line 5 of file a: the state is a matrix, and line 6 of file b is another one.\n' >text
mkdir tasks
for i in 1 2 3 4; do printf '{"prompt": "line %s of file", "answer": ["a", "zebra"]}\n' $i; done >tasks/lines-64.jsonl

cat >then.json <<'JSON'
{"title": "Runs and what follows them", "source": "a test", "seeds": 2, "jobs": 1, "curves": "loss",
 "measures": ["held_out_loss", "share of erase", "lines-64:found", "recurrence_forward_ms"],
 "settings": {"task": "lm", "hidden": 16, "layers": 2, "heads": 2, "intermediate": 16, "batch": 4, "seq_len": 32, "steps": 30, "save_every": 5,
   "evaluate_every": 0, "evaluate_tokens": 2048},
 "grid": {"rule": {
   "eda": {"rule": "eda", "then": [{"probe": "erase", "tokens": 24}, {"evaluate": "lines-64", "tokens": 4, "limit": 3}, {"bench": "op", "repeats": 1}]},
   "kda": {"rule": "kda", "then": [{"probe": "value", "tokens": 24}]}}},
 "claims": [{"text": "kda recalls", "measure": "recall at the write key", "axis": "rule", "order": ["kda", "eda"]},
   {"text": "it erases", "measure": "share of erase", "than": "share of erase, retention below 0.5", "axis": "rule", "of": ["eda"]}]}
JSON
sweep() { "$deltarule" experiment then.json --corpus corpus "$@"; }

# what is missing, before anything runs
expect 2 'give --tasks' sweep --out whole --text text
expect 2 'give --text' sweep --out whole --tasks tasks
expect 1 'none/lines-64.jsonl is missing' sweep --out whole --text text --tasks none
expect 2 'give --corpus' "$deltarule" experiment then.json --out whole --text text --tasks tasks
expect 1 'cannot read none, which runs of this experiment are probed on: No such file' sweep --out whole --text none --tasks tasks
expect 1 'cannot read the corpus none: No such file' "$deltarule" experiment then.json --out whole --text text --tasks tasks --corpus none
expect 1 'cannot read the tokenizer none: No such file' sweep --out whole --text text --tasks tasks --tokenizer none
[ "$(grep -c 'cannot read' stderr)" -eq 1 ] || fail 'what all runs lack is told more than once'
[ -z "$(find whole -name metrics.csv 2>/dev/null)" ] || fail 'a run has begun whose tasks are missing'

expect 0 'eda   2/2' sweep --out whole --text text --tasks tasks
cp stdout table
grep -q '^kda   2/2 ' stdout || fail 'kda is not done'
grep -q 'recalls (recall at the write key)' stdout || fail 'the claim of two probes is not told'
[ "$(grep -c '"cell":' whole/cells.jsonl)" -eq 4 ] || fail 'cells.jsonl does not have four cells'
grep -q '"share of erase, retention above 0.99\|"mean retention:layer 1":' whole/cells.jsonl || fail 'no figure of a layer'
grep -q '"lines-64:items":3' whole/cells.jsonl || fail 'not three items were asked'
grep -q "rule=kda,seed=2/metrics.csv' using 'step':'loss'" whole/picture.gp || fail 'the picture has no curve of a run'
for name in probe-erase evaluate-lines-64 bench-op; do [ -s "whole/rule=eda,seed=2/$name.json" ] || fail "no $name.json"; done
before=$(find whole -name '*.json' -path '*seed=*' -exec cksum {} + | sort)
expect 0 'eda   2/2' sweep --out whole --text text --tasks tasks
[ "$before" = "$(find whole -name '*.json' -path '*seed=*' -exec cksum {} + | sort)" ] || fail 'what was done was done again'

# a result that is lost is made again, and nothing else
rm 'whole/rule=kda,seed=1/probe-value.json'
expect 0 'kda   1/2' sweep --out whole --table
expect 0 'kda   2/2' sweep --out whole --text text --tasks tasks
diff table stdout || fail 'made again it is another table'
[ "$before" = "$(find whole -name '*.json' -path '*seed=*' -exec cksum {} + | sort)" ] || fail 'another result was made again'

# the picture at any time
rm -f whole/picture.gp whole/picture.png
expect 0 'eda   2/2' sweep --out whole --table --picture
[ -s whole/picture.gp ] || fail '--picture writes no commands'
! command -v gnuplot >/dev/null || [ -s whole/picture.png ] || fail '--picture draws none'
expect 2 '--picture is for --table' sweep --out whole --picture

# killed again and again, between its commands too; times differ, so their column is left out
tries=0
while [ $tries -lt 12 ]; do
    tries=$((tries + 1))
    sweep --out killed --text text --tasks tasks --jobs 2 >/dev/null 2>killed.log &
    process=$!
    sleep "0.$((tries % 5 + 1))"
    kill -9 $process 2>/dev/null || break
    wait $process 2>/dev/null || true
    expect 0 'kda' sweep --out killed --table
done
expect 0 'kda   2/2' sweep --out killed --text text --tasks tasks --jobs 2
numbers() { sed 's/ *[0-9.e-]* \[[^]]*\]$//' "$1"; }
numbers table >one
numbers stdout >other
diff one other || fail 'after kills the table is another one'

# what fails is told by its name, and the rest is done
echo '{"prompt": 5}' >tasks/lines-64.jsonl
expect 1 'evaluate of the run rule=eda,seed=1 failed: ' sweep --out failing --text text --tasks tasks --seeds 1
grep -q '^eda   0/1 ' stdout || fail 'a cell of which a task failed counts as done'
grep -q '^kda   1/1 ' stdout || fail 'the other runs were not done'
sed 's/{"rule": "kda", "then": \[{"probe": "value"/{"rule": "kda", "then": [{"probe": "erase"/' then.json >wrong.json
expect 1 'probe of the run rule=kda,seed=1 failed: deltarule probe: probe erase: no layer of the model has' \
    "$deltarule" experiment wrong.json --corpus corpus --out wrong --text text --tasks tasks --seeds 1

# a run that has reached its accuracy ends early
cat >early.json <<'JSON'
{"title": "Runs that end early", "source": "a test", "seeds": 1, "measures": ["accuracy", "steps"],
 "settings": {"task": "mqar", "lengths": "16/2", "hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "held_out": 256, "batch": 8,
   "steps": 200, "evaluate_every": 20},
 "grid": {"stop": {"never": {"stop_accuracy": 0}, "at once": {"stop_accuracy": 0.01}}, "vocabulary": [24, 32]}}
JSON
expect 0 '' "$deltarule" experiment early.json --out early --csv --jobs 4
awk -F, '$1 == "never" && $8 == 200 {never++} $1 == "at once" && $8 < 200 {early++} END {exit !(never == 2 && early == 2)}' stdout ||
    fail 'runs do not end early'
