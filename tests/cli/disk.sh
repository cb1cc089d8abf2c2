#!/bin/sh
# No room for a file: a sentence, exit status 1, and what was there before stays whole.
. "$(dirname "$0")/expect.sh"
make_corpus
tiny='--corpus corpus --layers 1 --heads 2 --intermediate 32 --batch 2 --seq-len 32 --steps 3 --evaluate-every 0 --threads 1'

# A limit on the size of files stands for a full disk everywhere: 64 blocks of 512 bytes, less than the model needs.
limited() { (ulimit -f 64 && exec "$deltarule" "$@"); }
try_limit() {
    # shellcheck disable=SC2086 # a list of words, here and below
    expect 1 'deltarule train: ' limited train $tiny --hidden 64 --out small
    [ ! -e small/model.safetensors ] || fail 'a model that found no room lies there'

    # Room for a first checkpoint, none for a second: the first one stays, and goes on once there is room.
    # shellcheck disable=SC2086
    expect 0 'model: run' "$deltarule" train $tiny --hidden 64 --out run
    cp -r run before
    expect 1 'deltarule train: ' limited train --resume run --steps 5 --threads 1
    cmp before/model.safetensors run/model.safetensors || fail 'the model was damaged'
    [ -z "$(find run -name '.new-*')" ] || fail 'a half-written checkpoint was left behind'
    expect 0 'model: run' "$deltarule" train --resume run --steps 5 --threads 1
}
# A file system that is really full.
try_full_disk() {
    # shellcheck disable=SC2086
    expect 1 'disk' "$deltarule" train $tiny --hidden 128 --out disk/run
    [ ! -e disk/run/model.safetensors ] || fail 'a model that found no room lies there'
}

tried=
if grep -q __tsan_init "$deltarule"; then
    echo 'not tried: the limit on file sizes, which the thread sanitizer needs for itself'
else
    try_limit
    tried=yes
fi
mkdir disk
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=256k none disk 2>/dev/null; then
    trap 'cd /; umount "$work/disk"; rm -rf "$work"' EXIT
    try_full_disk
    tried=yes
else
    echo 'not tried: a full file system, since none could be made here'
fi
[ -n "$tried" ] || exit 77 # CTest shows it as skipped
