#!/bin/sh
# Each shared library shows the functions of its public headers and nothing else, but for those that are marked DR_FOR_CHECK and
# that the second library needs; every external name of the archives begins with dr_, so that it cannot clash with a program's
# own. No library is linked to a BLAS.
# Usage: symbols.sh ROOT libdeltarule.so libdeltarule.a   (libdeltarule_check lies beside them)
set -eu
export LC_ALL=C
root=$1 shared=$2 archive=$3
check_shared=$(dirname "$shared")/libdeltarule_check.so check_archive=$(dirname "$archive")/libdeltarule_check.a
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# names that begin with an underscore belong to the compiler and its sanitizers
shown() { nm -D --defined-only "$1" | awk '$3 !~ /^_/ {print $3}' | sort -u; }
# marked MARK FILE...: the functions declared with it
marked() {
    mark=$1
    shift
    cat "$@" | tr '\n' ' ' | grep -o "$mark [^;{]*" | grep -o 'dr_[a-z0-9_]*(' | tr -d '(' | sort -u
}
# same WHAT WANTED FOUND
same() {
    [ -s "$3" ] || { echo "$1: nothing"; exit 1; }
    diff "$2" "$3" >"$work/difference" || { echo "$1:"; cat "$work/difference"; exit 1; }
}

of_check="$root/include/deltarule/bench.h $root/include/deltarule/experiment.h $root/include/deltarule/probe.h $root/include/deltarule/theory.h $root/include/deltarule/verify.h"
public=$(find "$root/include/deltarule" -name '*.h' | grep -vE '/(bench|experiment|probe|theory|verify)\.h$')
inside=$(find "$root/src" -name '*.h')
# shellcheck disable=SC2086 # lists of files
{
    marked DR_API $of_check >"$work/of_check"
    marked DR_API $public >"$work/public"
    marked DR_FOR_CHECK $inside >"$work/for_check"
}
shown "$shared" >"$work/shown"
sort -u "$work/public" "$work/for_check" >"$work/wanted"
same "declared (<) against shown by $shared (>)" "$work/wanted" "$work/shown"
shown "$check_shared" >"$work/shown_by_check"
same "declared (<) against shown by $check_shared (>)" "$work/of_check" "$work/shown_by_check"

# What the second library takes from inside the first.
nm -D --undefined-only "$check_shared" | awk '$2 ~ /^dr_/ {print $2}' | sort -u | comm -23 - "$work/public" >"$work/taken"
same "marked DR_FOR_CHECK (<) against what $check_shared needs (>)" "$work/for_check" "$work/taken"

for file in "$archive" "$check_archive"; do
    if nm -g --defined-only "$file" 2>/dev/null | awk 'NF == 3 && $3 !~ /^(dr_|_)/ {print; found = 1} END {exit !found}'; then
        echo "$file has external names without dr_"
        exit 1
    fi
done
for file in "$shared" "$check_shared"; do
    if readelf -d "$file" | grep NEEDED | grep -iE 'blas|lapack'; then
        echo "$file is linked to a BLAS"
        exit 1
    fi
done
