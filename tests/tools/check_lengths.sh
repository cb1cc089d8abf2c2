#!/bin/sh
# tools/check-lengths accepts the project, refuses what is too long, and exceptions that nothing needs.
set -eu
export LC_ALL=C
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/tools/check-lengths" "$root"

# lines COUNT: a file of a function with so many lines in all.
lines() {
    echo 'static void long_one(void) {'
    awk -v count="$1" 'BEGIN {while (++i <= count - 2) print "    step();"}'
    echo '}'
}
# expect WORDS: the check fails and says these words, or passes where there are none.
expect() {
    status=0
    message=$("$root/tools/check-lengths" "$work") || status=$?
    case "$status $message" in
    '0 ') [ -z "$1" ] || { echo "accepted what should be refused by: $1"; exit 1; } ;;
    "1 "*"${1:-no words}"*) ;;
    *) echo "wanted '$1': $status $message"; exit 1 ;;
    esac
}
mkdir -p "$work/tools" "$work/src/backends/cuda" "$work/include" "$work/tests" "$work/fuzz" "$work/bench" "$work/examples"
: >"$work/tools/lengths.txt"
lines 60 >"$work/src/one.c"
lines 200 >"$work/src/backends/cuda/kernel.cu"
expect ''
lines 61 >"$work/src/one.c"
expect 'src/one.c:long_one: 61 lines, at most 60'
echo 'src/one.c:long_one  70  a table' >"$work/tools/lengths.txt"
expect ''
lines 60 >"$work/src/one.c"
expect 'needs no exception'
rm "$work/src/one.c"
expect 'there is no src/one.c:long_one'
: >"$work/tools/lengths.txt"
lines 201 >"$work/src/backends/cuda/kernel.cu"
expect 'kernel.cu:long_one: 201 lines, at most 200'
awk 'BEGIN {while (++i <= 601) print "/* a line */"}' >"$work/src/backends/cuda/kernel.cu"
expect 'kernel.cu: 601 lines, at most 600'
echo 'src/one.c' >"$work/tools/lengths.txt"
expect 'not NAME, LIMIT, REASON'
