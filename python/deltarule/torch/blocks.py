"""What models have beside the mixers of rules: norms, softmax attention and feed-forwards, as outlines tell them (_outline.py)."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._outline import Parameter
from .functions import in_autocast
from .mixer import FUNCTIONS, Packing, add_parameters, draw_, positions, rms_norm, rotate


class Block(nn.Module):
    """A module whose parameters an outline lists; matrices named weight are nn.Linear modules."""

    def __init__(self, listed: Sequence[Parameter], initializer_range: float = 0.02, device: Any = None, dtype: Any = None):
        super().__init__()
        self.listed, self.initializer_range = tuple(listed), initializer_range
        add_parameters(self, listed, {one.name: one.shape[::-1] for one in listed if len(one.shape) == 2 and one.name.endswith(".weight")},
                       device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for one in self.listed:
            parameter = self.get_parameter(one.name)
            if not parameter.is_meta:
                draw_(parameter, one.first, self.initializer_range)


class Norm(Block):
    """x rsqrt(mean x^2 + eps) weight, computed in float32 at least; in the dtype of autocast where it is on, since products read it."""

    def __init__(self, eps: float, listed: Sequence[Parameter], **options: Any):
        super().__init__(listed, **options)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return in_autocast(rms_norm(x, self.weight, self.eps))


class AttentionState:
    """Keys and values of N sequences, ``[N, L, key_heads, size]``, of which the first seen[n] are those of sequence n."""

    __slots__ = ("keys", "values", "seen")

    def __init__(self, keys: Tensor, values: Tensor, seen: Tensor):
        self.keys, self.values, self.seen = keys, values, seen

    def each(self, function) -> "AttentionState":
        return AttentionState(function(self.keys), function(self.values), function(self.seen))

    def clone(self) -> "AttentionState":
        return self.each(torch.clone)

    def detach(self) -> "AttentionState":
        return self.each(torch.Tensor.detach)

    def __reduce__(self):
        return AttentionState, (self.keys, self.values, self.seen)


class Attention(Block):
    """Softmax attention: q, k, v of x, norms and rotary embedding of q and k, a window, a sigmoid gate of the output."""

    def __init__(self, module: Mapping[str, Any], listed: Sequence[Parameter], **options: Any):
        super().__init__(listed, **options)
        self.module = dict(module)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={self.module[name]}" for name in ("heads", "key_heads", "key_size", "value_size", "window", "gate"))

    def _normed(self, x: Tensor, norm: str) -> Tensor:
        """x ``[.., heads, size]``, each head or all of them by the norm of that name, if there is one."""
        if not hasattr(self, norm):
            return x
        weight, shape = getattr(self, norm).weight, x.shape
        if self.module["norm_whole"]:
            x = x.flatten(-2)
        return rms_norm(x, weight, self.module["norm_eps"]).view(shape)

    def _parts(self, x: Tensor, position: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        m = self.module
        q = self._normed(self.q_proj(x).unflatten(-1, (m["heads"], m["key_size"])), "q_norm")
        k = self._normed(self.k_proj(x).unflatten(-1, (m["key_heads"], m["key_size"])), "k_norm")
        v = self.v_proj(x).unflatten(-1, (m["key_heads"], m["value_size"]))
        if "frequencies" in m:
            q, k = (rotate(one, position, m["frequencies"], m["factor"], m["interleaved"]) for one in (q, k))
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> Tensor:
        """o ``[N, T, heads, value_size]``; mask ``[N, T, L]``, None: causal."""
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        o = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None], is_causal=mask is None, scale=self.module["scale"])
        return o.transpose(1, 2)

    def forward(self, x: Tensor, *, initial: Optional[AttentionState] = None, final: bool = False,
                cu_seqlens: Union[Tensor, Packing, None] = None) -> Union[Tensor, Tuple[Tensor, AttentionState]]:
        """As Mixer.forward."""
        packing = None if cu_seqlens is None else Packing.of(cu_seqlens, x.shape[1], x.device)
        seen = None if initial is None else initial.seen
        q, k, v = self._parts(x, positions(x.shape[1], packing, seen, x.device))
        window = self.module["window"]
        if packing is None and initial is None and not window:
            o = self._attend(q, k, v, None)
            state = AttentionState(k, v, x.new_full((x.shape[0],), x.shape[1], dtype=torch.int64)) if final else None
        else:
            o, state = self._remembering(q, k, v, packing, initial, window)
        o = o.flatten(-2)
        gate = self.module["gate"]
        if gate != "none":
            factor = torch.sigmoid(self.g_proj(x))
            o = o * factor if gate == "element" else (o.unflatten(-1, (self.module["heads"], -1)) * factor.unsqueeze(-1)).flatten(-2)
        y = self.o_proj(o)
        return (y, state) if final else y

    def _remembering(self, q: Tensor, k: Tensor, v: Tensor, packing: Optional[Packing], initial: Optional[AttentionState],
                     window: int) -> Tuple[Tensor, AttentionState]:
        """Packed sequences lie apart here, each from its beginning; the keys of a state come before those of the call."""
        if packing is None:
            count, most = q.shape[:2]
            lengths = torch.full((count,), most, device=q.device)
            apart = lambda one: one
        else:
            lengths = packing.cu_seqlens.to(q.device, torch.int64).diff()
            count, most = len(lengths), int(lengths.max())

            def apart(one):
                return one.new_zeros((count, most, *one.shape[2:])).index_put((packing.sequence, packing.position), one[0])

        q, k, v = apart(q), apart(k), apart(v)
        seen = torch.zeros(count, dtype=torch.int64, device=q.device) if initial is None else initial.seen
        row = torch.arange(most, device=q.device)
        if initial is None:
            keys, values = k, v
        else:
            room = int((seen + lengths).max())
            places = seen[:, None] + row
            ours = (row < lengths[:, None])[..., None, None]
            keys, values = (self._behind(old, new, room, places, ours) for old, new in ((initial.keys, k), (initial.values, v)))
        at, of = seen[:, None, None] + row[:, None], torch.arange(keys.shape[1], device=q.device)
        mask = of <= at
        if window:
            mask = mask & (of > at - window)
        o = self._attend(q, keys, values, mask)
        if packing is not None:
            o = o[packing.sequence, packing.position][None]
        return o, AttentionState(keys, values, seen + lengths)

    @staticmethod
    def _behind(old: Tensor, new: Tensor, room: int, places: Tensor, ours: Tensor) -> Tensor:
        """new ``[N, T, ..]`` at those places behind old ``[N, L, ..]``, in room for so many; only where ours."""
        whole = F.pad(old[:, :room], (0, 0, 0, 0, 0, room - min(room, old.shape[1])))
        places = places.clamp(max=room - 1)
        index = places[..., None, None].expand(new.shape)
        return whole.scatter(1, index, torch.where(ours, new, whole.gather(1, index))) if bool(ours.all()) else \
            whole.scatter_add(1, index, torch.where(ours, new - whole.gather(1, index), torch.zeros_like(new)))


class FeedForward(Block):
    """down(function(gate x) * (up x))."""

    def __init__(self, module: Mapping[str, Any], listed: Sequence[Parameter], **options: Any):
        super().__init__(listed, **options)
        self.function = module["function"]

    def forward(self, x: Tensor) -> Tensor:
        return _gated(self, FUNCTIONS[self.function], x)


def _gated(module: nn.Module, function: Any, x: Tensor) -> Tensor:
    return module.down_proj(function(module.gate_proj(x)) * module.up_proj(x))


class Experts(Block):
    """The weighted sum of the feed-forwards that a router chooses for each token, and of one that all share."""

    def __init__(self, module: Mapping[str, Any], listed: Sequence[Parameter], **options: Any):
        super().__init__(listed, **options)
        self.module = dict(module)

    def forward(self, x: Tensor) -> Tensor:
        m, rows = self.module, x.flatten(0, -2)
        function = FUNCTIONS[m["function"]]
        logits = F.linear(rows, self.router.weight).float()
        scores = torch.sigmoid(logits) if m["sigmoid"] else torch.softmax(logits, -1)
        chosen = (scores + self.router.bias.detach().float() if m["corrected"] else scores).topk(m["chosen"], -1).indices
        weights = scores.gather(-1, chosen)
        if m["normalised"]:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = m["scale"] * weights
        y = torch.zeros_like(rows)
        for expert in range(m["count"]):
            row, choice = (chosen == expert).nonzero(as_tuple=True)
            made = rows[row]
            made = function(F.linear(made, self.experts.gate_proj[expert])) * F.linear(made, self.experts.up_proj[expert])
            made = F.linear(made, self.experts.down_proj[expert]) * weights[row, choice, None].to(rows.dtype)
            y = y.index_add(0, row, made)
        if m["shared"]:
            shared = _gated(self.shared, function, rows)
            y = y + (torch.sigmoid(self.shared_gate(rows)) * shared if m["shared_gate"] else shared)
        return y.view(x.shape)
