#!/bin/sh
# A sweep of small runs: begun, told of while it runs, killed at any moment, gone on with, and what comes out is the same.
. "$(dirname "$0")/expect.sh"

# Whether a command comes to hold within a minute.
comes() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || return 1
        sleep 0.05
    done
}

cat >tiny.json <<'JSON'
{"title": "A tiny sweep", "source": "a test", "seeds": 2, "measures": ["held_out_loss", "accuracy"], "best_of": ["learning_rate"],
 "settings": {"task": "mqar", "lengths": "16/2", "hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "vocabulary": 128,
   "held_out": 16, "batch": 4, "steps": 60, "save_every": 5, "evaluate_every": 0, "stop_accuracy": 0},
 "grid": {"rule": ["gdn", "kda"], "learning_rate": [0.001, 0.01]},
 "claims": [{"text": "kda is better", "measure": "held_out_loss", "better": "lower", "axis": "rule", "order": ["kda", "gdn"]}]}
JSON

expect 0 'runs' "$deltarule" experiment --list
cp stdout list
for file in "$root"/experiments/*.json; do
    grep -q "^$(basename "$file" .json) " list || fail "--list does not name $file"
    expect 0 'not run: ' "$deltarule" experiment "$file" --table --out nowhere
    expect 0 'not run: ' "$deltarule" experiment "$file" --table --small --out nowhere
done
[ ! -e nowhere ] || fail '--table made a folder'

# one, then the rest
expect 0 'gdn   0.001          1/2' "$deltarule" experiment tiny.json --out whole --most 1 --jobs 1
grep -q 'not run: kda is better' stdout || fail 'a claim is judged by one of its runs'
expect 0 'gdn   0.001          2/2' "$deltarule" experiment tiny.json --out whole --jobs 2
cp stdout table
for name in table.txt table.csv cells.jsonl picture.gp; do [ -s "whole/$name" ] || fail "no $name"; done
diff table whole/table.txt || fail 'table.txt is another table'
[ "$(wc -l <whole/cells.jsonl)" -eq 9 ] || fail 'cells.jsonl does not have eight cells and a claim'
! command -v gnuplot >/dev/null || [ -s whole/picture.png ] || fail 'no picture'
# the first seed of every point goes before the second of any; judged by it where that is asked for
expect 0 'gdn   0.01           1/2' "$deltarule" experiment tiny.json --out part --most 4
grep -q 'not run: kda is better' stdout || fail 'a claim is judged by one of its seeds'
expect 0 ', by 1 of 2 seeds' "$deltarule" experiment tiny.json --out part --table --partial
grep -q 'kda is better (held_out_loss); so far 1 of 1 comparisons, by 1 or more of 2 seeds' stdout || fail 'a part counts as the whole'
expect 0 'kda   0.01           0/1' "$deltarule" experiment tiny.json --out seventeen --table --seeds 1 --settings '{"steps": 17}'
expect 0 'kda   0.01           1/1' "$deltarule" experiment tiny.json --out seventeen --seeds 1 --settings '{"steps": 17}' \
    --only '{"rule": ["kda"], "learning_rate": ["0.01"]}'
[ "$(tail -n 1 seventeen/rule=kda,learning_rate=0.01,seed=1/metrics.csv | cut -d, -f1)" -eq 17 ] || fail 'the run has other steps'
expect 2 'the experiment has 18' "$deltarule" experiment tiny.json --out seventeen --settings '{"steps": 18}'
! grep -q 'A tiny sweep' stdout || fail 'a sweep that is refused tells a table'
touch file
expect 1 'file/below: cannot make the folder: Not a directory' "$deltarule" experiment tiny.json --out file/below
if [ -s stdout ] || [ "$(wc -l <stderr)" -ne 1 ]; then fail 'a folder that cannot be made is told twice, or with a table'; fi
expect 2 '--out: file is not a folder' "$deltarule" experiment tiny.json --out file --table
for flag in out results machine text tasks; do
    expect 2 "--$flag is empty" "$deltarule" experiment tiny.json --$flag '' --most 1
done
expect 2 'no axis of the grid' "$deltarule" experiment tiny.json --out seventeen --only '{"rul": []}'
expect 2 'choose among its values' "$deltarule" experiment tiny.json --out seventeen --settings '{"rule": "kda"}'
# settings that no run takes, alone or with the others, and those that the command sets itself
expect 2 'gdn,learning_rate=0.001,seed=1: hidden is 17 and heads is 2' "$deltarule" experiment tiny.json --out never --settings '{"hidden": 17}'
expect 2 'gdn,learning_rate=0.001,seed=1: 20 pairs do not fit' "$deltarule" experiment tiny.json --out never --settings '{"lengths": "16/20"}'
expect 2 'seed is no setting of an experiment' "$deltarule" experiment tiny.json --out never --settings '{"seed": 7}'
expect 2 'threads is no setting of an experiment' "$deltarule" experiment tiny.json --out never --settings '{"threads": 2}'
[ ! -e never ] || fail 'settings that no run takes make a folder'

# what is recorded counts elsewhere and is not run again; what gets done is added; another form is not taken for it
expect 0 'recorded: 3 of 8 runs, a machine, cpu, float32; deltarule ' "$deltarule" experiment tiny.json --out here --most 3 --jobs 2 \
    --results recorded --machine 'a machine'
[ "$(wc -l <recorded/tiny.jsonl)" -eq 3 ] || fail 'not three results are recorded'
expect 0 '' "$deltarule" experiment tiny.json --out there --results recorded --machine 'another one'
grep -q '^recorded: 3 of 8 runs, a machine, ' stdout || fail 'what was recorded was run again'
grep -q '^recorded: 5 of 8 runs, another one, ' stdout || fail 'what was run is not recorded'
grep -v '^recorded: ' stdout >told
diff told table || fail 'of recorded results the table is another one'
[ "$(find there -name metrics.csv | wc -l)" -eq 5 ] || fail 'not five runs were left'
before=$(cksum <recorded/tiny.jsonl)
expect 0 'kda is better' "$deltarule" experiment tiny.json --out nowhere --table --json --results recorded
cp stdout of_records
expect 0 'kda is better' "$deltarule" experiment tiny.json --out nowhere --table --results recorded --settings '{"steps": 17}'
grep -q '^kda   0.01           0/2 ' stdout || fail 'results of other settings count'
if [ -e nowhere ] || [ "$before" != "$(cksum <recorded/tiny.jsonl)" ]; then fail '--table writes'; fi
expect 0 'kda is better' "$deltarule" experiment tiny.json --out drawn/of/records --table --picture --results recorded
[ -s drawn/of/records/picture.gp ] || fail 'no picture of recorded results where there is no folder of runs'
expect 2 'no folder of recorded results recorder' "$deltarule" experiment tiny.json --table --results recorder
expect 0 'recorded: 5 of 8 runs' "$deltarule" experiment tiny.json --out whole --results recorded
[ "$before" = "$(cksum <recorded/tiny.jsonl)" ] || fail 'what is recorded was recorded again'
echo '{"cell": 5}' >>recorded/tiny.jsonl
expect 1 'recorded/tiny.jsonl, line 9: the key "settings" is missing' "$deltarule" experiment tiny.json --out whole --results recorded
[ ! -s stdout ] || fail 'a sweep whose records cannot be read tells a table'
[ "$(wc -l <recorded/tiny.jsonl)" -eq 9 ] || fail 'something was added to results that cannot be read'

# each of two runs sees a GPU of its own
sed 's/"steps": 60/"steps": 4000/' tiny.json >long.json
CUDA_VISIBLE_DEVICES=7,GPU-5 "$deltarule" experiment long.json --out gpus --jobs 2 --gpus 2 >/dev/null 2>&1 &
process=$!
seen() {
    read -r children <"/proc/$process/task/$process/children" || true
    for child in $children; do
        tr '\0' '\n' <"/proc/$child/environ" | grep '^CUDA_VISIBLE_DEVICES='
    done 2>/dev/null | sort | tr '\n' ' '
}
each_sees_one() { [ "$(seen)" = 'CUDA_VISIBLE_DEVICES=7 CUDA_VISIBLE_DEVICES=GPU-5 ' ]; }
spread=yes
comes each_sees_one || spread=
kill -9 $process
wait $process 2>/dev/null || true
[ "$spread" ] || fail 'the runs are not spread over the GPUs'
expect 2 'CUDA_VISIBLE_DEVICES (3) leaves 1 visible' env CUDA_VISIBLE_DEVICES=3 "$deltarule" experiment long.json --out gpus --gpus 2

before=$(find whole -name metrics.csv -exec cksum {} + | sort)
expect 0 '2/2' "$deltarule" experiment tiny.json --out whole
[ "$before" = "$(find whole -name metrics.csv -exec cksum {} + | sort)" ] || fail 'what was done was run again'

# killed again and again: it ends, its runs with it, and the numbers are those of the whole
tries=0
while [ $tries -lt 15 ]; do
    tries=$((tries + 1))
    "$deltarule" experiment tiny.json --out killed --jobs 2 >/dev/null 2>killed.log &
    process=$!
    sleep "0.$((tries % 5 + 1))"
    kill -9 $process 2>/dev/null || break
    wait $process 2>/dev/null || true
    expect 0 'kda' "$deltarule" experiment tiny.json --out killed --table
done
expect 0 '2/2' "$deltarule" experiment tiny.json --out killed --jobs 2
diff table stdout || fail 'after kills the table is another one'

# a run that fails does not stop the others
sed 's/"learning_rate": \[0.001, 0.01\]/"from": {"a model": {"init": "nowhere"}, "nothing": {}}/; s/"best_of": \[[^]]*\], *//; s/"seeds": 2/"seeds": 1/' \
    tiny.json >failing.json
expect 1 'failed: ' "$deltarule" experiment failing.json --out failing --jobs 1
grep -q 'gdn *nothing *1/1' stdout || fail 'the other runs were not done'

# a run that is killed, as by a kernel without memory, is told by its signal
"$deltarule" experiment long.json --out slain --jobs 1 --most 1 >slain.out 2>slain.err &
process=$!
child=
has_child() {
    read -r child _ <"/proc/$process/task/$process/children" || true # it ends without a line's end
    [ "$child" ]
}
comes has_child || fail 'no run begins'
kill -9 "$child"
if wait $process; then fail 'a run was killed, and the command says that all is well'; fi
grep -q 'failed: it .*ended by signal 9, Killed' slain.err || fail "a killed run is told as: $(cat slain.err)"

expect 1 'holds a run with hidden 16, and the experiment has 32' sh -c \
    "sed 's/\"hidden\": 16/\"hidden\": 32/' tiny.json >other.json; '$deltarule' experiment other.json --out whole; exit \$((\$? - 1))"
expect 2 "did you mean 'recall'?" "$deltarule" experiment recal
# what no run could compute with is told once and makes no folder
expect 2 'backend "cpu" has no dtype to choose' "$deltarule" experiment tiny.json --out never --dtype bf16
[ "$(wc -l <stderr)" -eq 1 ] || fail 'a type of numbers that there is not is told by each run'
if "$deltarule" info | grep -q 'backend cuda (not in this build'; then
    expect 1 'has no backend "cuda"' "$deltarule" experiment tiny.json --out never --backend cuda
fi
[ ! -e never ] || fail 'a sweep that is refused makes a folder'
expect 2 'which experiment?' "$deltarule" experiment
sed 's/^ "claims"/ "small": {"seeds": 1, "settings": {"steps": 2}}, "claims"/' tiny.json >formed.json
expect 0 'gdn   0.001          1/1' "$deltarule" experiment formed.json --small --most 1 --jobs 1
[ -d runs/experiment-formed-small ] || fail 'the small form has no folder of its own'
expect 2 'no small form' "$deltarule" experiment tiny.json --small
expect 2 '--json and --csv' "$deltarule" experiment tiny.json --json --csv
expect 1 'no.json' "$deltarule" experiment no.json
expect 0 'rule,learning_rate,done,seeds' "$deltarule" experiment tiny.json --out whole --table --csv
expect 0 '"verdict":' "$deltarule" experiment tiny.json --out whole --table --json

# no more runs at once than this process has cores
first=$(taskset -pc $$ | sed 's/.*: //; s/[-,].*//')
taskset -c "$first" "$deltarule" experiment long.json --out cores >/dev/null 2>&1 &
process=$!
children() { wc -w <"/proc/$process/task/$process/children"; }
child=
comes has_child || fail 'no run begins on one core'
sleep 0.3
began=$(children)
kill -9 $process
wait $process 2>/dev/null || true
[ "$began" -eq 1 ] || fail "$began runs at once on one core"
