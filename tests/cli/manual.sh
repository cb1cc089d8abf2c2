#!/bin/sh
# The manual page names every command and every flag that --help shows, and no flag that there is not.
. "$(dirname "$0")/expect.sh"

page=$root/docs/deltarule.1
flags_of_page() { grep -o '^\.It Fl -[a-z0-9-]*' "$page" | sed 's/.*Fl -//' | sort -u; }
for command in rules train score evaluate convert generate chat tokenize detokenize tokenizer chat-template serve verify theory 'bench op' 'bench decode' 'bench train' 'bench score' 'bench generate' info experiment probe; do
    grep -q "^\.Ss deltarule ${command%% *}" "$page" || fail "deltarule.1 has no section on $command"
    # shellcheck disable=SC2086 # bench has commands of its own
    "$deltarule" $command --help | grep -o '^  --[a-z0-9-]*' | sed 's/^  --//'
done | sort -u >of_help
[ -s of_help ] || fail 'no flags found in --help'
flags_of_page >of_page
diff of_help of_page >difference || { cat difference; fail 'flags of --help (<) against those of deltarule.1 (>)'; }
