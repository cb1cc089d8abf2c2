#!/bin/sh
# A new read key of inputs that exist changes one C file of backend cuda, and none of its CUDA files, whose kernels know traits
# only (check-rule-names): with one more enumerator nothing but rows/traits.c ceases to compile, and a case there mends it.
# Usage: new_read_key.sh ROOT CUDA_INCLUDE
set -eu
root=$1
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/src" "$root/include" "$copy"
cd "$copy"

# The C files of the backend that do not compile where each switch must name every enumerator.
refused() {
    for file in $(find src/backends/cuda -name '*.c' | sort); do
        ${CC:-cc} -std=c11 -D_GNU_SOURCE -Wswitch -Werror=switch -fsyntax-only -Isrc -Iinclude -I"$1" "$file" 2>"$copy/said" || echo "$file"
    done
}
before=$(refused "$2")
[ -z "$before" ] || { echo "does not compile as it is: $before" >&2; cat "$copy/said" >&2; exit 1; }

sed -i 's|^    DR_READ_FREE,.*|&\n    DR_READ_ANOTHER,|' include/deltarule/rule.h
grep -q DR_READ_ANOTHER include/deltarule/rule.h
[ "$(refused "$2")" = src/backends/cuda/rows/traits.c ] || { echo "refused: $(refused "$2")" >&2; exit 1; }

sed -i 's|^    case DR_READ_FREE:|    case DR_READ_ANOTHER:\n        set_read_tensor(DR_INPUT_FEEDBACK_KEY, row);\n        return;\n&|' src/backends/cuda/rows/traits.c
after=$(refused "$2")
[ -z "$after" ] || { echo "a case in rows/traits.c does not do: $after" >&2; exit 1; }
