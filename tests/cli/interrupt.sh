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
    for _ in $(seq 3000); do
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

steps=${DELTARULE_INTERRUPT_STEPS:-2000}
# shellcheck disable=SC2086 # a list of words, here and below
expect 0 'model: whole' "$deltarule" train $tiny --steps $steps --save-every 0 --out whole
for signals in INT TERM HUP 'INT INT'; do
    rm -rf stopped
    # shellcheck disable=SC2086
    run stopped $tiny --steps $steps --save-every 0 --out stopped
    for signal in $signals; do kill -s "$signal" $process 2>/dev/null || true; done
    finish
    [ $ended -eq 130 ] || fail "status $ended after signals $signals"
    if [ "$signals" != 'INT INT' ]; then
        tail -1 stderr | grep -Eq "stopped after step [0-9]+ of $steps; .* deltarule train --resume stopped$" ||
            fail 'the last line does not say the step and how to go on'
        step=$(sed -n 's/.*after step \([0-9]*\) of.*/\1/p' stderr)
        [ "$(tail -1 stopped/metrics.csv | cut -d, -f1)" -eq "$step" ] || fail "another step than $step was the last"
        [ ! -e stopped/.lock ] || fail 'a run that was stopped left its lock'
    fi
    expect 0 'model: stopped' "$deltarule" train --resume stopped --threads 1
    whole_again stopped
done

# Kills without warning while a checkpoint is written after every step. What is there afterwards can be loaded and goes on.
steps=$((steps * 3 / 10))
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

# Under nohup a terminal that is closed stops nothing.
# shellcheck disable=SC2086
(trap '' HUP; exec "$deltarule" train $tiny --steps 100000 --save-every 0 --out hung >stdout 2>stderr) &
process=$!
for _ in $(seq 3000); do
    if grep -q '^step' stdout; then break; fi
    sleep 0.02
done
kill -HUP $process
sleep 0.3
kill -TERM $process 2>/dev/null || fail 'SIGHUP stopped a run that ignores it'
finish
[ $ended -eq 130 ] || fail "status $ended"

# A command line that another shell can take back, whatever the folder is called.
# shellcheck disable=SC2086
run "it's mine" $tiny --steps 100000 --save-every 0 --out "it's mine"
kill -TERM $process
finish
command=$(sed -n "s/.*continue with: deltarule/'$(printf '%s' "$deltarule" | sed 's/[&/\]/\\&/g')'/p" stderr)
expect 2 'already' sh -c "$command --steps 1"

# A run folder that is removed or moved, and its lock, while the run goes on: a sentence and status 1, and nothing is made anew.
for harm in 'rm -rf gone' 'mv gone moved' 'rm gone/.lock'; do
    rm -rf gone moved
    # shellcheck disable=SC2086
    run gone $tiny --steps 100000 --save-every 50 --out gone
    until $harm 2>/dev/null; do :; done # a file may appear while the folder is being removed
    finish
    [ $ended -eq 1 ] || fail "status $ended after $harm"
    grep -q 'while the run went on' stderr || fail "no sentence after $harm"
    case $harm in rm*lock) ;; *) [ ! -e gone ] || fail "the folder was made again after $harm" ;; esac
done

# Kills while a run begins: the next one with the same name finds a whole run or a folder that it may have.
for delay in 0 0.01 0.02 0.03 0.04 0.05 0.06 0.08 0.1 0.12; do
    rm -rf begun
    # shellcheck disable=SC2086
    "$deltarule" train $tiny --steps 100000 --save-every 1 --out begun >stdout 2>stderr &
    process=$!
    sleep $delay
    kill -KILL $process 2>/dev/null || true
    finish
    if [ -e begun/settings.json ] || [ -e begun/.commit/settings.json ]; then
        steps=$(tail -1 begun/metrics.csv 2>/dev/null | cut -d, -f1)
        case $steps in *[!0-9]* | '') steps=0 ;; esac
        expect 0 'model: begun' "$deltarule" train --resume begun --steps $((steps + 3)) --threads 1
        [ "$(find begun/held_out -type f | wc -l)" -gt 0 ] || fail 'a run that began has no held-out files'
    else
        # shellcheck disable=SC2086
        expect 0 'model: begun' "$deltarule" train $tiny --steps 3 --out begun
    fi
    [ -z "$(find begun -name '.new-*' -o -name .commit -o -name .lock)" ] || fail 'something of a killed run was left'
done
