# Writes a C file with a text as an array of characters that a zero ends: cmake -D INPUT=.. -D OUTPUT=.. -D NAME=.. -P embed.cmake
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "extern const char ${NAME}[];\nconst char ${NAME}[] = {${bytes}0};\n")
