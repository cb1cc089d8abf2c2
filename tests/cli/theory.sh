#!/bin/sh
# The papers' statements from the command line: all hold; names of statements and of papers; seeds; JSON.
. "$(dirname "$0")/expect.sh"

expect 0 ' hold, 0 do not' "$deltarule" theory
tail -1 stdout | grep -q '^[0-9][0-9]* hold, 0 do not$' || fail 'the last line does not count'
if grep -q 'DOES NOT' stdout; then fail 'a statement does not hold'; fi
all=$(tail -1 stdout | cut -d ' ' -f 1)
[ "$(grep -c ' holds$' stdout)" -eq "$all" ] || fail 'the count is not that of the statements'
[ "$(grep -c 'counter-case: .*fails as it must' stdout)" -eq "$all" ] || fail 'a statement has no counter-case'

expect 0 '1 hold, 0 do not' "$deltarule" theory pdn.lemma-e1
expect 0 '2 hold, 0 do not' "$deltarule" theory pdn.lemma-e1 eda.eq-12-along
expect 0 'linear.transpose' "$deltarule" theory linear
some=$(tail -1 stdout | cut -d ' ' -f 1)
if [ "$some" -lt 2 ] || [ "$some" -ge "$all" ]; then fail "paper linear has $some of $all statements"; fi

# The same seed gives the same figures, another one others.
expect 0 'hold' "$deltarule" theory qdelta.eq-26-decay --seed 3
cp stdout three
expect 0 'hold' "$deltarule" theory qdelta.eq-26-decay --seed 3
cmp -s stdout three || fail 'the same seed gave other figures'
expect 0 'hold' "$deltarule" theory qdelta.eq-26-decay --seed 4
if cmp -s stdout three; then fail 'another seed gave the same figures'; fi

expect 0 '{"hold": 1, "do_not": 0, "not_checked": 0}' "$deltarule" theory pdn.lemma-e1 --json
[ "$(wc -l <stdout)" -eq 2 ] || fail 'not an object a line'
grep -q '^{"name": "pdn.lemma-e1", .*"holds": true}$' stdout || fail 'no object with the statement'

# Without LAPACK some are not checked, the others are.
DELTARULE_OPENBLAS=/no/such/library
export DELTARULE_OPENBLAS
expect 1 ' statements were not checked: they need LAPACK' "$deltarule" theory
grep -qE '^[1-9][0-9]* hold, 0 do not, [1-9][0-9]* were not checked$' stdout || fail "wrong counts: $(tail -1 stdout)"
[ "$(grep -cE '^[a-z].* not checked$' stdout)" -eq "$(tail -1 stdout | grep -o '[0-9]* were' | cut -d ' ' -f 1)" ] || fail 'not as many as counted'
grep -q '    .*: there is no OpenBLAS (Debian.s package libopenblas0-openmp): .*/no/such/library' stdout || fail 'no reason'
unchecked=$(sed -n 's/ *not checked$//p' stdout | head -1)
expect 1 'not checked' "$deltarule" theory "$unchecked" --json
[ "$(tail -1 stdout)" = '{"hold": 0, "do_not": 0, "not_checked": 1}' ] || fail 'wrong counts as JSON'
grep -q "^{\"name\": \"$unchecked\", \"lacking\": \".*no OpenBLAS.*\", \"holds\": null}\$" stdout || fail 'no object for what was not checked'
unset DELTARULE_OPENBLAS

expect 2 "there is no statement 'pdn.lemma-e9'; did you mean 'pdn.lemma-e1'?" "$deltarule" theory pdn.lemma-e9
expect 2 "there is no statement 'chess'" "$deltarule" theory chess
expect 2 '--seed' "$deltarule" theory --seed many
expect 1 'cannot write to standard output' to_full "$deltarule" theory linear
