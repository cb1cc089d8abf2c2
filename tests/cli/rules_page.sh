#!/bin/sh
# docs/rules.md is what the command prints; what goes with --markdown and what does not.
. "$(dirname "$0")/expect.sh"

expect 0 '# Rules' "$deltarule" rules --markdown
diff "$root/docs/rules.md" stdout >difference || {
    head -20 difference
    fail 'docs/rules.md (<) is not current (>): build/release/deltarule rules --markdown >docs/rules.md'
}
for rule in $("$deltarule" rules | sed -n 's/^\([a-z0-9_]*\): .*/\1/p'); do
    grep -q "^## $rule\$" stdout || fail "there is no section on $rule"
done
# rules that no layer makes the inputs of are said to have none, wherever rules are listed
expect 0 '' "$deltarule" rules
without=$(awk '/^[a-z]/ { rule = $1 } /^    no layer/ { printf "%s ", rule }' stdout)
[ "$without" = 'dplr: rwkv7: ' ] || fail "no layer: $without"
count=$("$deltarule" rules | grep -c '^[a-z]')
grep -q "are $count rows, $((count - 2)) of them with a layer" "$root/README.md" || fail 'README.md counts other rules'
grep -q "The $count named rules, $((count - 2)) of them with a layer" "$root/docs/rules.md" || fail 'docs/rules.md counts others'
expect 2 'rwkv7 (no layer)' "$deltarule" rules certainly_none
for rule in dplr rwkv7; do
    expect 0 'no layer' "$deltarule" rules $rule
    printf '{"base": "%s"}' $rule >rule.json
    expect 0 'no layer' "$deltarule" rules --show rule.json
done
expect 0 'layer of family gdn' "$deltarule" rules gdn

expect 2 'leave out the rest' "$deltarule" rules --markdown gdn
expect 2 'leave out the rest' "$deltarule" rules --markdown --show rule.json
expect 1 'cannot write to standard output' to_full "$deltarule" rules --markdown
