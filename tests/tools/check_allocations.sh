#!/bin/sh
# tools/check-allocations passes on the project, and finds each way of taking memory that somebody may add.
set -eu
project=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$project/tools/check-allocations"
mkdir -p "$work/tools" "$work/src/nn" "$work/src/cli" "$work/src/backends/cuda"
cp "$project/tools/check-allocations" "$work/tools/"
echo 'char *f(void) { return malloc(1); }' >"$work/src/cli/main.c"
"$work/tools/check-allocations"
while read -r line; do
    for file in src/nn/model.c src/backends/cuda/memory.cu; do
        echo "void f(void) { $line }" >"$work/$file"
        ! "$work/tools/check-allocations" >/dev/null 2>&1 || { echo "FAILED: not found: $line"; exit 1; }
        rm "$work/$file"
    done
done <<'END'
void *x = malloc(8);
void *x = calloc(2, 8);
x = realloc(x, 16);
char *x = strdup(text);
char *x = strndup(text, 3);
if (asprintf(&x, "%s", text) < 0) return;
posix_memalign(&x, 64, 8);
void *x = aligned_alloc(64, 64);
FILE *x = open_memstream(&text, &size);
getline(&text, &size, file);
float *x = new float[8];
END
echo 'int f(void) { return dr_allocate(8, "the new block", &x) + ops->free(backend, x); }' >"$work/src/nn/model.c"
"$work/tools/check-allocations"
