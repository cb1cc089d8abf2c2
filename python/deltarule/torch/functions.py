"""What ``deltarule.recurrence`` and ``deltarule.step`` do with torch tensors: states, autocast, and the choice of operator."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._forms import Made, text_of_made
from .operators import call
from ..rule import Rule
from ..state import State

_ops = torch.ops.deltarule
_VALUE_FIRST = text_of_made(Made(value_first=True))


def autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The dtype of autocast on that device; None where it is off."""
    return torch.get_autocast_dtype(device) if device in ("cpu", "cuda") and torch.is_autocast_enabled(device) else None


def in_autocast(x: Tensor) -> Tensor:
    """x of float32 in autocast's dtype, once for all products that read it."""
    dtype = autocast_dtype(x.device.type) if x.dtype == torch.float32 else None
    return x if dtype is None else x.to(dtype)


def _cast(rule: Rule, inputs: Sequence[Tensor]) -> List[Tensor]:
    """Under autocast the vectors in its dtype; gates stay as they are, since the library computes with them in float32."""
    first = inputs[0]
    dtype = autocast_dtype("cpu" if first.is_cpu else first.device.type)
    if dtype is None:
        return inputs
    return [x.to(dtype) if is_vector and x.dtype != dtype and x.dtype != torch.float64 else x for x, is_vector in zip(inputs, rule.vectors)]


def _tensors(rule: Rule, inputs: Sequence[Any]) -> None:
    for name, one in zip(rule.inputs, inputs):
        if not isinstance(one, Tensor):
            raise TypeError(f"{name} is {type(one).__name__}, and query a torch tensor: all must be")


def _check_state(rule: Rule, state: State) -> None:
    if state.rule != rule:
        raise ValueError(f"the state is of rule {state.rule.text}, not of {rule.text}")
    if not isinstance(state.S, Tensor):
        raise TypeError(f"the state's arrays are {type(state.S).__name__}, and query a torch tensor: they must be tensors too")


def boundaries(cu_seqlens: Any, device: torch.device) -> Optional[Tensor]:
    """cu_seqlens as a tensor; on the CPU for the CPU."""
    if cu_seqlens is None:
        return None
    if not isinstance(cu_seqlens, Tensor):
        cu_seqlens = torch.as_tensor(cu_seqlens)
    return cu_seqlens.cpu() if device.type == "cpu" and cu_seqlens.device.type != "cpu" else cu_seqlens


def recurrence(rule: Rule, inputs: Sequence[Any], initial: Optional[State], final: bool, cu_seqlens: Any, scale: float, chunk: int,
               path: str) -> Tuple[Tensor, Optional[State]]:
    _tensors(rule, inputs)
    inputs = _cast(rule, inputs)
    cu = boundaries(cu_seqlens, inputs[0].device)
    if initial is None:
        o, S, scan = call(inputs, None, None, cu, rule.text, scale, path, chunk, final)
        return o, State(rule, S, scan if len(rule.states) > 1 else None) if final else None
    _check_state(rule, initial)
    turned = initial.layout == "vk"
    o, S, scan = call(inputs, initial.S, initial.scan, cu, rule.text, scale, path, chunk, final, _VALUE_FIRST if turned else "")
    if not final:
        return o, None
    return o, State(rule, S, scan if len(rule.states) > 1 else None, initial.layout)


def step(rule: Rule, state: State, inputs: Sequence[Any], scale: float) -> Tensor:
    _tensors(rule, inputs)
    _check_state(rule, state)
    inputs = [x.unsqueeze(1) if axes[0] == "rows" else x for x, axes in zip(_cast(rule, inputs), rule.input_axes)]
    forms = _VALUE_FIRST if state.layout == "vk" else ""
    return _ops.decode(inputs, state.S, state.scan, rule.text, scale, forms).squeeze(1)
