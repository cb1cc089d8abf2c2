#!/bin/sh
# Weights in bf16 and int8 in every command that takes them, what they cost, guesses, and folders for other programs.
. "$(dirname "$0")/expect.sh"
make_corpus
expect 0 'model: run' "$deltarule" train --corpus corpus --hidden 32 --layers 1 --heads 2 --intermediate 32 --batch 4 --seq-len 64 \
    --steps 120 --threads 1 --out run
head -c 3000 corpus/a.txt >text
printf '{"context": "line 7 of file", "choices": ["a: the state", "zq"], "answer": 0}\n' >task.jsonl

# ---- types ----
for type in float32 bf16 int8; do
    expect 0 'line' "$deltarule" generate --model run --prompt 'line 4 ' --temperature 0 --tokens 30 --weights $type
    cp stdout text-$type
    expect 0 'bits_per_byte' "$deltarule" score --model run --corpus text --weights $type
    cp stdout score-$type
    expect 0 '"accuracy": 1' "$deltarule" evaluate run task.jsonl --weights $type --json
    printf 'line\n' | "$deltarule" chat run --tokens 5 --weights $type >chat-$type 2>stderr || fail "chat with $type"
    [ -s chat-$type ] || fail "chat with $type says nothing"
done
cmp -s score-float32 score-int8 && fail 'int8 scores as float32 does'
expect 0 'line' "$deltarule" generate --model run --prompt 'line 4 ' --temperature 0 --tokens 30
cmp stdout text-float32
expect 0 'line' "$deltarule" generate --model run --prompt 'line 4 ' --temperature 0 --tokens 30 --weights int8 --threads 2
cmp stdout text-int8
expect 2 'weights' "$deltarule" generate --model run --weights int4
expect 2 'no type of weights to choose' "$deltarule" generate --model run --backend cuda --weights bf16

# ---- what they cost ----
expect 0 'weights ' "$deltarule" score --model run --corpus text --compare
[ "$(awk '$1 == "float32" {print $4, $6}' stdout)" = '0.00e+00 1.00000' ] || fail 'float32 differs from itself'
awk '$1 == "float32" {whole = $2; bits = $3} $1 == "bf16" {half = $2; d = $4; a = $6} $1 == "int8" {quarter = $2; e = $4; b = $6; c = $3}
    END {exit !(half < whole && quarter < half && d > 0 && d < 1e-3 && e > 0 && e < 1e-2 && a > 0.9 && b > 0.9 && c - bits < 0.01)}' stdout ||
    fail 'bf16 and int8 cost something else'
expect 0 '"weights": "int8"' "$deltarule" score --model run --corpus text --compare --json
[ "$(wc -l <stdout)" = 3 ] || fail 'not three lines'
expect 2 'leave --weights' "$deltarule" score --model run --corpus text --compare --weights int8
expect 1 '' "$deltarule" score --model run --corpus corpus --compare

# ---- guesses ----
for how in '--temperature 0' '--temperature 1 --seed 5' '--temperature 0 --weights int8'; do
    # shellcheck disable=SC2086 # words
    {
        expect 0 'line' "$deltarule" generate --model run --prompt 'line 4 of file a' --tokens 90 $how
        cp stdout plain
        for draft in ngram run; do
            expect 0 'line' "$deltarule" generate --model run --prompt 'line 4 of file a' --tokens 90 $how --draft $draft --draft-tokens 6
            cmp stdout plain
            grep -q 'guessed: [0-9]* tokens, [0-9]* stayed' stderr || fail 'guesses are not counted'
        done
    }
done
expect 0 '"accepted": ' "$deltarule" generate --model run --prompt 'line 4 of file a' --tokens 9 --draft run --json
expect 2 'is for --draft' "$deltarule" generate --model run --draft-tokens 3
expect 1 'nowhere' "$deltarule" generate --model run --draft nowhere

# ---- folders ----
expect 0 'parameters in bf16' "$deltarule" convert run --to half
expect 0 'line' "$deltarule" generate --model half --prompt 'line 4 ' --temperature 0 --tokens 30
grep -q '| weights | BF16 |' half/README.md || fail 'the card does not tell the weights'
expect 0 'float32' "$deltarule" convert half --to whole --dtype float32
expect 0 '' "$deltarule" convert whole --to again --dtype bf16
cmp half/model.safetensors again/model.safetensors
expect 2 'has files already' "$deltarule" convert run --to half
expect 2 '--to' "$deltarule" convert run
expect 2 'dtype' "$deltarule" convert run --to other --dtype int8
[ ! -e other ] || fail 'a refused folder was made'
