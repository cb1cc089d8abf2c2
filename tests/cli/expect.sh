# Read by the scripts beside it: $1 is the command, $2 the project's folder. They run in a folder of their own.
# shellcheck shell=sh
set -eu
export LC_ALL=C
# shellcheck disable=SC2034 # used by the scripts
deltarule=$1 root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "FAILED: $*"
    [ ! -s stdout ] || { echo "--- stdout"; tail -20 stdout; }
    [ ! -s stderr ] || { echo "--- stderr"; tail -20 stderr; }
    exit 1
}

# expect STATUS WORDS COMMAND...: the command ends with this status and says these words, on standard output if the status is 0,
# else on standard error; no words: whatever it says. The streams stay in the files stdout and stderr.
expect() {
    wanted=$1 words=$2
    shift 2
    got=0
    "$@" >stdout 2>stderr </dev/null || got=$?
    [ "$got" -eq "$wanted" ] || fail "status $got instead of $wanted: $*"
    if [ "$wanted" -eq 0 ]; then said=stdout; else said=stderr; fi
    [ -z "$words" ] || grep -qF -- "$words" "$said" || fail "'$words' is not on $said: $*"
    # it warns of memory that it refuses, as it is asked to
    if grep -v 'AddressSanitizer failed to allocate' stderr | grep -q 'Sanitizer'; then fail "a sanitizer spoke: $*"; fi
}

# Runs a command whose standard output is full.
to_full() { "$@" >/dev/full; }

# A corpus of some 60 KB that compresses well: numbered lines.
make_corpus() {
    mkdir -p corpus
    for file in a b c d e f; do
        awk -v file=$file 'BEGIN {for (i = 1; i <= 300; i++) print "line " i " of file " file ": the state is a matrix"}' >corpus/$file.txt
    done
}
