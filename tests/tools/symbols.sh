#!/bin/sh
# The shared library shows the functions of the public headers and nothing else; every external name of the archive begins with
# dr_, so that it cannot clash with a program's own.
set -eu
export LC_ALL=C
root=$1 shared=$2 archive=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# names that begin with an underscore belong to the compiler and its sanitizers
nm -D --defined-only "$shared" | awk '$3 !~ /^_/ {print $3}' | sort -u >"$work/shown"
[ -s "$work/shown" ] || { echo "$shared shows no function"; exit 1; }
cat "$root"/include/deltarule/*.h | tr '\n' ' ' | grep -o 'DR_API [^;{]*' | grep -o 'dr_[a-z0-9_]*(' | tr -d '(' | sort -u >"$work/public"
if ! diff "$work/public" "$work/shown" >"$work/difference"; then
    echo "declared in include/deltarule (<) against shown by $shared (>):"
    cat "$work/difference"
    exit 1
fi
if nm -g --defined-only "$archive" 2>/dev/null | awk 'NF == 3 && $3 !~ /^(dr_|_)/ {print; found = 1} END {exit !found}'; then
    echo "$archive has external names without dr_"
    exit 1
fi
