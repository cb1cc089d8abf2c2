#!/bin/sh
# Bad input of every kind: the exit status, and a sentence that names what was wrong.
. "$(dirname "$0")/expect.sh"
make_corpus
tiny='--hidden 16 --layers 1 --heads 1 --intermediate 16 --batch 2 --seq-len 16 --steps 2 --threads 1'
# train STATUS WORDS FLAGS...: as expect, of a tiny run
train() {
    status=$1 words=$2
    shift 2
    # shellcheck disable=SC2086 # a list of words
    expect "$status" "$words" "$deltarule" train --out out $tiny "$@"
}

# Settings.
train 2 'there is no flag --corpsu; did you mean --corpus?' --corpsu x
train 2 'many' --steps many
train 2 'batch is' --batch 0
train 2 'maybe' --tied maybe
train 2 'chess' --task chess
train 2 'gdm' --rule gdm --corpus corpus
train 2 'gdn' --rule gdm --corpus corpus
expect 2 '--steps needs a value' "$deltarule" train --steps
expect 2 'leave out --out' "$deltarule" train --resume out --out other
expect 2 'corpus' "$deltarule" train --out out

# The corpus.
expect 2 'no-such-text' "$deltarule" train --corpus no-such-text --out out
: >empty.txt
expect 2 'empty.txt' "$deltarule" train --corpus empty.txt --out out
mkdir empty
expect 2 'empty' "$deltarule" train --corpus empty --out out
printf 'one line\nthen \377\376 no UTF-8\n' >latin.txt
expect 1 'latin.txt' "$deltarule" train --corpus latin.txt --out out
echo tiny >tiny.txt
expect 2 'too few' "$deltarule" train --corpus tiny.txt --out out

# Files of a folder that are no text: named, counted, left out if that is wished; never waited upon.
mkdir mixed
cp corpus/*.txt mixed
printf 'caf\351' >mixed/1latin
mkfifo mixed/2pipe
ln -s nothing mixed/3dangling
ln -s 4self mixed/4self
ln -s . mixed/loop
ln -s ../corpus mixed/more
expect 1 'mixed/1latin is not UTF-8 text: byte 3 (0xe9)' "$deltarule" train --corpus mixed --out out
expect 1 '4 of 16 files cannot be used; --skip-unreadable goes on without them' "$deltarule" train --corpus mixed --out out
[ ! -e out ] || fail 'a refused run left its folder'
# shellcheck disable=SC2086
expect 0 'left out: ' "$deltarule" train --corpus mixed --skip-unreadable --out skipped $tiny
grep -qF 'left out in all: 4 files' stdout || fail 'what was left out is not counted'
grep -qF '/2pipe is not a regular file but a named pipe' stdout || fail 'the pipe is not named'
expect 2 'not a regular file but a named pipe' "$deltarule" train --corpus mixed/2pipe --out out
if [ -r /proc/self/status ]; then
    expect 2 'has a size of 0 and yet text' "$deltarule" train --corpus /proc/self/status --out out
fi
expect 2 'held_out: cannot read the corpus "no-such-text"' "$deltarule" train --corpus corpus --held-out no-such-text --out out
ln -s corpus same
expect 2 '--out is the corpus' "$deltarule" tokenizer train --corpus corpus --out same
[ ! -e corpus/tokenizer.json ] || fail 'a tokenizer was written into its corpus'
expect 2 'held_out is 2: in task lm it must be a share' "$deltarule" train --corpus corpus --held-out 2 --out out
# shellcheck disable=SC2086
mkdir piped
cp corpus/a.txt piped
mkfifo piped/pipe
expect 2 'held_out: ' "$deltarule" train --corpus corpus --held-out piped --out out
# shellcheck disable=SC2086
expect 0 '/pipe is not a regular file but a named pipe' "$deltarule" train --corpus corpus --held-out piped --skip-unreadable --out beside $tiny
# shellcheck disable=SC2086
expect 0 'held out: 12492 bytes' "$deltarule" train --corpus corpus --held-out corpus/a.txt --out apart $tiny
[ -e apart/held_out/00000-a.txt ] || fail 'the held-out file is not in the folder'

# Rules.
echo '{"base": "gdn", "scan": "gram"}' >senseless.json
echo '{"base": "kda", "rows": [{"read": "key"}, {"gain": "betta"}]}' >mistyped.json
expect 2 'gdm' "$deltarule" rules gdm
expect 1 'no-such.json' "$deltarule" rules --show no-such.json
expect 0 'state pass chunkwise portable, F32, 16 tokens a chunk, 1 part' "$deltarule" info --isa portable --rule kda
expect 2 'no rule is named "kdda"' "$deltarule" info --rule kdda
expect 2 'senseless.json: scan gram is not used by the query' "$deltarule" rules --show senseless.json
expect 1 'mistyped.json: row 2: unknown gain "betta"; did you mean "beta"?' "$deltarule" rules --show mistyped.json
expect 2 'leave out gdn' "$deltarule" rules gdn --show mistyped.json
train 1 'no-such.json' --rule no-such.json --corpus corpus
train 2 'scan gram' --rule senseless.json --corpus corpus
train 1 'row 2' --rule mistyped.json --corpus corpus
train 2 'rwkv7' --rule rwkv --corpus corpus

# The configuration file.
config() { echo "$3" >config.json; expect "$1" "$2" "$deltarule" train --corpus corpus --out out --config config.json; }
expect 1 'no-such.json' "$deltarule" train --config no-such.json
config 1 'config.json' '{"steps": 2'
config 2 'steps' '{"steps": "many"}'
config 2 'layers' '{"layers": 1.5}'
config 2 'stepz' '{"stepz": 2}'
config 2 'tied' '{"tied": 1}'
config 2 '-3' '{"hidden": -3}'
config 2 'heads' '{"hidden": 10, "heads": 3}'
config 1 'rule: unknown key "scam"; did you mean "scan"?' '{"rule": {"base": "gdn", "scam": "gram"}}'
config 2 'rule: scan gram' '{"rule": {"base": "gdn", "scan": "gram"}}'
config 2 'rule must be a string' '{"rule": 3}'
config 2 'not stable' '{"rule": {"base": "pgdn", "negative_eigenvalues": true}}'
[ ! -e out/model.safetensors ] || fail 'a refused run left a model'

# An impossible layout of the recall task.
expect 2 'pairs' "$deltarule" train --task mqar --seq-len 16 --pairs 16 --out out
[ ! -e out/model.safetensors ] || fail 'a refused run left a model'

# Checkpoints.
expect 1 'no-such-model' "$deltarule" score --model no-such-model --corpus corpus
expect 2 'no-such-run' "$deltarule" train --resume no-such-run
expect 2 '--model DIR is missing' "$deltarule" generate --prompt x
# shellcheck disable=SC2086
expect 0 'model: whole' "$deltarule" train --corpus corpus --out whole $tiny
damage() { rm -rf damaged; cp -r whole damaged; }
refuse() { expect "$1" "$2" "$deltarule" generate --model damaged --prompt x --tokens 1; }
expect 2 'no-such-text' "$deltarule" score --model whole --corpus no-such-text
expect 2 'top-p' "$deltarule" generate --model whole --top-p 2
expect 2 'temperature' "$deltarule" generate --model whole --temperature cold

damage; size=$(wc -c <whole/model.safetensors)
head -c $((size - 10)) whole/model.safetensors >damaged/model.safetensors; refuse 1 'model.safetensors'
damage; head -c 5 whole/model.safetensors >damaged/model.safetensors; refuse 1 'model.safetensors'
damage; : >damaged/model.safetensors; refuse 1 'model.safetensors'
damage; printf '\377\377\377\377\377\377\377\177{}' >damaged/model.safetensors; refuse 1 'model.safetensors'
damage; rm damaged/model.safetensors; refuse 1 'model.safetensors'
damage; rm damaged/config.json; refuse 1 'config.json'
damage; echo '[]' >damaged/config.json; refuse 1 'config.json'
damage; echo '{"model_type": "chess"}' >damaged/config.json; refuse 1 'chess'
damage; sed 's/"hidden_size": *16/"hidden_size": 32/' whole/config.json >damaged/config.json; refuse 1 'shape'
damage; sed 's/"hidden_size": *16/"hidden_size": -1/' whole/config.json >damaged/config.json; refuse 1 'hidden_size'

# One whose header lies, at its old length: a tensor missing, of an unknown type, of another size than its bytes.
header() {
    damage
    sed "$1" whole/model.safetensors >damaged/model.safetensors
    ! cmp -s whole/model.safetensors damaged/model.safetensors || fail "the header has no place for $1"
}
header 's/model.norm.weight/model.gone.weight/'; refuse 1 'model.norm.weight'
header 's/"dtype":"F32"/"dtype":"X32"/'; refuse 1 'X32'
header 's/"shape":\[16\]/"shape":[61]/'; refuse 1 'model.safetensors'
