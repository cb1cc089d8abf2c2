#!/bin/sh
# What is no argument of a script is refused with status 2 and a word about it, before the script calls another program or writes
# a file. The scripts lie in a folder of their own, and what could install, build or change anything is in its place a trap.
set -eu
export LC_ALL=C
project=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/traps" "$work/tree"
cp -r "$project/tools" "$project/bench" "$work/tree/"
for name in apt-get sudo cmake make git pip gnuplot cc gcc mktemp cuobjdump nvcc; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/called"\nexit 99\n' $name "$work" >"$work/traps/$name"
    chmod +x "$work/traps/$name"
done
cd "$work/tree"
find . | sort >../before

# Those that pass their words on (compile-cuda, make-wheel), and the filter of doxygen, have none of their own.
scripts='bench/all bench/host bench/load bench/install-peers'
for script in "$project"/tools/*; do
    name=$(basename "$script")
    case $name in
    compile-cuda | make-wheel | reference-filter) ;;
    *) [ ! -x "$script" ] || [ -d "$script" ] || scripts="$scripts tools/$name" ;;
    esac
done
command -v python3 >/dev/null || scripts=$(for script in $scripts; do head -1 "$script" | grep -q python || echo "$script"; done)

count=0
for script in $scripts; do
    got=0
    PATH=$work/traps:$PATH PYTHONDONTWRITEBYTECODE=1 timeout 300 "./$script" --nonsense >../said 2>&1 </dev/null || got=$?
    [ "$got" -eq 2 ] || { echo "FAILED: $script --nonsense ended with status $got: $(cat ../said)"; exit 1; }
    [ -s ../said ] || { echo "FAILED: $script --nonsense says nothing"; exit 1; }
    [ ! -e ../called ] || { echo "FAILED: $script --nonsense called $(cat ../called)"; exit 1; }
    count=$((count + 1))
done
[ $count -ge 20 ] || { echo "FAILED: $count scripts were called, not 20 or more"; exit 1; }
find . | sort | diff ../before - || { echo 'FAILED: a script that refused its arguments made a file'; exit 1; }
