#!/bin/sh
# tools/plot-loss draws runs of any task, of any name, several into one picture, and leaves nothing where it cannot.
. "$(dirname "$0")/expect.sh"
command -v gnuplot >/dev/null || { echo 'not tried: gnuplot is not installed'; exit 77; }
plot=$root/tools/plot-loss
make_corpus
tiny='--hidden 16 --layers 1 --heads 1 --intermediate 16 --batch 2 --steps 6 --evaluate-every 3 --threads 1'
is_picture() {
    [ "$(head -c 4 "$1" | tail -c 3)" = PNG ] || fail "$1 is no picture"
    [ "$(wc -c <"$1")" -gt 5000 ] || fail "$1 is empty"
    [ -z "$(find . -name '.loss.*')" ] || fail 'an unfinished picture was left'
}
# a name that shell, gnuplot and awk would each take for something else
odd="it's a \"run\", 100% \$(false) \\n"
for run in plain "$odd" -dash; do
    # shellcheck disable=SC2086 # a list of words
    expect 0 'model: ' "$deltarule" train --corpus corpus --seq-len 16 $tiny --out "./$run"
    expect 0 'loss.png' "$plot" "./$run"
    is_picture "./$run/loss.png"
done
# shellcheck disable=SC2086
expect 0 'model: ' "$deltarule" train --task mqar --seq-len 32 --pairs 2 --vocabulary 64 $tiny --out recall
expect 0 'recall/loss.png' "$plot" recall
is_picture recall/loss.png
expect 0 'loss.png' "$plot" plain "$odd"
is_picture loss.png
expect 0 'both.png' "$plot" -o both.png plain "$odd"
cmp loss.png both.png || fail 'a picture has another content under another name'
! cmp -s loss.png plain/loss.png || fail 'two runs look like one'
expect 1 'have no scale in common' "$plot" plain recall
expect 1 'no metrics.csv' "$plot" corpus
expect 1 'no metrics.csv' "$plot" plain nothing
head -1 plain/metrics.csv >plain/first && mv plain/first plain/metrics.csv
expect 1 'no steps yet' "$plot" plain
expect 2 'usage' "$plot"
is_picture plain/loss.png # the old one stays
# a loss that is not a number
sed '4s/,[0-9.]*/,nan/' "$odd/metrics.csv" >changed && mv changed "$odd/metrics.csv"
expect 0 'loss.png' "$plot" "./$odd"
