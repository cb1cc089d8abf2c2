#!/bin/sh
# Every struct of the public headers, and each of its members, has its line in tests/test_abi.c.
set -eu
root=$1
table=$root/tests/test_abi.c missing=0

# "struct member" a line: comments and array sizes go, then each declaration of a body is cut at its commas
members() {
    sed 's,/\*.*\*/,,' "$root"/include/deltarule/*.h | sed '/\/\*/,/\*\//d' | tr '\n' ' ' |
        grep -oE 'typedef struct [a-z_]* ?\{[^}]*\} *dr_[a-z0-9_]+;' |
        while IFS= read -r struct; do
            name=$(printf '%s' "$struct" | sed 's/.*} *//; s/;//')
            printf '%s' "$struct" | sed 's/[^{]*{//; s/}.*//; s/\[[^]]*\]//g' | tr ';,' '\n' |
                grep -oE '[a-z0-9_]+ *$' | sed "s/ *$//; s/^/$name /"
        done
}

list=$(members)
[ "$(printf '%s\n' "$list" | wc -l)" -gt 100 ] || { echo "the headers' structs were not found"; exit 1; }
while read -r struct member; do
    grep -q "SIZE($struct, " "$table" || { echo "tests/test_abi.c has no size of $struct"; missing=1; }
    grep -q "AT($struct, $member, " "$table" || { echo "tests/test_abi.c has no place of $struct.$member"; missing=1; }
done <<END
$list
END
exit $missing
