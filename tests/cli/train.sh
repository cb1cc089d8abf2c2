#!/bin/sh
# A tiny run from end to end: training, resuming, scoring, generating; and that neither threads nor an interruption change a loss.
. "$(dirname "$0")/expect.sh"
make_corpus
tiny='--corpus corpus --hidden 32 --layers 2 --heads 2 --intermediate 32 --batch 4 --seq-len 32 --evaluate-every 10'

# shellcheck disable=SC2086 # a list of words, here and below
expect 0 'model: whole' "$deltarule" train $tiny --steps 20 --threads 1 --out whole
for file in config.json model.safetensors metrics.csv held_out; do [ -e whole/$file ] || fail "no $file in the run folder"; done
[ "$(grep -c '^[0-9]' whole/metrics.csv)" -eq 20 ] || fail 'metrics.csv has not one line a step'

for threads in 2 4; do
    # shellcheck disable=SC2086
    expect 0 'model: ' "$deltarule" train $tiny --steps 20 --threads $threads --out threads$threads
    cmp whole/model.safetensors threads$threads/model.safetensors || fail "$threads threads give another model"
done

# shellcheck disable=SC2086
expect 0 'model: halves' "$deltarule" train $tiny --steps 20 --save-every 7 --threads 2 --out halves
cmp whole/model.safetensors halves/model.safetensors || fail 'saving changes the model'

# Settings from a file, a flag over it, and a rule that has no name.
cat >config.json <<'JSON'
{"corpus": "corpus", "hidden": 32, "layers": 2, "heads": 2, "intermediate": 32, "batch": 4, "seq_len": 32, "steps": 7,
 "evaluate_every": 10, "threads": 1}
JSON
expect 0 'model: file' "$deltarule" train --config config.json --steps 20 --out file
cmp whole/model.safetensors file/model.safetensors || fail 'a configuration file gives another model than flags'
expect 0 'runs/gdn-' "$deltarule" train --config config.json --steps 1
ls runs/gdn-*/model.safetensors >/dev/null || fail "no model in the default folder"

# A composition from a file, with gates of its own; from a configuration; resumed; what is saved says all of it.
cat >rule.json <<'JSON'
{"base": "qdelta", "rows": [{"read": "key_plus_query", "write": "preconditioned", "gain": "beta", "value": "gain_v"}],
 "scan": "diagonal", "squash": {"x": 1.1}, "gate": "eda_bounded", "lower_bound": -4, "lambda": {"bias": "learned"}}
JSON
# shellcheck disable=SC2086
expect 0 'model: composition' "$deltarule" train $tiny --rule rule.json --steps 6 --out composed
(echo '{"rule":'; cat rule.json; echo '}') >config.json
# shellcheck disable=SC2086
expect 0 'runs/composition-' "$deltarule" train $tiny --config config.json --steps 6
cmp composed/model.safetensors runs/composition-*/model.safetensors || fail 'a file and a configuration compose two models'
# shellcheck disable=SC2086
expect 0 'model: resumed' "$deltarule" train $tiny --rule rule.json --steps 3 --out resumed
rm rule.json
expect 0 'resumed after step 3' "$deltarule" train --resume resumed --steps 6
for words in '"write": "preconditioned"' '"x": 1.1' '"gate": "eda_bounded"' '"lower_bound": -4.0' '"bias": "learned"'; do
    grep -qF -- "$words" composed/config.json || fail "config.json does not say $words"
done
expect 0 'bits_per_byte' "$deltarule" score --model composed --corpus whole/held_out
expect 0 'line' "$deltarule" generate --model composed --prompt 'line ' --tokens 20
# shellcheck disable=SC2086
expect 0 'model: flagged' "$deltarule" train $tiny --config config.json --gate log --steps 1 --out flagged
grep -qF '"gate": "log"' flagged/config.json || fail 'a flag does not go before the object of the rule'

# Score and samples.
expect 0 'bits_per_byte' "$deltarule" score --model whole --corpus whole/held_out
cp stdout score
awk '$1 == "bits_per_byte" && $2 > 0 && $2 < 9 {ok = 1} END {exit !ok}' score || fail 'no sensible score'
expect 0 'bits_per_byte' "$deltarule" score --model whole --corpus whole/held_out --window 37 --threads 2
awk 'NR == FNR {if ($1 == "loss") a = $2; next} $1 == "loss" {d = $2 - a; exit !(d < 1e-3 && d > -1e-3)}' score stdout ||
    fail 'the score depends on the window'
expect 0 'bits_per_byte' "$deltarule" score --model whole --corpus whole/held_out --backend reference
awk 'NR == FNR {if ($1 == "loss") a = $2; next} $1 == "loss" {d = $2 - a; exit !(d < 1e-3 && d > -1e-3)}' score stdout ||
    fail 'reference and cpu give different scores'
expect 0 'line' "$deltarule" generate --model whole --prompt 'line ' --tokens 50 --seed 3
[ "$(wc -c <stdout)" -ge 50 ] || fail 'too short a sample'
cp stdout sample
expect 0 'line' "$deltarule" generate --model whole --prompt 'line ' --tokens 50 --seed 3 --threads 2
cmp sample stdout || fail 'the same seed gives another text'
expect 1 'cannot write to standard output' to_full "$deltarule" generate --model whole --tokens 100

# The recall task takes seconds.
expect 0 'accuracy' "$deltarule" train --task mqar --steps 20 --out recall
