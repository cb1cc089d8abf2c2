#!/bin/sh
# Every pointer that a function of the headers takes stands in a line of tests/test_null_*.c, which calls it with NULL there (see
# tests/null.h). The context of a callback is the caller's own and may be anything. A function that is added to a header in a
# copy must be missed, or nothing is checked.
set -eu
export LC_ALL=C
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# list HEADER..: "function argument" for each pointer of each function
list() {
    cat "$@" | awk '
        { text = text " " $0 }
        END {
            gsub(/\/\*([^*]|\*+[^*\/])*\*+\//, " ", text)
            count = split(text, part, "DR_API ")
            for (i = 2; i <= count; i++) {
                declaration = substr(part[i], 1, index(part[i], ";") - 1)
                if (!match(declaration, /dr_[a-z0-9_]+\(/)) continue
                name = substr(declaration, RSTART, RLENGTH - 1)
                arguments = substr(declaration, RSTART + RLENGTH)
                # a function as an argument: only its name stays
                while (match(arguments, /\(\*[a-z_]+\)\([^()]*\)/)) {
                    inner = substr(arguments, RSTART + 2, RLENGTH - 2)
                    sub(/\).*/, "", inner)
                    arguments = substr(arguments, 1, RSTART - 1) "*" inner substr(arguments, RSTART + RLENGTH)
                }
                sub(/\)[^)]*$/, "", arguments)
                many = split(arguments, argument, ",")
                for (k = 1; k <= many; k++) {
                    if (argument[k] !~ /\*/ && argument[k] !~ /\[/) {
                        if (argument[k] !~ /_callback /) continue
                    }
                    sub(/\[.*/, "", argument[k])
                    sub(/.*[ *]/, "", argument[k])
                    if (argument[k] != "context") print name, argument[k]
                }
            }
        }'
}

# missing: what no line of the tests has
missing() {
    list "$@" | while read -r function argument; do
        cat "$root"/tests/test_null_*.c |
            grep -Eq "(REFUSED|HARMLESS|EMPTY|NOTHING|ALLOWED)\($function, \"([^\"]* )?$argument( [^\"]*)?\"" ||
            echo "no test calls $function with $argument NULL: tests/test_null_*.c"
    done
}

listed=$(list "$root"/include/deltarule/*.h | wc -l)
functions=$(cat "$root"/include/deltarule/*.h | grep -c '^DR_API.*(')
[ "$listed" -gt "$functions" ] || { echo "only $listed pointers found, of $functions functions: the headers are not understood"; exit 1; }
lacking=$(missing "$root"/include/deltarule/*.h)
[ -z "$lacking" ] || { echo "$lacking"; exit 1; }

cat >"$work/added.h" <<'HEADER'
DR_API int dr_added(int count, const char *name, /* a name */
                    bool (*line)(void *context, const char *text), void *context, int64_t shape[4]);
HEADER
found=$(missing "$work/added.h" | wc -l)
[ "$found" -eq 3 ] || { echo "of the 3 pointers of a function that no test has, $found were missed"; exit 1; }
echo "$listed pointers, each NULL in a test"
