#!/usr/bin/env python3
"""Holds deltarule's models against the classes that published them, on a CPU, both ways:

    theirs  a folder that the class saves, with random shapes and weights, is opened by deltarule: the same logits, loss and
            greedy tokens by whole prompts, token by token and packed with another sequence (`deltarule verify`)
    ours    a folder that `deltarule train` writes is opened by the class of its type: the same logits; so is a larger model as
            `deltarule convert` writes it, in shards, in bf16, fp16 or float32
    again   a folder of theirs that `deltarule convert` has written anew, in one of these types, is opened by its class

The classes are those of transformers and of flash-linear-attention (models_fla.py). A folder is also rewritten as others write
it: in shards, in bfloat16 or float16, with the keys and names of released folders, experts fused or one by one.

Usage: models.py COMMAND [--many N] [--seed S] [--types NAME,...] [--keep FOLDER] [--only theirs|ours|again]
  --many N: shapes of each type (1), from seed S (1) on. Exit status 77: PyTorch, transformers or flash-linear-attention is missing.
tests/python/run runs it with the interpreter of tools/python-environment, which has them."""
import argparse
import importlib.util
import json
import logging
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models: threads only wait for each other
warnings.filterwarnings("ignore")


def imports():
    """Makes torch and the classes known to this module, or ends with status 77."""
    global torch, transformers, models_fla, shapes
    try:
        if not importlib.util.find_spec("fla"):
            raise ImportError("there is no flash-linear-attention")
        sys.modules["fla"] = None  # its kernels for GPUs are what transformers would take; see show_fla
        import torch
        import transformers
    except ImportError as reason:
        print(f"skipped: {reason} (tools/python-environment makes a Python that has it)")
        sys.exit(77)
    import models_fla
    import models_shapes as shapes
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)


def show_fla():
    """From here on flash-linear-attention can be imported, and transformers' classes of other types cannot be made."""
    if sys.modules.get("fla", True) is None:
        del sys.modules["fla"]
        models_fla.on_a_cpu()


# ---- a model of the class --------------------------------------------------------------------------------------------------


def class_of(model_type):
    """The class and its configuration's, told apart where both packages have the type."""
    if model_type == "mamba2_fla":
        from fla.models.mamba2 import Mamba2Config, Mamba2ForCausalLM
        return Mamba2ForCausalLM, Mamba2Config
    if model_type == "mamba2":
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2ForCausalLM
        return Mamba2ForCausalLM, Mamba2Config
    auto = transformers.AutoModelForImageTextToText if model_type in shapes.MULTIMODAL else transformers.AutoModelForCausalLM
    return auto, None


def make(model_type, keys):
    if model_type in shapes.PAPER_TYPES:
        return models_fla.make(model_type, keys)
    cls, config_class = class_of(model_type)
    if config_class:
        return cls(config_class(**keys)).float().eval()
    config = transformers.AutoConfig.for_model(model_type, **keys)
    plain = {} if model_type in shapes.FLA_TYPES else dict(attn_implementation="eager", experts_implementation="eager")
    return cls.from_config(config, **plain).float().eval()


def load(folder, model_type):
    """What a folder holds, in the class of its type, which must take every tensor of it, miss none, and have the name that
    `architectures` says. Only the parts of multimodal models that are no text may be missing: deltarule passes them over."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    if model_type in shapes.PAPER_TYPES:
        return models_fla.load(folder, model_type, config), config
    plain = {} if model_type in shapes.FLA_TYPES else dict(attn_implementation="eager", experts_implementation="eager")
    model, said = class_of(model_type)[0].from_pretrained(folder, output_loading_info=True, dtype=torch.float32, **plain)
    wrong = {what: [name for name in names if ".visual." not in str(name)] for what, names in said.items() if names}
    if any(wrong.values()):
        raise ValueError(f"the class did not take all of {folder}: {wrong}")
    if config.get("architectures") != [type(model).__name__]:
        raise ValueError(f"architectures is {config.get('architectures')}, and the class {type(model).__name__}")
    return model.eval(), config


def vocabulary_of(config):
    return config.get("vocab_size") or config["text_config"]["vocab_size"]


def randomise(model, seed):
    """Every weight random, norms and gates among them, so that none is at a value that hides it."""
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(model.named_parameters())
    tensors.update({name: buffer for name, buffer in model.named_buffers() if "bias" in name and "dt_bias" not in name})
    with torch.no_grad():
        for name, tensor in tensors.items():
            z = torch.randn(tensor.shape, generator=generator)
            if "conv" in name and tensor.ndim >= 2:
                tensor.copy_(z * .4)
            elif tensor.ndim >= 2 and "norm" not in name:
                tensor.copy_(z / math.sqrt(tensor.shape[-1]))
            elif "A_log" in name:
                tensor.copy_(z * .7)
            elif "norm" in name and "bias" not in name:
                tensor.add_(z * .2)
            else:
                tensor.copy_(z * .3)
    model.tie_weights()


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.float()


def draw_ids(vocabulary, seed):
    return torch.randint(3, vocabulary, (2, 24), generator=torch.Generator().manual_seed(seed))


def depends_on_rounding(model, ids, seed, most=1e-6):
    """Whether weights that differ in their last bits give logits of these ids that are more than `most` apart: a norm of next to
    nothing, or a choice of experts that is all but even. Such weights say nothing of a difference."""
    generator = torch.Generator().manual_seed(seed)
    before = logits_of(model, ids)
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 6e-8 * torch.randn(parameter.shape, generator=generator))
        after = logits_of(model, ids)
        for parameter, value in zip(model.parameters(), kept):
            parameter.copy_(value)
    return ((after - before).norm() / before.norm()).item() > most


def expect(folder, model, vocabulary, seed, r, tokens):
    """Writes what the model computes: logits and loss of two sequences, and how it continues two prompts, as far as no choice is
    close. Returns the ids of the sequences."""
    from safetensors.torch import save_file
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (2, r.randint(9, 24)), generator=generator)
    logits = logits_of(model, ids)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocabulary), ids[:, 1:].reshape(-1)).item()
    tensors = {"input_ids": ids, "logits": logits.contiguous()}
    prompt = text = torch.randint(3, vocabulary, (2, r.randint(2, 7)), generator=generator)
    while text.shape[1] < prompt.shape[1] + tokens:
        best = logits_of(model, text)[:, -1].topk(2)
        if (best.values[:, 0] - best.values[:, 1]).min() < 1e-3:
            break
        text = torch.cat([text, best.indices[:, :1]], 1)
    if text.shape[1] > prompt.shape[1]:
        tensors.update(greedy_prompt=prompt, greedy=text[:, prompt.shape[1]:].contiguous())
    save_file(tensors, os.path.join(folder, "expected.safetensors"), metadata={"loss": repr(loss)})
    return ids


# ---- folders as others write them --------------------------------------------------------------------------------------------


def edit_config(folder, change):
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    changed = change(config) or config
    with open(path, "w") as file:
        json.dump(changed, file)


def older_keys(config):
    """Keys as releases before transformers 5 have them: rotary scalings, the type of the weights."""
    text = config.get("text_config", config)
    rotary = text.get("rope_parameters")
    if isinstance(rotary, dict) and "rope_theta" in rotary and rotary["rope_theta"] is not None:
        text["rope_theta"] = rotary.pop("rope_theta")
        if "partial_rotary_factor" in rotary:
            text["partial_rotary_factor"] = rotary.pop("partial_rotary_factor")
        text["rope_scaling"] = None if rotary.get("rope_type") == "default" else rotary
        del text["rope_parameters"]
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")


def fuse_or_part_experts(tensors):
    """Experts that lie one by one are joined, and those joined are parted."""
    out, groups = {}, {}
    for name, tensor in tensors.items():
        head, mark, tail = name.partition(".experts.")
        if mark and tail == "gate_up_proj":
            half = tensor.shape[1] // 2
            for e in range(tensor.shape[0]):
                out[f"{head}.experts.{e}.gate_proj.weight"] = tensor[e, :half].clone()
                out[f"{head}.experts.{e}.up_proj.weight"] = tensor[e, half:].clone()
        elif mark and tail == "down_proj":
            out.update({f"{head}.experts.{e}.down_proj.weight": tensor[e].clone() for e in range(tensor.shape[0])})
        elif mark and tail[0].isdigit():
            number, _, leaf = tail.partition(".")
            groups.setdefault((head, leaf), {})[int(number)] = tensor
        else:
            out[name] = tensor
    stack = lambda head, *leaves: next((torch.stack([groups[head, leaf][e] for e in sorted(groups[head, leaf])])
                                        for leaf in leaves if (head, leaf) in groups), None)
    for head in {head for head, _ in groups}:
        gate, up = stack(head, "gate_proj.weight", "w1.weight"), stack(head, "up_proj.weight", "w3.weight")
        out[head + ".experts.up_proj" if gate is None else head + ".experts.gate_up_proj"] = up if gate is None else torch.cat([gate, up], 1)
        out[head + ".experts.down_proj"] = stack(head, "down_proj.weight", "w2.weight")
    return out


def released_names(model_type, tensors):
    """Names of released folders where transformers saves others."""
    if model_type == "kimi_linear":  # its dense feed-forwards
        return {name if ".experts." in name or ".shared_experts." in name or ".gate." in name else name.replace(".block_sparse_moe.", ".mlp."): tensor
                for name, tensor in tensors.items()}
    if model_type == "olmo_hybrid":
        return {name.replace(".attention_layer_norm.", ".input_layernorm."): tensor for name, tensor in tensors.items()}
    return tensors


def restyle(folder, model_type, style):
    from safetensors.torch import load_file, save_file
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    if "experts" in style:
        tensors = fuse_or_part_experts(tensors)
    if "released" in style:
        tensors = released_names(model_type, tensors)
        edit_config(folder, older_keys)
    half = torch.bfloat16 if "bfloat16" in style else torch.float16 if "float16" in style else None
    if half:
        tensors = {name: tensor if "A_log" in name else tensor.to(half) for name, tensor in tensors.items()}
        edit_config(folder, lambda config: config.update(dtype=str(half).split(".")[1]))
    if "shards" not in style:
        return save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    os.remove(path)
    names, place = sorted(tensors), {}
    for i in range(3):
        file, part = f"model-{i + 1:05d}-of-00003.safetensors", names[i::3]
        save_file({name: tensors[name].contiguous() for name in part}, os.path.join(folder, file), metadata={"format": "pt"})
        place.update({name: file for name in part})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": place}, file)


def draw_style(r, number):
    """Of a type's shapes the first is as the class saves it."""
    if number == 0:
        return set()
    style = {name for name in ("shards", "experts", "released") if r.random() < .4}
    return style | {r.choice(["float32", "float32", "bfloat16", "float16"])}


# ---- theirs ------------------------------------------------------------------------------------------------------------------


def save_theirs(folder, model_type, seed, number, tokens):
    r = random.Random(f"{model_type} {seed}")
    maker = {**shapes.TYPES, **shapes.MULTIMODAL, **shapes.FLA_TYPES, **shapes.PAPER_TYPES}[model_type]
    keys = maker(r)
    if model_type in shapes.FLA_TYPES or model_type in shapes.PAPER_TYPES:
        show_fla()
    torch.manual_seed(seed)
    model = make(model_type, keys)
    vocabulary = vocabulary_of(keys)
    for drawn in range(seed, seed + 10000, 1000):
        randomise(model, drawn)
        if not depends_on_rounding(model, draw_ids(vocabulary, drawn), drawn):
            break
    style = draw_style(r, number)
    half = torch.bfloat16 if "bfloat16" in style else torch.float16 if "float16" in style else None
    if half:
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if "correction_bias" in n or "expert_bias" in n)]:
                if "A_log" not in name:
                    tensor.copy_(tensor.to(half).float())
    model.save_pretrained(folder)
    if model_type in shapes.PAPER_TYPES:
        edit_config(folder, lambda config: {**{key: value for key, value in config.items() if key not in ("lower_bound", "safe_gate", "output_gate_activation")},
                                            **keys, "model_type": model_type})
    if style:
        restyle(folder, model_type, style)
    expect(folder, model, vocabulary, seed + 1, r, tokens)
    return keys, style


# ---- ours --------------------------------------------------------------------------------------------------------------------

# flags of `deltarule train` whose models have a published type, and that type
TRAINED = [
    ("delta_net", ["--rule=delta_net", "--output-gate=true", "--negative-eigenvalues=true"]),
    ("gated_deltanet", ["--rule=gdn", "--value-heads=4", "--tied=false"]),
    ("kda", ["--rule=kda", "--value-size=24"]),
    ("kda", ["--rule=kda", "--gate=kda_bounded", "--lower-bound=-4"]),
    ("precond_gated_deltanet", ["--rule=pgdn", "--conv-size=3"]),
    ("precond_kda", ["--rule=pkda"]),
    ("qdelta", ["--rule=qdelta", "--lambda-bias=0.5"]),
    ("gated_deltaproduct", ["--rule=delta_product"]),
    ("comba", ["--rule=comba", "--value-size=24", "--output-gate=false"]),
    ("gdn2", ["--rule=gdn2"]),
    ("precond_deltanet", ["--rule=pdn"]),
    ("gla", ["--rule=gla", "--tied=false"]),
    ("gla", ["--rule=gla", "--output-gate=false"]),
    ("retnet", ["--rule=retnet"]),
    ("retnet", ["--rule=retnet", "--output-gate=false"]),
    ("mesa_net", ["--rule=mesanet"]),
]


def run(command, *arguments):
    done = subprocess.run([command, *arguments], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    return done.returncode, (done.stdout + done.stderr).strip()


def train_ours(command, folder, flags, corpus, seed, hidden):
    status, said = run(command, "train", f"--corpus={corpus}", f"--out={folder}", "--steps=2", "--batch=2", "--seq-len=24", f"--hidden={hidden}",
                       "--layers=2", "--heads=2", "--evaluate-every=0", "--save-every=0", "--threads=1", f"--seed={seed}", *flags)
    if status != 0:
        raise ValueError(f"deltarule train {' '.join(flags)}: status {status}: {said}")


def convert(command, model, folder, dtype, *flags):
    shutil.rmtree(folder, ignore_errors=True)
    status, said = run(command, "convert", model, f"--to={folder}", f"--dtype={dtype}", *flags)
    if status != 0:
        raise ValueError(f"deltarule convert {model} --dtype={dtype} {' '.join(flags)}: status {status}: {said}")


def say_of_class(folder, wanted, seed, r, tokens):
    """Has the class say what a folder of ours computes. Whether that is no matter of rounding."""
    model, config = load(folder, wanted)
    if config["model_type"] != wanted.removesuffix("_fla"):
        raise ValueError(f"the folder is of type {config['model_type']}, not {wanted}")
    ids = expect(folder, model, vocabulary_of(config), seed, r, tokens)
    return not depends_on_rounding(model, ids, seed, 4e-6)


def save_ours(command, folder, wanted, flags, corpus, seed, tokens):
    train_ours(command, folder, flags, corpus, seed, 32)
    say_of_class(folder, wanted, seed, random.Random(seed), tokens)


def shard_ours(command, folder, wanted, flags, corpus, seed, tokens):
    r, large = random.Random(f"shards {seed}"), folder + "-run"
    train_ours(command, large, flags, corpus, seed, 256)
    dtype = r.choice(["float32", "bf16", "fp16"])
    convert(command, large, folder, dtype, "--shard=1")
    shutil.rmtree(large)
    if len([name for name in os.listdir(folder) if name.endswith(".safetensors")]) < 2 or not os.path.exists(os.path.join(folder, "model.safetensors.index.json")):
        raise ValueError(f"{folder} is not in shards")
    say_of_class(folder, wanted, seed, r, tokens)
    return dtype


# ---- again -------------------------------------------------------------------------------------------------------------------


def convert_theirs(command, theirs, folder, model_type, seed, tokens):
    r = random.Random(f"again {model_type} {seed}")
    for number in range(10):  # other ids and another type, where the class's own rounding would decide
        dtype = r.choice(["float32", "bf16", "fp16"])
        convert(command, theirs, folder, dtype)
        if say_of_class(folder, model_type, seed + 2 + number, r, tokens):
            return dtype
    raise ValueError("the logits of ten draws of ids depend on rounding")


# ---- the test ----------------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--many", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--types")
    parser.add_argument("--keep")
    parser.add_argument("--only", choices=["theirs", "ours", "again"])
    options = parser.parse_args()
    imports()
    root = options.keep or tempfile.mkdtemp()
    os.makedirs(root, exist_ok=True)
    every = [*shapes.TYPES, *shapes.MULTIMODAL, *shapes.FLA_TYPES, *shapes.PAPER_TYPES]
    chosen = options.types.split(",") if options.types else every
    if set(chosen) - set(every):
        parser.error(f"unknown types: {', '.join(sorted(set(chosen) - set(every)))}")
    wanted = [name for name in every if name in chosen]  # those of transformers first: see show_fla
    tokens, faults, folders = (6 if options.many == 1 else 24), [], {}

    def attempt(name, what, maker):
        folder = os.path.join(root, name)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folders[folder] = (what, maker(folder))
        except Exception as reason:  # noqa: BLE001, whatever the class says
            import traceback
            faults.append(f"{name}: {what} failed: {type(reason).__name__}: {reason}"[:600])
            if options.keep:
                traceback.print_exc()

    if options.only != "ours":
        for model_type in wanted:
            for number in range(options.many):
                seed = options.seed + number
                theirs = f"{model_type}-{seed}"
                attempt(theirs, "the class's saving", lambda folder: save_theirs(folder, model_type, seed, number, tokens))
                if options.only != "theirs":
                    attempt(theirs + "-again", "deltarule's writing anew and the class's loading",
                            lambda folder: convert_theirs(options.command, os.path.join(root, theirs), folder, model_type, seed, tokens))
    if options.only in (None, "ours"):
        show_fla()
        corpus = os.path.join(root, "text")
        with open(corpus, "w") as file:
            file.writelines(f"line {i}: the state is a matrix\n" for i in range(9000))
        for number, (model_type, flags) in enumerate(TRAINED):
            if model_type in wanted:
                for name, maker in (("ours", save_ours), ("shards", shard_ours)):
                    attempt(f"{name}-{model_type}-{number}", "training, writing and the class's loading",
                            lambda folder: maker(options.command, folder, model_type, flags, corpus, number + 1, tokens))
    passed = 0
    for folder, (what, made) in folders.items():
        status, said = run(options.command, "verify", folder)
        passed += status == 0
        if status != 0:
            faults.append(f"{os.path.basename(folder)}: {what} and deltarule differ: {said} {made or ''}"[:1500])
    for fault in faults:
        print("FAILED", fault)
    print(f"{passed} folders passed, {len(faults)} failed")
    if not options.keep:
        shutil.rmtree(root)
    sys.exit(bool(faults) or passed == 0)


if __name__ == "__main__":
    main()
