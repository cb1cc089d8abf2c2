"""Recurrences on numpy arrays, and on whatever gives its memory through DLPack: on the CPU, without gradients."""

from __future__ import annotations

from ctypes import addressof
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ._library import DTYPES, check, lib
from ._plan import Plan, find_plan, plan_of, sizes_of
from .rule import Rule
from .state import State


def array_of(name: str, value: Any) -> np.ndarray:
    """The value as an array that shares its memory; TypeError if it has none on the CPU."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception as reason:
            raise TypeError(f"{name}: {type(value).__name__} gives no memory that numpy can read through DLPack: {reason}") from reason
    raise TypeError(f"{name} must be a torch tensor, a numpy array or an object with __dlpack__, not {type(value).__name__}")


def floating(name: str, value: Any, path: str) -> np.ndarray:
    """The array in the type that the path computes in, dense."""
    array = array_of(name, value)
    if path == "reference":
        allowed, wanted = ("float64", "float32", "float16", "bfloat16"), np.float64
    else:
        allowed, wanted = ("float32", "float16", "bfloat16"), np.float32
    if array.dtype.name not in allowed:
        hint = "; path='reference' computes in float64" if array.dtype == np.float64 else ""
        raise TypeError(f"{name} has dtype {array.dtype}, it must be one of {', '.join(allowed)}{hint}")
    return np.ascontiguousarray(array, dtype=wanted)


def boundaries_of(cu_seqlens: Any) -> Optional[np.ndarray]:
    if cu_seqlens is None:
        return None
    array = np.asarray(cu_seqlens) if isinstance(cu_seqlens, (list, tuple)) else array_of("cu_seqlens", cu_seqlens)
    if array.ndim != 1 or array.dtype.name not in ("int32", "int64"):
        raise TypeError(f"cu_seqlens must be a row of int32 or int64, not {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _planned(rule: Rule, arrays: Sequence[np.ndarray], cu: Optional[np.ndarray], scale: float, path: str, chunk: int) -> Plan:
    packed = None if cu is None else len(cu) - 1
    key = ("array", rule.text, scale, path, chunk, packed) + tuple(one.shape for one in arrays)
    return find_plan(key) or plan_of(key, rule, [one.shape for one in arrays], packed, scale, path, chunk, "cpu", 0, "float32", 0)


def recurrence(rule: Rule, inputs: Sequence[Any], initial: Optional[State], final: bool, cu_seqlens: Any, scale: float, chunk: int,
               path: str) -> Tuple[np.ndarray, Optional[State]]:
    """o [B, T, HV, V] in the query's dtype, and the final state if it is asked for."""
    result = array_of("query", inputs[0]).dtype
    arrays = [floating(name, value, path) for name, value in zip(rule.inputs, inputs)]
    cu = boundaries_of(cu_seqlens)
    sizes = sizes_of(rule, [one.shape for one in arrays], None if cu is None else len(cu) - 1)
    dtype = arrays[0].dtype
    if sizes.B == 0:
        after = State.zeros(rule, sequences=0, H=sizes.H, HV=sizes.HV, K=sizes.K, V=sizes.V, like=arrays[0]) if final else None
        return np.zeros(np.shape(arrays[0])[:2] + (sizes.HV, sizes.V), result), after
    plan = _planned(rule, arrays, cu, scale, path, chunk)
    o, workspace = np.empty(plan.o_shape, dtype), np.empty(plan.forward_bytes, np.uint8)
    before = [] if initial is None else [floating(f"state {name}", one, path) for name, one in initial.parts(rule, plan.state_shapes)]
    after = [np.empty(shape, dtype) for shape in plan.state_shapes] if final else []
    frame = plan.frame()
    call = frame.call
    for index, one in zip(plan.indices, arrays):
        frame.inputs[index] = one.ctypes.data
    for pointers, states in ((frame.initial, before), (frame.final, after)):
        for index, one in zip(plan.state_indices, states):
            pointers[index] = one.ctypes.data
    call.initial = addressof(frame.initial) if before else None
    call.final = addressof(frame.final) if after else None
    call.boundaries.at = None if cu is None else cu.ctypes.data
    call.boundaries.dtype = DTYPES["int64" if cu is None else cu.dtype.name]
    call.boundaries.device = False
    call.o, call.workspace, call.saved, call.stream, call.threads = o.ctypes.data, workspace.ctypes.data, None, None, 0
    check(lib.dr_plan_forward(plan.handle, frame.reference))
    return o.astype(result, copy=False), State(rule, *after) if final else None


def step(rule: Rule, state: State, inputs: Sequence[Any], scale: float) -> np.ndarray:
    """o [B, HV, V] of one token each; the state's float32 arrays are updated in place."""
    result = array_of("query", inputs[0]).dtype
    arrays = [floating(name, value, "best") for name, value in zip(rule.inputs, inputs)]
    arrays = [one[:, None] if axes[0] == "rows" else one for one, axes in zip(arrays, rule.input_axes)]
    plan = _planned(rule, arrays, None, scale, "best", 0)
    parts = [part for _, part in state.parts(rule, plan.state_shapes)]
    for name, part in zip(rule.states, parts):
        if not (isinstance(part, np.ndarray) and part.dtype == np.float32 and part.flags.c_contiguous and part.flags.writeable):
            raise TypeError(f"state {name} must be a dense, writable float32 array, since a step updates it in place")
    o, workspace = np.empty(plan.o_shape, np.float32), np.empty(plan.decode_bytes, np.uint8)
    frame = plan.frame()
    for index, one in zip(plan.indices, arrays):
        frame.inputs[index] = one.ctypes.data
    for index, one in zip(plan.state_indices, parts):
        frame.final[index] = one.ctypes.data
    call = frame.call
    call.states, call.slots, call.boundaries.at = addressof(frame.final), None, None
    call.o, call.workspace, call.stream, call.threads = o.ctypes.data, workspace.ctypes.data, None, 0
    check(lib.dr_plan_decode(plan.handle, frame.reference))
    return o[:, 0].astype(result, copy=False)
