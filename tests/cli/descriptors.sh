#!/bin/sh
# Standard streams that are closed or full: nothing that is printed lands in a file, and a command whose output could not be written
# says so and ends with 1, its work done.
. "$(dirname "$0")/expect.sh"
make_corpus
tiny='--corpus corpus --layers 1 --heads 2 --hidden 32 --intermediate 32 --batch 2 --seq-len 32 --steps 4 --save-every 2
    --evaluate-every 2 --threads 1'

without_output() { "$@" >&-; }
without_errors() { "$@" 2>&-; }
without_input() { "$@" <&-; }
without_any() { "$@" <&- >&- 2>&-; }

# What is in a run folder, without the columns of times.
contents() {
    (cd "$1" && find . -type f | sort && cat config.json settings.json && cut -d, -f1-5,8- metrics.csv && cksum <model.safetensors)
}

# shellcheck disable=SC2086 # a list of words, here and below
expect 0 'model: whole' "$deltarule" train $tiny --out whole
contents whole >right
unwritten='cannot write to standard output: Bad file descriptor'

# try STREAMS STATUS WORDS: a whole run and one that is resumed, which end well since what they print is progress; and every other
# command, without these streams.
try() {
    # shellcheck disable=SC2086
    expect 0 '' "without_$1" "$deltarule" train $tiny --out "$1"
    contents "$1" | cmp - right || fail "a run without $1 leaves something else"
    # shellcheck disable=SC2086
    expect 0 '' "without_$1" "$deltarule" train $tiny --steps 2 --out "$1-half"
    expect 0 '' "without_$1" "$deltarule" train --resume "$1-half" --steps 3 --threads 1
    awk -F, 'NF != 12 || (NR > 1 && $1 != NR - 1) {exit 1} END {exit NR != 4}' "$1-half/metrics.csv" ||
        fail "a run that was resumed without $1 has other lines in metrics.csv"
    expect "$2" "$3" "without_$1" "$deltarule" score --model whole --corpus whole/held_out
    expect "$2" "$3" "without_$1" "$deltarule" generate --model whole --prompt 'line ' --tokens 5
    expect "$2" "$3" "without_$1" "$deltarule" verify "$root/tests/vectors/act_squash__T9.safetensors" --backend reference
    expect "$2" "$3" "without_$1" "$deltarule" theory linear
    expect "$2" "$3" "without_$1" "$deltarule" bench op --tokens 64 --heads 1 --head-size 16 --repeats 1
    for command in info rules --version --help 'train --help'; do
        # shellcheck disable=SC2086
        expect "$2" "$3" "without_$1" "$deltarule" $command
    done
}
try input 0 ''
try errors 0 ''
try output 1 "$unwritten"
try any 1 ''

# What was wrong decides the status, whether it can be said or not.
expect 2 '' without_any "$deltarule" train --steps none
expect 2 "there is no command 'nothing'" without_output "$deltarule" nothing

# A full device. The run stops and can go on.
for command in info rules --version --help 'train --help' 'theory linear' 'score --model whole --corpus whole/held_out' \
    'generate --model whole --tokens 100' "verify $root/tests/vectors/act_squash__T9.safetensors --backend reference" \
    'bench op --tokens 64 --heads 1 --head-size 16 --repeats 1'; do
    # shellcheck disable=SC2086
    expect 1 'cannot write to standard output' to_full "$deltarule" $command
done
# shellcheck disable=SC2086
expect 1 'cannot write to standard output' to_full "$deltarule" train $tiny --out stopped
grep -qF 'continue with: deltarule train --resume stopped' stderr || fail 'a run that stopped does not say how to go on'
expect 0 'model: stopped' "$deltarule" train --resume stopped --threads 1
contents stopped | cmp - right || fail 'a run that stopped and went on has another model'
