#!/bin/sh
# tools/check-locale accepts the project, and finds each function and conversion that depends on the locale.
set -eu
export LC_ALL=C
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/tools/check-locale" "$root"

fresh() {
    rm -rf "$work/tree" "$work/words"
    mkdir -p "$work/tree/src/base" "$work/tree/src/cli" "$work/tree/include" "$work/tree/tools" "$work/tree/tests" \
        "$work/tree/bench" "$work/tree/.ci"
    echo 'int one(void);' >"$work/tree/src/base/one.h"
}

# expect_offence FILE LINE TEXT WORDS: with a file of this text the check fails, names the line and says these words.
expect_offence() {
    fresh
    printf '%s\n' "$3" >"$work/tree/$1"
    if message=$("$root/tools/check-locale" "$work/tree"); then
        echo "accepted $1 with: $3"
        exit 1
    fi
    case $message in
    "$1:$2: "*"$4"*) ;;
    *) echo "for $1 with '$3' the message is not of line $2 or lacks '$4': $message"; exit 1 ;;
    esac
}

# expect_offences: the check fails for src/base/a.c, and says of its lines, one after another, what stands in $work/words.
expect_offences() {
    "$root/tools/check-locale" "$work/tree" >"$work/said" && { echo 'accepted:'; cat "$work/tree/src/base/a.c"; exit 1; }
    line=0
    while read -r words; do
        line=$((line + 1))
        case $(sed -n ${line}p "$work/said") in
        "src/base/a.c:$line: "*"$words"*) ;;
        *) echo "the message is not of line $line or lacks '$words':"; cat "$work/tree/src/base/a.c" "$work/said"; exit 1 ;;
        esac
    done <"$work/words"
    [ "$line" -eq "$(wc -l <"$work/said")" ] || { echo "there are other messages than $line:"; cat "$work/said"; exit 1; }
}

expect_acceptance() {
    fresh
    printf '%s\n' "$2" >"$work/tree/$1"
    "$root/tools/check-locale" "$work/tree" || { echo "refused $1 with: $2"; exit 1; }
}

# Every function that is refused, a line each.
fresh
for name in strtod strtof strtold strtod_l atof wcstod scanf fscanf sscanf vsscanf atoi atol atoll gcvt ecvt strfromd strfmon \
    vprintf vfprintf vsprintf vsnprintf vasprintf wprintf swprintf mbtowc mbrtowc mbstowcs wcwidth btowc isalnum isalpha isblank \
    iscntrl isdigit isgraph islower isprint ispunct isspace isupper isxdigit tolower toupper iswalpha iswprint towlower strcoll \
    strxfrm strcasecmp strncasecmp strcasestr alphasort glob fnmatch regcomp strerror strerror_r perror setlocale localeconv \
    newlocale uselocale nl_langinfo json_loads json_loadb json_load_file json_dumps json_dumpf json_dump_file strptime; do
    echo "int x = $name(text);" >>"$work/tree/src/base/a.c"
    echo "$name: " >>"$work/words"
done
expect_offences
expect_offence src/base/a.c 1 'static double (*read)(const char *, char **) = strtod;' 'dr_number_read'
expect_offence include/a.h 1 'double f(void) { return atof("0.5"); }' 'dr_number_read'
expect_offence src/cli/a.c 1 'double f(void) { return atof("0.5"); }' 'dr_number_read'
expect_offence src/base/a.cu 1 'double f = std::stod(text);' 'dr_number_read'
expect_offence src/base/a.cuh 1 'std::string f = std::to_string(0.5);' 'dr_format'

# Every conversion of a floating number, in every function that prints.
fresh
for conversion in %f %F %e %E %g %G %a %A %.3f %-10.3e %+g '%#g' '% g' %08.3f '%*.*f' %.*g %Lf %lf '%s of %g' '%%%f' '%d%%, %f'; do
    printf 'int x = printf("%s", y);\n' "$conversion" >>"$work/tree/src/base/a.c"
    echo dr_format >>"$work/words"
done
expect_offences
expect_offence src/base/a.c 1 'int x = fprintf(file, "%g", y);' 'dr_print'
expect_offence src/base/a.c 1 'int x = snprintf(text, sizeof text, "%g", y);' 'dr_format'
expect_offence src/base/a.c 1 'int x = sprintf(text + f(1, 2), "%g", y);' 'dr_format'
expect_offence src/base/a.c 1 'int x = asprintf(&text, "%g", y);' 'dr_format'
expect_offence src/base/a.c 1 'int x = dprintf(1, "%g", y);' 'dr_format'
expect_offence src/base/a.c 2 '
int x = snprintf(text, (size_t)f(1, "), %g"), /* , */
                 "a" "%"  PRId64
                 " and %" "g", i, y);' 'dr_format'
expect_offence src/base/a.c 1 'int x = printf(good ? "%d" : "%g", y);' 'dr_format'
expect_offence src/base/a.c 1 'int x = printf("\"%g\"", y);' 'dr_format'
expect_offence src/base/a.c 1 "char c = '\"'; int x = printf(\"%g\", y);" 'dr_format'
expect_offence src/base/a.c 1 'int x = printf(format, y);' 'no literal'
expect_offence src/base/a.c 1 "int x = printf(\"%'d\", y);" 'flags'
expect_offence src/base/a.c 1 'int x = printf("%Id", y);' 'flags'
expect_offence src/base/a.c 1 'size_t x = strftime(text, 9, "%A", now);' 'days'

# What does not depend on the locale, or only looks so.
expect_acceptance src/base/a.c 'int x = printf("%d %s %% of %5.2s %x", 1, "%g", "%f", 2u);'
expect_acceptance src/base/a.c 'int x = printf("%" PRId64 "g", y) + printf("100%% good");'
expect_acceptance src/base/a.c '/* strtod("0.5") and printf("%g") */ // atof(x)
const char *text = "strtod(0.5), printf(%g)", c = 0;'
expect_acceptance src/base/a.c 'int x = dr_format(text, sizeof text, "%g", y) + dr_print(file, "%g", y) + my_strtod(z);'
expect_acceptance src/base/a.c 'size_t x = strftime(text, 9, "%Y%m%d-%H%M%S", now);'
expect_acceptance src/base/number.c 'double f(const char *t) { return strtod(t, 0); }'

# Scripts.
expect_offence tools/a 3 '#!/bin/sh
set -eu
awk "{ print 0.5 }" file' 'LC_ALL=C'
expect_offence tests/a.sh 2 '#!/usr/bin/env bash
ls | sort >file' 'LC_ALL=C'
expect_offence bench/a 2 '#!/bin/sh
printf "%.2f\n" 1' 'LC_ALL=C'
expect_acceptance tools/a '#!/bin/sh
export LC_ALL=C
ls | sort | awk "{ print 0.5 }"'
expect_acceptance tools/a '#!/bin/sh
# sort is not called
printf "%s\n" sorted'
