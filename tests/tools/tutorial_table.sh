#!/bin/sh
# Writes src/rules/table.c with the line of docs/adding-a-rule.md in its table, to standard output: tests/cli/tutorial.sh runs a
# command that was built with it.
# Usage: tests/tools/tutorial_table.sh ROOT
set -eu
export LC_ALL=C
awk '
    FNR == NR {
        if (inside && /^```$/) inside = 0
        if (inside) line = line $0 "\n"
        if (/^```c$/) inside = 1
        next
    }
    /^};$/ { printf "%s", line; lines++ }
    { print }
    END { exit !(line != "" && lines == 1) }' "$1/docs/adding-a-rule.md" "$1/src/rules/table.c"
