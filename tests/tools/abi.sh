#!/bin/sh
# Sizes and places of all public structs, against the recorded ones of this number of the binary interface (tests/abi/NUMBER.txt).
# docs/abi.md says what to do where they differ; --write records today's.
# Usage: tests/tools/abi.sh ROOT COMPILER [--write]
set -eu
LC_ALL=C
export LC_ALL
root=$1 compiler=$2 write=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# "struct member" a line: comments and array sizes go, then each declaration of a body is cut at its commas
members() {
    sed 's,/\*.*\*/,,' "$root"/include/deltarule/*.h | sed '/\/\*/,/\*\//d' | tr '\n' ' ' |
        grep -oE 'typedef struct [a-z0-9_]* ?\{[^}]*\} *dr_[a-z0-9_]+;' |
        while IFS= read -r struct; do
            name=$(printf '%s' "$struct" | sed 's/.*} *//; s/;//')
            printf '%s' "$struct" | sed 's/[^{]*{//; s/}.*//; s/\[[^]]*\]//g; s/(\*\([A-Za-z0-9_]*\))([^)]*)/\1/g' | tr ';,' '\n' |
                grep -oE '[A-Za-z0-9_]+ *$' | sed "s/ *$//; s/^/$name /"
        done
}

members >"$work/members"
[ "$(wc -l <"$work/members")" -gt 100 ] || { echo "the headers' structs were not found"; exit 1; }
{
    printf '#include <stddef.h>\n#include <stdio.h>\n'
    for header in "$root"/include/deltarule/*.h; do echo "#include <deltarule/$(basename "$header")>"; done
    # elsewhere pointers and longs have other sizes
    printf '#if !defined(__LP64__)\n#error only where pointers have 64 bits\n#endif\nint main(void) {\n'
    awk '$1 != last {printf "printf(\"%s %%zu bytes\\n\", sizeof(%s));\n", $1, $1; last = $1}
         {printf "printf(\"    %s at %%zu\\n\", offsetof(%s, %s));\n", $2, $1, $2}' "$work/members"
    printf 'return 0;\n}\n'
} >"$work/print.c"
"$compiler" -std=c11 -I"$root/include" "$work/print.c" -o "$work/print"
number=$(sed -n 's/#define DELTARULE_ABI //p' "$root/include/deltarule/version.h")
"$work/print" >"$work/table"
if [ "$write" = --write ]; then
    cp "$work/table" "$root/tests/abi/$number.txt"
elif ! diff "$root/tests/abi/$number.txt" "$work/table"; then
    echo "public structs are not those of interface $number: docs/abi.md says what to do (record them: $0 . cc --write)"
    exit 1
fi
