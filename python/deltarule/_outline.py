"""Outlines: how models and their layers compute, as the library tells it (dr_model_outline, docs/outline.md).

What a layer has beside its rule (projections, convolutions, gates, norms) is decided in the library alone. It writes a layer as
its parameters and a list of nodes over values; `deltarule.torch.Mixer` runs such a list with PyTorch's operators.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from ._library import backend, lib, text_of


class First(NamedTuple):
    """How a parameter starts: kind "normal" (times the model's initializer_range), "uniform" in [-value, value], "constant",
    "a_log" (ln of a draw between value and 16) or "step" (inverse softplus of a log-uniform draw in [0.001, 0.1])."""
    kind: str
    value: float


class Parameter(NamedTuple):
    name: str
    shape: Tuple[int, ...]
    first: First
    decays: bool  # whether weight decay applies: matrices, not norms, biases or gate parameters


class Gate(NamedTuple):
    """A function of u = x + shift + bias, where bias and A_log are [heads, dim] or [heads]."""
    kind: str
    heads: int
    dim: int
    multiplier: float
    shift: float
    lower_bound: float
    upper_bound: float
    a_log_per_channel: bool


class OutputNorm(NamedTuple):
    dim: int
    eps: float
    gate: str
    gate_first: bool


class Value(NamedTuple):
    """rows: [.., columns] of each token, else [columns]. number: kept in float32 at least, else in the type of vectors."""
    rows: bool
    number: bool
    columns: int
    parameter: Optional[str] = None
    constant: Optional[Tuple[float, ...]] = None


class Node(NamedTuple):
    """One step: `name` says what is made, in the value `to`, of the values `source` and `beside`."""
    name: str
    to: int
    source: int = -1
    beside: int = -1
    heads: int = 0
    dim: int = 0
    weight: Optional[str] = None
    bias: Optional[str] = None
    gate: Optional[Gate] = None
    norm: Optional[OutputNorm] = None
    function: str = "identity"
    factor: float = 0.0
    frequencies: Tuple[float, ...] = ()
    onto: int = -1
    conv: int = -1


class Recurrent(NamedTuple):
    """The module of a rule: what reads x [.., hidden], value 0, and makes y, value 1."""
    rule: str
    heads: int
    value_heads: int
    key_size: int
    value_size: int
    conv_size: int
    scale: float
    inputs: Tuple[Tuple[str, int], ...]
    values: Tuple[Value, ...]
    nodes: Tuple[Node, ...]
    convs: Tuple[int, ...]  # channels of each convolution


@functools.lru_cache(maxsize=256)
def _outline(config: str) -> str:
    on = backend("reference")
    return text_of(lambda *rest: lib.dr_model_outline(on.handle, config.encode(), *rest))


def outline(config: Mapping[str, Any]) -> Dict[str, Any]:
    """The outline of the model that a config.json says. ValueError or NotImplementedError with the library's sentence."""
    return json.loads(_outline(json.dumps(dict(config))))


def parameters_of(listed: Any, prefix: str = "") -> Tuple[Parameter, ...]:
    """Those whose names begin with a prefix, without it."""
    return tuple(Parameter(one["name"][len(prefix):], tuple(one["shape"]), First(one["first"], one["value"]), one["decays"])
                 for one in listed if one["name"].startswith(prefix))


def _node_of(node: Mapping[str, Any], prefix: str) -> Node:
    made = dict(node)
    for key in ("weight", "bias"):
        if key in made:
            made[key] = made[key][len(prefix):]
    if "from" in made:
        made["source"] = made.pop("from")
    if "with" in made:
        made["beside"] = made.pop("with")
    if "gate" in made:
        made["gate"] = Gate(**made["gate"])
    if "norm" in made:
        made["norm"] = OutputNorm(**made["norm"])
    if "frequencies" in made:
        made["frequencies"] = tuple(made["frequencies"])
    return Node(**made)


def recurrent_of(module: Mapping[str, Any], prefix: str) -> Recurrent:
    """The module of a part whose kind is "recurrent"; its parameters' names without the prefix."""
    values = tuple(Value(one["rows"], one["number"], one["columns"],
                         one["parameter"][len(prefix):] if "parameter" in one else None,
                         tuple(one["constant"]) if "constant" in one else None) for one in module["values"])
    nodes = tuple(_node_of(one, prefix) for one in module["nodes"])
    convs = tuple(values[node.to].columns for node in nodes if node.name == "conv")
    return Recurrent(json.dumps(module["rule"]), module["heads"], module["value_heads"], module["key_size"], module["value_size"],
                     module["conv_size"], module["scale"], tuple(module["inputs"].items()), values, nodes, convs)
