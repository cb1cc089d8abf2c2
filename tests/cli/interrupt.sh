#!/bin/sh
# Signals and kills: a run that was stopped goes on to the same model as one that never was, and no moment of a kill leaves
# anything half-written.
. "$(dirname "$0")/expect.sh"
make_corpus
tiny='--corpus corpus --hidden 32 --layers 1 --heads 2 --intermediate 32 --batch 2 --seq-len 32 --evaluate-every 0 --threads 1'

# run FOLDER ARGUMENTS...: starts `train` in the background and waits until it has begun to train.
run() {
    folder=$1
    shift
    : >stdout # the child empties it too, but perhaps after the first look
    "$deltarule" train "$@" >stdout 2>stderr &
    process=$!
    for _ in $(seq 400); do
        if grep -q '^step' stdout; then return; fi
        kill -0 $process 2>/dev/null || fail "the run in $folder ended before it could be stopped"
        sleep 0.02
    done
    fail "the run in $folder makes no step"
}
finish() {
    ended=0
    wait $process || ended=$?
}
# step, loss, bits per byte, learning rate and norm of the gradient, without times
losses() { cut -d, -f1-5 "$1/metrics.csv"; }
whole_again() {
    [ "$(losses whole)" = "$(losses "$1")" ] || fail "$1 had other losses than a whole run"
    cmp whole/model.safetensors "$1/model.safetensors" || fail "$1 is another model than that of a whole run"
}

steps=2000
# shellcheck disable=SC2086 # a list of words, here and below
expect 0 'model: whole' "$deltarule" train $tiny --steps $steps --save-every 0 --out whole
for signals in INT TERM 'INT INT'; do
    rm -rf stopped
    # shellcheck disable=SC2086
    run stopped $tiny --steps $steps --save-every 0 --out stopped
    for signal in $signals; do kill -s "$signal" $process 2>/dev/null || true; done
    finish
    [ $ended -eq 130 ] || fail "status $ended after signals $signals"
    [ "$signals" = 'INT INT' ] || grep -q 'train --resume stopped' stderr || fail 'no word on how to continue'
    expect 0 'model: stopped' "$deltarule" train --resume stopped --threads 1
    whole_again stopped
done

# Kills without warning while a checkpoint is written after every step. What is there afterwards can be loaded and goes on.
steps=600
# shellcheck disable=SC2086
expect 0 'model: again' "$deltarule" train $tiny --steps $steps --save-every 0 --out again
rm -rf whole && mv again whole
# shellcheck disable=SC2086
run killed $tiny --steps $steps --save-every 1 --out killed
kills=0
for delay in 0.01 0.03 0.04 0.05 0.06 0.07 0.08 0.09; do
    sleep $delay
    kill -KILL $process 2>/dev/null && kills=$((kills + 1))
    finish
    [ ! -e killed/model.safetensors ] || expect 0 'x' "$deltarule" generate --model killed --prompt x --tokens 1
    [ $ended -ne 0 ] || break
    "$deltarule" train --resume killed --threads 1 >stdout 2>stderr &
    process=$!
done
finish
[ $kills -ge 4 ] || fail "the run was over after $kills kills"
expect 0 'model: killed' "$deltarule" train --resume killed --threads 1
whole_again killed
