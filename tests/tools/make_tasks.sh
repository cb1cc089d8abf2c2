#!/bin/sh
# Needles, look-ups and last words of tools/make-tasks: answers that follow from the prompts alone, lengths, the same files from
# the same seed, and what is refused. The text is this test's own.
# Usage: make_tasks.sh SOURCE DELTARULE TOKENIZER
set -eu
export LC_ALL=C
source=$1 deltarule=$2 tokenizer=$3
command -v python3 >/dev/null || { echo 'skipped: python3 is not installed'; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*"; exit 1; }

python3 - <<'PY'
import json, random
from pathlib import Path
draw = random.Random(1)
word = lambda: "".join(draw.choice("bdfglmnprst") + draw.choice("aeiou") for _ in range(draw.randint(2, 5)))
common = [word() for _ in range(300)]
prose = " ".join(" ".join(draw.choice(common) for _ in range(draw.randint(3, 12))).capitalize() + draw.choice(".!?") for _ in range(3000))
Path("text").mkdir()
put = lambda name, texts: Path("text", name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
put("austen.jsonl", [prose[:9000], prose[9000:]])
put("words.jsonl", ["\n".join(sorted({word() for _ in range(900)})) for _ in range(2)])
put("packages.jsonl", [f"Package: p{i}\nVersion: {i}.{draw.random():.6f}\nSize: {draw.randint(1000, 10**9)}\nSection: {word()}" for i in range(300)])
PY
"$source/tools/make-tasks" text tasks --lengths 400,900,6000 --samples 12 --documents 30 >said || fail 'it does not make tasks'
grep -q '^common_words-400: left out' said || fail 'a length that is too short is not told'
"$source/tools/make-tasks" text again --lengths 400,900,6000 --samples 12 --documents 30 >said
for file in tasks/*.jsonl; do cmp "$file" "again/${file#tasks/}" || fail 'the same seed makes other items'; done
[ "$(wc -l <tasks/documents.jsonl)" -ge 20 ] || fail 'too few documents'
[ -s tasks/deltarule_tasks.py ] || fail 'no scores for lm-evaluation-harness'

python3 - <<'PY'
import collections, json, re
from pathlib import Path
room, seen = {"variables": 30, "common_words": 120, "frequent_words": 50, "look_up": 48, "last_word": 8}, set()
for path in sorted(Path("tasks").glob("*-*.jsonl")):
    name, length = path.stem.rsplit("-", 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 12 and len({json.dumps(line) for line in lines}) == 12, path
    seen.add(name)
    longest = 0
    for line in lines:
        if name == "last_word":
            words = line["text"].split(" ")
            bare = [re.sub(r"\W", "", word) for word in words]
            assert bare[-1] in bare[:-1] and len(bare[-1]) > 2, (path, line)
            longest = max(longest, len(" ".join(words[:-1]).encode()) + room[name])
            continue
        prompt, answers = line["prompt"], line["answer"]
        longest = max(longest, len(prompt.encode()) + room.get(name, 128))
        if name.startswith(("single", "multi")):
            facts = collections.defaultdict(list)
            for _, key, value in re.findall(r"special magic (number|uuid)s for (\S+) is: (\S+)\.(?=\s)", prompt):
                facts[key].append(value)
            asked = re.search(r"\nWhat (?:is|are all) the special magic \w+ for (.*?) mentioned", prompt)[1]
            keys = re.split(r",? and |, ", asked)
            assert sorted(answers) == sorted(value for key in keys for value in facts[key]), (path, asked, answers, facts)
            wanted = {"multi_value": 4, "multi_query": 4}.get(name, 1)
            assert len(answers) == wanted and len(facts) >= {"multi_key_1": 4, "multi_query": 4}.get(name, 1), (path, facts)
        elif name == "variables":
            value = re.search(r"assigned the value (\d+)", prompt)[1]
            held = {}
            for variable, of in re.findall(r"VAR (\w{5}) = (?:VAR )?(\w{5})", prompt):
                held[variable] = held.get(of, of)
            assert sorted(answers) == sorted(variable for variable in held if held[variable] == value), (path, held, answers)
        elif name == "common_words":
            counts = collections.Counter(re.findall(r"\d+\. (\w+)", prompt))
            assert sorted(answers) == sorted(word for word, count in counts.items() if count == 30), path
            assert set(counts.values()) <= {3, 30}
        elif name == "frequent_words":
            counts = collections.Counter(re.findall(r"\b[a-z]{6}\b", prompt.split("coded words. ")[1].split("\nQuestion")[0]))
            assert min(counts[word] for word in answers) >= max(count for word, count in counts.items() if word not in answers), path
            assert len(answers) == 3 and [counts[word] for word in answers] == sorted((counts[w] for w in answers), reverse=True)
        else:
            field, key = re.search(r"\n\n(\w+) of (\w+):$", prompt).groups()
            record = next(part for part in prompt.split("\n\n") if part.startswith(f"Package: {key}\n"))
            assert f"\n{field}: {answers[0]}" in record and len(answers) == 1, (path, field, key)
    assert longest <= int(length) and longest > 0.6 * int(length), (path, longest)
assert len(seen) == 13, seen
PY

# records that are longer than an item may be are passed over
mkdir long
python3 -c 'import json
for i in range(90):
    more = "word " * (100 if i % 2 else 1)
    print(json.dumps({"text": f"Package: p{i}\nVersion: {i}.1\nSize: {i + 100}\nDepends: {more}"}))' >long/packages.jsonl
"$source/tools/make-tasks" long passed look_up --lengths 400 --samples 12 >said || fail 'long records leave a task out'
[ "$(wc -l <passed/look_up-400.jsonl)" -eq 12 ] || fail 'not twelve items beside long records'

"$source/tools/make-tasks" text counted single_2 --lengths 400 --samples 3 --tokenizer "$tokenizer" --deltarule "$deltarule" >said
python3 -c 'import json; [print(json.dumps(json.loads(line)["prompt"])) for line in open("counted/single_2-400.jsonl")]' |
    "$deltarule" tokenize --tokenizer "$tokenizer" --json | awk -F, 'NF + 128 > 400 || NF + 128 < 300 {exit 1}' ||
    fail 'lengths are not those of the tokenizer'

refuse() {
    words=$1
    shift
    ! "$source/tools/make-tasks" "$@" >said 2>&1 || fail "not refused: $*"
    grep -q -- "$words" said || { cat said; fail "'$words' is not said"; }
}
refuse 'there is no task needle' text new needle
refuse 'nothing fits' text new common_words --lengths 64
refuse 'must be numbers' text new --lengths 5
refuse 'tools/get-text none packages makes it' none new look_up
refuse 'samples must be' text new --samples 0
refuse '--deltarule names the program' text new single_1 --tokenizer x --deltarule ./none
