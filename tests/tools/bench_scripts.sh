#!/bin/sh
# The scripts of bench/ skip a peer that is not there, and say so; its programs compile with today's headers.
set -eu
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# expect STATUS WORDS COMMAND...
expect() {
    status=$1 words=$2 got=0
    shift 2
    output=$("$@" 2>&1) || got=$?
    [ "$got" = "$status" ] || { echo "status $got, not $status: $*: $output"; exit 1; }
    case $output in
    *"$words"*) ;;
    *) echo "'$words' is not in what '$*' printed: $output"; exit 1 ;;
    esac
}

mkdir -p "$work/old/include" "$work/new/include"
echo 'struct ggml_tensor * ggml_add();' >"$work/old/include/ggml.h"
echo 'struct ggml_tensor * ggml_gated_delta_net();' >"$work/new/include/ggml.h"
expect 0 'skipped: set GGML' env -u GGML "$root/bench/peers_ggml"
expect 0 'is no source tree of ggml' env GGML="$work" "$root/bench/peers_ggml"
expect 0 'skipped: this ggml has no gated_delta_net' env GGML="$work/old" "$root/bench/peers_ggml"
expect 1 'has no libdeltarule.so' env GGML="$work/new" DELTARULE="$work" "$root/bench/peers_ggml"
expect 2 'usage:' "$root/bench/lengths"
expect 1 'is not there: build it first' env DELTARULE="$work" "$root/bench/all"

for program in "$root"/bench/*.c; do
    ${CC:-cc} -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -fopenmp -fsyntax-only -I "$root/include" -I "$root/src" "$program"
done

# A module that does not load stands for PyTorch where it is missing.
if command -v python3 >/dev/null; then
    echo 'raise ImportError("there is no torch here")' >"$work/torch.py"
    printf '#!/bin/sh\necho a word of the command >&2\nexit 1\n' >"$work/deltarule"
    chmod +x "$work/deltarule"
    expect 0 'skipped: there is no torch here' env PYTHONPATH="$work" python3 "$root/bench/peers_cpu.py"
    expect 0 'there is no torch here' env PYTHONPATH="$work" python3 "$root/bench/peers_gpu.py"
    echo 'raise ImportError' >"$work/tokenizers.py"
    expect 0 'there is no package tokenizers here' env PYTHONPATH="$work" python3 "$root/bench/peers_tokenizers.py"
    expect 1 'a word of the command' env PYTHONPATH="$work" python3 "$root/bench/peers_gpu.py" --recorded --deltarule "$work/deltarule"
fi
