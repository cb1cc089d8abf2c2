#!/usr/bin/env python3
"""Invent a rule as a dictionary and train it in PyTorch, beside Gated DeltaNet.

The task is multi-query associative recall: a sequence of pairs (key, value), then some of the keys again, each to be answered
with its value. The new rule reads with the key and a part of the query, where Gated DeltaNet reads with the key alone.

    python python/examples/new_rule.py [--steps 400] [--pairs 8] [--plot recall.png]
"""
import argparse

import torch
import torch.nn.functional as F

import deltarule

RULES = {
    "gdn": "gdn",
    "mine": {"base": "gdn", "rows": [{"read": "key_plus_query", "write": "key", "gain": "beta", "value": "gain_v"}]},
}


class Mixer(torch.nn.Module):
    """One layer: projections, a short convolution, the rule, a projection back."""

    def __init__(self, rule, width, heads, size):
        super().__init__()
        self.rule, self.heads, self.size = deltarule.Rule(rule), heads, size
        self.qkv = torch.nn.Linear(width, 3 * heads * size, bias=False)
        self.convolution = torch.nn.Conv1d(3 * heads * size, 3 * heads * size, 4, groups=3 * heads * size, padding=3)
        self.gates = torch.nn.ModuleDict({name: torch.nn.Linear(width, heads) for name in ("log_decay", "beta", "lam") if name in self.rule.inputs})
        self.out = torch.nn.Linear(heads * size, width, bias=False)
        if "log_decay" in self.gates:
            torch.nn.init.constant_(self.gates["log_decay"].bias, -4.0)  # forgets little at first

    def forward(self, x):
        mixed = F.silu(self.convolution(self.qkv(x).mT)[..., :x.shape[1]].mT)
        q, k, v = (one.unflatten(-1, (self.heads, self.size)) for one in mixed.chunk(3, -1))
        gates = {name: layer(x) for name, layer in self.gates.items()}
        gates = {name: -F.softplus(g) if name == "log_decay" else g.sigmoid() for name, g in gates.items()}
        o = deltarule.recurrence(self.rule, F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, **gates, scale=1.0)
        return self.out(o.flatten(-2))


class Model(torch.nn.Module):
    def __init__(self, rule, words, width=64, layers=2, heads=2, size=32):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.layers = torch.nn.ModuleList(Mixer(rule, width, heads, size) for _ in range(layers))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(layers + 1))
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(self.norms[-1](x))


def recall(batch, pairs, words, draw):
    """Tokens [batch, 3 pairs] (pairs of key and value, then the keys again, shuffled) and the answers [batch, pairs]."""
    keys = torch.stack([torch.randperm(words // 2, generator=draw)[:pairs] for _ in range(batch)])
    values = torch.randint(words // 2, words, (batch, pairs), generator=draw)
    order = torch.stack([torch.randperm(pairs, generator=draw) for _ in range(batch)])
    tokens = torch.cat([torch.stack([keys, values], -1).flatten(1), keys.gather(1, order)], 1)
    return tokens, values.gather(1, order)


def train(rule, steps, pairs, batch=64, words=64, rate=3e-3, seed=0):
    """Losses of the steps, and the share of right answers on fresh sequences."""
    torch.manual_seed(seed)
    model, draw = Model(rule, words), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    losses = []
    for _ in range(steps):
        tokens, answers = recall(batch, pairs, words, draw)
        loss = F.cross_entropy(model(tokens)[:, -pairs:].flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plan.step()
        losses.append(loss.item())
    with torch.no_grad():
        tokens, answers = recall(256, pairs, words, draw)
        right = (model(tokens)[:, -pairs:].argmax(-1) == answers).float().mean().item()
    return losses, right


def plot(curves, file):
    try:
        import matplotlib
    except ImportError:
        print(f"no picture: matplotlib is not installed ({file})")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    for name, losses in curves.items():
        pyplot.plot(losses, label=name)
    pyplot.xlabel("step"), pyplot.ylabel("loss"), pyplot.legend()
    pyplot.savefig(file)


def main(arguments=None):
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--pairs", type=int, default=8)
    options.add_argument("--plot", metavar="FILE")
    wanted = options.parse_args(arguments)
    curves, shares = {}, {}
    for name, rule in RULES.items():
        print(f"{name:5} {deltarule.Rule(rule).equation}")
        curves[name], shares[name] = train(rule, wanted.steps, wanted.pairs)
        print(f"{name:5} loss {curves[name][0]:.2f} to {curves[name][-1]:.3f}, {100 * shares[name]:.1f}% of answers right", flush=True)
    if wanted.plot:
        plot(curves, wanted.plot)
    return curves, shares


if __name__ == "__main__":
    main()
