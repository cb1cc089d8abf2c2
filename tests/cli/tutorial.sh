#!/bin/sh
# Runs the blocks of code of docs/adding-a-rule.md in their order: the JSON becomes the file that the text names, the commands run
# with $1, the text blocks must be part of what they print. After the block of C the commands run with $3, which was built with
# that line in the table of rules (tests/tools/tutorial_table.sh). In the end both ways have made the same model.
. "$(dirname "$0")/expect.sh"
make_corpus
page=$root/docs/adding-a-rule.md program=$deltarule named=$3

# The blocks as files, 01.json, 02.sh and so on.
awk '/^```[a-z]/ {file = sprintf("%02d.%s", ++n, substr($0, 4)); next} /^```$/ {file = ""} file {print >file}' "$page"
file=$(grep -o '[a-z_]*[.]json' "$page" | head -1)
[ -n "$file" ] || fail 'the text names no JSON file'

# what the commands of the page call
deltarule() {
    if [ "$1" = train ]; then expect 0 'model: ' "$program" "$@"; else expect 0 ' = ' "$program" "$@"; fi
}
for block in [0-9]*; do
    case $block in
    *.json) cp "$block" "$file" ;;
    *.text) grep -qF "$(cat "$block")" stdout || fail "another output than $block: $(cat "$block")" ;;
    *.c) program=$named ;;
    *.sh)
        # shellcheck disable=SC1090 # a block of the page
        . "./$block"
        ;;
    *) fail "nobody runs $block" ;;
    esac
done
[ -e 06.sh ] || fail 'the page has fewer blocks than this test knows'
[ "$(grep -c '^[0-9]' composed/metrics.csv)" -eq 5 ] || fail 'the composition did not train 5 steps'
cmp composed/model.safetensors named/model.safetensors || fail 'the named rule gives another model than the composition'
grep -q '"rule": "erase_query"' named/config.json || fail 'the named rule is not saved by its name'
