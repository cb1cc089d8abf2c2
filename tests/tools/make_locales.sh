#!/bin/sh
# Makes the locales that tests set, so that none need be installed: "comma", of our own, which has a decimal comma and is "C" in
# all else; de_DE (a comma), ps_AF (a decimal point of two bytes) and tr_TR (the capital of i is not I). Keeps those that are
# there. The sources of the last three are in Debian's package "locales"; says so where they are missing.
# Usage: make_locales.sh FOLDER
set -eu
mkdir -p "$1"
cd "$1"
cat >comma.source <<'SOURCE'
comment_char %
escape_char /
LC_NUMERIC
decimal_point ","
thousands_sep "."
grouping 3;3
END LC_NUMERIC
SOURCE
# make NAME FOLDER FLAGS...
make() {
    name=$1 folder=$2
    shift 2
    [ ! -d "$folder" ] || return 0
    rm -rf "$folder.new"
    localedef "$@" "./$folder.new" >log 2>&1 || [ -f "$folder.new/LC_NUMERIC" ] || {
        echo "localedef cannot make the locale $name (tools/install-packages check brings its source):"
        cat log
        return 0
    }
    mv "$folder.new" "$folder"
}
make comma comma -c -i ./comma.source # -c: the parts that are missing are those of "C"
for name in de_DE ps_AF tr_TR; do make "$name" "$name.UTF-8" -i "$name" -f UTF-8; done
