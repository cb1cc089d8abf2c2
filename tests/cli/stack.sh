#!/usr/bin/env bash
# Stacks smaller than usual, of the program and of OpenMP's threads: every layer trains, to the bits that it has with large ones.
. "$(dirname "$0")/expect.sh"
make_corpus
small='--corpus corpus --layers 1 --heads 2 --hidden 64 --batch 2 --seq-len 48 --steps 2 --threads 2'

# with_stack KIBIBYTES COMMAND ..
with_stack() (
    ulimit -s "$1"
    export OMP_STACKSIZE="$1k"
    shift
    "$@"
)

for rule in gdn kda retnet mamba2 mesanet; do
    # shellcheck disable=SC2086 # a list of words, here and below
    expect 0 'model: large' "$deltarule" train $small --rule "$rule" --out large
    for stack in 256 128; do
        # shellcheck disable=SC2086
        expect 0 'model: small' with_stack $stack "$deltarule" train $small --rule "$rule" --out small
        cmp large/model.safetensors small/model.safetensors || fail "$rule with a stack of $stack KiB trains to other bits"
        rm -r small
    done
    rm -r large
done
