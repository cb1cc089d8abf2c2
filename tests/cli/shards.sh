#!/bin/sh
# deltarule tokenize --shards and what takes shards: kinds of corpora, hostile ones, kills at many moments, training that resumes
# bit for bit, mixtures, several held-out sets, and models that read and print text.
. "$(dirname "$0")/expect.sh"
make_corpus
small='--batch 2 --seq-len 32 --hidden 16 --layers 1 --heads 1 --intermediate 16 --evaluate-tokens 400'
# shellcheck disable=SC2086 # $small is several words
train() { expect 0 "model: " "$deltarule" train $small "$@"; }
tokenize() { "$deltarule" tokenize --tokenizer tok "$@"; }

expect 0 'ids    330' "$deltarule" tokenizer train --corpus corpus --out tok --size 330
awk 'BEGIN {for (i = 1; i <= 300; i++) printf "{\"id\": 123456789012345678901234567890, \"text\": \"document %d: the state \\u00e9\\n of %d\"}\n", i, 7 * i}' >docs.jsonl
awk 'BEGIN {for (i = 1; i <= 40; i++) printf "{\"text\": \"other %d says another thing\"}\n\n", i}' >other.jsonl

# ---- every kind of corpus gives the same shards ----
expect 0 'documents      306' tokenize --shards plain --validation-share 0.1 --shard-tokens 3000 corpus docs.jsonl
expect 0 'documents      306' tokenize --shards plain --validation-share 0.1 --shard-tokens 3000 corpus docs.jsonl
mkdir packed
for file in corpus/*; do gzip -c "$file" >"packed/$(basename "$file").gz"; done
gzip -c docs.jsonl >docs.jsonl.gz
expect 0 'documents      306' tokenize --shards gz --validation-share 0.1 --shard-tokens 3000 packed docs.jsonl.gz
for file in plain/*.bin plain/*.index; do cmp "$file" "gz/$(basename "$file")" || fail "$file differs when it comes from .gz"; done
# A compressed file of several members, one after another, is all of them.
gzip -c other.jsonl | cat docs.jsonl.gz - >members.jsonl.gz
expect 0 'documents      340' tokenize --shards members --validation-share 0.1 --shard-tokens 3000 members.jsonl.gz
if command -v zstd >/dev/null; then
    zstd -q docs.jsonl -o docs.jsonl.zst
    zstd -qc other.jsonl | cat docs.jsonl.zst - >members.jsonl.zst
    expect 0 'documents      340' tokenize --shards zst-members --validation-share 0.1 --shard-tokens 3000 members.jsonl.zst
    for file in members/*.bin; do cmp "$file" "zst-members/$(basename "$file")" || fail "$file differs when it comes from .zst"; done
    expect 0 'documents      306' tokenize --shards zst --validation-share 0.1 --shard-tokens 3000 corpus docs.jsonl.zst
    for file in plain/*.bin; do cmp "$file" "zst/$(basename "$file")" || fail "$file differs when it comes from .zst"; done
fi

expect 0 'ids    290' "$deltarule" tokenizer train --corpus docs.jsonl --out of_lines --size 290
expect 0 'ids    290' "$deltarule" tokenizer train --corpus docs.jsonl.gz --out of_packed --size 290
cmp of_lines/tokenizer.json of_packed/tokenizer.json || fail 'a tokenizer of compressed lines is another one'
expect 1 'line 1: has no "body"' "$deltarule" tokenizer train --corpus docs.jsonl --field body --out never

# ---- refused, and nothing left behind ----
# refuse WORDS NAME [FLAGS]: the corpus of this name ends with this sentence, exit 1 and no folder of shards.
refuse() {
    words=$1 corpus=$2
    shift 2
    expect 1 "$words" tokenize --shards refused "$@" "$corpus"
    [ ! -e refused ] || fail "a refused corpus left shards behind: $corpus"
}
printf '{"text": "good"}\n{"text": 5}\n' >type.jsonl
refuse 'type.jsonl, line 2: has the integer 5 as "text": it must be a string' type.jsonl
printf '{"text": "good"}\n[1]\n' >array.jsonl
refuse 'array.jsonl, line 2: must be a JSON object, and is an array' array.jsonl
printf '{"body": "x"}\n' >key.jsonl
refuse 'key.jsonl, line 1: has no "text"' key.jsonl
expect 0 'documents      1' tokenize --shards drawn --field body key.jsonl
expect 2 'make them of more documents, or with --validation-share 0' "$deltarule" train --corpus drawn --out of_drawn
expect 0 'documents      1' tokenize --shards keyed --validation-share 0 --field body key.jsonl
printf '{"text": "a\377b"}\n' >utf8.jsonl
refuse 'utf8.jsonl, line 1: is no JSON' utf8.jsonl
printf '{"text": "a", "n": 1e999}\n' >number.jsonl
refuse 'number.jsonl, line 1: is no JSON' number.jsonl
printf '{"text": "never ends\n' >open.jsonl
refuse 'open.jsonl, line 1: is no JSON' open.jsonl
awk 'BEGIN {for (i = 0; i < 100000; i++) printf "["}' >deep.jsonl
refuse 'deep.jsonl, line 1: is no JSON' deep.jsonl
head -c 200 docs.jsonl.gz >cut.jsonl.gz
refuse 'cut.jsonl.gz is cut short' cut.jsonl.gz
{ head -c 100 docs.jsonl.gz; printf 'garbage in the middle'; tail -c 300 docs.jsonl.gz; } >broken.jsonl.gz
refuse 'broken.jsonl.gz' broken.jsonl.gz
cp corpus/a.txt plain.txt.gz
refuse 'plain.txt.gz is broken, or no gzip file' plain.txt.gz
cp corpus/a.txt plain.txt.zst
refuse 'plain.txt.zst is no zstd file' plain.txt.zst
cp corpus/a.txt table.parquet
refuse 'tools/parquet-to-jsonl' table.parquet
printf 'a\0b' >binary
refuse 'binary is not text but binary' binary
head -c 3000000 /dev/zero | tr '\0' 'x' | gzip >bomb.txt.gz
refuse 'bomb.txt.gz is longer than 100000 bytes, the longest document that is taken' bomb.txt.gz --longest-document 100000
head -c 3000000 /dev/zero | tr '\0' 'x' | gzip >bomb.jsonl.gz
refuse 'line 1: a line is longer than 100000 bytes' bomb.jsonl.gz --longest-document 100000
: >empty.jsonl
expect 2 'the corpora have no text' tokenize --shards refused empty.jsonl
[ ! -e refused ] || fail 'an empty corpus left shards behind'
expect 2 'the validation set "x" must be NAME=PATH' tokenize --shards refused --validation x corpus
expect 2 '--shards needs a corpus' tokenize --shards refused
expect 2 'add --shards DIR' tokenize --field x
expect 2 'has files in it and no shards.json' tokenize --shards corpus docs.jsonl
expect 2 'begun with another tokenizer or other options' tokenize --shards plain --seed 4 --validation-share 0.1 --shard-tokens 3000 corpus docs.jsonl
expect 2 'begun with other text' tokenize --shards plain --validation-share 0.1 --shard-tokens 3000 corpus
expect 0 'documents' tokenize --shards skipped --validation-share 0 --skip-unreadable type.jsonl utf8.jsonl cut.jsonl.gz key.jsonl array.jsonl
[ "$(grep -c 'left out: ' stderr)" -eq 5 ] || fail 'not every line and file that was left out is named'

# ---- killed at many moments, it goes on and ends with the same files ----
for delay in 0.01 0.02 0.03 0.05 0.08 0.12 0.2; do
    timeout -s KILL $delay "$deltarule" tokenize --tokenizer tok --shards killed --validation-share 0.1 --shard-tokens 3000 \
        corpus docs.jsonl >/dev/null 2>&1 || :
    if [ -e killed/shards.json ] && grep -q '"complete": false' killed/shards.json; then
        expect 2 'are not complete' "$deltarule" train --corpus killed --steps 1 --out never
    fi
done
expect 0 'documents      306' tokenize --shards killed --validation-share 0.1 --shard-tokens 3000 corpus docs.jsonl
diff -r plain killed >stdout || fail 'an interrupted writer ends with other files'

# ---- training ----
train --corpus plain --steps 6 --out whole --save-every 2 --evaluate-every 3
train --corpus plain --steps 3 --out part
mv plain moved
expect 2 'plain' "$deltarule" train --resume part --steps 6
train --resume part --steps 6 --corpus moved
expect 2 'is not the text that the run began with' "$deltarule" train --resume part --corpus skipped --steps 7
mv moved plain
cmp tok/tokenizer.json whole/tokenizer.json || fail 'the run folder has no tokenizer'
expect 0 'bits_per_byte' "$deltarule" score --model whole --corpus corpus/a.txt
bytes=$(wc -c <corpus/a.txt)
grep -q "^bytes *$bytes$" stdout || fail 'score does not count the bytes of the text'
expect 0 'line 7' "$deltarule" generate --model whole --prompt 'line 7' --tokens 20 --ignore-eos
iconv -f UTF-8 -t UTF-8 stdout >/dev/null || fail 'generate split a character'
expect 1 'give its tokenizer' "$deltarule" generate --model whole --prompt x --tokenizer bytes
mkdir elsewhere
mv whole/tokenizer*.json elsewhere
expect 1 'give its tokenizer' "$deltarule" score --model whole --corpus corpus/a.txt
expect 0 'bits_per_byte' "$deltarule" score --model whole --corpus corpus/a.txt --tokenizer elsewhere
train --corpus corpus --tokenizer tok --steps 2 --out encoded
[ -s encoded/tokenizer.json ] || fail 'text that was encoded leaves no tokenizer'
[ -e encoded/held_out ] || fail 'text that was encoded leaves no held-out text'

# ---- several held-out sets, and mixtures ----
expect 0 'documents' tokenize --shards sets --validation-share 0.1 --validation lines=corpus/f.txt --validation other=other.jsonl corpus docs.jsonl
train --corpus sets --steps 2 --out several --evaluate-every 1
head -1 several/metrics.csv | grep -q 'held_out_loss:val,held_out_bits_per_byte:val,held_out_loss:val_lines,' || fail 'held-out sets have no columns'
[ "$(sed -n 3p several/metrics.csv | tr ',' '\n' | grep -c '[0-9]')" -ge 16 ] || fail 'held-out sets have no numbers'
printf '{"mixture": [{"corpus": "plain", "weight": 3}, {"corpus": "sets", "weight": 1}]}' >mix.json
train --corpus mix.json --steps 4 --out mixed
grep -q 'plain, 75% of the windows' stdout || fail 'the mixture is not described'
printf '{"mixture": [{"corpus": "plain", "weight": -1}]}' >bad.json
expect 1 'bad.json: "weight" is -1' "$deltarule" train --corpus bad.json --out never
printf '{"mixture": [{"corpus": "plain", "weight": 1}, {"corpus": "corpus", "weight": 1, "x": 2}]}' >bad.json
expect 1 'bad.json: unknown key "x"' "$deltarule" train --corpus bad.json --out never
train --corpus plain --held-out sets --steps 1 --out apart
train --corpus plain --held-out corpus/b.txt --steps 1 --out beside

# ---- chats: what the assistant says is learned, all else given ----
cp -r tok talks
cat >talks/chat_template.jinja <<'TEMPLATE'
{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}
TEMPLATE
chat() { printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "%s"}, {"role": "user", "content": "more"}]}\n' "$1" "$2"; }
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do chat "question $i" "answer $i is a matrix"; done >chats.jsonl
expect 0 'documents      20' "$deltarule" tokenize --tokenizer talks --shards chats --messages messages --validation-share 0.2 chats.jsonl
[ -s chats/train_000000.mask ] || fail 'chats have no mask'
grep -q '"masked": true' chats/shards.json || fail 'shards.json does not tell of the mask'
train --corpus chats --steps 2 --out talked
cmp talks/chat_template.jinja talked/chat_template.jinja || fail 'the run folder has no chat template'
expect 1 'chats.jsonl, line 1: "texts": has no list of messages' "$deltarule" tokenize --tokenizer talks --shards refused --messages texts chats.jsonl
expect 1 'lists of messages need a chat template' tokenize --shards refused --messages messages chats.jsonl
[ ! -e refused ] || fail 'refused chats left shards behind'

# ---- files of other programs, and damaged ones ----
mkdir foreign
tail -c +1025 plain/train_000000.bin >foreign/train.bin # nanoGPT: ids without a header
tail -c +1025 plain/val_000000.bin >foreign/val.bin
echo 'how the files were made' >foreign/prepare.py
train --corpus foreign --tokenizer tok --steps 2 --out raw
train --corpus plain/train_000000.bin --vocabulary 330 --held-out 0.2 --steps 2 --out bare
expect 2 'does not say how many ids' "$deltarule" train --corpus foreign --out never
expect 1 'token 0 is 329, and the vocabulary has the ids from 0 to 99' "$deltarule" train --corpus foreign --vocabulary 100 --out never
# damaged WORDS FILE: a copy of the shards with this file changed by standard input is refused.
damaged() {
    rm -rf damaged
    cp -r plain damaged
    cat >"damaged/$2"
    expect 1 "$1" "$deltarule" train --corpus damaged --out never
    [ ! -e never ] || fail 'a refused run left a folder behind'
}
head -c 2000 plain/train_000000.bin | damaged 'so it is cut short' train_000000.bin
head -c 900 plain/train_000000.bin | damaged 'is cut short: its header has 1024 bytes' train_000000.bin
{ printf '\021\330\064\001'; tail -c +5 plain/train_000000.bin; } | damaged 'has a header with magic' train_000000.bin
{ printf '\210\330\064\001\002'; tail -c +6 plain/train_000000.bin; } | damaged 'has version 2 of the header' train_000000.bin
{ head -c 1100 plain/train_000000.bin; printf '\001\002'; tail -c +1103 plain/train_000000.bin; } | damaged 'is not what shards.json was written for' train_000000.bin
: | damaged 'is empty' train_000000.bin
head -c 20 plain/train_000000.index | damaged 'the index of' train_000000.index
: | damaged 'shards.json' shards.json
sed 's/"file": "train_000000.bin"/"file": "..\/train_000000.bin"/' plain/shards.json | damaged 'is no name of a shard' shards.json
sed -i 's/"vocabulary": 330/"vocabulary": 300/; s/"start": 329/"start": 1/' plain/shards.json
expect 2 'have a vocabulary of 300 ids, and the tokenizer 330' "$deltarule" train --corpus plain --out never
