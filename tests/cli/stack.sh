#!/usr/bin/env bash
# Stacks smaller than usual, of the program and of OpenMP's threads: every layer trains, to the bits that it has with large ones.
. "$(dirname "$0")/expect.sh"
make_corpus
small='--corpus corpus --layers 1 --heads 2 --hidden 64 --batch 2 --seq-len 48 --steps 2 --threads 2'

# Sanitizers put room around every variable of a frame.
stacks='256 128'
if grep -q __asan_init "$deltarule" || grep -q __tsan_init "$deltarule"; then stacks='2048 1024'; fi

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
    for stack in $stacks; do
        # shellcheck disable=SC2086
        expect 0 'model: small' with_stack $stack "$deltarule" train $small --rule "$rule" --out small
        cmp large/model.safetensors small/model.safetensors || fail "$rule with a stack of $stack KiB trains to other bits"
        rm -r small
    done
    rm -r large
done

# The other commands.
# shellcheck disable=SC2086
expect 0 'model: small' "$deltarule" train $small --out small
for command in 'theory linear qdelta.eq-26-decay' 'score --model small --corpus corpus' 'generate --model small --tokens 5' \
    "verify $root/tests/vectors/act_squash__T9.safetensors" 'info' 'rules' 'rules mesanet' \
    'bench op --tokens 64 --heads 1 --head-size 16 --repeats 1' 'bench decode --sequences 4 --repeats 1' \
    'bench train --hidden 32 --layers 1 --batch 1 --seq-len 32 --repeats 1' "train $small --dry-run" \
    'tokenizer train --corpus corpus --out tokens' 'tokenize --tokenizer tokens'; do
    # shellcheck disable=SC2086
    expect 0 '' with_stack ${stacks#* } "$deltarule" $command
done
