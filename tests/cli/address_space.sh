#!/bin/sh
# With little address space the command starts, since no BLAS is loaded with it, and says why it cannot open OpenBLAS, which
# would never return.
. "$(dirname "$0")/expect.sh"

machine() { od -An -tx2 -j 18 -N 2 "$1"; } # e_machine of an ELF file
[ "$(machine "$deltarule")" = "$(machine "$(command -v sh)")" ] ||
    { echo 'SKIPPED: the command is for another processor, whose emulator needs more address space than that'; exit 77; }

# shellcheck disable=SC3045 # the shells that are here have it
little() { (ulimit -v 200000 && exec timeout 60 "$@"); }
! little dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null ||
    { echo 'SKIPPED: the limit of address space is not kept, as by emulators of another processor'; exit 77; }

expect 0 'deltarule ' little "$deltarule" --version
expect 0 'none: OpenBLAS needs ' little "$deltarule" info --threads 1
grep -q 'MiB of address space to start, .*(ulimit -v)' stdout || fail 'no reason'
expect 0 ' hold, 0 do not' little "$deltarule" theory linear
expect 0 'no OpenBLAS' env DELTARULE_OPENBLAS=/no/such "$deltarule" info
expect 0 'is no whole OpenBLAS' env DELTARULE_OPENBLAS=libm.so.6 "$deltarule" info
