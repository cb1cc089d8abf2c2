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
    python3 - "$root" <<'PYTHON'
import pathlib
import re
import sys

# The structures of the C library as the scripts know them have the members that the headers give them, in order.
root = pathlib.Path(sys.argv[1])
headers = "".join(path.read_text() for path in (root / "include/deltarule").glob("*.h"))
headers = re.sub(r"/\*.*?\*/", "", headers, flags=re.DOTALL)
of_c = {}
for body, name in re.findall(r"typedef struct \{([^{}]*)\} (\w+);", headers):
    of_c[name] = re.findall(r"(\w+)(?:\[\w+\])?\s*[,;]", body)
told = {"Options": "dr_backend_options", "Layout": "dr_layout", "Recurrence": "dr_recurrence", "Memory": "dr_recurrence_memory",
        "Inputs": "dr_inputs", "States": "dr_states", "Batch": "dr_batch"}
found = 0
for script in ("peers_cpu", "peers_gpu", "peers_train"):
    text = (root / f"bench/{script}.py").read_text()
    for name, fields in re.findall(r"^class (\w+)\(ctypes\.Structure\):\n    _fields_ = \[(.*?)\]\n", text, re.DOTALL | re.MULTILINE):
        members = re.findall(r'\("(\w+)",', fields)
        if members != of_c[told[name]]:
            sys.exit(f"bench/{script}.py: {name} has {members}, and {told[name]} {of_c[told[name]]}")
        found += 1
if found < 12:
    sys.exit(f"{found} structures were found in the scripts of bench/, not 12 or more")
PYTHON
    echo 'raise ImportError' >"$work/tokenizers.py"
    expect 0 'there is no package tokenizers here' env PYTHONPATH="$work" python3 "$root/bench/peers_tokenizers.py"
    expect 1 'a word of the command' env PYTHONPATH="$work" python3 "$root/bench/peers_gpu.py" --recorded --deltarule "$work/deltarule"
fi
