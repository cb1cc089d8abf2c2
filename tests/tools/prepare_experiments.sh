#!/bin/sh
# The data of experiments in their small form: what tools/prepare-experiments makes is what the experiment of needles asks for; and
# runs as TensorBoard's event files, where that package is installed.
# Usage: prepare_experiments.sh SOURCE DELTARULE
set -eu
export LC_ALL=C
source=$1 deltarule=$2
command -v python3 >/dev/null || { echo 'skipped: python3 is not installed'; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*"; exit 1; }

"$source/tools/prepare-experiments" --small data "$source/docs/papers.md" "$source/docs/training.md" "$source/docs/tasks.md" >said ||
    fail 'no small data'
for name in single_1 single_2 single_3 look_up; do [ -s "data/tasks/$name-1024.jsonl" ] || fail "no items of $name"; done
for name in probe.txt mixture.json; do [ -s "data/$name" ] || fail "no $name"; done
grep -q 'The special magic number for .* mentioned in the provided text is [0-9]*$' data/documents/documents.txt ||
    fail 'documents to learn from do not have answers'
grep -hoE 'is: [0-9]{7}' data/tasks/single_1-1024.jsonl | sort -u >asked
grep -hoE 'is: [0-9]{7}' data/documents/documents.txt | sort -u >learned
[ -s asked ] || fail 'no numbers are asked for'
[ -z "$(comm -12 asked learned)" ] || fail 'numbers that are asked for were learned'
! "$source/tools/prepare-experiments" >said 2>&1 || fail 'a folder is not asked for'
! "$source/tools/prepare-experiments" --small other >said 2>&1 || fail 'texts are not asked for'

sed 's/"steps": 100/"steps": 2/' "$source/experiments/needles.json" >needles.json
"$deltarule" experiment needles.json --small --corpus data/mixture.json --tasks data/tasks --out run --most 1 --jobs 1 >said 2>&1 ||
    { cat said; fail 'the experiment does not run on it'; }
grep -q '"look_up-1024:items":10' run/cells.jsonl || fail 'its models are not asked'

! "$source/tools/to-tensorboard" data/tasks logs >said 2>&1 || fail 'a folder without runs is taken'
grep -q 'there is no metrics.csv' said || fail 'that no run is there is not said'
if python3 -c 'import tensorboard.summary' 2>/dev/null; then
    "$source/tools/to-tensorboard" run logs >said || fail 'no event files'
    grep -q 'rule=gdn,seed=1: [1-9][0-9]* numbers' said || fail 'no numbers in them'
    ls logs/*/events* >/dev/null || fail 'no event file'
else
    ! "$source/tools/to-tensorboard" run logs >said 2>&1 || fail 'it needs no package'
    grep -q 'the Python package tensorboard is needed' said || { cat said; fail 'the package is not named'; }
fi

# a page of what is recorded
short='{"steps": 3, "evaluate_every": 0}'
(cd "$source" && "$deltarule" experiment groups --small --settings "$short" --most 1 --out "$work/groups" --results "$work/results" \
    --machine 'a test') >said 2>&1 || { cat said; fail 'no result is recorded'; }
mkdir page
"$source/tools/tell-experiments" --deltarule "$deltarule" --results "$work/results" --to "$work/page" -- --small --settings "$short" >said ||
    fail 'no page of recorded results'
grep -q 'full.md: 1 experiments' said || fail 'the page has not one experiment'
grep -q '^- 1 of 8 runs, a test, cpu, float32; deltarule ' page/full.md || fail 'the page does not say where the run was'
grep -q '^| one | \[0, 1\] | 1 of 2 | 0[.0-9]* | 3 |$' page/full.md || { cat page/full.md; fail 'the page has no row of the run'; }
grep -q '^not run: two steps with beta in \[0, 2\] solve S3 (accuracy)$' page/full.md || fail 'the page has no verdicts'
