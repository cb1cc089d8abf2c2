#!/bin/sh
# verify passes on the recorded vectors of the project and fails on each kind of damage to one.
. "$(dirname "$0")/expect.sh"
vectors=$root/tests/vectors
case=$vectors/gdn__T1.safetensors

expect 0 'cpu' "$deltarule" verify "$vectors" --strict
tail -n 1 stdout | grep -qE '^[1-9][0-9]* passed, 0 failed, 0 skipped$' || fail 'the last line does not count'
if [ -n "${DELTARULE_VECTORS:-}" ]; then
    echo "verifying DELTARULE_VECTORS=$DELTARULE_VECTORS too"
    expect 0 ' passed, 0 failed, ' "$deltarule" verify "$DELTARULE_VECTORS"
fi

# Models of published types, each as its own class computes it, in every way; those of which a part is not built say so.
expect 0 'fla_kda_hybrid' "$deltarule" verify "$root/tests/checkpoints"
grep -qE '^fla_kda_hybrid +cpu .* greedy 48 of 48  pass$' stdout || fail 'a hybrid does not pass'
tail -n 1 stdout | grep -qE '^[1-9][0-9]* passed, 0 failed, ' || fail 'the last line does not count models'
if [ -n "${DELTARULE_CHECKPOINTS:-}" ]; then
    echo "verifying DELTARULE_CHECKPOINTS=$DELTARULE_CHECKPOINTS too"
    expect 0 ' passed, 0 failed, ' "$deltarule" verify "$DELTARULE_CHECKPOINTS"
fi
cp -r "$root/tests/checkpoints/mistral_swa" model
printf '\377' | dd of=model/model.safetensors bs=1 seek=$(($(wc -c <model/model.safetensors) - 2)) conv=notrunc 2>/dev/null
expect 1 '' "$deltarule" verify model
expect 1 '' "$deltarule" verify . --backend cpu
tail -n 1 stdout | grep -qx '0 passed, 1 failed, 0 skipped' || fail 'a wrong model was not counted'
expect 0 'reference recurrent' "$deltarule" verify "$case" --backend reference --path recurrent
expect 0 'portable' "$deltarule" verify "$case" --backend cpu --isa portable --threads 1
if grep -q reference stdout; then fail '--backend cpu ran the reference'; fi
expect 2 'takes one of' "$deltarule" verify "$case" --path sideways
expect 2 'an argument is missing' "$deltarule" verify
expect 1 'no-such-folder' "$deltarule" verify no-such-folder
mkdir nothing
expect 1 'no .safetensors file' "$deltarule" verify nothing

# A wrong number makes the case fail: the last byte belongs to an F32 input, its change must show in the outputs.
mkdir wrong
head -c $(($(wc -c <"$case") - 1)) "$case" >wrong/case.safetensors
printf '\301' >>wrong/case.safetensors
got=0
"$deltarule" verify wrong >stdout 2>stderr || got=$?
[ $got -eq 1 ] || fail "status $got for a wrong number"
tail -n 1 stdout | grep -qx '0 passed, 1 failed, 0 skipped' || fail 'a wrong number was not counted'

# A rule that nobody knows is skipped, or failed if that is wished; alone it is no success.
mkdir unknown
sed 's/"rule":"gdn"/"rule":"xyz"/; s/"rule": "gdn"/"rule": "xyz"/' "$case" >unknown/case.safetensors
! cmp -s "$case" unknown/case.safetensors || fail 'the rule of the case could not be replaced'
expect 1 'nothing was verified' "$deltarule" verify unknown
tail -n 1 stdout | grep -qx '0 passed, 0 failed, 1 skipped' || fail 'an unknown rule was not skipped'
expect 0 '1 skipped' "$deltarule" verify unknown "$case"
got=0
"$deltarule" verify unknown "$case" --strict >stdout 2>stderr || got=$?
[ $got -eq 1 ] || fail "status $got for an unknown rule with --strict"

# Files that are not what they seem.
head -c 100 "$case" >short.safetensors
expect 1 'short.safetensors' "$deltarule" verify short.safetensors
printf '\377\377\377\377\377\377\377\177' >huge.safetensors
expect 1 'huge.safetensors' "$deltarule" verify huge.safetensors
