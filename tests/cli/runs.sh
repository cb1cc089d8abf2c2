#!/bin/sh
# train --runs: runs side by side are what each is alone. train --json: a line a step and nothing else.
. "$(dirname "$0")/expect.sh"
tiny='--task mqar --held-out 1 --vocabulary 16 --pairs 1 --stop-accuracy 0 --batch 1 --seq-len 8 --hidden 8 --steps 4 --save-every 2'

# shellcheck disable=SC2086 # a list of words, here and below
expect 0 '3 runs side by side: all/seed-5 to seed-7' "$deltarule" train $tiny --backend reference --runs 3 --seed 5 --out all
for seed in 5 6 7; do
    # shellcheck disable=SC2086
    expect 0 'model: alone' "$deltarule" train $tiny --backend reference --seed $seed --out alone-$seed
    cmp alone-$seed/model.safetensors all/seed-$seed/model.safetensors || fail "seed $seed is another run beside others"
    [ "$(cut -d, -f1-5 alone-$seed/metrics.csv)" = "$(cut -d, -f1-5 all/seed-$seed/metrics.csv)" ] ||
        fail "seed $seed has other losses beside others"
done
cmp -s all/seed-5/model.safetensors all/seed-6/model.safetensors && fail 'two seeds make one model'

# What cannot be is said.
# shellcheck disable=SC2086
expect 1 'backend "cpu" has all processors to itself' "$deltarule" train $tiny --runs 2 --out none
[ ! -e none ] || fail 'runs that cannot be have left a folder'
# shellcheck disable=SC2086
expect 1 'seed 6: all/seed-6 holds a run already' "$deltarule" train $tiny --backend reference --runs 2 --seed 6 --out all
expect 2 'leave out --resume' "$deltarule" train --resume alone-5 --runs 2

# shellcheck disable=SC2086
"$deltarule" train $tiny --json --out told >lines || fail 'train --json fails'
[ "$(wc -l <lines)" -eq 4 ] || fail 'not one line a step'
[ "$(grep -c '^{"step": [1-4], "steps": 4, "skipped": 0, "bytes": [0-9]*, "loss": [0-9.]*, .*"mfu": null}$' lines)" -eq 4 ] ||
    fail "other lines: $(head -n 1 lines)"
