#!/bin/sh
# plant_faults.sh ROOT: tools/plant-faults on a project of two functions: what it says of faults that are noticed, unnoticed, moved,
# gone and not compiled; that it goes on where it was; and that it writes nothing into the project.
set -eu
export LC_ALL=C
root=$1
for program in python3 git ninja; do
    command -v $program >/dev/null || { echo "skipped: $program is not installed"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; cat "$work/said"; exit 1; }

mkdir -p "$work/project/tools" "$work/project/src" "$work/project/tests/faults"
cd "$work/project"
cp "$root/tools/plant-faults" tools/
cat >CMakeLists.txt <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(two LANGUAGES C)
enable_testing()
add_executable(test_sum test.c src/sum.c src/twice.c)
add_test(NAME sum COMMAND test_sum)
add_test(NAME compositions COMMAND false)
add_test(NAME absent COMMAND sh -c "exit 77")
set_tests_properties(absent PROPERTIES SKIP_RETURN_CODE 77)
TEXT
cat >test.c <<'TEXT'
int sum(int a, int b);
int twice(int a);
int main(void) {
    return !(sum(2, 3) == 5 && twice(0) == 0);
}
TEXT
printf 'int sum(int a, int b);\nint sum(int a, int b) {\n    int c = a;\n    c += b;\n    return c;\n}\n' >src/sum.c
printf 'int twice(int a);\nint twice(int a) {\n    return 2 * a;\n}\n' >src/twice.c
cat >tests/faults/all.fault <<'TEXT'
fault noticed
why two lines in one, whatever blanks begin them
in src/sum.c
- c += b;
- return c;
+ return c - b;
tests sum

fault short
why without names the short tests run
in src/sum.c
- c += b;
+

fault unnoticed
why nothing asks for twice of anything but 0
in src/twice.c
- 2 * a
+ 3 * a
tests sum

fault moved
why its line stands in another file by now
in src/old.c
- int c = a;
+ int c = 1 + a;
tests sum

fault gone
why its line is nowhere
in src/sum.c
- c -= b;
+ c += b;
tests sum

fault twofold
why its text stands at several places
in src/sum.c
- int
+ long
tests sum

fault skipped
why its test does not run on this machine
in src/twice.c
- 2 * a
+ 3 * a
tests absent

fault broken
why it is no C
in src/sum.c
- return c;
+ return
tests sum
TEXT
git init -q .
git add .
git ls-files | xargs sha256sum >"$work/before"

status=0
tools/plant-faults --folder "$work/kept" >"$work/said" 2>&1 || status=$?
[ $status -eq 1 ] || fail "status $status although faults pass unnoticed"
says() { grep -q "^$1  *$2 " "$work/said" || fail "it does not say of $2: $1"; }
says noticed noticed
says noticed short
says UNNOTICED unnoticed
says noticed moved
says 'does not apply' gone
says 'does not apply' twofold
says 'does not build' broken
says 'not tried' skipped
grep -q '^8 faults: 1 UNNOTICED, 2 does not apply, 1 does not build, 1 not tried, 3 noticed' "$work/said" || fail 'it does not sum up'

tools/plant-faults --folder "$work/kept" --resume unnoticed noticed >"$work/said" 2>&1 && fail 'what was unnoticed is noticed'
grep -q '^1 faults: 1 UNNOTICED' "$work/said" || fail 'it begins again instead of going on'
tools/plant-faults --jobs 2 '^noticed' moved >"$work/said" 2>&1 || fail 'what is noticed is no success'
tools/plant-faults --list >"$work/said" 2>&1 && fail 'faults that do not apply are listed as if they did'
grep -q '^8 faults, 2 do not apply' "$work/said" || fail 'the list does not count'

names() { tools/plant-faults --list "$@" 2>&1 | awk '!/ faults, /{print $1}' | sort | tr '\n' ' '; }
printf '# a remark\nnoticed\ngone # another\n' >"$work/names"
[ "$(names --names "$work/names")" = 'gone noticed ' ] || fail 'a file of names does not choose'
[ "$(names --names "$work/names" --sample 1 | wc -w)" -eq 3 ] || fail 'a sample does not come beside the names'
[ "$(names --sample 3 --seed 2 | wc -w)" -eq 3 ] || fail 'a sample is not as large as it should be'
[ "$(names --sample 3 --seed 2)" = "$(names --sample 3 --seed 2)" ] || fail 'one seed draws two samples'
[ "$(names --sample 100 | wc -w)" -eq 8 ] || fail 'a sample larger than all is not all'
echo unheard-of >>"$work/names"
tools/plant-faults --names "$work/names" --list >"$work/said" 2>&1 && fail 'an unknown name in a file is accepted'
grep -q 'there is no fault unheard-of' "$work/said" || fail 'it does not say which name is unknown'
tools/plant-faults nothing >"$work/said" 2>&1 && fail 'a name that no fault has is accepted'
printf 'fault empty\nin src/sum.c\n' >"$work/bad.fault"
tools/plant-faults --faults "$work/bad.fault" >"$work/said" 2>&1 && fail 'a fault without old lines is accepted'
grep -q 'has no reason' "$work/said" || fail 'it does not say what a fault lacks'

git ls-files --others --cached | xargs sha256sum >"$work/after"
cmp "$work/before" "$work/after" || fail 'the project was written to'
