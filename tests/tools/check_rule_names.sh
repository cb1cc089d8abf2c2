#!/bin/sh
# tools/check-rule-names: nothing in this tree asks a rule for its name, nor a kernel for its options, and what does is found.
# Usage: check_rule_names.sh ROOT
set -eu
root=$1
"$root/tools/check-rule-names" "$root" || { echo 'something asks a rule for its name' >&2; exit 1; }

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/src" "$copy"
plant() { # FILE LINE
    cp "$copy/$1" "$copy/kept"
    printf '%s\n' "$2" >>"$copy/$1"
    if "$root/tools/check-rule-names" "$copy" >"$copy/found"; then echo "not found in $1: $2" >&2; exit 1; fi
    grep -q "^$1:" "$copy/found" || { echo "found elsewhere: $2" >&2; exit 1; }
    mv "$copy/kept" "$copy/$1"
}
plant src/nn/mixers/recurrent/build.c 'bool is(const dr_rule *rule) { return strcmp(rule->name, "none of the table") == 0; }'
plant src/nn/family.c '    {.rule = "gdn"},'
plant src/backends/cpu/recurrence.c 'static const dr_rule *kda(void) { return dr_rule_find(name); }'
plant src/train/run.c 'if (!strcmp(config->rule.name, text)) return 1;'
plant src/backends/cuda/plan/plan.c 'static bool erases(const dr_row *row) { return row->read == DR_READ_ERASE_KEY; }'
plant src/backends/cuda/backward/keys.cuh 'static bool doubles(dr_decay decay) { return decay == DR_DECAY_CHANNEL; }'
plant src/backends/cuda/rows/traits.c '    default: return;'
"$root/tools/check-rule-names" "$copy"
