"""What the tests share: random inputs of any rule."""

from __future__ import annotations

import json
import random

import pytest

np = pytest.importorskip("numpy")
import deltarule


def random_inputs(rule, B=2, T=20, H=2, HV=4, K=8, V=6, seed=0, dtype="float64"):
    """Inputs of a rule by name, as numpy arrays: keys of length one, gates where layers have them."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in rule.shapes(B=B, T=T, H=H, HV=HV, K=K, V=V).items():
        if name not in rule.inputs:
            continue
        normal = rng.standard_normal(shape)
        if name in ("key", "erase_key", "feedback_key", "free_read", "free_write"):
            made[name] = normal / np.linalg.norm(normal, axis=-1, keepdims=True)
        elif name in ("log_decay", "scan_log_decay"):
            made[name] = -0.3 * rng.random(shape)
        elif name in ("beta", "erase_gain", "lam", "erase_gate", "write_gate", "scan_gain", "correction", "rate"):
            made[name] = 0.1 + 0.8 * rng.random(shape)
        elif name == "scan_centre":
            made[name] = -0.2 + 0.1 * normal
        elif name == "ridge":
            made[name] = 0.5 + rng.random(shape)
        else:
            made[name] = 0.5 * normal
        made[name] = made[name].astype(dtype)
    return made


def value_heads(rule):
    """As many value heads as key heads where a scan is tied, else twice as many."""
    return 2 if json.loads(rule.json).get("tied_scan") else 4


AXES = {
    "decay": ["none", "constant", "scalar", "channel"],
    "read": ["none", "key", "gated_key", "key_plus_query", "erase_key", "feedback", "free"],
    "write": ["key", "preconditioned", "sherman_morrison", "erase_key", "rate_read", "free", "exact"],
    "gain": ["one", "beta", "gamma", "implicit", "normalized", "exponential"],
    "value": ["none", "v", "gain_v", "gated_v"],
    "scan": ["none", "diagonal", "gram", "inverse_gram"],
    "query": ["query", "corrected", "ridge", "exact"],
    "normalizer": ["none", "inverse", "implicit", "discounted"],
}


def random_compositions(count, seed):
    """That many rules, drawn from all options of all axes, of those that make sense."""
    draw, made = random.Random(seed), {}
    while len(made) < count:
        row = lambda: {**{axis: draw.choice(AXES[axis]) for axis in ("read", "write", "gain", "value")},
                       "undecayed": draw.random() < 0.15}
        axes = {"decay": draw.choice(AXES["decay"]), "rows": [row() for _ in range(draw.choice((1, 1, 2)))],
                "scan": draw.choice(AXES["scan"] + ["none", "none"]), "query": draw.choice(AXES["query"] + ["query", "query"]),
                "normalizer": draw.choice(AXES["normalizer"] + ["none", "none"]),
                "gain_eps": 1.5}  # 1 / (r . w + gain_eps) stays finite for any r, w of length 1; test_denominators.py goes near 0
        if len(axes["rows"]) == 1 and draw.random() < 0.2:
            axes["repeat"] = draw.choice((2, 3))
        if draw.random() < 0.1:
            axes["tied_scan"] = True
        try:
            made.setdefault(json.dumps(axes), deltarule.Rule(axes))
        except ValueError:
            continue
    return list(made.values())


def slow_after(count, cases):
    """Cases of which those behind the first `count` are left to the long form of the tests."""
    return [one if i < count else pytest.param(one, marks=pytest.mark.slow) for i, one in enumerate(cases)]
