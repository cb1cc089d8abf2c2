#!/bin/sh
# Tries a wheel as someone does who has only pip: in a clean environment of each Python it is installed with numpy, imported and
# called, without the sources and without a compiler; and the wheel holds what its name promises: no symbol of a C library newer
# than its tag, and no OpenMP runtime of its own. The README's lines run as they stand there, with the PyTorch that
# tools/python-environment keeps for this Python, or the newest one from PyPI for it, and must print what the README says.
# With an sdist the first Python builds that too, and installs the sources so that they can be edited.
# Usage: tests/tools/wheel.sh WHEEL [--sources SDIST] [PYTHON...]
#   e.g. tests/tools/wheel.sh build/wheel/deltarule-*.whl --sources build/wheel/deltarule-*.tar.gz python3.9 python3.13
#   PYTHON: without one python3 and every other one of 3.9 and later on the PATH or among pyenv's
#   WHEEL_TORCH=no: the README's lines are left out where no PyTorch is kept
#   DELTARULE_PYTHON_ENVIRONMENTS: where PyTorch is kept, one for each Python (~/.cache/deltarule/python by default)
set -eu
[ $# -ge 1 ] || { echo "usage: $0 WHEEL [--sources SDIST] [PYTHON...]" >&2; exit 2; }
export LC_ALL=C
wheel=$(realpath "$1") sources=
shift
if [ "${1:-}" = --sources ]; then
    sources=$(realpath "$2")
    shift 2
fi
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" # where nothing of the sources is found
unset DELTARULE_LIBRARY DELTARULE_COMMAND PYTHONPATH

fail() { echo "$*" >&2; exit 1; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2]) if sys.version_info >= (3, 9) else sys.exit(1)' 2>/dev/null; }

# every_python: one Python of each version.
every_python() {
    seen=' '
    for python in python3 $(pythons_of_path) "${HOME:-}"/.pyenv/versions/*/bin/python3; do
        version=$(version_of "$python") || continue
        case $seen in *" $version "*) continue ;; esac
        seen="$seen$version "
        command -v "$python"
    done
}
pythons_of_path() {
    (IFS=: && for folder in $PATH; do
        for file in "$folder"/python3.[0-9]*; do
            case $file in *-config | *'*') ;; *) echo "$file" ;; esac
        done
    done)
}

# pytorch_of PYTHON: the folder of modules of an environment with PyTorch, made once for each version of Python.
pytorch_of() {
    kept=$(PYTHON=$1 "$root/tools/python-environment" --where)
    if [ ! -e "$kept/complete" ]; then
        kept=$(dirname "$kept")/pytorch-for-python-$(version_of "$1")
        if [ ! -e "$kept/complete" ]; then
            [ "${WHEEL_TORCH:-}" != no ] || return 1
            rm -rf "$kept"
            mkdir -p "$(dirname "$kept")"
            "$1" -m venv "$kept" >&2 && "$kept/bin/pip" install --quiet --disable-pip-version-check torch numpy >&2 || return 1
            touch "$kept/complete"
        fi
    fi
    "$kept/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

# The README's lines, and what it says that they print.
awk '/^    import deltarule, torch$/ {on = 1} on && /^$/ {exit} on {sub(/^    /, ""); print}' "$root/README.md" >readme.py
awk '/^    import deltarule, torch$/ {on = 1} on && /^$/ {blank++; next} on && blank == 1 {sub(/^    /, ""); print; exit}' "$root/README.md" >expected
if [ ! -s readme.py ] || [ ! -s expected ]; then fail 'README.md has no lines that begin with "import deltarule, torch"'; fi

cat >arrays_only.py <<'end'
import time
begin = time.process_time()
import deltarule
seconds = time.process_time() - begin
import sys
assert "torch" not in sys.modules and "numpy" not in sys.modules
assert seconds < 0.3, f"the import took {seconds:.2f} s"
import numpy as np
assert len(deltarule.rules()) > 30
q, k, v = (np.random.randn(1, 64, 2, 32).astype("float32") for _ in "qkv")
k /= np.linalg.norm(k, axis=-1, keepdims=True)
gates = {"log_decay": -np.random.rand(1, 64, 2), "beta": np.random.rand(1, 64, 2)}
given = dict(gates, query=q, key=k, value=v)
o, state = deltarule.recurrence("gdn", **{name: x.astype("float32") for name, x in given.items()}, final=True)
exact = deltarule.recurrence("gdn", **{name: x.astype("float64") for name, x in given.items()}, path="reference")
assert state.S.shape == (1, 2, 32, 32) and np.abs(o - exact).max() < 1e-5 * np.abs(exact).max()
print(f"Python {sys.version.split()[0]}: {deltarule.__file__}, imported in {1000 * seconds:.0f} ms of processor time")
end

python3 -m zipfile -e "$wheel" inside
! find inside -name '*gomp*' | grep . || fail "$wheel brings an OpenMP runtime along: PyTorch has one, and a process must not have two"
tag=$(basename "$wheel" | grep -o 'manylinux_2_[0-9]*' | sort -t_ -k3 -n | tail -n 1 | cut -d_ -f3)
[ -n "$tag" ] || fail "the name of $wheel tells no C library"
newest=$(find inside -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | cut -d. -f2 | sort -n | tail -n 1)
[ "$newest" -le "$tag" ] || fail "$wheel needs GLIBC_2.$newest, its name promises 2.$tag"
echo "$(basename "$wheel"): $(wc -c <"$wheel") bytes, newest symbol GLIBC_2.$newest"

# shellcheck disable=SC2046 # a list of words
[ $# -gt 0 ] || set -- $(every_python)
tried=0 first=
for python in "$@"; do
    "$python" -c '' 2>/dev/null || { echo "skipped: $python does not run here"; continue; }
    environment=$work/environment-$tried
    "$python" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check "$wheel" numpy
    "$environment/bin/python" arrays_only.py
    "$environment/bin/deltarule" rules gdn >rule.txt
    "$environment/bin/python" -m deltarule rules gdn | cmp -s - rule.txt || fail "$python: the command and the module print different rules"
    if torch=$(pytorch_of "$python"); then
        PYTHONPATH=$torch "$environment/bin/python" readme.py >printed
        cmp -s printed expected || fail "$python: the README's lines print $(cat printed), not $(cat expected)"
        echo "    PyTorch $(PYTHONPATH=$torch "$environment/bin/python" -c 'import torch; print(torch.__version__)'): the README's lines print what it says"
    else
        echo "    skipped: the README's lines, since there is no PyTorch for this Python"
    fi
    tried=$((tried + 1)) first=${first:-$python}
done
[ $tried -gt 0 ] || fail "none of these Pythons runs here: $*"
echo "$tried Pythons"

if [ -n "$sources" ]; then # which pip compiles: once from their archive alone, once in place
    environment=$work/built
    "$first" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check "$sources" numpy
    "$environment/bin/python" arrays_only.py
    "$environment/bin/deltarule" rules gdn | cmp -s - rule.txt || fail "what $sources builds prints other rules than the wheel"
    echo "$(basename "$sources"): built and installed by pip"

    environment=$work/edited
    mkdir sources
    tar -xzf "$sources" -C sources --strip-components=1
    "$first" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check numpy 'scikit-build-core>=0.11' cmake ninja
    (cd sources && PATH=$environment/bin:$PATH "$environment/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation -e .)
    echo 'edited = "yes"' >>sources/python/deltarule/__init__.py
    "$environment/bin/python" arrays_only.py
    [ "$("$environment/bin/python" -c 'import deltarule; print(deltarule.edited)')" = yes ] || fail 'an edited module of an editable installation is not the one that is imported'
    echo "$(basename "$sources"): installed for editing"
fi
