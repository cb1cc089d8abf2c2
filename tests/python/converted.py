#!/usr/bin/env python3
"""Folders of `deltarule convert` in Hugging Face's transformers: AutoModelForCausalLM opens them and computes the logits, loss and
greedy tokens that deltarule does (`deltarule verify`), and AutoTokenizer gives the ids of `deltarule tokenize`.

Usage: converted.py COMMAND CHECKPOINTS TOKENIZERS: the folders of tests; exit status 77: PyTorch, transformers or
flash-linear-attention is missing. tests/python/run runs it with the interpreter of tools/python-environment, which has them.
"""
import json
import os
import random
import shutil
import sys
import tempfile

import models

# checkpoint, type of the weights that convert writes, MB in a file, tokenizer beside it
PUBLISHED = [
    ("qwen3_next_mixed", "bf16", 0, "qwen2"),
    ("qwen2_tied", "bf16", 0, "qwen2"),
    ("llama_yarn", "fp16", 0, "llama3"),
    ("olmo_hybrid_rope", "bf16", 0, "olmo"),
    ("mistral_swa", "float32", 0, "mistral"),
    ("falcon_h1", "bf16", 0, "gpt2"),
    ("nemotron_h", "bf16", 0, "gpt_neox"),
]
TEXTS = ["The state is a matrix.", "  two blanks\n\n\tand a tab", "naïve café, 東京, \N{ROLLING ON THE FLOOR LAUGHING}", "12345 + 678 = 13023", "x"]


def must(command, *arguments):
    status, said = models.run(command, *arguments)
    if status != 0:
        raise ValueError(f"deltarule {' '.join(arguments)}: status {status}: {said}")
    return said


def check_tokenizer(command, folder):
    import subprocess
    from transformers import AutoTokenizer
    theirs = AutoTokenizer.from_pretrained(folder)
    lines = "".join(json.dumps(text) + "\n" for text in TEXTS)
    said = subprocess.run([command, "tokenize", "--tokenizer", folder, "--json"], input=lines, capture_output=True, text=True, check=True)
    ours = [json.loads(line) for line in said.stdout.splitlines()]
    for text, ids in zip(TEXTS, ours, strict=True):
        if theirs(text)["input_ids"] != ids:
            raise ValueError(f"{text!r} is {theirs(text)['input_ids']} to AutoTokenizer, {ids} to deltarule")
        if theirs.decode(ids, skip_special_tokens=True) != theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True):
            raise ValueError(f"{text!r} comes back as another text")


def check_model(command, folder):
    """The class of the type takes all of the folder and says what it computes, and deltarule computes it again."""
    import torch
    from transformers import AutoModelForCausalLM
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    model, said = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    wrong = {what: names for what, names in said.items() if names}
    if wrong:
        raise ValueError(f"the class did not take all of {folder}: {wrong}")
    models.expect(folder, model.eval(), config["vocab_size"], 1, random.Random(1), 6)
    must(command, "verify", folder)


def convert(command, folder, out, dtype, shard, tokenizer):
    must(command, "convert", folder, "--to", out, "--dtype", dtype, "--shard", str(shard))
    names = set(os.listdir(out))
    if not {"config.json", "README.md"} <= names or not any(name.endswith(".safetensors") for name in names):
        raise ValueError(f"{out} has {sorted(names)}")
    check_model(command, out)
    if tokenizer:
        check_tokenizer(command, out)
    print(f"{os.path.basename(folder)} as {dtype}: AutoModelForCausalLM{' and AutoTokenizer agree' if tokenizer else ' agrees'}", flush=True)


def trained(command, root):
    """A model that deltarule trains, with a tokenizer that deltarule makes, in several files."""
    corpus, tokenizer, folder = (os.path.join(root, name) for name in ("text", "tokenizer", "trained"))
    with open(corpus, "w") as file:
        file.writelines(f"line {i}: the state is a matrix\n" for i in range(3000))
    must(command, "tokenizer", "train", "--corpus", corpus, "--out", tokenizer, "--size", "300")
    models.train_ours(command, folder, ["--rule=gdn", f"--tokenizer={tokenizer}"], corpus, 1, 32)
    return folder


def main():
    command, checkpoints, tokenizers = sys.argv[1:]
    models.imports()
    with tempfile.TemporaryDirectory() as root:
        for name, dtype, shard, tokenizer in PUBLISHED:
            folder = os.path.join(root, name)
            shutil.copytree(os.path.join(checkpoints, name), folder)
            os.remove(os.path.join(folder, "expected.safetensors"))
            for file in os.listdir(os.path.join(tokenizers, tokenizer)):
                if file.startswith("tokenizer"):
                    shutil.copy(os.path.join(tokenizers, tokenizer, file), folder)
            convert(command, folder, folder + "-out", dtype, shard, tokenizer)
        models.show_fla()
        for number, (name, dtype) in enumerate([("gla", "bf16"), ("mesa_net", "fp16")]):
            convert(command, os.path.join(checkpoints, name), os.path.join(root, f"fla-{number}"), dtype, 0, None)
        folder = trained(command, root)
        convert(command, folder, folder + "-out", "bf16", 1, "its own")


main()
