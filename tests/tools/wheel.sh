#!/bin/sh
# Tries a wheel as someone does who has only pip: in a clean environment of each Python it is installed with numpy, imported and
# called, without the sources and without a compiler; and the wheel holds what its name promises: no symbol of a C library newer
# than its tag, and no OpenMP runtime of its own. Where a Python has the environment of tools/python-environment, the README's
# lines run as they stand there, with that environment's PyTorch, and must print what the README says.
# Usage: tests/tools/wheel.sh WHEEL PYTHON...        e.g. tests/tools/wheel.sh build/wheel/deltarule-*.whl python3.9 python3.13
set -eu
[ $# -ge 2 ] || { echo "usage: $0 WHEEL PYTHON..." >&2; exit 2; }
export LC_ALL=C
wheel=$(realpath "$1")
shift
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" # where nothing of the sources is found
unset DELTARULE_LIBRARY DELTARULE_COMMAND PYTHONPATH

fail() { echo "$*" >&2; exit 1; }

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

tried=0
for python in "$@"; do
    "$python" -c '' 2>/dev/null || { echo "skipped: $python does not run here"; continue; }
    environment=$work/environment-$tried
    "$python" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check "$wheel" numpy
    "$environment/bin/python" arrays_only.py
    "$environment/bin/deltarule" rules gdn >rule.txt
    "$environment/bin/python" -m deltarule rules gdn | cmp -s - rule.txt || fail "$python: the command and the module print different rules"
    with_torch=$(PYTHON=$python "$root/tools/python-environment" --where)
    if [ -e "$with_torch/complete" ]; then
        PYTHONPATH=$("$with_torch/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
            "$environment/bin/python" readme.py >printed
        cmp -s printed expected || fail "$python: the README's lines print $(cat printed), not $(cat expected)"
        echo "    the README's lines print what it says"
    else
        echo "    skipped: no PyTorch for this Python (tools/python-environment)"
    fi
    tried=$((tried + 1))
done
[ $tried -gt 0 ] || fail "none of these Pythons runs here: $*"
echo "$tried Pythons"
