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
    got=0
    wait $process || got=$?
}
whole_again() { cmp whole/model.safetensors "$1/model.safetensors" || fail "$1 is another model than the one of a whole run"; }

steps=2000
# shellcheck disable=SC2086 # a list of words, here and below
expect 0 'model: whole' "$deltarule" train $tiny --steps $steps --save-every 0 --out whole
for signals in INT TERM 'INT INT'; do
    rm -rf stopped
    # shellcheck disable=SC2086
    run stopped $tiny --steps $steps --save-every 0 --out stopped
    for signal in $signals; do kill -s "$signal" $process 2>/dev/null || true; done
    finish
    [ $got -eq 130 ] || fail "status $got after signals $signals"
    if [ "$signals" != 'INT INT' ]; then
        grep -q 'train --resume stopped' stderr || fail 'no word on how to continue'
        [ -s stopped/model.safetensors ] || fail "no checkpoint after signal $signals"
        expect 0 'model: stopped' "$deltarule" train --resume stopped
        whole_again stopped
    fi
done

# Kills without warning while a checkpoint is written after every step. What is there afterwards can be loaded and goes on.
steps=120
# shellcheck disable=SC2086
expect 0 'model: whole' "$deltarule" train $tiny --steps $steps --save-every 0 --out again
rm -rf whole && mv again whole
# shellcheck disable=SC2086
run killed $tiny --steps $steps --save-every 1 --out killed
kills=0
for delay in 0.01 0.02 0.03 0.04 0.05 0.06 0.07 0.08 0.09 0.10; do
    sleep $delay
    kill -KILL $process 2>/dev/null && kills=$((kills + 1))
    finish
    [ ! -e killed/model.safetensors ] || expect 0 'x' "$deltarule" generate --model killed --prompt x --tokens 1
    [ $got -ne 0 ] || break
    "$deltarule" train --resume killed >stdout 2>stderr &
    process=$!
done
finish
[ $kills -ge 2 ] || fail 'the run was over before it could be killed'
expect 0 'model: killed' "$deltarule" train --resume killed
whole_again killed
