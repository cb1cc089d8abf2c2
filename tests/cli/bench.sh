#!/bin/sh
# Measurements from the command line: tables, every key of the JSON, several rules and numbers of threads, compositions, and
# what is refused. Shapes are small: times are not tested.
. "$(dirname "$0")/expect.sh"

# An OpenBLAS that is older than the processor chooses kernels that are no limit.
case $("$deltarule" info | sed -n 's/^backend cpu (F32, \([a-z0-9]*\),.*/\1/p') in
avx512) OPENBLAS_CORETYPE=SkylakeX ;;
avx2) OPENBLAS_CORETYPE=Haswell ;;
*) OPENBLAS_CORETYPE= ;;
esac
export OPENBLAS_CORETYPE

small='--tokens 64 --heads 2 --head-size 16 --repeats 1'
few='--sequences 2 --heads 2 --head-size 16 --repeats 1'
tiny='--hidden 16 --layers 1 --heads 2 --intermediate 16 --batch 2 --seq-len 16 --repeats 1'
# bench STATUS WORDS KIND FLAGS...
bench() {
    status=$1 words=$2
    shift 2
    expect "$status" "$words" "$deltarule" bench "$@"
}

# keys WORDS...: these and no other keys stand in each line of stdout, which are objects whose numbers are finite.
keys() {
    tr ' ' '\n' <<keys_end | sort >wanted
$*
keys_end
    while IFS= read -r line; do
        case $line in '{'*'}') ;; *) fail "no object: $line" ;; esac
        echo "$line" | grep -o '"[a-z_]*":' | tr -d '":' | sort -u >found
        diff wanted found >difference || { cat difference; fail 'keys wanted (<) against those found (>)'; }
        # texts are rule, kernel and state, all else is numbers
        if echo "$line" | sed 's/"rule": "[a-z0-9_]*", //; s/"kernel": "[a-z0-9 ]*", //; s/"state": "[a-z0-9]*", //' | grep -o ': [^{,}][^{,}]*' |
            grep -vE '^: [0-9]+(\.[0-9]+)?(e[-+][0-9]+)?$'; then
            fail "not a number in: $line"
        fi
    done <stdout
}
# value KEY LINE: of the first such key
value() { sed -n "${2}p" stdout | grep -o "\"$1\": [^,}]*" | head -1 | sed 's/.*: //; s/"//g'; }

work='seconds best_seconds spread sgemm_gflops best_sgemm_gflops gflops operations share best_share ratio speed_up'
work_cuda='seconds best_seconds spread product_gflops best_product_gflops gflops operations share best_share ratio speed_up'
shape='rule kernel threads sequences heads value_heads head_size value_size'
memory='first_seconds workspace_forward'

# op
# shellcheck disable=SC2086 # lists of words, here and below
{
    bench 0 'forward + backward' op $small
    grep -q '^gdn  *1  forward  ' stdout || fail 'no line of the forward'
    grep -q 'GFLOP counted, .* performed; with the backward' stdout || fail 'no counts'
    bench 0 '"share_forward_backward": ' op $small --json
    [ "$(wc -l <stdout)" -eq 1 ] || fail 'not one object'
    keys $shape $memory workspace_forward_backward saved tokens chunk share_forward share_forward_backward forward forward_backward performed $work
    [ "$(value rule 1)" = gdn ] || fail 'not gdn'
    [ "$(value tokens 1)" = 64 ] || fail 'not 64 tokens'
    [ "$(value kernel 1)" = "cpu chunkwise $("$deltarule" info | sed -n 's/^backend cpu (F32, \([a-z0-9]*\),.*/\1/p') chunk $(value chunk 1)" ] ||
        fail "the chunk is not that of the kernel $(value kernel 1)"
    # counted: 2 heads x 64 tokens x (6 K V + 64 (2 K + 2 V))
    [ "$(value operations 1)" = $((2 * 64 * (6 * 16 * 16 + 64 * 64))) ] || fail "operations: $(value operations 1)"

    bench 0 '"kernel": "cpu recurrent portable' op $small --json --forward-only --path recurrent --isa portable --sequences 3
    keys $shape $memory tokens chunk share_forward forward performed $work
    [ "$(value chunk 1)" = 1 ] || fail 'the recurrent engine has no chunk'
    [ "$(value sequences 1)" = 3 ] || fail 'not 3 sequences'
    bench 0 'chunk 16' op $small --chunk 16 --forward-only
    bench 0 'forward' op $small --weak-heads 2 --forward-only
    bench 2 'weak-heads 3 are more than the 2 value heads' op $small --weak-heads 3
    if grep -q backward stdout; then fail 'a backward that nobody wanted'; fi
    bench 0 '"sequences": 3' op $small --packed --sequences 3 --json

    # two rules on one and two threads, in turn
    bench 0 '"rule": "kda"' op $small --against kda --threads 1,2 --value-heads 4 --value-size 8 --json
    [ "$(wc -l <stdout)" -eq 4 ] || fail 'not four objects'
    for line in 1 2 3 4; do
        [ "$(value threads $line)" = $((1 + (line > 2))) ] || fail "threads of line $line"
        [ "$(value value_heads $line)" = 4 ] || fail "value heads of line $line"
    done
    [ "$(value ratio 1) $(value ratio 3)" = '1 1' ] || fail 'the first rule is not compared with itself'
    [ "$(value speed_up 1) $(value speed_up 2)" = '1 1' ] || fail 'the first threads are not compared with themselves'

    # compositions
    echo '{"base": "kda", "rows": [{"read": "key", "write": "key", "gain": "one", "value": "v"}]}' >mine.json
    bench 0 '"rule": "composition"' op $small --rule mine.json --json
    bench 0 '"rule": "eda"' op $small --rule mine.json --against eda --json

    bench 0 '"rule": "qdelta"' op $small --against pgdn,qdelta,mine.json --json --forward-only
    [ "$(sed 's/", .*//; s/.*"//' stdout | tr '\n' ' ')" = 'gdn pgdn qdelta composition ' ] || fail 'not the four rules in order'
    bench 0 '"rule": "composition"' op $small --against "$(cat mine.json)" --json --forward-only
    [ "$(wc -l <stdout)" -eq 2 ] || fail 'an object is not one rule'

    # decode
    bench 0 'tokens/s' decode $few
    bench 0 '"share_of_bandwidth": ' decode $few --json --threads 2,1 --against pgdn
    [ "$(wc -l <stdout)" -eq 4 ] || fail 'not four objects'
    keys $shape state share_of_bandwidth token seconds best_seconds spread stream_gbs best_stream_gbs gbs bytes share best_share ratio speed_up
    [ "$(value bytes 1)" = $((2 * 4 * 2 * 2 * 16 * 16)) ] || fail "bytes: $(value bytes 1)"
    bench 0 '"state": "bf16"' decode $few --state bf16 --json
    [ "$(value bytes 1)" = $((2 * 2 * 2 * 2 * 16 * 16)) ] || fail "bytes: $(value bytes 1)"
    bench 2 '--state takes one of: f32 bf16' decode --state f16
    bench 0 '"threads": 1' decode $few --json --threads 2,1 --against pgdn
    [ "$(value threads 1)" = 2 ] || fail 'the order of threads is not as asked'

    # A GPU, where there is one and the build has its backend; else a sentence that says what is missing.
    if "$deltarule" info | grep -q '^backend cuda (F32'; then
        bench 0 'forward + backward' op $small --backend cuda --dtype bf16
        grep -q 'bytes a token and value head' stdout || fail 'no word on memory'
        bench 0 '"share_of_copy": ' op $small --backend cuda --json
        keys $shape $memory workspace_forward_backward saved tokens chunk share_forward share_forward_backward forward forward_backward \
            performed bytes gbs copy_gbs share_of_copy $work_cuda
        bench 0 '"copy_gbs": ' decode $few --backend cuda --json --against kda
        [ "$(wc -l <stdout)" -eq 2 ] || fail 'not two objects'
    else
        for kind in op decode train; do
            bench 1 'cuda' $kind --backend cuda --heads 2
            grep -qE 'deltarule bench '$kind': .*(this build|no NVIDIA|driver|GPU)' stderr || fail "no reason: $(cat stderr)"
            [ ! -s stdout ] || fail 'figures without a GPU'
        done
    fi
    bench 2 'has no threads to choose' op --backend cuda --threads 2
    bench 2 '--backend takes one of: cpu cuda' op --backend reference

    # train
    bench 0 'parameters' train $tiny
    bench 0 '"share_train": ' train $tiny --json --against kda --threads 1,2
    [ "$(wc -l <stdout)" -eq 4 ] || fail 'not four objects'
    keys rule threads parameters tokens tokens_per_second operations_of_recurrence bytes share_train step $work
    [ "$(value tokens 1)" = 32 ] || fail 'not 32 tokens a step'
    [ "$(value rule 2)" = kda ] || fail 'the second rule is not kda'

    # Without OpenBLAS, or with kernels of it that are below the processor, there are times and no shares; decode needs none.
    expect 0 'limit of arithmetic, of bench: OpenBLAS ' "$deltarule" info
    expect 0 'limit of arithmetic, of bench: none: there is no OpenBLAS' env DELTARULE_OPENBLAS=/no/such "$deltarule" info
    for kind in "op $small" "train $tiny"; do
        expect 0 ' - ' env DELTARULE_OPENBLAS=/no/such "$deltarule" bench $kind
        grep -q 'there are no shares: there is no OpenBLAS' stderr || fail "no reason: $(cat stderr)"
        expect 0 '"share": null, "best_share": null, "ratio": 1' env DELTARULE_OPENBLAS=/no/such "$deltarule" bench $kind --json
        if [ -n "$OPENBLAS_CORETYPE" ]; then
            expect 0 ' - ' env OPENBLAS_CORETYPE=Prescott "$deltarule" bench $kind
            grep -q "kernels for Prescott, .* set OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE" stderr || fail "no advice: $(cat stderr)"
        fi
    done
    [ -z "$OPENBLAS_CORETYPE" ] || expect 0 "kernels for Prescott; no measure of it: " env OPENBLAS_CORETYPE=Prescott "$deltarule" info
    bench 0 '"share": ' op $small --json --forward-only
    if grep -q null stdout; then fail 'no share'; fi
    expect 0 '"share_of_bandwidth": ' env DELTARULE_OPENBLAS=/no/such "$deltarule" bench decode $few --json
    if grep -q null stdout; then fail 'no share'; fi

    # What is refused.
    bench 2 "did you mean 'op'?" opp
    bench 2 'an argument is missing: deltarule bench op | decode | train'
    bench 2 'bench op: one argument too many' op gdn
    for list in 0 x '1,' ',1' '1,,2' 1.5 1,2,3,4,5,6,7,8,9 -1 2000 ''; do
        bench 2 "--threads takes up to 8 numbers from 1 to 1024 with commas between, not '$list'" op --threads "$list"
    done
    bench 2 'gdn' op --rule gdm
    bench 2 'gdn' decode --against gdm
    bench 2 'gdn' op --against kda,gdm
    bench 2 'no rule is named ""' op --against kda,
    bench 2 '--against takes up to 15 rules' op --against 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16
    bench 2 'gdn' train --rule gdm
    bench 1 'no-such.json' op --rule no-such.json
    bench 2 '3 value heads are not a multiple of 2 key heads' op $small --value-heads 3
    bench 2 '--tokens takes a whole number' op --tokens 0
    bench 2 '--repeats takes a whole number from 1 to 999' op --repeats 1000
    bench 2 '--path takes one of: best recurrent chunkwise' op --path decode
    bench 2 'batch is' train --batch 0
    bench 2 'heads' train --hidden 10 --heads 3
    bench 2 'input query has more elements than can be addressed' op --tokens 1000000000 --sequences 1000000 --heads 100000
    bench 2 'state S has more elements than can be addressed' decode --sequences 1000000 --heads 100000 --head-size 100000
}
expect 1 'cannot write to standard output' to_full "$deltarule" bench op --tokens 64 --heads 1 --head-size 16 --repeats 1
