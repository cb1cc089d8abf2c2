#!/usr/bin/env python3
"""Trains a model of flash-linear-attention on a GPU twice from the same weights, with two sets of operators, and compares the losses.

    python python/bench/fla_training.py --corpus FILE                              DeltaNet of 340 million parameters: its own operators, then ours
    python python/bench/fla_training.py --corpus FILE --model kda --size small --against cpu
                                                                                   ours, then our module of the same weights in float32 on the CPU
    python python/bench/fla_training.py --corpus FILE --against float32 --micro 8  float32 on the GPU, then ours: what bfloat16 rounds

Tokens are the bytes of a file. At 340m weights are float32 and products bfloat16 under autocast, 8 sequences of 2,048 tokens a step; at
small everything is float32. The last line tells the largest difference of two losses, relative, and the median time of a step, without
the first ten, in which kernels are compiled; the exit status is 1 where a loss differs by more than --most, or, against
flash-linear-attention's own operators, where ours are slower.

With --spread DeltaNet is trained with flash-linear-attention's operators three times more: again, with its chunks of 32 tokens in the
place of 64, and with its recurrent kernels. What these losses differ by is what its own choices of an algorithm change.

Before the first step Triton compiles and measures each configuration of each kernel of flash-linear-attention's layers, which takes
minutes in one process: some take ten seconds a configuration (swiglu_fwdbwd_kernel has 30). With --jobs N, N processes compile them
first, and each is measured for 20 ms instead of 100. Where speeds are not compared the first configuration that runs is taken.
"""
import argparse
import copy
import functools
import json
import statistics
import subprocess
import sys
import time

import torch

import triton_tuning

SIZES = {"340m": dict(hidden_size=1024, num_hidden_layers=24, vocab_size=32000), "small": dict(hidden_size=256, num_hidden_layers=2, vocab_size=257)}
BATCH = {"340m": (8, 2048), "small": (4, 256)}


def built(name, size, device, **other):
    """The class of flash-linear-attention with first values, of that size but for what is told."""
    import fla.models as models
    sizes = {**SIZES[size], **other}
    heads = sizes["hidden_size"] // 128
    kind, options = {
        "delta_net": ("DeltaNet", dict(num_heads=heads)),
        "gated_deltanet": ("GatedDeltaNet", dict(num_heads=heads, head_dim=128, expand_v=1)),
        "kda": ("KDA", dict(num_heads=heads, head_dim=128)),
    }[name]
    torch.manual_seed(0)
    with torch.device(device):
        return getattr(models, kind + "ForCausalLM")(getattr(models, kind + "Config")(**sizes, **options))


def trained(name, model, data, asked, autocast, micro=1):
    """The loss and the seconds of each step, told every tenth step; a step of so many parts of its batch."""
    device, (batch, tokens) = next(model.parameters()).device, BATCH[asked.size]
    optimizer = torch.optim.AdamW(model.parameters(), asked.lr, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / asked.warmup))
    draw, losses, seconds = torch.Generator().manual_seed(1), [], []
    start = time.perf_counter()
    for step in range(asked.steps):
        begin = time.perf_counter()
        first = torch.randint(0, len(data) - tokens, (batch,), generator=draw).tolist()
        ids = torch.stack([data[i:i + tokens] for i in first]).long().to(device)
        loss = 0.0
        for part in ids.chunk(micro):
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                one = model(input_ids=part, labels=part).loss / micro
            one.backward()
            loss += one.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # which waits for the step
        seconds.append(time.perf_counter() - begin)
        if step % 10 == 0 or step == asked.steps - 1:
            print(f"{name} step {step + 1:3}  loss {losses[-1]:.5f}  {1e3 * seconds[-1]:.1f} ms, {time.perf_counter() - start:.1f} s in all", flush=True)
    return losses, seconds


def ours(model, data, asked, name="ours", autocast=True, micro=1):
    """As `trained`, with our operators; and what they were called for."""
    import deltarule.fla
    with deltarule.fla.accelerate(transformers=False) as handle:
        deltarule.fla.reset()
        return (*trained(name, model.cuda().train(), data, asked, autocast and asked.size == "340m", micro), handle.report())


def other(first, data, asked):
    """The losses and seconds of what ours is compared with."""
    if asked.against == "float32":
        return ours(first, data, asked, "float32", False, asked.micro)[:2]
    if asked.against == "fla":
        return trained("fla", first.train(), data, asked, asked.size == "340m", asked.micro)
    from deltarule.hf import from_fla
    return trained("cpu", from_fla(first).train(), data, asked, False)


def difference(losses, beside):
    """The largest difference of two losses of a step, absolute and relative, and the last one."""
    apart = [abs(a - b) for a, b in zip(losses, beside)]
    return {"absolute": max(apart), "relative": max(one / b for one, b in zip(apart, beside)), "last": apart[-1] / beside[-1]}


def spread(first, data, asked, ours_losses, fla_losses):
    """Tells how far flash-linear-attention's DeltaNet is from itself, and ours from each, over the same steps."""
    import fla.layers.delta_net as layer
    own = layer.chunk_delta_rule
    ways = {"again": own, "chunks of 32": functools.partial(own, chunk_size=32), "recurrent": layer.fused_recurrent_delta_rule}
    runs = {"ours": ours_losses, "chunks of 64": fla_losses}
    for name, function in ways.items():
        layer.chunk_delta_rule = function
        try:
            runs[name] = trained(name, copy.deepcopy(first).train(), data, asked, asked.size == "340m", asked.micro)[0]
        finally:
            layer.chunk_delta_rule = own
        for other, losses in runs.items():
            if other != name:
                print(json.dumps({"one": name, "other": other, **difference(losses, runs[name])}), flush=True)


def one_step(data, asked):
    """A step of one layer, which has the kernels that take long to compile, with each set of operators that is compared."""
    model = built(asked.model, asked.size, "cuda", num_hidden_layers=1, vocab_size=257)
    asked.steps = 1
    ours(copy.deepcopy(model), data, asked)
    if asked.against == "fla":
        other(model, data, asked)


def compiled(asked):
    """Compiles the kernels' configurations, a part of them in each process."""
    begin = time.perf_counter()
    parts = [subprocess.Popen([sys.executable, *sys.argv, "--jobs", "0", "--part", f"{i}/{asked.jobs}"],
                              stdout=subprocess.DEVNULL if i else None)  # the first tells what it compiles
             for i in range(asked.jobs)]
    failed = sum(one.wait() != 0 for one in parts)
    print(f"compiled in {asked.jobs} processes, {failed} failed, {time.perf_counter() - begin:.1f} s", flush=True)


def options():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--corpus", required=True)
    made.add_argument("--model", choices=("delta_net", "gated_deltanet", "kda"), default="delta_net")
    made.add_argument("--size", choices=tuple(SIZES), default="340m")
    made.add_argument("--against", choices=("fla", "cpu", "float32"), default="fla")
    made.add_argument("--steps", type=int, default=50)
    made.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 1e-3)")
    made.add_argument("--warmup", type=int, default=10, help="steps until the learning rate is reached (default 10)")
    made.add_argument("--most", type=float, default=1e-3, help="relative difference of two losses at most (default 1e-3)")
    made.add_argument("--spread", action="store_true", help="also tell what flash-linear-attention's own algorithms differ by")
    made.add_argument("--micro", type=int, default=1, help="parts of a batch, whose gradients are added (default 1)")
    made.add_argument("--first-configuration", action="store_true", help="measure no kernel, where losses alone are of interest")
    made.add_argument("--jobs", type=int, default=0, help="processes that compile kernels before the first step (default 0)")
    made.add_argument("--part", help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.spread and (asked.model, asked.against) != ("delta_net", "fla"):
        made.error("--spread is of delta_net against fla")
    return asked


def main():
    asked = options()
    torch.backends.cuda.matmul.allow_tf32 = False
    with open(asked.corpus, "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    if asked.part:
        triton_tuning.first_that_runs(*map(int, asked.part.split("/")))
        one_step(data, asked)
        return
    speeds = asked.against == "fla" and not asked.first_configuration
    if not speeds:
        triton_tuning.first_that_runs()
    elif asked.jobs:
        compiled(asked)
        triton_tuning.briefly()
    begin = time.perf_counter()
    first = built(asked.model, asked.size, "cpu" if asked.against == "cpu" else "cuda")
    parameters = sum(one.numel() for one in first.parameters())
    print(f"{asked.model} of {parameters} parameters, made in {time.perf_counter() - begin:.1f} s", flush=True)
    if asked.against == "float32":  # what bfloat16 is judged by comes first
        beside, beside_seconds = other(copy.deepcopy(first), data, asked)
    losses, seconds, report = ours(copy.deepcopy(first), data, asked, micro=asked.micro)
    print(report, flush=True)
    if asked.against != "float32":
        beside, beside_seconds = other(copy.deepcopy(first) if asked.spread else first, data, asked)
    worst = max(abs(a - b) / b for a, b in zip(losses, beside))
    rest = slice(min(10, asked.steps - 1), None)
    median = [statistics.median(one[rest]) for one in (seconds, beside_seconds)]
    print(json.dumps({"model": asked.model, "parameters": parameters, "against": asked.against, "steps": asked.steps,
                      "largest_difference": worst, "step_ms": round(1e3 * median[0], 2), "other_step_ms": round(1e3 * median[1], 2),
                      "losses": [round(one, 6) for one in losses], "other_losses": [round(one, 6) for one in beside],
                      **difference(losses, beside)}), flush=True)
    if asked.spread:
        spread(first, data, asked, losses, beside)
    sys.exit(worst > asked.most or (speeds and median[0] > median[1]))


if __name__ == "__main__":
    main()
