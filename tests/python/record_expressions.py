#!/usr/bin/env python3
"""Records what Hugging Face's `tokenizers` (Oniguruma) cuts with expressions: tests/expressions.json, which tests/test_pattern.c
holds the translation for PCRE2 to.

    tests/python/record_expressions.py tests/expressions.json
"""
import json, sys

import tokenizers
from tokenizers import Regex, pre_tokenizers

# an expression and the texts that it is tried on; what is said here of Oniguruma differs in PCRE2
CASES = [
    (r"\p{N}{1,3}+", ["1234567", "12 345678"]),  # (X{1,3})+, not possessive
    (r"a{2}?", ["aaaaa"]),  # (a{2})?, not lazy
    (r"a{1,2}?", ["aaaa"]),
    (r"\p{N}{2,}+x", ["12345x"]),
    (r"a++b|a", ["aaab", "aaa"]),
    (r"a?+ab|b", ["ab", "aab"]),
    (r"a*+a|b", ["aab"]),
    (r"a{,2}", ["aaaab"]),
    (r"x{,}", ["x{,}x"]),
    (r"x{a}|{", ["x{a}{"]),
    (r"^\w", ["ab\ncd\n\nef"]),  # at every line
    (r"\w$", ["ab\ncd\n\nef\n"]),
    (r"\Aa|a\z", ["aba\na"]),
    (r"b\Z", ["ab\nb\n"]),
    (r".+", ["ab\ncd\r\nef\u2028gh"]),  # all but \n
    (r"(?m:.+)", ["ab\ncd"]),  # . takes \n
    (r"(?m).+", ["ab\ncd"]),
    (r"\h+", ["12af G \t0"]),  # hexadecimal digits
    (r"\H+", ["12af G \t0"]),
    (r"\R", ["a\r\nb\nc\rd\x0be\x0cf\u0085g\u2028h\u2029"]),
    (r"\s+", ["a \t\n\x0b\x0c\r\u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000b", "a\u180eb\u200bc\ufeffd\x1ce\x1ff"]),
    (r"\S", [" a\u180e\u200b\u00a0"]),
    (r"\w+", ["ab_1\u00b2\u00b3\u00b9\u00bc\u00aa\u2160\u24d0 \u0301x\u093f\u20dd \u00bd\u2460\u203f\u200dx\u200c\u00adz", "\U0001f130\U0001f170\u3007\u00b5\u1369"]),
    (r"\W+", ["a\u2460b\u200dc\u203fd\u00b7e"]),
    (r"\b", ["ab cd\u0301 \u2460x_y"]),
    (r"\B.", ["ab cd"]),
    (r"\d+", ["12\u0660\u0967\u00b2\u2460\uff11"]),
    (r"\D+", ["a1\u0660b\u00b2"]),
    (r"[a-z&&[^aeiou]]+", ["hello world"]),
    (r"[^a-m&&\p{Ll}]", ["abcxyz A"]),
    (r"[a-z&&b-y&&c-x]+", ["abcdwxyz"]),
    (r"[[a-c][x-z]]+", ["abmxyz"]),
    (r"[^[^a-f]]+", ["abcxdef"]),
    (r"[\p{L}&&[^\p{Han}]]+", ["ab\u4e2dcd\u3005\u30fcx"]),
    (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+", ["AB\u01c5\u02b0\u05d0\u0301\u4e2dc"]),
    (r"[\s\S]{2}", ["a\nb\tc"]),
    (r"[^\W\d_]+", ["ab1_c\u0301 \u2160"]),
    (r"[]a]+", ["]a]b"]),
    (r"[a\]b]+", ["a]bc"]),
    (r"[a-]+", ["a-b-"]),
    (r"[+\-*]", ["1+2-3*4"]),
    (r"[\x{41}-\x{43}\u0061]+", ["ABCDabc"]),
    (r"\p{Han}+", ["\u4e2d\u3005\u3007\u3021\u30fc\u337f\u2e80\uf900\U00020000"]),
    (r"\p{Hiragana}+|\p{Katakana}+", ["\u3042\u30ab\u30fc\u3005"]),
    (r"\p{Greek}+|\p{Cyrillic}+", ["\u03b1\u0440\u1f00a\u00b5"]),
    (r"\p{^L}+", ["ab12cd"]),
    (r"\P{L}+", ["ab12cd"]),
    (r"\p{Letter}+|\p{uppercase letter}", ["abC1"]),
    (r"\p{Mn}|\p{Sc}|\p{Nd}+", ["a\u0301\u20ac12$"]),
    (r"(?i)[a-k]+", ["aBcLm\u212a"]),
    (r"(?i:k)", ["kK\u212a"]),
    (r"(?i:'s|'t|'re)", ["it's IT'S x'\u017f we'RE"]),
    (r"a(?i)b|C", ["aBacabC"]),  # the option holds for the alternatives too
    (r"(?-i:a)|(?i:a)b", ["aAb"]),
    (r"(?>a|ab)c|\p{P}+", ["abcac..!"]),
    (r"(?=\p{Lu})", ["aBcD"]),
    (r"(?<=\s)\S", ["ab cd  e"]),
    (r"(?<!\w)\p{L}", ["ab cd_e"]),
    (r"\s+(?!\S)|\s+", ["a   b  ", " \n\n x", "\u3000 a"]),
    (r"x*", ["axxb", "", "ab"]),
    (r"(?<name>\d)(?#comment)+", ["12 3"]),
    (r"(?:ab?){2,}", ["abaab a"]),
    (r"\x61|\x{62}|\u0063|\t|\e|\a", ["abc\t\x1b\x07d"]),
    (r"\.|\-|\/|\'|\"", ["a.b-c/d'e\"f"]),
    (r"\u0300", ["e\u0300"]),
    (r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", ["a\u4e2d\u3042\u30abb"]),
]


def main():
    cases = []
    for expression, texts in CASES:
        split = pre_tokenizers.Split(Regex(expression), "isolated")
        removed = pre_tokenizers.Split(Regex(expression), "removed")
        for text in texts:
            pieces = [piece for piece, _ in split.pre_tokenize_str(text)]
            between = [piece for piece, _ in removed.pre_tokenize_str(text)]
            cases.append({"expression": expression, "text": text, "pieces": pieces, "between": between})
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write('{"made_with": ' + json.dumps(f"tokenizers {tokenizers.__version__}, tests/python/record_expressions.py") + ',\n"cases": [\n')
        file.write(",\n".join(json.dumps(case) for case in cases) + "\n]}\n")


main()
