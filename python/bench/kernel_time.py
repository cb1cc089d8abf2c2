#!/usr/bin/env python3
"""Times of a recurrence on a GPU from Python and from C, side by side: the operator of PyTorch in a CUDA graph, and `deltarule bench op`.

Both measure the GPU's own time of a forward, and of a forward with its backward, in bfloat16. In a graph nothing of Python or PyTorch
is left; what else the operator's graph has is told by the difference: gradients that autograd adds up, and tensors that it zeroes.
The exit status is 1 where the operator takes more than --most times as long.

    python python/bench/kernel_time.py [--rules gdn,kda,delta_net] [--tokens 4096] [--sequences 4] [--most 1.1]
"""
import argparse
import json
import statistics
import subprocess
import sys

import torch

import deltarule
from deltarule.__main__ import _command

LOG_DECAY = -0.05  # of every token on both ways: kernels cut sequences where decays forget


def operands(rule, asked):
    """Leaves on the GPU, vectors in bfloat16."""
    shapes = deltarule.Rule(rule).shapes(B=asked.sequences, T=asked.tokens, H=asked.heads, K=asked.size, V=asked.size)
    made = {}
    for name, vector in zip(deltarule.Rule(rule).inputs, deltarule.Rule(rule).vectors):
        x = torch.randn(shapes[name], device="cuda")
        if vector:
            x = torch.nn.functional.normalize(x, dim=-1).bfloat16()
        else:
            x = torch.full_like(x, LOG_DECAY) if "decay" in name else torch.rand_like(x)
        made[name] = x.requires_grad_()
    return made


def in_graph(run, repeats, calls=10):
    """The median time of run in microseconds, of graphs of so many calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            run()
    for _ in range(repeats + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / calls)
    return statistics.median(times[1:])


def from_c(rule, asked):
    """Medians of a forward and of both, in microseconds."""
    told = subprocess.run([_command(), "bench", "op", "--rule", rule, "--backend", "cuda", "--dtype", "bf16", "--tokens", str(asked.tokens),
                           "--sequences", str(asked.sequences), "--heads", str(asked.heads), "--head-size", str(asked.size),
                           "--repeats", str(asked.repeats), "--log-decay", str(LOG_DECAY), "--json"], check=True, capture_output=True, text=True).stdout
    found = json.loads(told.splitlines()[0])
    return [1e6 * found[name]["seconds"] for name in ("forward", "forward_backward")]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rules", default="gdn,kda,delta_net")
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--sequences", type=int, default=4)
    options.add_argument("--heads", type=int, default=8)
    options.add_argument("--size", type=int, default=128)
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--most", type=float, default=1.1)
    asked, worst = options.parse_args(), 0.0
    print(f"{'us':12} {'forward':>10} {'from C':>10} {'both':>10} {'from C':>10}")
    for rule in asked.rules.split(","):
        inputs = operands(rule, asked)
        weight = torch.randn_like(deltarule.recurrence(rule, **inputs))

        def both():
            return torch.autograd.grad(deltarule.recurrence(rule, **inputs), list(inputs.values()), weight)

        def forward():
            with torch.no_grad():
                return deltarule.recurrence(rule, **inputs)
        ours = [in_graph(one, asked.repeats) for one in (forward, both)]
        theirs = from_c(rule, asked)
        worst = max(worst, *(a / b for a, b in zip(ours, theirs)))
        print(f"{rule:12} {ours[0]:10.1f} {theirs[0]:10.1f} {ours[1]:10.1f} {theirs[1]:10.1f}", flush=True)
    print(f"at most {worst:.3f} times as long, {asked.most:g} at most is right")
    sys.exit(worst > asked.most)


if __name__ == "__main__":
    main()
