#!/bin/sh
# The program of the property tests: one seed printed, a seed made smaller by steps, a range, and wrong arguments.
set -eu
properties=$1
fail() { echo "$1"; exit 1; }

# expect STATUS WORDS ARGUMENTS...
expect() {
    status=$1 words=$2 got=0
    shift 2
    output=$("$properties" "$@" 2>&1) || got=$?
    [ "$got" = "$status" ] || fail "status $got, not $status, for: $*: $output"
    case $output in
    *"$words"*) ;;
    *) fail "'$words' is not in what '$*' printed: $output" ;;
    esac
}

expect 0 'decay: ' --seed 5
expect 0 'seeds 5..5: 1 compositions hold, 0 fail' --seed 5
seed=1
until "$properties" --seed $seed | grep -q 'rows: 2;.*packing: ragged'; do seed=$((seed + 1)); done
expect 0 'rows: 1;' --seed $seed --shrink first_sequences,first_row,half_tokens
expect 0 'pairs of options are possible' --seeds 1..20
expect 0 'threads 4, isa avx512: ' --seeds 1..20 --pairs
expect 2 'a step that does nothing' --seed 5 --shrink no_such_step
expect 2 '--seed takes a number' --seed x
expect 2 '--seed takes a number' --seed
expect 2 '--seeds takes two numbers' --seeds 5
expect 2 '--seeds takes two numbers' --seeds 9..5
expect 2 '--seeds takes two numbers' --seeds -1..5
expect 2 '--shrink goes with --seed' --shrink half_tokens
expect 2 'unknown argument' --surely-not
