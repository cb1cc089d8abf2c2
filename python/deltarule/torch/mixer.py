"""The layer of any rule as an nn.Module: what the C library puts around a recurrence, with PyTorch's operators.

A mixer maps x ``[B, T, hidden]`` to y of that shape: projections, short convolutions, gates, the recurrence, a gated RMS norm and
the last projection. It is a list of nodes over values that the library writes for a rule and sizes (``_outline.py``), so every
rule and composition has its layer here as in C, with the same parameters under the same names (docs/rules.md) and the same
numbers up to rounding.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._outline import First, Node, Parameter, Recurrent, outline, parameters_of, recurrent_of
from ..recurrence import _NAMES, recurrence, step
from ..rule import SPELLED, Rule
from ..state import State
from .functions import in_autocast

__all__ = ["Mixer", "MixerState", "Packing"]


class Packing(NamedTuple):
    """Where N sequences begin that lie one after the other in a batch of one row: made once, read by every layer."""
    cu_seqlens: Tensor  # [N + 1]
    sequence: Tensor    # [T] of each token
    position: Tensor    # [T] of each token in its sequence

    @classmethod
    def of(cls, cu_seqlens: Union[Tensor, "Packing"], tokens: int, device: torch.device) -> "Packing":
        """cu_seqlens: ``[N + 1]`` int32 or int64."""
        if isinstance(cu_seqlens, Packing):
            return cu_seqlens
        cu = cu_seqlens.to(device=device, dtype=torch.int64)
        row = torch.arange(tokens, device=device)
        sequence = torch.searchsorted(cu[1:], row, right=True)
        return cls(cu_seqlens, sequence, row - cu[sequence])


class MixerState:
    """What a mixer carries from token to token.

    conv: of each convolution the last width - 1 of what it read, ``[N, width - 1, channels]``. recurrence: a State. seen:
    ``[N]`` int64, tokens so far, which rotary embeddings need.
    """

    __slots__ = ("conv", "recurrence", "seen")

    def __init__(self, conv: Sequence[Tensor], recurrence: State, seen: Tensor):
        self.conv, self.recurrence, self.seen = tuple(conv), recurrence, seen

    def each(self, function) -> "MixerState":
        """A state of what a function makes of every tensor, such as ``lambda t: t[i:j]``."""
        return MixerState([function(one) for one in self.conv], self.recurrence._each(function), function(self.seen))

    def clone(self) -> "MixerState":
        return self.each(torch.clone)

    def detach(self) -> "MixerState":
        return self.each(torch.Tensor.detach)

    def __getitem__(self, index: slice) -> "MixerState":
        return self.each(lambda one: one[index])

    def __reduce__(self):
        return MixerState, (self.conv, self.recurrence, self.seen)


class _Run:
    """A call at work: values by index, and what it starts from and makes."""

    __slots__ = ("values", "batch", "tokens", "packing", "initial", "final", "step", "conv", "state", "dtype", "number")

    def __init__(self, x: Tensor, values: int, packing: Optional[Packing], initial: Optional[MixerState], final: bool, one: bool):
        self.values: List[Optional[Tensor]] = [None] * values
        self.values[0] = x
        self.batch, self.tokens = x.shape[0], x.shape[1]
        self.packing, self.initial, self.final, self.step = packing, initial, final, one
        self.conv: List[Tensor] = []
        self.state: Optional[State] = None
        self.dtype = x.dtype
        self.number = torch.float64 if x.dtype == torch.float64 else torch.float32


def draw_(tensor: Tensor, first: First, initializer_range: float) -> None:
    """First values as the library has them, from PyTorch's random numbers."""
    with torch.no_grad():
        if first.kind == "normal":
            tensor.normal_(0.0, initializer_range)
        elif first.kind == "uniform":
            tensor.uniform_(-first.value, first.value)
        elif first.kind == "constant":
            tensor.fill_(first.value)
        elif first.kind == "a_log":
            tensor.uniform_(first.value, 16.0).clamp_(min=1e-2).log_()
        else:
            step_size = torch.empty_like(tensor, dtype=torch.float64).uniform_(math.log(1e-3), math.log(0.1)).exp_()
            tensor.copy_(step_size + torch.log(-torch.expm1(-step_size)))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x rsqrt(mean x^2 + eps) weight over the last axis, computed in float32 at least; in x's dtype."""
    wide = x if x.dtype == torch.float64 else x.float()
    return F.rms_norm(wide, weight.shape, weight.to(wide.dtype), eps).to(x.dtype)


class Weights(nn.Module):
    """A place for parameters that belong together, such as `o_norm.weight`."""


def add_parameters(root: nn.Module, parameters: Sequence[Parameter], linear: Mapping[str, Tuple[int, int]],
                   device: Any = None, dtype: Any = None) -> None:
    """Adds parameters to a module under their dotted names. Those that `linear` names, the weights of projections, become
    nn.Linear modules, so that what knows these (adapters, quantization, tensor parallelism) finds them."""
    biased = {one.name for one in parameters if one.name.endswith(".bias")}
    for one in parameters:
        *path, last = one.name.split(".")
        at = root
        for depth, part in enumerate(path):
            if not hasattr(at, part):
                whole = depth == len(path) - 1 and one.name in linear
                at.add_module(part, nn.Linear(*linear[one.name], bias=one.name[:-len("weight")] + "bias" in biased, device=device,
                                              dtype=dtype) if whole else Weights())
            at = getattr(at, part)
        if last not in at._parameters:
            at.register_parameter(last, nn.Parameter(torch.empty(one.shape, device=device, dtype=dtype)))


class Mixer(nn.Module):
    """The layer of a rule, from x ``[B, T, hidden_size]`` to y of that shape.

    Args:
        rule: a name, a mapping of axes or a Rule.
        hidden_size: width of the model.
        num_heads, num_v_heads: key heads H and value heads HV, a multiple; None: H.
        head_dim: K; None: hidden_size / num_heads.
        expand_v: V / K; None: as the rule's family has it.
        conv_size: width of the short convolutions, 0: none; None: as the family has it.
        output_gate: whether the output is gated; None: as the family has it.
        norm_eps: of the output's RMS norm.
        initializer_range: standard deviation of first weights.
        layer_idx: kept for callers' own use.
        **options: what a config.json of model_type "deltarule" says of gates: negative_eigenvalues, gate, lower_bound, lam,
            lambda_bias, a_log_per_channel, force.

    Parameters have the names of docs/rules.md: ``q_proj.weight``, ``q_conv1d.weight``, ``A_log``, ``o_proj.weight`` ...
    Gates, decays and norms are computed in float32 whatever x is; keep A_log and dt_bias in float32. x of float64 is computed in
    float64, by the reference with plain loops.

    Raises:
        ValueError: sizes or options that cannot be, with what would do.
    """

    def __init__(self, rule: Union[str, Mapping[str, Any], Rule], hidden_size: int, num_heads: int, num_v_heads: Optional[int] = None,
                 *, head_dim: Optional[int] = None, expand_v: Optional[float] = None, conv_size: Optional[int] = None,
                 output_gate: Optional[bool] = None, norm_eps: float = 1e-6, initializer_range: float = 0.02,
                 layer_idx: Optional[int] = None, device: Any = None, dtype: Any = None, **options: Any):
        super().__init__()
        rule = Rule(rule)
        size = head_dim or hidden_size // max(num_heads, 1)
        config = {"model_type": "deltarule", "rule": rule.name or json.loads(rule.json), "vocabulary": 1, "hidden": hidden_size, "layers": 1,
                  "heads": num_heads, "value_heads": num_v_heads or num_heads, "key_size": size, "intermediate": 0,
                  "value_size": 0 if expand_v is None else int(size * expand_v), "norm_eps": norm_eps,
                  "initializer_range": initializer_range}
        if conv_size is not None:
            config["conv_size"] = conv_size
        if output_gate is not None:
            config["output_gate"] = output_gate
        for name, value in options.items():
            config["lambda" if name == "lam" else name] = value
        kind = outline(config)["kinds"][0]
        self.initializer_range, self.layer_idx = initializer_range, layer_idx
        self._build(recurrent_of(kind["parts"][0]["module"], "attn."), parameters_of(kind["parameters"], "attn."), device, dtype)

    @classmethod
    def from_outline(cls, module: Recurrent, parameters: Sequence[Parameter], initializer_range: float = 0.02,
                     layer_idx: Optional[int] = None, device: Any = None, dtype: Any = None) -> "Mixer":
        """The mixer that an outline tells (_outline.py)."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.initializer_range, made.layer_idx = initializer_range, layer_idx
        made._build(module, parameters, device, dtype)
        return made

    def _build(self, module: Recurrent, parameters: Sequence[Parameter], device: Any, dtype: Any) -> None:
        self.module, self.listed = module, tuple(parameters)
        self.rule, self.hidden_size = Rule(module.rule), module.values[0].columns
        columns = {node.weight: (module.values[node.source].columns, module.values[node.to].columns)
                   for node in module.nodes if node.name in ("linear", "output")}
        add_parameters(self, parameters, columns, device, dtype)
        self._inputs = [dict(module.inputs)[_LIBRARY_NAME[name]] for name in self.rule.inputs]
        self._shapes: Dict[str, Tuple[Any, ...]] = dict(zip(self.rule.inputs, self.rule.input_axes))
        self._sizes = {"H": module.heads, "HV": module.value_heads, "K": module.key_size, "V": module.value_size}
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """First values, in the distributions that the C library has."""
        for one in self.listed:
            parameter = self.get_parameter(one.name)
            if not parameter.is_meta:
                draw_(parameter, one.first, self.initializer_range)

    def extra_repr(self) -> str:
        m = self.module
        return (f"rule={self.rule.text}, heads={m.heads}, value_heads={m.value_heads}, key_size={m.key_size}, "
                f"value_size={m.value_size}, conv_size={m.conv_size}")

    def state(self, sequences: int, device: Any = None, dtype: Optional[torch.dtype] = None) -> MixerState:
        """The state before any token. dtype: of x."""
        like = self.o_proj.weight
        device, dtype = device or like.device, dtype or like.dtype
        m = self.module
        conv = [torch.zeros(sequences, m.conv_size - 1, channels, device=device, dtype=dtype) for channels in m.convs]
        number = torch.empty(0, device=device, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        state = State.zeros(self.rule, sequences=sequences, H=m.heads, HV=m.value_heads, K=m.key_size, V=m.value_size, like=number)
        return MixerState(conv, state, torch.zeros(sequences, dtype=torch.int64, device=device))

    def forward(self, x: Tensor, *, initial: Optional[MixerState] = None, final: bool = False,
                cu_seqlens: Union[Tensor, Packing, None] = None) -> Union[Tensor, Tuple[Tensor, MixerState]]:
        """y of x ``[B, T, hidden]``; with final also the state after the last token.

        initial: the state to start from, of B sequences, or N with cu_seqlens; None: the one before any token.
        cu_seqlens: ``[N + 1]`` where N sequences begin in a batch of B = 1, or a Packing.
        """
        if x.dim() != 3 or x.shape[2] != self.hidden_size:
            raise ValueError(f"x has shape {tuple(x.shape)}; this mixer reads [B, T, {self.hidden_size}]")
        packing = None
        if cu_seqlens is not None:
            if x.shape[0] != 1:
                raise ValueError(f"with cu_seqlens x must be one row of tokens, [1, T, {self.hidden_size}], not {x.shape[0]} rows")
            packing = Packing.of(cu_seqlens, x.shape[1], x.device)
        run = self._run(in_autocast(x), packing, initial, final, False)
        if not final:
            return run.values[1]
        if packing is None:
            added = torch.full((x.shape[0],), x.shape[1], dtype=torch.int64, device=x.device)
        else:
            added = packing.cu_seqlens.to(x.device, torch.int64).diff()
        seen = added if initial is None else initial.seen + added
        return run.values[1], MixerState(run.conv, run.state, seen)

    def step(self, x: Tensor, state: MixerState) -> Tensor:
        """y ``[B, hidden]`` of one token of each sequence, x ``[B, hidden]``; the state is updated in place, without gradients."""
        run = self._run(x.unsqueeze(1), None, state, True, True)
        for old, new in zip(state.conv, run.conv):
            old.copy_(new)
        state.seen += 1
        return run.values[1].squeeze(1)

    def _run(self, x: Tensor, packing: Optional[Packing], initial: Optional[MixerState], final: bool, one: bool) -> _Run:
        run = _Run(x, len(self.module.values), packing, initial, final, one)
        for node in self.module.nodes:
            run.values[node.to] = _NODES[node.name](self, node, run)
        return run

    def _find(self, name: str) -> Tensor:
        at = self
        for part in name.split("."):
            at = getattr(at, part)
        return at

    def _value(self, run: _Run, index: int) -> Tensor:
        """A value that was made, or that is a parameter or a constant."""
        made = run.values[index]
        if made is not None:
            return made
        value = self.module.values[index]
        if value.parameter is not None:
            return self._find(value.parameter).to(run.number).reshape(-1)
        return torch.tensor(value.constant, device=run.values[0].device, dtype=run.number)


_LIBRARY_NAME = {name: {spelled: named for named, spelled in SPELLED.items()}.get(name, name) for name in _NAMES}

# ---- nodes: what each makes of its values -----------------------------------------------------------------------------------


def _linear(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    return mixer._find(node.weight[:-len(".weight")])(mixer._value(run, node.source))


def _grouped_linear(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    """One matrix [dim, rank] a head."""
    x, weight = mixer._value(run, node.source), mixer._find(node.weight)
    y = torch.einsum("bthr,hdr->bthd", x.unflatten(-1, (node.heads, -1)), weight.to(x.dtype))
    return y.flatten(-2)


def _shifted(x: Tensor, tail: Optional[Tensor], packing: Packing, back: int, width: int) -> Tensor:
    """x of `back` tokens earlier of a packed batch, from the sequence's tail or zero before its start."""
    moved = F.pad(x, (0, 0, back, 0))[:, :x.shape[1]]
    inside = (packing.position >= back)[None, :, None]
    if tail is None:
        return moved * inside
    before = tail[packing.sequence, (width - 1 - back + packing.position).clamp(max=width - 2)]
    return torch.where(inside, moved, before[None].to(x.dtype))


def _tail(x: Tensor, tail: Optional[Tensor], packing: Packing, width: int) -> Tensor:
    """The last width - 1 tokens of each sequence of a packed batch, with those of its tail where it is shorter."""
    cu = packing.cu_seqlens.to(x.device, torch.int64)
    index = cu[1:, None] - (width - 1) + torch.arange(width - 1, device=x.device)  # [N, width - 1] rows
    ours = index >= cu[:-1, None]
    read = x[0][index.clamp(min=0)]
    if tail is None:
        return read * ours[..., None]
    # a sequence of n < width - 1 tokens keeps the last of its tail, from place n on
    kept = (index - cu[:-1, None] + width - 1).clamp(max=width - 2)
    return torch.where(ours[..., None], read, tail.to(x.dtype).gather(1, kept[..., None].expand(-1, -1, x.shape[2])))


def _conv(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    x, width = mixer._value(run, node.source), mixer.module.conv_size
    weight = mixer._find(node.weight)  # [channels, 1, width]
    bias = mixer._find(node.bias) if node.bias else None
    tail = run.initial.conv[node.conv] if run.initial is not None else None
    if run.packing is None:
        whole = F.pad(x, (0, 0, width - 1, 0)) if tail is None else torch.cat([tail.to(x.dtype), x], 1)
        y = _convolved(whole, weight, bias, run)
        if run.final:
            run.conv.append(whole[:, whole.shape[1] - (width - 1):])
    else:
        weight = weight.to(x.dtype)
        y = x * weight[:, 0, width - 1]
        for back in range(1, width):
            y = y + _shifted(x, tail, run.packing, back, width) * weight[:, 0, width - 1 - back]
        y = y if bias is None else y + bias.to(x.dtype)
        if run.final:
            run.conv.append(_tail(x, tail, run.packing, width))
    return F.silu(y) if node.function == "silu" else y


def _convolved(whole: Tensor, weight: Tensor, bias: Optional[Tensor], run: _Run) -> Tensor:
    """The convolution of ``[B, width - 1 + T, channels]``; compiled, it is a sum that joins what stands around it in one kernel."""
    if not torch.compiler.is_compiling():
        bias = None if bias is None else bias.to(whole.dtype)
        return F.conv1d(whole.transpose(1, 2), weight.to(whole.dtype), bias, groups=whole.shape[2]).transpose(1, 2)
    wide, tokens = whole.to(run.number), whole.shape[1] - weight.shape[2] + 1
    y = sum(wide[:, at:at + tokens] * weight[:, 0, at].to(run.number) for at in range(weight.shape[2]))
    return (y if bias is None else y + bias.to(run.number)).to(whole.dtype)


def _bounded(y: Tensor, gate) -> Tensor:
    if gate.lower_bound != 0 or gate.upper_bound != 0:
        y = y.clamp(min=gate.lower_bound or None, max=gate.upper_bound or None)
    return y


def _gate(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    gate, x = node.gate, mixer._value(run, node.source)
    u = x.to(run.number).unflatten(-1, (-1, gate.heads, gate.dim)) + gate.shift
    if node.bias:
        u = u + mixer._find(node.bias).to(run.number).view(gate.heads, gate.dim)
    rate = None
    if node.weight:
        rate = mixer._find(node.weight).to(run.number).exp().view(gate.heads, gate.dim if gate.a_log_per_channel else 1)
    y = _GATES[gate.kind](u, rate, gate).flatten(-3)
    return y if mixer.module.values[node.to].number else y.to(run.dtype)


_GATES = {
    "sigmoid": lambda u, rate, gate: gate.multiplier * torch.sigmoid(u),
    "softplus": lambda u, rate, gate: _bounded(F.softplus(u), gate),
    "log_decay": lambda u, rate, gate: -rate * _bounded(F.softplus(u), gate),
    "kda_bounded": lambda u, rate, gate: gate.lower_bound * torch.sigmoid(rate * u),
    "eda_bounded": lambda u, rate, gate: -gate.lower_bound * torch.expm1(-rate / abs(gate.lower_bound) * F.softplus(u)),
    "log_sigmoid": lambda u, rate, gate: gate.multiplier * F.logsigmoid(u),
    "silu": lambda u, rate, gate: F.silu(u),
    "identity": lambda u, rate, gate: u,
}

FUNCTIONS = {
    "identity": lambda x: x,
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu_1": lambda x: F.elu(x) + 1,
}


def _function(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    return FUNCTIONS[node.function](mixer._value(run, node.source))


def _headed(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    return mixer._value(run, node.source).unflatten(-1, (-1, node.dim))


def _unit(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    x = _headed(mixer, node, run).to(run.number)
    return (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)).flatten(-2).to(run.dtype)


def _sum(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    x = _headed(mixer, node, run).to(run.number)
    return (x / x.sum(-1, keepdim=True)).flatten(-2).to(run.dtype)


def positions(run_tokens: int, packing: Optional[Packing], seen: Optional[Tensor], device: torch.device) -> Tensor:
    """Of each token in its sequence, ``[B or 1, T]``."""
    if packing is not None:
        return (packing.position if seen is None else packing.position + seen[packing.sequence])[None]
    row = torch.arange(run_tokens, device=device)[None]
    return row if seen is None else row + seen[:, None]


def rotate(x: Tensor, position: Tensor, frequencies: Sequence[float], factor: float, interleaved: bool = False) -> Tensor:
    """The rotary embedding of the first 2 len(frequencies) channels of each head, x ``[B, T, heads, size]``."""
    number = torch.float64 if x.dtype == torch.float64 else torch.float32
    angle = position.to(torch.float64)[:, :, None, None] * torch.tensor(frequencies, device=x.device, dtype=torch.float64)
    cos, sin = (factor * angle.cos()).to(number), (factor * angle.sin()).to(number)
    turned, rest = x[..., :2 * len(frequencies)].to(number), x[..., 2 * len(frequencies):]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        made = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        made = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    return torch.cat([made.to(x.dtype), rest], -1)


def _rotary(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    x = _headed(mixer, node, run)
    seen = run.initial.seen if run.initial is not None else None
    return rotate(x, positions(run.tokens, run.packing, seen, x.device), node.frequencies, node.factor).flatten(-2)


def _scale(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    """Each head times a factor of its own."""
    x, factor = _headed(mixer, node, run), mixer._value(run, node.beside)
    y = (x.to(run.number) * factor.to(run.number).unsqueeze(-1)).flatten(-2)
    if node.onto >= 0:
        y = y + mixer._value(run, node.onto).to(run.number)
    return y.to(run.dtype)


def _add(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    return mixer._value(run, node.source) + node.factor * mixer._value(run, node.beside)


def _fill(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    shape = (run.batch, run.tokens, mixer.module.values[node.to].columns)
    return torch.full(shape, node.factor, device=run.values[0].device, dtype=run.number)


def _read(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    return mixer._value(run, node.source)


def _recurrence(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    inputs = {}
    for name, index in zip(mixer.rule.inputs, mixer._inputs):
        shape = []
        for axis in mixer._shapes[name]:
            if axis == "rows":
                shape += [run.batch, run.tokens]
            else:
                shape.append(mixer._sizes.get(axis, axis))
        inputs[name] = mixer._value(run, index).reshape(shape)
    scale = mixer.module.scale or None
    if run.step:
        rows = {name for name, axes in mixer._shapes.items() if axes[0] == "rows"}
        one = {name: x.squeeze(1) if name in rows else x for name, x in inputs.items()}
        return step(mixer.rule, run.initial.recurrence, scale=scale, **one).flatten(-2).unsqueeze(1)
    made = recurrence(mixer.rule, initial=run.initial.recurrence if run.initial is not None else None, final=run.final, scale=scale,
                      cu_seqlens=run.packing.cu_seqlens if run.packing is not None else None,
                      path="reference" if run.dtype == torch.float64 else "best", **inputs)
    if run.final:
        made, run.state = made
    return made.flatten(-2)


def _output(mixer: Mixer, node: Node, run: _Run) -> Tensor:
    """The RMS norm of each head, or of all, gated before or after it, and the last projection."""
    norm, o = node.norm, mixer._value(run, node.source).to(run.number)
    gate = FUNCTIONS[norm.gate](mixer._value(run, node.beside).to(run.number)) if node.beside >= 0 else None
    if gate is not None and norm.gate_first:
        o = o * gate
    o = rms_norm(o.unflatten(-1, (-1, norm.dim)), mixer._find(node.bias), norm.eps).flatten(-2)
    if gate is not None and not norm.gate_first:
        o = o * gate
    return mixer._find(node.weight[:-len(".weight")])(o.to(run.dtype))


_NODES = {"linear": _linear, "grouped_linear": _grouped_linear, "conv": _conv, "gate": _gate, "function": _function, "unit": _unit,
          "sum": _sum, "rotary": _rotary, "scale": _scale, "add": _add, "fill": _fill, "read": _read, "recurrence": _recurrence,
          "output": _output}
