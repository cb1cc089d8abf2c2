#!/bin/sh
# Help of every command, the version, near names, and output that cannot be written.
. "$(dirname "$0")/expect.sh"

commands='rules train score evaluate generate chat tokenize detokenize tokenizer chat-template serve verify theory bench info experiment probe convert state'
expect 2 'Usage: deltarule COMMAND' "$deltarule"
expect 0 'Usage: deltarule COMMAND' "$deltarule" --help
expect 0 'deltarule 0.' "$deltarule" --version
for command in $commands; do
    expect 0 "  $command " "$deltarule" --help
    expect 0 "Usage: deltarule $command" "$deltarule" "$command" --help
    [ ! -s stderr ] || fail "help of $command wrote to standard error"
    expect 2 "there is no flag --surely-not" "$deltarule" "$command" --surely-not
    expect 2 "deltarule $command --help" "$deltarule" "$command" -x
    expect 1 'cannot write to standard output' to_full "$deltarule" "$command" --help
done
for kind in op decode train; do
    expect 0 "  $kind " "$deltarule" bench --help
    expect 0 "Usage: deltarule bench $kind" "$deltarule" bench $kind --help
    expect 2 "there is no flag --surely-not" "$deltarule" bench $kind --surely-not
    expect 1 'cannot write to standard output' to_full "$deltarule" bench $kind --help
done
expect 2 "did you mean 'train'?" "$deltarule" trian
expect 2 "did you mean 'decode'?" "$deltarule" bench decoed
expect 2 'did you mean --model?' "$deltarule" score --modle x
expect 2 'one argument too many' "$deltarule" rules gdn kda

for rule in linear_attention retnet mamba2 gla delta_net gdn kda qdelta pdn pgdn pkda eda; do
    expect 0 "$rule: " "$deltarule" rules
    expect 0 'inputs: query key value' "$deltarule" rules $rule
done
expect 0 'gain gamma' "$deltarule" rules eda
expect 2 'gdn' "$deltarule" rules gdm

# A reader that leaves early is no reason to die by a signal.
{
    sleep 0.5
    got=0
    "$deltarule" rules 2>stderr || got=$?
    echo $got >status
} | true
[ "$(cat status)" = 1 ] || fail "status $(cat status) when nobody reads"
grep -q 'cannot write to standard output' stderr || fail 'no word on lost output'

expect 0 'backend cpu' "$deltarule" info
expect 0 '(F32, portable, 1 threads)' "$deltarule" info --isa portable --threads 1
expect 0 ', 3 threads)' env OMP_NUM_THREADS=3 "$deltarule" info
for wrong in abc true 0 -1 1.5 1e1 1e400 99999 99999999999999999999 '{0}' '' ' ' '2,0'; do
    expect 2 "OMP_NUM_THREADS is \"$wrong\": set it to a number from 1 to 1024, or unset it" env OMP_NUM_THREADS="$wrong" "$deltarule" info
    expect 0 ', 2 threads)' env OMP_NUM_THREADS="$wrong" "$deltarule" info --threads 2
done
# No OpenMP runtime ends a command, or makes threads without end, for what it cannot read.
for name in NUM_THREADS STACKSIZE DYNAMIC SCHEDULE PROC_BIND PLACES MAX_ACTIVE_LEVELS WAIT_POLICY; do
    for wrong in true -1 1.5 99999999999999999999 '' 1e400; do
        expect 0 '1 passed' env "OMP_$name=$wrong" "$deltarule" verify --backend cpu --threads 2 "$root/tests/vectors/gdn__T1.safetensors"
    done
done
for name in GOMP_STACKSIZE KMP_STACKSIZE GOMP_CPU_AFFINITY; do
    for wrong in true -1 1.5 99999999999999999999 '' '0:'; do
        expect 0 '1 passed' env "$name=$wrong" "$deltarule" verify --backend cpu --threads 2 "$root/tests/vectors/gdn__T1.safetensors"
    done
done
expect 1 'threads cannot be made, only 1' env OMP_STACKSIZE=200000G "$deltarule" info --threads 2
