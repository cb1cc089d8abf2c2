#!/bin/sh
# Files of tasks: what the formats become, what is printed, what is refused.
. "$(dirname "$0")/expect.sh"
make_corpus
expect 0 'model: run' "$deltarule" train --corpus corpus --hidden 16 --layers 1 --heads 1 --intermediate 16 --batch 4 --seq-len 32 \
    --steps 120 --threads 1 --out run

# The same choice, written in each format: its log-probability is the same wherever context and continuation are.
probability() { sed -n 's/.*"logprobs": \[\([^],]*\).*/\1/p' stdout | head -1; }
same_as_plain() {
    printf '%s\n' "$1" >plain.jsonl
    printf '%s\n' "$2" >task.jsonl
    expect 0 '"format": "choices"' "$deltarule" evaluate run plain.jsonl --items --json
    of_plain=$(probability)
    expect 0 "\"format\": \"$3\"" "$deltarule" evaluate run task.jsonl --items --json
    [ -n "$of_plain" ] || fail "$1 has no log-probability"
    [ "$(probability)" = "$of_plain" ] || fail "$3 is asked otherwise: $(probability) instead of $of_plain"
    grep -q '"accuracy": 1[,}]' stdout || grep -q '"accuracy": 0[,}]' stdout || fail "$3 has no accuracy"
}
same_as_plain '{"context": "Question: line 7\nAnswer:", "choices": ["of file", "zq"], "answer": 0}' \
    '{"goal": "line 7", "sol1": "of file", "sol2": "zq", "label": 0}' piqa
same_as_plain '{"context": "Line: line 7 of file The state is", "choices": ["a matrix. b", "c"], "answer": "c"}' \
    '{"activity_label": " Line", "ctx_a": "line 7 [x] of  file", "ctx_b": "the STATE is", "endings": ["a matrix [title] b", "c"], "label": "1"}' hellaswag
same_as_plain '{"context": "line 7 of file", "choices": ["a: the state", "b"], "answer": 0}' \
    '{"sentence": "line 7 of _ a: the state ", "option1": "file", "option2": "x", "answer": "1"}' winogrande
same_as_plain '{"context": "Question: line\nAnswer:", "choices": ["of file", "zz"], "answer": 1}' \
    '{"question": "line", "choices": {"text": ["of file", "zz"], "label": ["A", "B"]}, "answerKey": "B"}' arc
same_as_plain '{"context": "the state is", "choices": ["a matrix", "zz"], "answer": 1}' \
    '{"question_stem": "the state is", "choices": {"text": ["a matrix", "zz"], "label": ["A", "B"]}, "answerKey": "A"}' openbookqa
same_as_plain '{"context": "line 5\nQuestion: is it?\nAnswer:", "choices": ["no", "yes"], "answer": 1}' \
    '{"passage": "line 5", "question": "is it", "answer": true}' boolq
same_as_plain '{"context": "line 5\nQuestion: what\nAnswer:", "choices": ["a", "b", "c", "d"], "answer": 3}' \
    '{"support": " line 5", "question": "what", "distractor1": "a", "distractor2": "b", "distractor3": "c", "correct_answer": "d"}' sciq

# A text's log-probability is the loss that score tells, of one file.
text='line 5 of file a: the state is a matrix'
printf '%s' "$text" >text
printf '{"text": "%s"}\n\n' "$text" >task.jsonl
expect 0 'bits_per_byte' "$deltarule" score --model run --corpus text --json
bits=$(sed 's/.*"bits_per_byte": \([0-9.]*\).*/\1/' stdout | cut -c1-6)
expect 0 '"items": 1' "$deltarule" evaluate run task.jsonl --format rolling --json
grep -q "\"bits_per_byte\": $bits" stdout || fail "bits per byte are not $bits"
expect 0 'word_perplexity' "$deltarule" evaluate run task.jsonl --format rolling --max-length 16
expect 0 'perplexity' "$deltarule" evaluate run task.jsonl --format lambada
expect 0 'accuracy             ' "$deltarule" evaluate run task.jsonl --format lambada

# Answers: what generate makes of the prompt at temperature 0, up to the end of the line.
expect 0 '' "$deltarule" generate --model run --prompt 'line 5 of file' --no-echo --temperature 0 --tokens 12 --stop '
'
answer=$(cat stdout)
[ -n "$(printf '%s' "$answer" | tr -d ' ')" ] || fail 'the answer is blank, and shows nothing'
printf '{"prompt": "line 5 of file", "answer": ["none", "%s"]}\n{"prompt": "line 5 of file", "answer": "~"}\n' "$answer" >task.jsonl
expect 0 '"items": 2, "exact": 0.5, "contained": 0.5, "found": 0.25' "$deltarule" evaluate run task.jsonl --tokens 12 --json
printf '{"text": "head\\nthe needle is KEY7 and more of it\\nkey:", "value": "key7"}\n{"text": "a\\nkey:", "value": "b"}\n' >task.jsonl
expect 0 'skipped              1' "$deltarule" evaluate run task.jsonl --cut-context 60
expect 0 '"items": 1' "$deltarule" evaluate run task.jsonl --limit 1 --items --json

# ---- what is refused: the line, and what is wrong with it ----
refuse() {
    printf '{"text": "good enough", "value": "x"}\n%s\n' "$1" >bad.jsonl
    expect 1 "$2" "$deltarule" evaluate run bad.jsonl --format "$3"
}
refuse '{"text": 3, "value": "x"}' 'bad.jsonl: line 2: ' cloze
refuse '{"text": "x"' 'bad.jsonl: line 2' cloze
refuse '[]' 'bad.jsonl: line 2' cloze
refuse '{"text": "x", "value": []}' '"value" has no answer' cloze
refuse '{"text": "x", "value": ["y", " "]}' 'an answer is empty' cloze
refuse '{"text": "x", "page": ""}' '"page" is empty' rolling
refuse '{"text": "x", "value": [3]}' 'an answer must be a text' cloze
one() {
    printf '%s\n' "$1" >bad.jsonl
    expect 1 "$2" "$deltarule" evaluate run bad.jsonl
}
one '{"context": "a", "choices": ["b"], "answer": 0}' 'a list of two texts at least'
one '{"context": "a", "choices": ["b", 3], "answer": 0}' 'choice 2 of "choices" is no text'
one '{"context": "a", "choices": ["b", "c"], "answer": 2}' 'from 0 to 1'
one '{"context": "a", "choices": ["b", "c"]}' 'from 0 to 1'
one '{"sentence": "no gap", "option1": "a", "option2": "b", "answer": "1"}' 'has no _'
one '{"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"}' 'none of "choices.label"'
one '{"text": "a text"}' 'name the format'
printf '\n \n' >bad.jsonl
expect 1 'it has no items' "$deltarule" evaluate run bad.jsonl
expect 1 'none' "$deltarule" evaluate run none
expect 2 'cut_context is 20: it must be 0, or more than answer_length, 50' "$deltarule" evaluate run task.jsonl --cut-context 20
expect 2 'an argument is missing' "$deltarule" evaluate run
expect 1 'cannot write to standard output' to_full "$deltarule" evaluate run task.jsonl --items
