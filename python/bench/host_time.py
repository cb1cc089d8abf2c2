#!/usr/bin/env python3
"""Host time of a call, beside an empty autograd function's in the same run: what Python, the dispatcher and the plan cost.

One token of one small head, one thread, the least of many blocks of process time, in microseconds. `share` is beside the empty
function of the same kind. With --most LEAN FULL the exit status is 1 where forward and backward together of the lean path (no
states) or of the full operator (initial and final state) are more than that many times the empty function's.

    python python/bench/host_time.py [--blocks 60] [--calls 200] [--most 2.1 3.0]
"""
import argparse
import sys
import time

import torch

import deltarule
import deltarule.fla
import deltarule.torch


class Empty(torch.autograd.Function):
    """Takes as many inputs as the rule and computes nothing."""
    @staticmethod
    def forward(ctx, q, k, v, g, beta):
        ctx.save_for_backward(q, k, v, g, beta)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx, d_o):
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def least(run, blocks, calls):
    for _ in range(calls):
        run()
    best = float("inf")
    for _ in range(blocks):
        begin = time.process_time()
        for _ in range(calls):
            run()
        best = min(best, time.process_time() - begin)
    return best / calls * 1e6


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--blocks", type=int, default=60)
    options.add_argument("--calls", type=int, default=200)
    options.add_argument("--most", type=float, nargs=2, metavar=("LEAN", "FULL"))
    wanted = options.parse_args()
    torch.set_num_threads(1)
    make = lambda grad: [x.requires_grad_(grad) for x in (
        torch.randn(1, 1, 1, 8), torch.nn.functional.normalize(torch.randn(1, 1, 1, 8), dim=-1), torch.randn(1, 1, 1, 8),
        -torch.rand(1, 1, 1), torch.rand(1, 1, 1))]
    plain, leaves = make(False), make(True)
    S, S_leaf = torch.randn(1, 1, 8, 8), torch.randn(1, 1, 8, 8, requires_grad=True)
    forward, states = torch.ops.deltarule.forward.default, torch.ops.deltarule.forward_states.default

    def backward(o, *more):
        torch.autograd.backward((o, *more), tuple(torch.ones_like(x) for x in (o, *more)))
        for one in (*leaves, S_leaf):
            one.grad = None

    def full():
        o, last, _, _ = states(leaves, S_leaf, None, None, "gdn", 0.0, "best", 0, True, False)
        backward(o, last)
    named = dict(zip(("query", "key", "value", "log_decay", "beta"), leaves))
    rows = [
        ("empty function", lambda: Empty.apply(*plain), lambda: Empty.apply(*leaves), lambda: backward(Empty.apply(*leaves))),
        ("lean operator", lambda: forward(plain, None, "gdn", 0.0, "best", 0, False), lambda: forward(leaves, None, "gdn", 0.0, "best", 0, False),
         lambda: backward(forward(leaves, None, "gdn", 0.0, "best", 0, False)[0])),
        ("operator with states", lambda: states(plain, S, None, None, "gdn", 0.0, "best", 0, True, False),
         lambda: states(leaves, S_leaf, None, None, "gdn", 0.0, "best", 0, True, False), full),
        ("recurrence", lambda: deltarule.recurrence("gdn", *plain[:3], log_decay=plain[3], beta=plain[4]),
         lambda: deltarule.recurrence("gdn", **named), lambda: backward(deltarule.recurrence("gdn", **named))),
        ("fla.chunk_gated_delta_rule", lambda: deltarule.fla.chunk_gated_delta_rule(*plain), lambda: deltarule.fla.chunk_gated_delta_rule(*leaves),
         lambda: backward(deltarule.fla.chunk_gated_delta_rule(*leaves)[0])),
    ]
    print(f"{'us a call':28} {'no gradient':>12} {'forward':>9} {'both':>9} {'share':>7}")
    shares = {}
    for name, quiet, ahead, both in rows:
        times = [least(run, wanted.blocks, wanted.calls) for run in (quiet, ahead, both)]
        shares.setdefault("", times[2])
        shares[name] = times[2] / shares[""]
        print(f"{name:28} {times[0]:12.1f} {times[1]:9.1f} {times[2]:9.1f} {shares[name]:7.2f}", flush=True)
    if wanted.most and (shares["lean operator"] > wanted.most[0] or shares["operator with states"] > wanted.most[1]):
        sys.exit(f"more than {wanted.most[0]} or {wanted.most[1]} times an empty function")


if __name__ == "__main__":
    main()
