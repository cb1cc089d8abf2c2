#!/bin/sh
# tools/check-layers accepts the project and refuses each kind of offence.
set -eu
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/tools/check-layers" "$root"

# expect_refusal FILE TEXT WORDS: with a file of this text the check fails and its message has these words.
expect_refusal() {
    rm -rf "$work/src" "$work/include" "$work/tools"
    mkdir -p "$work/tools" "$work/src/base" "$work/src/cli" "$work/include/deltarule" "$(dirname "$work/$1")"
    cp "$root/tools/layers.txt" "$work/tools/"
    echo '#include <stddef.h>' >"$work/src/base/memory.h"
    echo '#include <stddef.h>' >"$work/src/base/number.h"
    echo '#include "base/number.h"' >"$work/src/cli/flags.c"
    "$root/tools/check-layers" "$work" || { echo "refused a tree without offence"; exit 1; }
    echo "$2" >"$work/$1"
    if message=$("$root/tools/check-layers" "$work"); then
        echo "accepted $1 with: $2"
        exit 1
    fi
    case $message in
    *"$3"*) ;;
    *) echo "for $1 with '$2' the message lacks '$3': $message"; exit 1 ;;
    esac
}

expect_refusal src/cli/main.c '#include "base/memory.h"' 'cli must not include base'
expect_refusal src/cli/main.c '#include "base/number.h"
#include "base/memory.h"' 'cli must not include base (base/memory.h)'
expect_refusal src/base/cpu.c '  #  include "rules/table.h"' 'base must not include rules'
expect_refusal src/backends/cpu/conv.c '#include "backends/reference/conv.h"' 'backends/cpu must not include backends/reference'
expect_refusal src/nn/mixers/recurrent/build.c '#include "backends/cpu/cpu.h"' 'nn must not include backends/cpu'
expect_refusal src/backends/cuda/rows/rows.c '#include "backends/cuda/backward/backward.h"' \
    'backends/cuda/rows must not include backends/cuda/backward'
expect_refusal src/base/cpu.c '#include "memory.h"' 'not written from src/'
expect_refusal src/base/cpu.c '#include "base/lost.h"' 'does not exist'
expect_refusal src/nn/layer.c '#include <base/memory.h>' 'write it in quotes'
expect_refusal src/misc/things.c '#include <stddef.h>' 'no line in tools/layers.txt'
expect_refusal include/deltarule/rule.h '#include "base/memory.h"' 'include must not include base'

# a circle of layers is refused, also one by way of a single header
cp "$root/tools/layers.txt" "$work/tools/"
rm -rf "$work/src/misc" "$work/include"
mkdir -p "$work/include/deltarule"
for circle in 'rules' 'rules/table.h'; do
    mkdir -p "$work/src/rules"
    echo '#include <stddef.h>' >"$work/src/rules/row.h"
    echo '#include "rules/row.h"' >"$work/src/rules/table.h"
    sed "s|^base:.*|base: $circle|" "$root/tools/layers.txt" >"$work/tools/layers.txt"
    if message=$("$root/tools/check-layers" "$work"); then
        echo "accepted a circle: base: $circle"
        exit 1
    fi
    case $message in
    *'a circle of layers goes through base'*) ;;
    *) echo "the message lacks the circle: $message"; exit 1 ;;
    esac
done
