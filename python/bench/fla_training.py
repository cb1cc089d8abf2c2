#!/usr/bin/env python3
"""Trains a model of flash-linear-attention on a GPU twice from the same weights, with two sets of operators, and compares the losses.

    python python/bench/fla_training.py --corpus FILE                              DeltaNet of 340 million parameters: its own operators, then ours
    python python/bench/fla_training.py --corpus FILE --model kda --size small --against cpu
                                                                                   ours, then our module of the same weights in float32 on the CPU

Tokens are the bytes of a file. At 340m weights are float32 and products bfloat16 under autocast, 8 sequences of 2,048 tokens a step; at
small everything is float32. The last line tells the largest difference of two losses, relative, and the median time of a step, without
the first ten, in which kernels are compiled; the exit status is 1 where a loss differs by more than --most, or, against
flash-linear-attention's own operators, where ours are slower.
"""
import argparse
import copy
import json
import statistics
import sys
import time

import torch

import deltarule.fla
from deltarule.hf import from_fla

SIZES = {"340m": dict(hidden_size=1024, num_hidden_layers=24, vocab_size=32000), "small": dict(hidden_size=256, num_hidden_layers=2, vocab_size=257)}
BATCH = {"340m": (8, 2048), "small": (4, 256)}


def built(name, size, device):
    """The class of flash-linear-attention with first values."""
    import fla.models as models
    heads = SIZES[size]["hidden_size"] // 128
    kind, options = {
        "delta_net": ("DeltaNet", dict(num_heads=heads)),
        "gated_deltanet": ("GatedDeltaNet", dict(num_heads=heads, head_dim=128, expand_v=1)),
        "kda": ("KDA", dict(num_heads=heads, head_dim=128)),
    }[name]
    torch.manual_seed(0)
    with torch.device(device):
        return getattr(models, kind + "ForCausalLM")(getattr(models, kind + "Config")(**SIZES[size], **options))


def trained(name, model, data, steps, batch, tokens, autocast):
    """The loss and the seconds of each step, told every tenth step."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    draw, losses, seconds = torch.Generator().manual_seed(1), [], []
    start = time.perf_counter()
    for step in range(steps):
        begin = time.perf_counter()
        first = torch.randint(0, len(data) - tokens, (batch,), generator=draw).tolist()
        ids = torch.stack([data[i:i + tokens] for i in first]).long().to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # which waits for the step
        seconds.append(time.perf_counter() - begin)
        if step % 10 == 0 or step == steps - 1:
            print(f"{name} step {step + 1:3}  loss {losses[-1]:.5f}  {1e3 * seconds[-1]:.1f} ms, {time.perf_counter() - start:.1f} s in all", flush=True)
    return losses, seconds


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--corpus", required=True)
    options.add_argument("--model", choices=("delta_net", "gated_deltanet", "kda"), default="delta_net")
    options.add_argument("--size", choices=tuple(SIZES), default="340m")
    options.add_argument("--against", choices=("fla", "cpu"), default="fla")
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--most", type=float, default=1e-3, help="relative difference of two losses at most (default 1e-3)")
    asked = options.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    with open(asked.corpus, "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    begin = time.perf_counter()
    first = built(asked.model, asked.size, "cuda" if asked.against == "fla" else "cpu")
    print(f"{asked.model} of {sum(one.numel() for one in first.parameters())} parameters, made in {time.perf_counter() - begin:.1f} s", flush=True)
    how = (data, asked.steps, *BATCH[asked.size], asked.size == "340m")
    with deltarule.fla.accelerate(transformers=False) as handle:
        deltarule.fla.reset()
        ours, seconds = trained("ours", copy.deepcopy(first).cuda().train(), *how)
        print(handle.report(), flush=True)
    beside = copy.deepcopy(first).cuda() if asked.against == "fla" else from_fla(first)
    other, other_seconds = trained(asked.against, beside.train(), *how)
    worst = max(abs(a - b) / b for a, b in zip(ours, other))
    rest = slice(min(10, asked.steps - 1), None)
    median = [statistics.median(one[rest]) for one in (seconds, other_seconds)]
    parameters = sum(one.numel() for one in first.parameters())
    print(json.dumps({"model": asked.model, "parameters": parameters, "against": asked.against, "steps": asked.steps,
                      "largest_difference": worst, "step_ms": round(1e3 * median[0], 2), "other_step_ms": round(1e3 * median[1], 2),
                      "losses": [ours[0], ours[-1]]}))
    sys.exit(worst > asked.most or (asked.against == "fla" and median[0] > median[1]))


if __name__ == "__main__":
    main()
