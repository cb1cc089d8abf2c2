#!/bin/sh
# Runs the programs of examples/. Training takes the texts of CORPUS, generation the model that it made.
# Usage: examples.sh CORPUS RECURRENCE STATE TRAINING GENERATION KEPT_STATE
set -eu
[ $# -eq 6 ] || { echo "examples.sh: $# arguments instead of 6" >&2; exit 2; }
corpus=$1 recurrence=$2 state=$3 training=$4 generation=$5 kept_state=$6
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

expect() { # expect FILE TEXT: the file has a line with the text
    grep -qF "$2" "$1" || { echo "not found: $2"; cat "$1"; exit 1; }
}
"$recurrence" >"$work/recurrence.txt" || { cat "$work/recurrence.txt"; exit 1; }
expect "$work/recurrence.txt" 'all as expected'

"$state" "$work/state.safetensors" >"$work/state.txt" || { cat "$work/state.txt"; exit 1; }
[ -s "$work/state.safetensors" ] || { echo 'state saved nothing'; exit 1; }
rm -r "$work/state.safetensors"
mkdir "$work/state.safetensors"
! "$state" "$work/state.safetensors" >"$work/refused.txt" 2>&1 || { echo 'state did not fail where it cannot save'; exit 1; }
expect "$work/refused.txt" 'state: '

"$training" "$corpus" "$work/run" 20 >"$work/training.txt" || { cat "$work/training.txt"; exit 1; }
expect "$work/training.txt" 'taken up again'
expect "$work/training.txt" 'step  20'
expect "$work/training.txt" 'held-out text: '

"$generation" "$work/run" '/* ' 40 >"$work/generation.txt" || { cat "$work/generation.txt"; exit 1; }
LC_ALL=C grep -qa '^the likeliest: /\* ' "$work/generation.txt" || { echo 'no text by hand'; exit 1; }
[ "$(wc -c <"$work/generation.txt")" -ge 80 ] || { echo 'generation made too little'; exit 1; }
! "$generation" "$work/none" >"$work/refused.txt" 2>&1 || { echo 'generation did not fail without a model'; exit 1; }
expect "$work/refused.txt" 'generation: '

"$kept_state" "$work/prefixes" >"$work/kept_state.txt" || { cat "$work/kept_state.txt"; exit 1; }
expect "$work/kept_state.txt" 'turn 4: 740 tokens to go on from, 140 of them computed'
"$kept_state" "$work/prefixes" >"$work/kept_state.txt" || { cat "$work/kept_state.txt"; exit 1; }
expect "$work/kept_state.txt" 'turn 4: 740 tokens to go on from, 12 of them computed'
