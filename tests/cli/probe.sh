#!/bin/sh
# What the recurrences of a model do on a text: figures of as many tokens as are asked for, in a table and as JSON.
. "$(dirname "$0")/expect.sh"
make_corpus
expect 0 'model: run' "$deltarule" train --corpus corpus --hidden 16 --layers 2 --heads 1 --intermediate 16 --batch 4 --seq-len 32 \
    --steps 2 --threads 1 --out run
printf 'line 5 of file a: the state is a matrix' >text
expect 0 'layer 0 ' "$deltarule" probe value --model run --corpus text --tokens 16
[ "$(grep -c '^drift  *16 ' stdout)" -eq 2 ] || fail 'the drifts are not those of 16 tokens in two layers'
expect 0 '"figure": "drift", "count": 16, "mean": ' "$deltarule" probe value --model run --corpus text --tokens 16 --json
[ "$(grep -c '"layer": 1, "figure": "drift"' stdout)" -eq 1 ] || fail 'there is no drift of the second layer'
expect 0 'drift' sh -c "'$deltarule' probe value --model run --corpus - <text"
grep -q '^drift  *40 ' stdout || fail 'not the whole text is read, behind the start of a document'
expect 1 'diagonal scan' "$deltarule" probe preconditioner --model run --corpus text
expect 2 "did you mean 'value'?" "$deltarule" probe valu --model run --corpus text
expect 2 'corpus' "$deltarule" probe value --model run
expect 1 'none' "$deltarule" probe value --model none --corpus text
