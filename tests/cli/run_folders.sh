#!/bin/sh
# Run folders: whose they are, what is refused before they are made, and that what is refused leaves nothing.
. "$(dirname "$0")/expect.sh"
make_corpus
tiny='--corpus corpus --hidden 32 --layers 1 --heads 2 --intermediate 32 --batch 2 --seq-len 32 --evaluate-every 0 --threads 1'
# refuse STATUS WORDS FLAGS...: a run that is refused and leaves no folder
refuse() {
    status=$1 words=$2
    shift 2
    # shellcheck disable=SC2086 # a list of words, here and below
    expect "$status" "$words" "$deltarule" train --out parent/out $tiny "$@"
    [ ! -e parent ] || fail "a refused run left its folder: $*"
}

# What cannot run.
refuse 2 'conv_size' --conv-size 17
refuse 1 'there is no memory' --hidden 16384 --layers 100
refuse 1 'there is no memory' --batch 100000 --seq-len 20000
refuse 2 'corpus' --corpus no-such-text
refuse 2 'heads' --heads 3
# shellcheck disable=SC3045 # dash and bash have it
limited() { (ulimit -v 600000 && exec "$deltarule" "$@"); }
if ! grep -q __asan_init "$deltarule" && ! grep -q __tsan_init "$deltarule"; then
    # shellcheck disable=SC2086
    expect 1 'GB are available' limited train --out parent/out $tiny --hidden 2048 --layers 8
    [ ! -e parent ] || fail 'a run too large for the limit left its folder'
fi
for setting in hidden conv-size seq-len; do
    "$deltarule" train --help | tr '\n' ' ' | grep -Eq -- "--$setting N[^[]*\[[0-9]+ +to +[0-9e+]+\]" || fail "no limits of $setting in --help"
done

# Names that no folder can have.
long=$(awk 'BEGIN {for (i = 0; i < 3000; i++) printf "x/"}')
# shellcheck disable=SC2086
expect 2 'the name of the run folder has 6000 bytes' "$deltarule" train $tiny --steps 2 --out "$long"
[ ! -e x ] || fail 'a name too long was cut'
expect 2 'the name of the run folder has 6000 bytes' "$deltarule" train --resume "$long"
ln -s nowhere leads
# shellcheck disable=SC2086
expect 1 'it is a link that leads nowhere' "$deltarule" train $tiny --steps 2 --out leads
# shellcheck disable=SC2086
expect 2 'the name of the run folder is empty' "$deltarule" train $tiny --steps 2 --out ''

# A folder that the user may only read, of a new run and of one that goes on. Permissions do not bind root, who becomes nobody.
# shellcheck disable=SC2086
expect 0 'model: kept' "$deltarule" train $tiny --steps 2 --out kept
mkdir closed
chmod a+rx . closed kept kept/held_out && chmod a-w closed kept
nobody() { "$@"; }
[ "$(id -u)" -ne 0 ] || nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
if nobody true 2>/dev/null && nobody "$deltarule" --version >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    expect 1 'closed/run: cannot make the folder: Permission denied' nobody "$deltarule" train $tiny --steps 2 --out closed/run
    # shellcheck disable=SC2086
    expect 1 'closed: cannot lock the run folder: Permission denied' nobody "$deltarule" train $tiny --steps 2 --out closed
    find kept -printf '%p %s %m %T@\n' | sort >before.kept
    expect 1 'kept: cannot lock the run folder: Permission denied' nobody "$deltarule" train --resume kept --steps 4
    find kept -printf '%p %s %m %T@\n' | sort | cmp - before.kept || fail 'a refused run changed a folder that is read only'
    chmod a-rx kept
    expect 1 'Permission denied' nobody "$deltarule" train --resume kept --steps 4
fi
chmod u+rwx closed kept
rm -rf closed kept leads

# --dry-run writes nothing.
mkdir dry && cp -r corpus dry/ && cd dry
# shellcheck disable=SC2086
expect 0 'time of one step: ' "$deltarule" train $tiny --steps 20 --dry-run
for words in 'parameters: ' 'memory: ' 'steps: 20 of 64 tokens'; do grep -q "$words" stdout || fail "--dry-run does not say $words"; done
[ "$(find . -mindepth 1 | grep -cv -e '^./corpus' -e stdout -e stderr)" -eq 0 ] || fail '--dry-run wrote something'
cd ..

# A folder with something else in it is nobody's run folder, least of all the corpus.
cp -r corpus before
# shellcheck disable=SC2086
expect 2 'is not empty' "$deltarule" train $tiny --steps 2 --out corpus
diff -r corpus before || fail 'a refused run changed the corpus'
mkdir empty
# shellcheck disable=SC2086
expect 0 'model: empty' "$deltarule" train $tiny --steps 2 --out empty
[ ! -e empty/.lock ] || fail 'the lock of a run that is over was left'
# shellcheck disable=SC2086
expect 2 'holds a run already' "$deltarule" train $tiny --steps 2 --out empty

# A lock that nobody holds is no lock, though it names a process that lives: a run that was killed may be waited for by nobody.
mkdir stale
echo "$$ $(uname -n)" >stale/.lock
# shellcheck disable=SC2086
expect 0 'model: stale' "$deltarule" train $tiny --steps 2 --out stale

# Many starts at once: one trains, the others say who does and leave nothing in its folder.
# start COUNT ARGUMENTS...: starts so many at once; their statuses are in ended.1, ended.2 ..
start() {
    count=$1
    shift
    for i in $(seq "$count"); do
        (status=0; "$deltarule" "$@" >"out.$i" 2>"err.$i" || status=$?; echo $status >"ended.$i") &
    done
    wait
}
one_of() {
    won=0
    for i in $(seq "$1"); do
        case $(cat "ended.$i") in
            0) won=$((won + 1)) ;;
            1) grep -q 'process [0-9]* on .* is training in the run folder' "err.$i" || fail "$(cat "err.$i")" ;;
            2) grep -q "$2" "err.$i" || fail "$(cat "err.$i")" ;;
            *) fail "status $(cat "ended.$i")" ;;
        esac
    done
    [ $won -ge 1 ] || fail 'nobody won'
}
# shellcheck disable=SC2086
expect 0 'model: alone' "$deltarule" train $tiny --steps 200 --seed 1 --out alone
rm -rf raced
for i in 1 2 3 4 5 6 7 8; do
    # shellcheck disable=SC2086
    (status=0; "$deltarule" train $tiny --steps 200 --seed $i --out raced >"out.$i" 2>"err.$i" || status=$?; echo $status >"ended.$i") &
done
wait
one_of 8 'holds a run already'
[ $won -eq 1 ] || fail "$won runs won one folder"
[ "$(ls -A raced)" = "$(ls -A alone)" ] || fail "the losers left something: $(ls -A raced)"
seed=$(sed -n 's/.*"seed": \([0-9]*\).*/\1/p' raced/settings.json)
# shellcheck disable=SC2086
expect 0 'model: again' "$deltarule" train $tiny --steps 200 --seed "$seed" --out again
cmp raced/model.safetensors again/model.safetensors || fail 'the winner has another model than when it was alone'
diff -r raced/held_out again/held_out || fail 'the winner has files of a loser'

# As many resumes at once.
# shellcheck disable=SC2086
expect 0 'model: parts' "$deltarule" train $tiny --steps 20 --seed "$seed" --out parts
start 8 train --resume parts --steps 200 --threads 1
one_of 8 'none'
[ "$(grep -c '^[0-9]' parts/metrics.csv)" -eq 200 ] || fail 'resumes at once spoilt the metrics'
[ "$(ls -A parts)" = "$(ls -A alone)" ] || fail "resumes at once left something: $(ls -A parts)"

# Runs that start in one second have folders of their own.
rm -rf runs
# shellcheck disable=SC2086
start 6 train $tiny --steps 2
for i in 1 2 3 4 5 6; do [ "$(cat "ended.$i")" -eq 0 ] || fail "a run with a folder of its own: $(cat "err.$i")"; done
[ "$(find runs -mindepth 1 -maxdepth 1 | wc -l)" -eq 6 ] || fail "six runs have these folders: $(find runs -maxdepth 1)"

# Steps.
expect 2 'has done 200 already' "$deltarule" train --resume alone --steps 100
expect 0 'steps: 220 instead of 200, so the learning rate falls over all 220: step 201 has' "$deltarule" train --resume alone --steps 220 --threads 1

# Settings that were edited.
cp -r alone edited
for edit in 's/"hidden": 32/"hidden": 64/ hidden' 's/"layers": 1/"layers": 2/ layers' 's/"rule": "gdn"/"rule": "kda"/ rule' \
    's/"tied": true/"tied": false/ tied' 's/"conv_size": "auto"/"conv_size": 3/ conv_size' 's/"heads": 2/"heads": 4/ heads'; do
    sed "${edit% *}" alone/settings.json >edited/settings.json
    ! cmp -s alone/settings.json edited/settings.json || fail "settings.json has no ${edit##* }"
    expect 2 "${edit##* }" "$deltarule" train --resume edited
    grep -q 'settings.json' stderr || fail 'the file is not named'
done
# A resumed run is held against memory as a new one is, before a step.
sed 's/"hidden": 32/"hidden": 65536/' alone/settings.json >edited/settings.json
expect 1 'are available; free some, or resume the run where there is more' "$deltarule" train --resume edited --steps 230
sed 's/"batch": 2/"batch": 1000000/; s/"seq_len": 32/"seq_len": 4096/' alone/settings.json >edited/settings.json
expect 1 'there is no memory' "$deltarule" train --resume edited --steps 230

# metrics.csv as other programs leave it: kept or refused, never cut.
# again COMMAND STATUS WORDS: resumes a run whose metrics.csv went through this command
again() {
    rm -rf kept
    cp -r parts kept
    eval "$1" <parts/metrics.csv >kept/metrics.csv
    cp kept/metrics.csv changed.csv
    expect "$2" "$3" "$deltarule" train --resume kept --steps 203 --threads 1
    [ "$2" -eq 0 ] || cmp changed.csv kept/metrics.csv || fail "a refused metrics.csv was changed: $1"
    [ "$2" -ne 0 ] || [ "$(wc -l <kept/metrics.csv)" -eq 204 ] || fail "lines are missing: $1"
}
again "sed 's/\$/\\r/'" 0 'model: kept'
! grep -q "$(printf '\r')" kept/metrics.csv || fail 'line ends are mixed'
again "sed 's/\$/,note/'" 0 'model: kept'
[ "$(sed -n '2s/.*,//p;$s/.*,//p' kept/metrics.csv | tr '\n' '/')" = 'note//' ] || fail 'the added column was lost'
again "sed 's/^/x,/'" 0 'model: kept'
again "cut -d, -f1-10" 1 'has no column "accuracy"'
again "sed '7d;9s/.*/what a line/'" 1 'line 8'
again "sed '5G'" 1 'line 6'
again "awk 'NR == 2 {kept = \$0; next} {print} NR == 3 {print kept}'" 1 'out of order'
again "tr -d '\\n'" 1 'too long'
again "tr ',' ';'" 1 'has no column "step"'
again "sed '4s/,/x/' | tr x '\\000'" 1 'bytes that are 0'
again "head -c -20" 1 'line 201 that is no step' # of a step before the checkpoint, which no kill cuts
again "(cat; printf '201,1.5,0.')" 0 'model: kept'
again "(cat; printf '2')" 0 'model: kept'
again "(cat; printf '200,1.5,0.')" 1 'line 202'
for harm in 'mkdir' 'mkfifo' 'ln -s /dev/null'; do
    rm -rf kept
    cp -r parts kept
    rm kept/metrics.csv
    $harm kept/metrics.csv
    expect 1 'is not a regular file' "$deltarule" train --resume kept --steps 203 --threads 1
done
rm kept/metrics.csv
expect 0 'model: kept' "$deltarule" train --resume kept --steps 203 --threads 1
[ "$(grep -c '^20[123],' kept/metrics.csv)" -eq 3 ] || fail 'a run without metrics does not go on'
