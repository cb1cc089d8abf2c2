#!/usr/bin/env python3
"""Host time of a call, beside an empty autograd function's in the same run: what Python, the dispatcher and the plan cost.

One token of one small head, one thread, the least of many blocks of process time, in microseconds; the kinds take turns, so that a
busy machine slows all of them. With --device cuda 64 tokens of a head of 64 in bfloat16, and what the processor spends until they are
launched: blocks are short, and the GPU ends each before the next begins. `share` is forward and backward beside the empty function's.

The lean and the full call are what deltarule.recurrence and deltarule.fla make once their arguments are in order, without states and
with initial and final ones; the operators are the same through PyTorch's dispatcher, as compiled graphs and whoever looks on see them.
With --most LEAN FULL a last line says of deltarule.recurrence without states, and of it with them, whether its unrounded share is at
most that; the exit status is 1 where one is not.

    python python/bench/host_time.py [--device cuda] [--blocks 60] [--calls 200] [--most 2.1 3.0]
"""
import argparse
import sys
import time

import torch

import deltarule
import deltarule.fla
import deltarule.torch
from deltarule.torch.operators import call


class Empty(torch.autograd.Function):
    """Takes as many inputs as the rule and computes nothing."""
    @staticmethod
    def forward(ctx, q, k, v, g, beta):
        ctx.save_for_backward(q, k, v, g, beta)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx, d_o):
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def least(runs, blocks, calls, settle):
    """The least time of each run, in turns; settle() waits before each block."""
    best = [float("inf")] * len(runs)
    for block in range(blocks + 1):  # the first warms up
        for i, run in enumerate(runs):
            settle()
            begin = time.process_time()
            for _ in range(calls):
                run()
            spent = time.process_time() - begin
            best[i] = best[i] if block == 0 else min(best[i], spent)
    return [one / calls * 1e6 for one in best]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--blocks", type=int, default=60)
    options.add_argument("--calls", type=int, help="of a block (default 200, 40 on CUDA)")
    options.add_argument("--most", type=float, nargs=2, metavar=("LEAN", "FULL"))
    wanted = options.parse_args()
    torch.set_num_threads(1)
    cuda = wanted.device == "cuda"
    T, K, dtype = (64, 64, torch.bfloat16) if cuda else (1, 8, torch.float32)
    on = {"device": wanted.device, "dtype": dtype}
    make = lambda grad: [x.requires_grad_(grad) for x in (
        torch.randn(1, T, 1, K, **on), torch.nn.functional.normalize(torch.randn(1, T, 1, K, **on), dim=-1), torch.randn(1, T, 1, K, **on),
        -torch.rand(1, T, 1, device=wanted.device), torch.rand(1, T, 1, device=wanted.device))]
    plain, leaves = make(False), make(True)
    S, S_leaf = (torch.randn(1, 1, K, K, device=wanted.device, requires_grad=grad) for grad in (False, True))
    forward, states = torch.ops.deltarule.forward.default, torch.ops.deltarule.forward_states.default

    def backward(o, *more):
        torch.autograd.backward((o, *more), tuple(torch.ones_like(x) for x in (o, *more)))
        for one in (*leaves, S_leaf):
            one.grad = None

    lean = lambda inputs: call(inputs, None, None, None, "gdn", 0.0, "best", 0, False)
    full = lambda inputs, S: call(inputs, S, None, None, "gdn", 0.0, "best", 0, True)
    with_states = lambda inputs, S: states(inputs, S, None, None, "gdn", 0.0, "best", 0, True, False)
    names = ("query", "key", "value", "log_decay", "beta")
    named, plain_named = dict(zip(names, leaves)), dict(zip(names, plain))

    def from_state(inputs, S):
        o, last = deltarule.recurrence("gdn", **inputs, initial=deltarule.State("gdn", S), final=True)
        return o, last.S
    raw = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=torch.zeros(1, device=wanted.device),
               dt_bias=torch.zeros(1, device=wanted.device), use_beta_sigmoid_in_kernel=True)
    fla = deltarule.fla.chunk_gated_delta_rule
    rows = [
        ("empty function", lambda: Empty.apply(*plain), lambda: Empty.apply(*leaves), lambda: backward(Empty.apply(*leaves))),
        ("lean call", lambda: lean(plain), lambda: lean(leaves), lambda: backward(lean(leaves)[0])),
        ("full call", lambda: full(plain, S), lambda: full(leaves, S_leaf), lambda: backward(*full(leaves, S_leaf)[:2])),
        ("operator", lambda: forward(plain, None, "gdn", 0.0, "best", 0, False), lambda: forward(leaves, None, "gdn", 0.0, "best", 0, False),
         lambda: backward(forward(leaves, None, "gdn", 0.0, "best", 0, False)[0])),
        ("operator with states", lambda: with_states(plain, S), lambda: with_states(leaves, S_leaf),
         lambda: backward(*with_states(leaves, S_leaf)[:2])),
        ("recurrence", lambda: deltarule.recurrence("gdn", **plain_named), lambda: deltarule.recurrence("gdn", **named),
         lambda: backward(deltarule.recurrence("gdn", **named))),
        ("recurrence with states", lambda: from_state(plain_named, S), lambda: from_state(named, S_leaf),
         lambda: backward(*from_state(named, S_leaf))),
        ("fla.chunk_gated_delta_rule", lambda: fla(*plain), lambda: fla(*leaves), lambda: backward(fla(*leaves)[0])),
        ("the same, raw inputs", lambda: fla(*plain, **raw), lambda: fla(*leaves, **raw), lambda: backward(fla(*leaves, **raw)[0])),
    ]
    print(f"{'us a call':28} {'no gradient':>12} {'forward':>9} {'both':>9} {'share':>7}")
    found = least([run for row in rows for run in row[1:]], wanted.blocks, wanted.calls or (40 if cuda else 200),
                  torch.cuda.synchronize if cuda else lambda: None)
    shares = {}
    for i, row in enumerate(rows):
        times = found[3 * i:3 * i + 3]
        shares[row[0]] = times[2] / found[2]
        print(f"{row[0]:28} {times[0]:12.1f} {times[1]:9.1f} {times[2]:9.1f} {shares[row[0]]:7.2f}", flush=True)
    if wanted.most:
        bounds = dict(zip(("recurrence", "recurrence with states"), wanted.most))
        print("; ".join(f"{name}: {shares[name]:.4f} times an empty function, at most {most:g}: {'yes' if shares[name] <= most else 'NO'}"
                        for name, most in bounds.items()))
        sys.exit(any(shares[name] > most for name, most in bounds.items()))


if __name__ == "__main__":
    main()
