# Read by .ci/run and .ci/nightly: what a check is, how it is reported, and the checks of both. The checks run in a clean clone of
# the committed state, in a folder of their own. Both commands take these arguments and variables:
#   --list     prints the names of the checks and runs none
#   CHECK...   extended regular expressions: only the checks with such names, so that one can be repeated or timed by itself
#   JOBS=N     as many tests and compilers at once (the number of processors by default)
# shellcheck shell=bash
set -uo pipefail
source=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export CI=true OMP_WAIT_POLICY=passive
jobs=${JOBS:-$(nproc)}
[ -z "${JOBS:-}" ] || export CMAKE_BUILD_PARALLEL_LEVEL=$JOBS
export LC_ALL=C
passed=0 failed=() skipped=() list='' only=()
for argument in "$@"; do
    case $argument in
    --list) list=yes ;;
    -*) echo "usage: $0 [--list] [CHECK...]" >&2; exit 2 ;;
    *) only+=("$argument") ;;
    esac
done

work=$(mktemp -d)
environment=''
trap '[ -z "$environment" ] || kill "$environment" 2>/dev/null; rm -rf "$work"' EXIT

# chosen NAME...: whether one of these checks is to be run.
chosen() {
    local name part
    [ ${#only[@]} -gt 0 ] || return 0
    for name in "$@"; do
        for part in "${only[@]}"; do
            [[ $name =~ $part ]] && return 0
        done
    done
    return 1
}

# listed NAME: with --list it is printed and counted, and there is nothing more to do.
listed() {
    [ -n "$list" ] || return 1
    printf '%s\n' "$1"
    passed=$((passed + 1))
}

# begin GROUP...: installs the packages of these groups of tools/packages.txt and makes the clone.
begin() {
    [ -z "$list" ] || return 0
    "$source/tools/install-packages" "$@" </dev/null || exit 1
    git -c advice.detachedHead=false clone -q "$source" "$work/deltarule" </dev/null || exit 1
    cd "$work/deltarule" || exit 1
}

# check NAME COMMAND...: runs it, and keeps its output for the case that it fails. How many tests ran and which did not is told.
check() {
    local name=$1 start=$SECONDS
    chosen "$name" || return 0
    ! listed "$name" || return 0
    shift
    if "$@" >"$work/log" 2>&1 </dev/null; then
        printf '%-56s passed  %4d s\n' "$name" $((SECONDS - start))
        grep -E '^[0-9]+% tests passed|\((Skipped|Not Run)\)$|^clang-tidy: ' "$work/log" | sed 's/^[[:blank:]]*/    /'
        passed=$((passed + 1))
    else
        printf '%-56s FAILED  %4d s\n' "$name" $((SECONDS - start))
        tail -n 60 "$work/log"
        failed+=("$name")
    fi
}

# skip NAME REASON: what this machine cannot check.
skip() {
    chosen "$1" || return 0
    ! listed "$1" || return 0
    printf '%-56s skipped: %s\n' "$1" "$2"
    skipped+=("$1: $2")
}

# The closing count; exits 1 if a check failed.
finish() {
    local total=$((passed + ${#failed[@]}))
    if [ $((total + ${#skipped[@]})) -eq 0 ]; then
        echo "no check has such a name; $0 --list prints their names" >&2
        exit 2
    fi
    [ -z "$list" ] || exit 0
    echo
    [ ${#skipped[@]} -eq 0 ] || { echo "${#skipped[@]} checks skipped:"; printf '    %s\n' "${skipped[@]}"; }
    [ $total -eq 0 ] || echo "$((100 * passed / total))% checks passed, ${#failed[@]} checks failed out of $total in $((SECONDS / 60)) minutes"
    [ ${#failed[@]} -eq 0 ] || { printf '    %s\n' "${failed[@]}"; exit 1; }
}

ours() { git ls-files -z "$@"; }

# ---- the tree --------------------------------------------------------------------------------------------------------------

format() { ours '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs -0 clang-format --dry-run --Werror; }
# Tabs in C, blanks at the ends of lines, files without a last line end.
blanks() {
    local data=(':!*.jinja' ':!*.safetensors' ':!*.png' ':!*.bin' ':!*.gz' ':!*.zst' ':!*.diff' ':!*.patch'
        ':!tests/checkpoints/*' ':!fuzz/seeds/*') # as others wrote them
    ! ours '*.c' '*.h' '*.cu' '*.cuh' | xargs -0 grep -nP '\t' &&
        ! ours -- . "${data[@]}" | xargs -0 grep -nIE '[[:blank:]]+$' &&
        ours -- . "${data[@]}" |
        while IFS= read -r -d '' file; do
            [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || { echo "$file: no line end at the end"; exit 1; }
        done
}
scripts() {
    local files
    mapfile -t files < <(git grep -lE '^#!/(bin/sh|usr/bin/env bash)' -- tools tests bench examples .ci)
    shellcheck -x -P tests/cli -P .ci "${files[@]}"
}
small() { [ "$(du -sk tests/vectors | cut -f1)" -le 8192 ] || { echo 'tests/vectors is larger than 8 MB'; return 1; }; }

tree_checks() {
    check 'layers' tools/check-layers
    check 'lengths of files and functions' tools/check-lengths
    check 'layout of C and CUDA (clang-format)' format
    check 'blanks and line ends' blanks
    check 'scripts (shellcheck)' scripts
    check 'headers alone, C11 and C++11' tools/check-headers gcc g++ clang
    check 'manual page (mandoc)' mandoc -T lint -W style docs/deltarule.1
    check 'reference of the C API (doxygen)' make reference
    check 'size of the recorded vectors' small
}

# ---- builds and their tests ------------------------------------------------------------------------------------------------

# once COMMAND...: warnings of the compiler are errors, and what two builds compile alike is compiled once. Nothing from before is taken.
once() {
    CFLAGS=-Werror CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_DIR=$work/ccache CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=yes "$@"
}
# The README's test command.
readme() { once make test; }
# What several checks below use; after `readme` there is nothing left to build.
release() { once cmake --preset release && once cmake --build --preset release "$@"; }

# with PRESET [ctest flags...]: builds it, warnings are errors, and runs the tests.
with() {
    local preset=$1
    shift
    cmake --preset "$preset" -DCMAKE_COMPILE_WARNING_AS_ERROR=ON &&
        cmake --build --preset "$preset" &&
        ctest --preset "$preset" -j "$jobs" "$@"
}
with_clang() {
    cmake --preset release -B build/clang -DCMAKE_C_COMPILER=clang -DCMAKE_COMPILE_WARNING_AS_ERROR=ON &&
        cmake --build build/clang &&
        ctest --test-dir build/clang --no-tests=error -j "$jobs" --output-on-failure "$@"
}

# A project of its own finds the installed libraries by CMake and by pkg-config, and computes with them; nothing of OpenBLAS is
# linked in; and nothing is left after uninstalling.
installed() {
    local prefix=$work/prefix flags
    release &&
        cmake --install build/release --prefix "$prefix" &&
        cmake -S examples -B "$work/examples" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS='-Wall -Wextra -Werror' &&
        cmake --build "$work/examples" &&
        "$work/examples/recurrence_static" &&
        tests/tools/examples.sh include/deltarule "$work"/examples/{recurrence,state,training,generation,kept_state} || return 1
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name deltarule.pc)")
    export PKG_CONFIG_PATH
    read -ra flags <<<"$(pkg-config --cflags --libs deltarule)"
    gcc -Wall -Werror examples/recurrence.c "${flags[@]}" -lm -o "$work/by_pkg_config" || return 1
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir deltarule)
    export LD_LIBRARY_PATH
    "$work/by_pkg_config" && "$prefix/bin/deltarule" rules gdn || return 1
    mandoc -T lint -W style "$prefix/share/man/man1/deltarule.1" || return 1
    printf '%s\n' '#include <deltarule/theory.h>' 'int main(void) { return dr_theory_count() < 1; }' >"$work/theory.c"
    read -ra flags <<<"$(pkg-config --cflags --libs deltarule_check)"
    gcc -Wall -Werror "$work/theory.c" "${flags[@]}" -o "$work/theory" && "$work/theory" || return 1
    ! pkg-config --static --libs deltarule deltarule_check | grep -i blas || return 1
    cmake --build build/release --target uninstall && [ -z "$(find "$prefix" ! -type d)" ]
}

# experiments_small [flags...] NAME...: each in its small form, with the project's own documents as text.
experiments_small() {
    local name flags=() made=$work/experiment-data corpus
    while [[ $1 == --* ]]; do flags+=("$1"); shift; done
    release --target deltarule || return 1
    tools/prepare-experiments --small "$made" docs/{papers,training,tasks,corpora,architecture}.md || return 1
    for name in "$@"; do
        corpus=docs
        [ "$name" != needles ] || corpus=$made/mixture.json
        build/release/deltarule experiment "$name" --small --corpus "$corpus" --text docs/papers.md --tasks "$made/tasks" \
            --out "$work/experiments/$name" "${flags[@]}" || return 1
    done
}

# tidy SECONDS FILE...: clang-tidy over these files, and how many of them it came to in that time.
tidy() {
    local until=$((SECONDS + $1)) done=0
    shift
    cmake --preset release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null || return 1
    while [ $done -lt $# ] && [ $SECONDS -lt $until ]; do
        printf '%s\0' "${@:done + 1:4 * jobs}" |
            xargs -0 -n 4 -P "$jobs" clang-tidy --quiet -p build/release --warnings-as-errors='*' || return 1
        done=$((done + 4 * jobs))
    done
    echo "clang-tidy: $((done < $# ? done : $#)) of $# files"
}
# What a change is held against: DELTARULE_BASE; else the commit where this branch left main; on main itself ten commits back.
base_of_changes() {
    local base=${DELTARULE_BASE:-}
    [ -n "$base" ] || base=$(git -C "$source" merge-base HEAD main 2>/dev/null || true)
    if [ -z "$base" ] || [ "$(git rev-parse "$base")" = "$(git rev-parse HEAD)" ]; then
        base=$(git rev-list --max-count=11 --first-parent HEAD | tail -1)
    fi
    git rev-parse --short "$base"
}
tidy_changes() {
    local base files
    base=$(base_of_changes)
    # by size of the change, so that the largest are looked at where there is no time for all
    mapfile -t files < <(git diff --numstat --no-renames --diff-filter=d "$base" -- 'src/*.c' 'fuzz/*.c' | sort -rn | cut -f3 |
        grep -v '^src/backends/cuda/')
    echo "clang-tidy: ${#files[@]} files changed since $base"
    [ ${#files[@]} -eq 0 ] || tidy 180 "${files[@]}"
}
tidy_all() {
    local files
    mapfile -t files < <(git ls-files 'src/*.c' 'fuzz/*.c' | grep -v '^src/backends/cuda/')
    tidy 7200 "${files[@]}"
}

# python_environment SECONDS CHECK...: begins to make for these checks, in that time at most, the environment with PyTorch that CTest's
# test `python` and `make python-test` take, once for a set of versions; it is loaded and unpacked beside the checks that come next.
python_environment() {
    local seconds=$1
    shift
    chosen "$@" && [ -z "$list" ] || return 0
    {
        "$source/tools/install-packages" python && timeout "$seconds" "$source/tools/python-environment"
    } >"$work/python.log" 2>&1 </dev/null &
    environment=$!
}
# with_pytorch: waits for it. Where it cannot be made the reason is told, and tests of PyTorch are skipped.
with_pytorch() {
    [ -n "$environment" ] || return 0
    local made=$environment
    environment=''
    wait "$made" && return 0
    tail -n 5 "$work/python.log"
    skip 'Python package with PyTorch' "no environment for it in that time: $(tail -n 1 "$work/python.log")"
    return 1
}

# fuzz SECONDS: each fuzzer so long, from its seeds.
fuzz() {
    cmake --preset fuzz && cmake --build --preset fuzz && tools/fuzz build/fuzz "$1"
}

# cuda ARCHITECTURES: the backend compiled, and its kernels that run on the host.
cuda() {
    once cmake --preset cuda -DDELTARULE_CUDA_ARCHITECTURES="$1" &&
        once cmake --build --preset cuda --target deltarule cuda_tests cuda_emulated &&
        ctest --test-dir build/cuda --no-tests=error -j "$jobs" --output-on-failure -R '^cuda_emulated'
}
# aarch64 [ctest flags...]: cross-compiled, and its tests under qemu-user.
aarch64() {
    cmake --preset aarch64 && cmake --build --preset aarch64 &&
        ctest --preset aarch64 -j "$jobs" "$@"
}
# The base, the formats and recurrences by themselves, then every engine on some recorded recurrences.
aarch64_recurrences() {
    cmake --preset aarch64 &&
        cmake --build --preset aarch64 --target deltarule test_base test_formats test_recurrence_matrix &&
        ctest --preset aarch64 -R '^(base|formats|recurrence_matrix)$' &&
        qemu-aarch64 build/aarch64/deltarule verify --backend cpu --threads 1 \
            tests/vectors/{gdn__T1,kda__alpha0,eda__gva_packed,pgdn__gva_packed,act_l2norm__T9}.safetensors
}
# Three steps of training with both builds: the same losses but for rounding.
aarch64_training() {
    local run=$work/training losses=() build emulator
    release --target deltarule && cmake --preset aarch64 && cmake --build --preset aarch64 --target deltarule || return 1
    for build in release aarch64; do
        [ "$build" = aarch64 ] && emulator=qemu-aarch64 || emulator=
        rm -rf "$run"
        # shellcheck disable=SC2086 # no word where nothing is emulated
        $emulator "build/$build/deltarule" train --out "$run" --task mqar --steps 3 --batch 2 \
            --hidden 16 --layers 1 --heads 2 --intermediate 16 --vocabulary 128 --held-out 4 --threads 2 || return 1
        losses+=("$(awk -F, '$1 == 3 {print $2}' "$run/metrics.csv")")
    done
    echo "losses: ${losses[*]}"
    awk -v one="${losses[0]}" -v other="${losses[1]}" 'BEGIN {d = one - other; exit !(one > 1 && d * d < 1e-10)}'
}
# aarch64_checks NAME COMMAND...: where the packages for it can be installed.
aarch64_checks() {
    chosen "$1" || return 0
    ! listed "$1" || return 0
    if "$source/tools/install-packages" aarch64 >"$work/log" 2>&1 </dev/null; then
        check "$@"
    else
        tail -n 5 "$work/log"
        skip "$1" "the packages of group aarch64 (tools/packages.txt) cannot be installed"
    fi
}
# cuda_checks ARCHITECTURES: where there is nvcc.
cuda_checks() {
    local nvcc name="cuda for sm_${1//;/, sm_}, and its kernels on the host"
    chosen "$name" || return 0
    ! listed "$name" || return 0
    nvcc=$(command -v nvcc || ls "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" 2>/dev/null)
    if [ -n "$nvcc" ]; then
        check "$name" cuda "$1"
    else
        skip "$name" 'there is no nvcc'
    fi
}
# The same where a change can have touched it: it takes ten minutes.
cuda_checks_of_changes() {
    local base
    local -r parts=(src/backends/cuda src/backends/*.h src/ops src/maps src/rules src/base include tests/cuda cmake/cuda.cmake
        CMakeLists.txt tests/CMakeLists.txt tools/compile-cuda)
    base=$(base_of_changes)
    if [ -z "$list" ] && git diff --quiet "$base" -- "${parts[@]}"; then
        skip "cuda for sm_${1//;/, sm_}, and its kernels on the host" "nothing that it is compiled from changed since $base"
    else
        cuda_checks "$1"
    fi
}
