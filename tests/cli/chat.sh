#!/bin/sh
# Conversations, through pipes and through a terminal: messages, commands, an answer that Ctrl-C ends, what is refused.
. "$(dirname "$0")/expect.sh"
make_corpus
expect 0 'model: run' "$deltarule" train --corpus corpus --hidden 16 --layers 1 --heads 1 --intermediate 16 --batch 4 --seq-len 32 \
    --steps 60 --threads 1 --out run

# ---- through pipes ----
talk() { "$deltarule" chat run --tokens 20 --temperature 0 --logit-bias 10=-inf --speeds "$@" <lines; }
talk_to() {
    wanted=$1
    shift
    got=0
    talk "$@" >stdout 2>stderr || got=$?
    [ "$got" -eq "$wanted" ] || fail "status $got instead of $wanted: chat $*"
}

printf 'line 1\nline 2\n/save saved.json\n' >lines
talk_to 0
[ "$(wc -l <stdout)" -eq 2 ] || fail 'not an answer a line'
grep -q 'there is no chat template' stderr || fail 'it does not say how messages are written'
# the first turn reads all of it, the second what is new: "\nUser: line 2\nAssistant:"
grep -q '^kept 0 tokens, read 24, made 20; first token after [0-9.]* s; [0-9.]* tokens a second$' stderr || fail 'no speeds'
grep -q '^kept 44 tokens, read 24, made 20;' stderr || fail 'the second turn reads what was read'
[ "$(grep -c '"role": "assistant"' saved.json)" -eq 2 ] || fail 'an answer is not saved'

# undo and the same again, a conversation from a file, two lines that are one message, a slash that begins a message
cp stdout first
printf 'line 1\nline 7\n/undo\nline 2\n' >lines
talk_to 0
[ "$(sed -n 3p stdout)" = "$(sed -n 2p first)" ] || fail '/undo leaves what was said'
printf '/undo\nline 2\n' >lines
talk_to 0 --load saved.json
[ "$(cat stdout)" = "$(sed -n 2p first)" ] || fail 'a conversation from a file is another one'
printf '/load saved.json\n/again\n' >lines
talk_to 0
[ "$(cat stdout)" = "$(sed -n 2p first)" ] || fail '/again answers another message'
printf 'two\\\nlines\n//slash\n/messages\n' >lines
talk_to 0 --system 'Be brief.'
grep -q '^system: Be brief.$' stdout || fail 'no system prompt'
grep -q '^user: two$' stdout || fail 'a line that goes on is no message'
grep -q '^lines$' stdout || fail 'a line that goes on has no end'
grep -q '^user: /slash$' stdout || fail 'no message begins with a slash'
printf '{%% for m in messages %%}<%s{{ m.content }}>{%% endfor %%}' '' >template
printf 'abc\n' >lines
talk_to 0 --template template
grep -q '^kept 0 tokens, read 5, ' stderr || fail 'the template is not used'
printf '/help\n/quit\nnever\n' >lines
talk_to 0
grep -q '/undo' stdout || fail '/help tells nothing'
grep -q 'made' stderr && fail 'it goes on behind /quit'

# what fails says so, nothing is lost, and the exit status tells
printf 'a\n/lod saved.json\n/load none\n/save\n/save /no/such/folder/file\n/load\n/messages\n' >lines
talk_to 2
for words in 'did you mean /load?' 'none: ' '/save FILE: the file is missing' '/no/such/folder/file' '/load FILE: the file is missing'; do
    grep -qF -- "$words" stderr || fail "'$words' is not said"
done
grep -q '^user: a$' stdout || fail 'a failure loses the conversation'
printf '/undo\n' >lines
talk_to 2
printf 'caf\351\nb\n' >lines
talk_to 1
grep -q 'not UTF-8' stderr || fail 'bytes that are no text are a message'
[ "$(wc -l <stdout)" -eq 1 ] || fail 'the next message is not answered'
printf '{{ raise_exception("no") }}' >template
printf 'a\n/messages\n' >lines
talk_to 1 --template template
[ ! -s stdout ] || fail 'a message that was refused stays'
echo '{"messages": [{"role": "user"}]}' >bad.json
expect 1 'message 1 must be an object with a "role" and a "content"' "$deltarule" chat run --load bad.json
expect 2 'leave one out' "$deltarule" chat run --load saved.json --system x
expect 2 'an argument is missing' "$deltarule" chat
expect 1 'none' "$deltarule" chat none
expect 1 'cannot read' "$deltarule" chat run --template none
printf 'a\n' >lines
expect 1 'cannot write to standard output' to_full talk

# ---- through a terminal ----
script -qec true typescript >/dev/null 2>&1 || { echo 'SKIPPED: no command script, or no terminal for it'; exit 77; }
# keys SECONDS TEXT ...: types each text after so many seconds.
keys() {
    while [ $# -gt 0 ]; do
        sleep "$1"
        # shellcheck disable=SC2059 # texts with escapes
        printf "$2"
        shift 2
    done
}
# The command takes the shell's place: some shells end with 130 for a Ctrl-C that the command itself survives.
on_terminal() { TERM=vt100 timeout 60 script -qec "exec $deltarule chat run --tokens 100000000 --logit-bias 10=-inf --seed 1 --threads 1" typescript >/dev/null 2>&1; }
# a line that is edited (lien, two deletions, ne), Ctrl-C in the answer, the line again from the history, Ctrl-C at the prompt
got=0
keys 1 'lien\b\bne 4\n' 1.5 '\003' 0.5 '/messages\n' 0.5 'not this\003' 0.5 '/save typed.json\n' 0.5 '/quit\n' | on_terminal || got=$?
[ "$got" -eq 0 ] || { cat typescript; fail "chat ended with $got after Ctrl-C"; }
grep -q '"content": "line 4"' typed.json || fail 'the line was not edited'
[ "$(grep -c '"role"' typed.json)" -eq 2 ] || fail 'Ctrl-C at the prompt sends the line'
grep -q '"role": "assistant"' typed.json || fail 'an answer that was ended is lost'
keys 1 'a\n' 1 '\003' 0.5 '\004' | on_terminal || fail 'Ctrl-D does not end it'
