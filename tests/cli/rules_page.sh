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
expect 2 'leave out the rest' "$deltarule" rules --markdown gdn
expect 2 'leave out the rest' "$deltarule" rules --markdown --show rule.json
expect 1 'cannot write to standard output' to_full "$deltarule" rules --markdown
