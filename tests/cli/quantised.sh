#!/bin/sh
# Models that are stored quantised are refused by name in every command that opens a model, with what would be right.
. "$(dirname "$0")/expect.sh"
plain=$root/tests/checkpoints/gla
text=text.txt
printf 'a b c\n' >$text
printf '{"context": "a", "choices": ["b", "c"], "answer": 0}\n' >task.jsonl

# refused FOLDER WORDS...: by every command, which says all of the words
refused() {
    model=$1
    shift
    for command in "generate --model $model --prompt x" "chat $model" "score --model $model --corpus $text" "evaluate $model task.jsonl" \
        "serve $model --port 0" "probe value --model $model --corpus $text"; do
        # shellcheck disable=SC2086 # words of a command
        expect 1 "$1" "$deltarule" $command
        for words in "$@" 'take the folder that it was made from'; do
            grep -qF -- "$words" stderr || fail "'$words' is not said by: $command"
        done
    done
}

# ---- by config.json ----
with_config() {
    rm -rf folder
    mkdir folder
    cp "$plain/model.safetensors" folder
    sed "s/^{/{ $1,/" "$plain/config.json" >folder/config.json
}
for method in fp8 awq:AWQ gptq:GPTQ bitsandbytes compressed-tensors mxfp4 hqq quanto; do
    with_config "\"quantization_config\": {\"quant_method\": \"${method%:*}\"}"
    refused folder 'folder/config.json' "quantised by ${method#*:}"
done
with_config '"quantization_config": {"load_in_4bit": true}'
expect 1 'quantised by bitsandbytes' "$deltarule" generate --model folder --prompt x
with_config '"quantization_config": {}'
expect 1 'a way that it does not name' "$deltarule" generate --model folder --prompt x
with_config '"compression_config": {"format": "pack-quantized"}'
expect 1 'quantised by compressed-tensors' "$deltarule" generate --model folder --prompt x
with_config '"text_config": {"quantization_config": {"quant_method": "fp8"}}'
expect 1 'quantised by fp8' "$deltarule" generate --model folder --prompt x

# ---- by tensors: their types, their names ----
# tensor NAME DTYPE BYTES: a file with one tensor of one element
tensor() {
    rm -rf folder
    mkdir folder
    cp "$plain/config.json" folder
    header=$(printf '{"%s":{"dtype":"%s","shape":[1],"data_offsets":[0,%s]}}' "$1" "$2" "$3")
    while [ $((${#header} % 8)) -ne 0 ]; do header="$header "; done
    # shellcheck disable=SC2059 # an octal number of one byte
    { printf "\\$(printf %o ${#header})\0\0\0\0\0\0\0%s" "$header"; head -c "$3" /dev/zero; } >folder/model.safetensors
}
tensor model.layers.0.mlp.down_proj.weight F8_E4M3 1
refused folder 'quantised to fp8' F8_E4M3
tensor model.layers.0.mlp.down_proj.weight F8_E5M2 1
expect 1 'F8_E5M2' "$deltarule" generate --model folder --prompt x
tensor model.layers.0.mlp.down_proj.qweight I32 4
refused folder 'GPTQ or AWQ'
tensor model.layers.0.mlp.down_proj.weight_packed I32 4
expect 1 'compressed-tensors' "$deltarule" generate --model folder --prompt x
tensor model.layers.0.mlp.down_proj.weight_scale_inv F32 4
expect 1 'fp8' "$deltarule" generate --model folder --prompt x
tensor model.layers.0.mlp.down_proj.SCB F32 4
expect 1 'bitsandbytes' "$deltarule" generate --model folder --prompt x

# ---- GGUF ----
printf 'GGUF\003\0\0\0' >model.gguf
refused model.gguf 'model.gguf is a GGUF file'
cp model.gguf another
expect 1 'another is a GGUF file' "$deltarule" generate --model another --prompt x
rm -rf folder
mkdir folder
cp model.gguf folder/small-q4.gguf
refused folder 'small-q4.gguf, a GGUF file'
expect 2 'text.txt is a file: a model is a folder' "$deltarule" generate --model text.txt --prompt x

# What a program has written that quantises nothing is read.
with_config '"quantization_config": null'
cp "$plain/expected.safetensors" folder
expect 0 '' "$deltarule" verify folder
