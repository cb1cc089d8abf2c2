#!/bin/sh
# Text to ids and back, tokenizers made and read, chats rendered; files of strangers: a sentence, exit 1.
. "$(dirname "$0")/expect.sh"
tokenizers=$root/tests/tokenizers
gpt2=$tokenizers/gpt2 llama2=$tokenizers/llama2

# say TEXT COMMAND...: runs the command with a text on standard input
say() {
    text=$1
    shift
    printf %b "$text" | "$@" >stdout 2>stderr || fail "status $?: $*"
}
said() { [ "$(cat stdout)" = "$1" ] || fail "not '$1': $2"; }

# ---- ids and texts -------------------------------------------------------------------------------------------------------
say 'Hello world' "$deltarule" tokenize --tokenizer "$gpt2"
ids=$(cat stdout)
say "$ids" "$deltarule" detokenize --tokenizer "$gpt2"
said 'Hello world' 'detokenize'
say '"Hello world"\n"\\u00e9\\n"\n""\n' "$deltarule" tokenize --json --tokenizer "$gpt2"
[ "$(sed -n 1p stdout)" = "[$(echo "$ids" | tr ' ' ',')]" ] || fail 'as JSON the ids are others'
[ "$(sed -n 3p stdout)" = '[]' ] || fail 'an empty text has ids'
cp stdout ids.jsonl
"$deltarule" detokenize --json --tokenizer "$gpt2" <ids.jsonl >stdout
said '"Hello world"
"é\n"
""' 'detokenize --json'
say '' "$deltarule" tokenize --tokenizer "$gpt2"
said '' 'no text'
say 'Hi' "$deltarule" tokenize --tokenizer "$llama2"
case $(cat stdout) in "1 "*) ;; *) fail 'the beginning of the sequence is missing' ;; esac
ids=$(sed 's/^1 //' stdout)
say 'Hi' "$deltarule" tokenize --no-special --tokenizer "$llama2"
said "$ids" '--no-special'
say "1 $ids" "$deltarule" detokenize --no-special --tokenizer "$llama2/tokenizer.json"
said 'Hi' 'detokenize --no-special of a file'
say "[1,$(echo "$ids" | tr ' ' ',')]\n" "$deltarule" detokenize --json --tokenizer "$llama2"
said '"<s> Hi"' 'special tokens'

# Any bytes come back; each text of a stream of lines arrives before the next is read.
awk 'BEGIN {srand(3); printf "x"; for (i = 0; i < 4000; i++) printf "%c", int(256 * rand())}' >bytes
for name in gpt2 llama3 kimi mistral bytes; do
    if [ $name = bytes ]; then tokenizer=bytes; else tokenizer=$tokenizers/$name; fi
    "$deltarule" tokenize --no-special --tokenizer "$tokenizer" <bytes >ids
    "$deltarule" detokenize --tokenizer "$tokenizer" <ids >back
    cmp -s bytes back || fail "$name loses bytes"
done
mkfifo lines
"$deltarule" tokenize --json --tokenizer "$gpt2" <lines >stdout &
exec 3>lines
printf '"a"\n' >&3
for _ in $(seq 200); do [ ! -s stdout ] || break; sleep 0.05; done
[ -s stdout ] || fail 'a line waits for the next one'
exec 3>&-
wait $!

# ---- what is wrong with the input ----------------------------------------------------------------------------------------
# refuse TEXT WORDS COMMAND...
refuse() {
    text=$1 words=$2
    shift 2
    got=0
    printf %b "$text" | "$@" >stdout 2>stderr || got=$?
    [ "$got" -eq 1 ] || fail "status $got instead of 1: $*"
    grep -qF -- "$words" stderr || fail "'$words' is not said: $*"
    [ "$(wc -l <stderr)" -eq 1 ] || fail "more than a sentence: $*"
}
refuse '"a"\nb\n' 'line 2: it must be a JSON string' "$deltarule" tokenize --json --tokenizer "$gpt2"
refuse '"\\ud800"\n' 'line 1: a broken escape' "$deltarule" tokenize --json --tokenizer "$gpt2"
refuse '1 x' 'token ids with blanks between' "$deltarule" detokenize --tokenizer "$gpt2"
refuse '99999999999' 'token ids with blanks between' "$deltarule" detokenize --tokenizer "$gpt2"
refuse '[1, "a"]\n' 'line 1: it must be a JSON list of token ids' "$deltarule" detokenize --json --tokenizer "$gpt2"
refuse 'a' 'its model is of type Unigram: only BPE' "$deltarule" tokenize --tokenizer "$tokenizers/unigram"
refuse 'a' 'its model is of type WordPiece: only BPE' "$deltarule" tokenize --tokenizer "$tokenizers/wordpiece"
refuse 'a' 'no-such-folder: cannot open' "$deltarule" tokenize --tokenizer no-such-folder
expect 2 '--tokenizer DIR is missing' "$deltarule" tokenize

# ---- files of strangers --------------------------------------------------------------------------------------------------
mkdir bad
# file WORDS JSON: as a tokenizer.json it is refused with these words
file() {
    printf '%s' "$2" >bad/tokenizer.json
    refuse 'aab' "$1" "$deltarule" tokenize --tokenizer bad
}
model='"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}'
split() { printf '{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "%s"}, "behavior": "Isolated", "invert": false}, %s}' "$1" "$model"; }
file 'tokenizer.json' ''
file 'line 1' '{"model": '
file '"model" must be an object' '{}'
file '"merges" must be a list' '{"model": {"type": "BPE", "vocab": {"a": 0}}}'
file '"vocab" must be an object' '{"model": {"type": "BPE", "merges": []}}'
file 'the id of token "a" must be an integer from 0' '{"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}}'
file 'the id of token "a" must be an integer from 0' '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'
file 'the id of token "a" must be an integer from 0' '{"model": {"type": "BPE", "vocab": {"a": 1.5}, "merges": []}}'
file 'have the same id, 0' '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}'
file 'merge 0 makes "ab", which is not in the vocabulary' '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}'
file 'merge 0 has "c", which is not in the vocabulary' '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["c", "a"]]}}'
file 'merge 0 must be two tokens' '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}'
file '"dropout" is 0.5' '{"model": {"type": "BPE", "dropout": 0.5, "vocab": {"a": 0}, "merges": []}}'
file 'end_of_word_suffix' '{"model": {"type": "BPE", "end_of_word_suffix": "</w>", "vocab": {"a": 0}, "merges": []}}'
file 'unk_token "<unk>" is not in the vocabulary' '{"model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"a": 0}, "merges": []}}'
file 'Nonsense' "{\"normalizer\": {\"type\": \"Nonsense\"}, $model}"
file 'Precompiled' "{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"\"}, $model}"
file 'added token 0' "{\"added_tokens\": [{\"content\": \"x\"}], $model}"
file 'a group is not closed' "$(split '(')"
file 'a range goes backwards' "$(split 'a[z-a]')"
file 'an escape that is not known' "$(split '(a)\\1')"
{ printf '{"pre_tokenizer": '; awk 'BEGIN {for (i = 0; i < 20000; i++) printf "["}'; } >bad/tokenizer.json
refuse 'a' 'tokenizer.json' "$deltarule" tokenize --tokenizer bad
{ printf '{"pre_tokenizer": '; awk 'BEGIN {for (i = 0; i < 100; i++) printf "{\"type\": \"Sequence\", \"pretokenizers\": ["; printf "{\"type\": \"Whitespace\"}"; for (i = 0; i < 100; i++) printf "]}"}'; printf ', %s}' "$model"; } >bad/tokenizer.json
refuse 'a' 'deeper than' "$deltarule" tokenize --tokenizer bad
printf '{"model": {"type": "BPE", "vocab": {"\377": 0}, "merges": []}}' >bad/tokenizer.json
refuse 'a' 'tokenizer.json' "$deltarule" tokenize --tokenizer bad
head -c 5000 "$gpt2/tokenizer.json" >bad/tokenizer.json
refuse 'a' 'tokenizer.json' "$deltarule" tokenize --tokenizer bad
# A text that one expression needs too long for; merges in a circle, which make longer tokens all the same.
split '(a*)*c|a' >bad/tokenizer.json
awk 'BEGIN {for (i = 0; i < 30000; i++) printf "a"}' >long
got=0
"$deltarule" tokenize --tokenizer bad <long >stdout 2>stderr || got=$?
[ "$got" -eq 1 ] || fail "status $got where an expression explodes"
grep -qF 'takes too many steps on this text' stderr || fail 'an expression that explodes is not named'
printf '{"model": {"type": "BPE", "vocab": {"a": 0, "aa": 1, "aaa": 2, "aaaa": 3}, "merges": [["aa", "a"], ["a", "aa"], ["a", "a"], ["aa", "aa"], ["aaa", "a"]]}}' >bad/tokenizer.json
"$deltarule" tokenize --tokenizer bad <long >stdout 2>stderr || fail 'merges in a circle'

# ---- chats ---------------------------------------------------------------------------------------------------------------
printf '[{"role": "user", "content": "Hi {{ 1 }}"}]' >messages.json
expect 0 '<|im_start|>user' "$deltarule" chat-template --tokenizer "$tokenizers/qwen3_5" --generation-prompt messages.json
grep -qF 'Hi {{ 1 }}' stdout || fail 'what a message says is not text'
expect 1 'has no chat template' "$deltarule" chat-template --tokenizer "$gpt2" messages.json
expect 1 'messages is empty: it must be a JSON list' "$deltarule" chat-template --tokenizer "$tokenizers/qwen3_5" /dev/null
mkdir chat
# chat WORDS TEMPLATE
chat() {
    printf '%s' "$2" >chat/chat_template.jinja
    expect 1 "$1" "$deltarule" chat-template --tokenizer chat messages.json
}
chat "line 1: expected an expression" '{% if %}'
chat "line 1: the template" '{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}'
chat "line 1: the template" "{{ 'a' * 10**9 }}"
chat "nested deeper than" '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}'
chat 'the template says: no system' '{{ raise_exception("no system") }}'

# ---- training ------------------------------------------------------------------------------------------------------------
make_corpus
expect 0 'ids    300' "$deltarule" tokenizer train --corpus corpus --out made --size 300
cat corpus/f.txt corpus/e.txt corpus/d.txt corpus/c.txt corpus/b.txt corpus/a.txt >backwards.txt
expect 0 '' "$deltarule" tokenizer train --corpus backwards.txt --out again --size 300
cmp made/tokenizer.json again/tokenizer.json || fail 'the order of texts changes a tokenizer'
OMP_NUM_THREADS=2 "$deltarule" tokenizer train --corpus - --out piped --size 300 <backwards.txt >stdout
cmp made/tokenizer.json piped/tokenizer.json || fail 'threads or a pipe change a tokenizer'
"$deltarule" tokenize --tokenizer made <corpus/a.txt >ids
"$deltarule" detokenize --tokenizer made <ids | cmp - corpus/a.txt || fail 'a made tokenizer loses text'
[ "$(wc -w <ids)" -lt "$(($(wc -c <corpus/a.txt) / 2))" ] || fail 'a made tokenizer merges nothing'
"$deltarule" tokenize --tokenizer made <bytes >ids
"$deltarule" detokenize --tokenizer made <ids | cmp - bytes || fail 'a made tokenizer loses bytes'
expect 2 'from 257 to' "$deltarule" tokenizer train --corpus corpus --out small --size 200
expect 1 'no-such-text' "$deltarule" tokenizer train --corpus no-such-text --out small
before=$(cksum made/*)
expect 2 'has files already: nothing is written over' "$deltarule" tokenizer train --corpus corpus --out made --size 310
[ "$before" = "$(cksum made/*)" ] || fail 'a tokenizer was written over'
mkdir nothing
expect 2 'there is no text' "$deltarule" tokenizer train --corpus nothing --out small
expect 2 'tokenizer train' "$deltarule" tokenizer make --corpus corpus --out small
expect 1 'cannot make the folder' "$deltarule" tokenizer train --corpus corpus --out /dev/null/folder --size 300
[ ! -e small ] || fail 'a refused training left its folder'
