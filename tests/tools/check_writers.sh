#!/bin/sh
# tools/check-writers passes on the project, and finds each way of writing a file that somebody may add.
set -eu
project=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$project/tools/check-writers"
mkdir -p "$work/tools" "$work/src/nn"
cp "$project/tools/check-writers" "$work/tools/"
"$work/tools/check-writers"
while read -r line; do
    echo "void f(void) { $line }" >"$work/src/nn/model.c"
    ! "$work/tools/check-writers" >/dev/null 2>&1 || { echo "FAILED: not found: $line"; exit 1; }
done <<'END'
FILE *file = fopen(path, "w");
FILE *file = fopen(path, "ab");
FILE *file = fopen(path, "r+");
int file = open(path, O_WRONLY | O_CLOEXEC);
int file = open(path, O_CREAT | O_RDWR, 0666);
int file = openat(folder, path, O_RDWR);
rename(fresh, path);
renameat(a, b, c, d);
truncate(path, 0);
ftruncate(file, 0);
int file = mkstemp(name);
json_dump_file(object, path, 0);
END
echo 'int f(void) { return open(path, O_RDONLY) + (fopen(path, "re") != NULL); }' >"$work/src/nn/model.c"
"$work/tools/check-writers"
