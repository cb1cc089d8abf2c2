#!/bin/sh
# Texts in and out: what score reads and prints, and what generate continues, where it ends and what it says before it begins.
. "$(dirname "$0")/expect.sh"
make_corpus
# shellcheck disable=SC2086 # a list of words
expect 0 'model: run' "$deltarule" train --corpus corpus --hidden 16 --layers 1 --heads 1 --intermediate 16 --batch 4 --seq-len 32 \
    --steps 60 --threads 1 --out run

# ---- score ----
expect 0 'bits_per_byte' "$deltarule" score --model run --corpus corpus/a.txt --json
grep -q '^{"files": 1, "bytes": 12492, "tokens": 12492, "loss": [0-9.]*, .*}$' stdout || fail 'no JSON of one line'
loss=$(sed 's/.*"loss": \([^,]*\),.*/\1/' stdout)
from_stdin() { "$deltarule" score --model run --corpus - --json <corpus/a.txt; }
expect 0 "\"loss\": $loss," from_stdin
from_pipe() { tail -n +1 corpus/a.txt | "$deltarule" score --model run --corpus - --per-file; }
expect 0 'standard input' from_pipe
expect 2 'standard input has no text' "$deltarule" score --model run --corpus -
endless() { yes | "$deltarule" generate --model run --prompt-file -; }
expect 1 'cannot read standard input: it has more than the 64 MiB' endless
expect 1 'cannot read /dev/zero: it has more than the 64 MiB' "$deltarule" generate --model run --prompt-file /dev/zero
expect 2 "is a folder of the system's own, as those of /proc are, not of files; give a text file" "$deltarule" score --model run --corpus /proc/self
binary() { printf 'caf\351' | "$deltarule" score --model run --corpus -; }
expect 1 'standard input is not UTF-8 text: byte 3 (0xe9)' binary
odd=$(printf 'corpus/a "name"\nof \\two lines')
echo text >"$odd"
printf 'caf\351' >corpus/latin
expect 1 'corpus/latin is not UTF-8' "$deltarule" score --model run --corpus corpus
expect 0 'bits_per_byte' "$deltarule" score --model run --corpus corpus --skip-unreadable --per-file --json
grep -qF 'left out: corpus/latin is not UTF-8' stderr || fail 'what is left out is not named'
[ "$(wc -l <stdout)" -eq 8 ] || fail 'not a line for each of 7 files and one for all'
grep -qF '{"file": "corpus/a \"name\"\u000aof \\two lines", "bytes": 5,' stdout || fail 'a name is not escaped'
rm corpus/latin "$odd"
expect 1 'cannot write to standard output' to_full "$deltarule" score --model run --corpus corpus --per-file
expect 2 'pairs is a setting of task mqar' "$deltarule" score --model run --corpus corpus --pairs 3
expect 2 '--corpus PATH is missing' "$deltarule" score --model run

# Weights that are no numbers are refused; numbers that leave the range of finite ones are told of: the last thousand weights of
# the file are made 3.4e38.
cp -r run broken
bytes=$(wc -c <run/model.safetensors)
printf '\377\377\377\377' | dd of=broken/model.safetensors bs=1 seek=$((bytes - 4)) conv=notrunc 2>/dev/null
expect 1 'is a NaN: weights must be finite' "$deltarule" score --model broken --corpus corpus
head -c 4000 /dev/zero | tr '\0' '\177' | dd of=broken/model.safetensors bs=1 seek=$((bytes - 4000)) conv=notrunc 2>/dev/null
expect 1 'the loss of corpus/a.txt is not a number' "$deltarule" score --model broken --corpus corpus
[ ! -s stdout ] || fail 'a score that is none is printed'
expect 1 'the loss of corpus/a.txt is not a number' "$deltarule" score --model broken --corpus corpus --json

# Recall, as the run evaluated it, and at other sizes.
expect 0 'model: recall' "$deltarule" train --task mqar --vocabulary 200 --seq-len 32 --pairs 2 --held-out 50 --held-out-seed 9 \
    --hidden 16 --layers 1 --heads 1 --intermediate 16 --batch 8 --steps 5 --out recall
told=$(tail -1 recall/metrics.csv | cut -d, -f11)
expect 0 'queries            100' "$deltarule" score --model recall
expect 0 "\"accuracy\": $told," "$deltarule" score --model recall --json
expect 0 'queries            192' "$deltarule" score --model recall --task mqar --seq-len 96 --pairs 8 --examples 24
expect 2 '8 pairs do not fit into seq_len 16' "$deltarule" score --model recall --seq-len 16 --pairs 8
expect 2 'vocabulary is 200: recall needs more ids than seq_len' "$deltarule" score --model recall --seq-len 400
expect 1 'and bytes have 257' "$deltarule" score --model recall --corpus corpus
expect 2 'corpus is a setting of task lm' "$deltarule" score --model recall --task mqar --corpus corpus

# ---- generate ----
expect 0 'line' "$deltarule" generate --model run --prompt 'line ' --tokens 300 --seed 4
cp stdout whole
printf 'line ' >prompt
expect 0 'line' "$deltarule" generate --model run --prompt-file prompt --tokens 300 --seed 4
cmp whole stdout || fail 'a prompt from a file is another prompt'
piped() { printf 'line ' | "$deltarule" generate --model run --prompt-file - --tokens 300 --seed 4 --no-echo; }
expect 0 '' piped
(printf 'line '; cat stdout) | cmp whole - || fail '--no-echo takes more than the prompt away'
# the text ends before the first stop text, however it is divided into tokens
stop=$(head -c 160 whole | tail -c 3 | tr '\n' ' ')
expect 0 'line' "$deltarule" generate --model run --prompt 'line ' --tokens 300 --seed 4 --stop 'never comes' --stop "$stop"
awk -v stop="$stop" 'NR == FNR {whole = whole $0 "\n"; next} {part = part $0 "\n"}
    END {at = index(substr(whole, 6), stop); exit !(at > 0 ? part == substr(whole, 1, at + 4) "\n" || part == substr(whole, 1, at + 4) : part == whole)}' \
    whole stdout || fail "the text does not end before '$stop'"
expect 0 '--- sample 2 of 2 ---' "$deltarule" generate --model run --prompt 'line ' --tokens 300 --seed 4 --samples 2
(echo '--- sample 1 of 2 ---'; cat whole) >first
head -c "$(wc -c <first)" stdout | cmp first - || fail 'the first of two samples is not that of one'
# what is refused says so before anything is printed
for wrong in '--top-p=0' '--stop=' '--temperature=200' '--samples=0' '--prompt-file=/no/such/file'; do
    got=0
    "$deltarule" generate --model run --tokens 5 "$wrong" >stdout 2>stderr </dev/null || got=$?
    [ "$got" -ne 0 ] || fail "$wrong is taken"
    [ -s stderr ] || fail "$wrong is refused in silence"
    [ ! -s stdout ] || fail "$wrong is refused after the prompt"
done
expect 2 'leave one out' "$deltarule" generate --model run --prompt a --prompt-file prompt
expect 2 'leave one out' "$deltarule" generate --model run --prompt-ids 1 --prompts prompt
expect 2 "'x' is no token id" "$deltarule" generate --model run --prompt-ids '1 x'
for ids in '1,2,,3' ',1' '1,' '1 , , 2' ','; do
    expect 2 "'$ids' has a comma with no id beside it" "$deltarule" generate --model run --prompt-ids "$ids"
done
expect 2 'token 2 of prompt 1 is 300: ids are from 0 to 256' "$deltarule" generate --model run --prompt-ids '256 300'
[ ! -s stdout ] || fail 'a prompt that is refused is printed'
expect 2 'it must be ID=X' "$deltarule" generate --model run --logit-bias 3:1
expect 2 'names token 257' "$deltarule" generate --model run --logit-bias 257=1
expect 2 'stop token 1 is 999' "$deltarule" generate --model run --stop-token 999
expect 2 '--logprobs is for --json' "$deltarule" generate --model run --logprobs 3
for line in '"abc' '{"a": 1}' '[1, -2]' '[]' '[1' '"a" "b"' 'abc'; do
    printf '"good"\n%s\n' "$line" >prompts
    expect 2 'line 2 of prompts: it must be a JSON' "$deltarule" generate --model run --prompts prompts
done
printf '\n\n' >prompts
expect 2 'has no prompts' "$deltarule" generate --model run --prompts prompts

# Several texts at once are what each is alone; ids are the prompt as it is.
printf '"line "\n[256, 108, 105]\n' >prompts
expect 0 '' "$deltarule" generate --model run --prompts prompts --samples 2 --tokens 40 --seed 4 --json --logprobs 1
[ "$(cut -d, -f1-2 stdout | head -4 | tr -d '\n')" = '{"prompt": 0, "sample": 0{"prompt": 0, "sample": 1{"prompt": 1, "sample": 0{"prompt": 1, "sample": 1' ] ||
    fail 'the texts are not in order'
[ "$(grep -c '"finish": "length", "tokens": 40, "ids": \[[0-9, ]*\], "logprobs": \[{"id": [0-9]*, "logprob": -[0-9.]*, "top": \[{' stdout)" -eq 4 ] ||
    fail 'an object is not that of a text'
grep -q '^{"prompt_tokens": 18, .*"first_token_seconds": 0*[0-9.e-]*, "tokens": 160, ' stdout || fail 'no speeds'
cp stdout together
expect 0 '' "$deltarule" generate --model run --prompts prompts --samples 2 --tokens 40 --seed 4 --json --logprobs 1 --at-once 1 --threads 1
[ "$(head -4 stdout)" = "$(head -4 together)" ] || fail 'a text depends on what is made beside it'
expect 0 'line' "$deltarule" generate --model run --prompt-ids '256 108 105 110 101' --tokens 20 --temperature 0
expect 0 'line' "$deltarule" generate --model run --prompt-ids '256,108, 105 ,110 101' --tokens 20 --temperature 0
grep -q 'tokens, [0-9.]* a second; first token after [0-9.]* s; made: 20 tokens, [0-9.]* a second' stderr || fail 'no speeds'
expect 1 'it is a folder' "$deltarule" generate --model run --prompt-file corpus
expect 1 'and bytes have 257' "$deltarule" generate --model recall --prompt a
[ ! -s stdout ] || fail 'the prompt is printed before the model is refused'
