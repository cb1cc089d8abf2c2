#!/usr/bin/env python3
"""Folders of models that are broken, absurd or made to do harm: each must be refused by one sentence and exit status 1, within
seconds, and be left as it was. Needs no package beside Python.

Usage: hostile_folders.py COMMAND CHECKPOINTS SOURCES [--show]
  CHECKPOINTS: sound folders to spoil (tests/checkpoints); SOURCES: src, whose tables say which keys a configuration may have.

First some hundred folders, each spoiled in one way, under `deltarule generate` and `deltarule verify`. Then the keys that the
tables of src/formats/names know, in a configuration of every type: each with values of a wrong kind and out of range."""
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

COMMAND, CHECKPOINTS, SOURCES = sys.argv[1:4]
SHOW = "--show" in sys.argv
ROOT = tempfile.mkdtemp()
SHARDED, SINGLE = (os.path.join(CHECKPOINTS, name) for name in ("qwen3_5_bf16_sharded", "gated_deltanet_gva"))
CASES = []  # (name, sound folder, what spoils its copy)
faults = []


def case(name, spoil, base=SINGLE):
    CASES.append((name, base, spoil))


def read(folder, name="config.json"):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def write(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))


def replace_by(name, make):
    def spoil(folder):
        path = os.path.join(folder, name)
        if os.path.lexists(path):
            os.remove(path)
        make(path)
    return spoil


# ---- the configuration ---------------------------------------------------------------------------------------------------------


def config_cases():
    def keys(**changed):
        return lambda folder: write(folder, "config.json", {**read(folder), **changed})

    texts = ["", "[", "{}", "[" * 200000, '{"a":' * 200000, '{"vocab_size": 1e400}', '{"vocab_size": 1' + "0" * 100000 + "}",
             '{"model_type": "gated_deltanet", "vocab_size": 99999999999999999999999999}', "\ufffe\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
             "null", "7", '"x"', '{"model_type":"llama","model_type":"llama"}', '{"model_type": null}', '{"model_type": ["llama"]}',
             '{"model_type": "llama\\u0000"}', '{"model_type": "' + "x" * 100000 + '"}', '{"a": NaN}', '{"hidden_size": Infinity}']
    for i, text in enumerate(texts):
        case(f"config-text-{i}", lambda folder, text=text: write(folder, "config.json", text))
    changes = [dict(hidden_size=2**62), dict(hidden_size=-1), dict(vocab_size=2**62), dict(num_hidden_layers=10**9), dict(num_hidden_layers=0),
               dict(num_attention_heads=0), dict(head_dim=2**24), dict(rms_norm_eps=-1), dict(rope_parameters=[1]), dict(rope_parameters=dict(rope_type="nope")),
               dict(layer_types="full"), dict(layer_types=["a"] * 4), dict(layer_types=[]), dict(tie_word_embeddings=7), dict(linear_num_key_heads=3),
               dict(intermediate_size=2**24), dict(model_type="../../x"), dict(unknown_key=1), dict(linear_conv_kernel_dim=10**9)]
    for i, change in enumerate(changes):
        case(f"config-key-{i}-{next(iter(change))}", keys(**change), SHARDED)
    single = [dict(num_heads=10**7, head_dim=10**7), dict(num_heads=1 << 24, num_v_heads=1 << 24), dict(head_dim=1 << 24), dict(expand_v=1e9),
              dict(expand_v=1e-9), dict(hidden_ratio=1e9, intermediate_size=None), dict(conv_size=1 << 10), dict(attn=7),
              dict(attn=dict(layers=[10**9], num_heads=1)), dict(attn=dict(layers=[0], num_heads=7)), dict(attn=[[[[[]]]]]),
              dict(attn=dict(layers="0", num_heads=1)), dict(attn=dict(layers=[0.5], num_heads=1)), dict(attn=dict(layers=[0] * 99, num_heads=1)),
              dict(attn=[dict(layers=[0], num_heads=1)] * 2),
              dict(attnres_block_size=3), dict(norm_eps=0), dict(norm_eps="1e-6"), dict(vocab_size=True)]
    for i, change in enumerate(single):
        case(f"config-single-{i}-{next(iter(change))}", keys(**change))
    case("config-missing", lambda folder: os.remove(os.path.join(folder, "config.json")))
    case("config-folder", replace_by("config.json", os.mkdir))
    case("config-fifo", replace_by("config.json", os.mkfifo))
    case("config-zeros", replace_by("config.json", lambda path: os.symlink("/dev/zero", path)))
    case("config-loop", replace_by("config.json", lambda path: os.symlink("config.json", path)))
    case("config-nowhere", replace_by("config.json", lambda path: os.symlink("/nonexistent/config.json", path)))


# ---- the index of shards -------------------------------------------------------------------------------------------------------


def index_cases():
    name = "model.safetensors.index.json"

    def index(change):
        def spoil(folder):
            value = read(folder, name)
            changed = change(value, folder)
            write(folder, name, value if changed is None else changed)
        return spoil

    def first_in(place):
        def change(value, _):
            value["weight_map"][sorted(value["weight_map"])[0]] = place
        return index(change)

    def shard(folder, number=0):
        return sorted(os.path.join(folder, file) for file in os.listdir(folder) if file.startswith("model-"))[number]

    places = ["missing.safetensors", "../x.safetensors", "/etc/passwd", "..", ".", "", 5, None, [], {}, "a/b.safetensors", ".hidden.safetensors",
              "x" * 5000 + ".safetensors", "config.json", "./../" + os.path.basename(SINGLE) + "/model.safetensors", "model\0.safetensors"]
    for i, place in enumerate(places):
        case(f"index-place-{i}", first_in(place), SHARDED)
    case("index-no-map", index(lambda value, _: value.pop("weight_map") and None), SHARDED)
    case("index-list", index(lambda value, _: {**value, "weight_map": [1]}), SHARDED)
    case("index-empty", index(lambda value, _: {**value, "weight_map": {}}), SHARDED)
    case("index-array", index(lambda value, _: []), SHARDED)
    case("index-more", index(lambda value, _: value["weight_map"].update(nothing=sorted(value["weight_map"].values())[0])), SHARDED)
    case("index-less", index(lambda value, _: value["weight_map"].pop(sorted(value["weight_map"])[0]) and None), SHARDED)
    case("index-deep", lambda folder: write(folder, name, '{"weight_map":' * 100000), SHARDED)
    case("index-twice", lambda folder: write(folder, name, '{"weight_map": {"a": "b", "a": "b"}}'), SHARDED)
    case("index-text", lambda folder: write(folder, name, "{"), SHARDED)
    case("index-zeros", replace_by(name, lambda path: os.symlink("/dev/zero", path)), SHARDED)

    def swap(value, _):
        places = value["weight_map"]
        files = sorted(set(places.values()))
        value["weight_map"] = {tensor: files[(files.index(file) + 1) % len(files)] for tensor, file in places.items()}

    case("index-swapped", index(swap), SHARDED)
    for bytes_left in (0, 4, 8, 100, -1, -1000):
        def cut(folder, bytes_left=bytes_left):
            path = shard(folder, 1)
            os.truncate(path, bytes_left if bytes_left >= 0 else os.path.getsize(path) + bytes_left)
        case(f"shard-cut-{bytes_left}", cut, SHARDED)
    for what, make in (("missing", lambda path: None), ("folder", os.mkdir), ("fifo", os.mkfifo), ("zeros", lambda path: os.symlink("/dev/zero", path)),
                       ("out", lambda path: os.symlink("/etc/passwd", path)), ("loop", lambda path: os.symlink(os.path.basename(path), path))):
        case(f"shard-{what}", lambda folder, make=make: replace_by(os.path.basename(shard(folder)), make)(folder), SHARDED)


# ---- one file of weights -------------------------------------------------------------------------------------------------------


def weights_cases(name="model.safetensors"):
    def header(change):
        """change(header, data): what it returns, if anything, is the header's text."""
        def spoil(folder):
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                content = file.read()
            length = struct.unpack("<Q", content[:8])[0]
            tensors, data = json.loads(content[8:8 + length]), bytearray(content[8 + length:])
            text = change(tensors, data)
            text = json.dumps(tensors).encode() if text is None else text
            with open(path, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + bytes(data))
        return spoil

    def first(tensors):
        return sorted(tensor for tensor in tensors if tensor != "__metadata__")[0]

    def put(offset, number):
        def change(tensors, data):
            at = tensors[first(tensors)]["data_offsets"][0 if offset >= 0 else 1] + offset
            data[at:at + 4] = struct.pack("<f", number)
        return header(change)

    def of_first(**changed):
        return header(lambda tensors, data: tensors[first(tensors)].update(changed))

    if name == "model.safetensors":
        case("nan", put(0, float("nan")))
        case("infinite", put(-4, float("inf")))
        case("minus-infinite", put(-4, float("-inf")))
    case(f"{name}-rank", of_first(shape=[1] * 40))
    for i, shape in enumerate([[2**62, 4], [2**32, 2**32], [-1], [10**25], [], [0], "7", [None], [1.5], {"a": 1}]):
        case(f"{name}-shape-{i}", of_first(shape=shape))
    for i, offsets in enumerate([[0, 2**63], [-4, 8], [8, 4], [0], [0, 4, 8], [], "x", [0, 10**25], [0.5, 4], [None, None], [2**63 - 8, 2**63]]):
        case(f"{name}-offsets-{i}", of_first(data_offsets=offsets))
    case(f"{name}-overlap", header(lambda tensors, data: tensors[first(tensors)].update(
        data_offsets=[x + 4 for x in tensors[first(tensors)]["data_offsets"]])))
    for i, dtype in enumerate(["F99", "I32", "U8", "BOOL", "F64", "BF16", "", 7, None, ["F32"]]):
        if name == "model.safetensors" or i != 1:
            case(f"{name}-dtype-{i}", of_first(dtype=dtype))
    for key in ("dtype", "shape", "data_offsets"):
        case(f"{name}-no-{key}", header(lambda tensors, data, key=key: tensors[first(tensors)].pop(key) and None))
    case(f"{name}-renamed", header(lambda tensors, data: tensors.update(renamed=tensors.pop(first(tensors)))))
    case(f"{name}-number", header(lambda tensors, data: tensors.update({first(tensors): 7})))
    texts = [b"", b"{}", b"[]", b"null", b"{", b'{"a":' * 100000, b"[" * 100000, b"\xff\xfe\x00", b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}',
             b'{"' + b"x" * 1000000 + b'":7}', b" " * 1000, b'{"__metadata__": 7}', b'{"__metadata__": {"a": 7}}']
    for i, text in enumerate(texts):
        case(f"{name}-header-{i}", header(lambda tensors, data, text=text: text))

    def length(number):
        def spoil(folder):
            path = os.path.join(folder, name)
            with open(path, "r+b") as file:
                file.write(struct.pack("<Q", number))
        return spoil

    for number in (0, 1, 2**31, 2**40, 2**63, 2**64 - 1):
        case(f"{name}-length-{number}", length(number))
    case(f"{name}-empty", lambda folder: write(folder, name, ""))
    case(f"{name}-short", lambda folder: write(folder, name, "1234"))
    case(f"{name}-longer", lambda folder: open(os.path.join(folder, name), "ab").write(b"\0" * 64))
    for what, make in (("folder", os.mkdir), ("fifo", os.mkfifo), ("nowhere", lambda path: os.symlink("/nonexistent", path)),
                       ("zeros", lambda path: os.symlink("/dev/zero", path)), ("out", lambda path: os.symlink("/etc/passwd", path)),
                       ("loop", lambda path: os.symlink(name, path))):
        case(f"{name}-{what}", replace_by(name, make))

    if name == "model.safetensors":
        def more(tensors, data):
            tensors["further.weight"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
            data.extend(b"\0\0\0\0")
        case("further", header(more))
        case("missing", lambda folder: os.remove(os.path.join(folder, name)))


# ---- running them --------------------------------------------------------------------------------------------------------------


def contents(folder):
    """What lies in a folder: names, kinds, links and the text of files."""
    def one(path):
        if os.path.islink(path):
            return "link", os.readlink(path)
        if not os.path.isfile(path):
            return ("other",)
        with open(path, "rb") as file:
            return "file", hashlib.sha256(file.read()).hexdigest()
    return sorted((name, *one(os.path.join(folder, name))) for name in os.listdir(folder))


def run(arguments, seconds=60):
    try:
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, errors="replace", timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return None, f"did not end within {seconds} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def run_cases():
    for number, (name, base, spoil) in enumerate(CASES):
        folder = os.path.join(ROOT, str(number))
        shutil.copytree(base, folder)
        spoil(folder)
        before = contents(folder)
        commands = [["verify", folder]]
        if "expected" not in name:
            commands.append(["generate", "--model", folder, "--prompt", "hello", "--tokens", "1"])
        for arguments in commands:
            status, said = run(arguments)
            sound = status == 1 and 20 < len(said) < 4000 and contents(folder) == before
            if not sound:
                faults.append(f"{name} {arguments[0]}: status {status}: {said[:300]!r}" + ("" if contents(folder) == before else " and the folder changed"))
            elif SHOW:
                print(f"{name} {arguments[0]}: {said[:200]}")
        shutil.rmtree(folder)
    return len(CASES)


# ---- every key of every type ---------------------------------------------------------------------------------------------------

WRONG = {
    "size": ["x", 1.5, [], {}, True, -1, 0, 2**40],
    "count": ["x", 1.5, [], {}, True, -1, 2**40],
    "real": ["x", [], {}, True],
    "truth": [1, "true", [], {}],
    "text": [1, [], {}, True],
    "must": [[], {"a": 1}, -7, "something else"],
    "any": [{"a": 1}, "something else", 7, True, [[]]],
    "object": ["something else", 7, True, [[]]],
    "numbers": [{"a": 1}, "something else", 7, True, [[]], ["0"]],
}
UNREAD = {("nemotron_h", "num_hidden_layers")}  # the class counts the pattern of its layers
KIND_OF_MACRO = {"SIZE": "size", "COUNT": "count", "REAL": "real", "TRUTH": "truth", "TEXT": "text", "ANY": "any", "DR_KEY_MUST": "must"}


def keys_of_tables():
    """key: its kinds in the tables of the sources, and the keys that change nothing."""
    kinds, idle = {}, set()
    folder = os.path.join(SOURCES, "formats/names")
    for file in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file)) as source:
            text = source.read()
        for macro, key in re.findall(r"\b(SIZE|COUNT|REAL|TRUTH|TEXT|ANY|DR_KEY_MUST)\(\s*\"(\w+)\"", text):
            kinds.setdefault(key, set()).add(KIND_OF_MACRO[macro])
        for kind, key in re.findall(r"\bDR_KEY(?:_RANGE)?\(\s*(WHOLE|REAL|TRUTH|TEXT|ANY|OBJECT|NUMBERS),\s*\w+,\s*\"(\w+)\"", text):
            kinds.setdefault(key, set()).add({"WHOLE": "count"}.get(kind, kind.lower()))
        for block in re.findall(r"(?:idle|unread)\w*\[\] = \{(.*?)\}", text, re.S):
            idle.update(re.findall(r'"(\w+)"', block))
    return kinds, idle


def run_keys():
    """Configurations without weights: what accepts a wrong value goes on to miss those, and is found by that."""
    kinds, idle = keys_of_tables()
    if len(kinds) < 150 or len(idle) < 40:
        faults.append(f"only {len(kinds)} keys and {len(idle)} idle ones were found in {SOURCES}: the tables are spelt otherwise")
    folders, seen = {}, set()
    for base in sorted(os.listdir(CHECKPOINTS)):
        if not os.path.isdir(os.path.join(CHECKPOINTS, base)):
            continue
        config = read(os.path.join(CHECKPOINTS, base))
        for key in sorted(config):
            if key in idle or key not in kinds or (config["model_type"], key) in seen:
                continue
            seen.add((config["model_type"], key))
            kind = next(k for k in ("any", "object", "numbers", "must", "count", "size", "real", "text", "truth") if k in kinds[key])
            for i, value in enumerate(WRONG[kind]):
                if value == config[key] or (kind == "any" and isinstance(value, type(config[key]))):
                    continue
                folder = os.path.join(ROOT, f"{base}-{key}-{i}")
                os.mkdir(folder)
                write(folder, "config.json", {**config, key: value})
                folders[folder] = (config["model_type"], key, value)
    everything = list(folders)
    for begin in range(0, len(everything), 200):
        some = everything[begin:begin + 200]
        for folder in some:
            shutil.copy(os.path.join(SINGLE, "expected.safetensors"), folder)
        status, said = run(["verify", "--backend", "cpu", *some], 300)
        if status != 1:
            faults.append(f"verify of {len(some)} folders: status {status}: {said[-300:]!r}")
        lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
        for folder in some:
            model_type, key, value = folders[folder]
            line = lines.get(os.path.basename(folder), "")
            if f'"{key}"' not in line and f"{key}: " not in line and (model_type, key) not in UNREAD:
                faults.append(f"{model_type}, {key} {json.dumps(value)}: not refused by its name: {line[:300]!r}")
            elif SHOW:
                print(f"{model_type}: {line[:250]}")
    return len(everything)


config_cases()
index_cases()
weights_cases()
weights_cases("expected.safetensors")
try:
    count, keys = run_cases(), run_keys()
finally:
    shutil.rmtree(ROOT)
for fault in faults:
    print("FAILED", fault)
print(f"{count} spoiled folders and {keys} spoiled keys, {len(faults)} faults")
sys.exit(bool(faults))
