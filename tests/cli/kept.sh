#!/bin/sh
# train --save-keep: copies of the last checkpoints, which the other commands take as models.
. "$(dirname "$0")/expect.sh"
make_corpus
tiny='--corpus corpus --hidden 32 --layers 1 --heads 2 --intermediate 32 --batch 2 --seq-len 32 --evaluate-every 0 --threads 1'

copies() { find run/checkpoints -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | tr '\n' ' '; }

# With a tokenizer, which the copies must have too.
expect 0 '' "$deltarule" tokenizer train --corpus corpus --size 300 --out tokenizer
# shellcheck disable=SC2086 # a list of words, here and below
expect 0 'model: run' "$deltarule" train $tiny --tokenizer tokenizer --steps 10 --save-every 2 --save-keep 2 --out run
[ "$(copies)" = 'step-000008 step-000010 ' ] || fail "other copies: $(copies)"
for file in config.json model.safetensors optimizer.safetensors settings.json tokenizer.json; do
    cmp run/$file run/checkpoints/step-000010/$file || fail "$file of the last copy is not the run's"
done
expect 0 'bits_per_byte' "$deltarule" score --model run/checkpoints/step-000008 --corpus run/held_out
expect 0 'line' "$deltarule" generate --model run/checkpoints/step-000008 --prompt 'line ' --tokens 5
# shellcheck disable=SC2086
expect 0 'model: next' "$deltarule" train --init run/checkpoints/step-000008 --corpus corpus --steps 2 --batch 2 --seq-len 32 --threads 1 --out next

# A copy elsewhere goes on as the run did.
cp -r run/checkpoints/step-000008 again
expect 0 'resumed after step 8 of 10' "$deltarule" train --resume again --threads 1
cmp run/model.safetensors again/model.safetensors || fail 'a copy that was resumed gives another model'
[ "$(grep -c '^[0-9]' again/metrics.csv)" -eq 2 ] || fail 'its metrics.csv has other lines than its own steps'

# A folder of another name is the user's.
mv run/checkpoints/step-000008 run/checkpoints/step-000008-best
expect 0 'model: run' "$deltarule" train --resume run --steps 14 --threads 1
[ "$(copies)" = 'step-000008-best step-000012 step-000014 ' ] || fail "other copies: $(copies)"

# Without the flag there are none; what is no number is refused.
# shellcheck disable=SC2086
expect 0 'model: plain' "$deltarule" train $tiny --steps 4 --save-every 2 --out plain
[ ! -e plain/checkpoints ] || fail 'copies that nobody asked for'
for number in -1 1.5 two 1000001 ''; do
    # shellcheck disable=SC2086
    expect 2 'save' "$deltarule" train $tiny --steps 4 --save-keep "$number" --out refused
    [ ! -e refused ] || fail 'a refused run left its folder'
done
# shellcheck disable=SC2086
expect 2 '--save-keep' "$deltarule" train $tiny --steps 4 --save-keep

# A place that is taken is told, and the run itself is saved.
# shellcheck disable=SC2086
expect 0 'model: taken' "$deltarule" train $tiny --steps 2 --out taken
echo mine >taken/checkpoints
expect 1 'taken/checkpoints' "$deltarule" train --resume taken --steps 4 --save-keep 1
[ "$(cat taken/checkpoints)" = mine ] || fail "a user's file was replaced"
