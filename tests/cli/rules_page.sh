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
count=$("$deltarule" rules | grep -c '^[a-z]')
grep -q "are $count rows, each with a layer" "$root/README.md" || fail 'README.md counts other rules'
grep -q "The $count named rules, each with a layer" "$root/docs/rules.md" || fail 'docs/rules.md counts others'
expect 2 'rwkv7' "$deltarule" rules certainly_none
expect 0 'layer of family gdn' "$deltarule" rules gdn

expect 2 'leave out the rest' "$deltarule" rules --markdown gdn
expect 2 'leave out the rest' "$deltarule" rules --markdown --show rule.json
expect 1 'cannot write to standard output' to_full "$deltarule" rules --markdown
