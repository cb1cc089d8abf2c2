"""Plans of calls: shapes checked against a rule once, then looked up by them.

Nothing here knows PyTorch or numpy: tensors are shapes and addresses.
"""

from __future__ import annotations

import threading
from ctypes import addressof, byref, c_void_p, sizeof
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from ._library import (DTYPES, PATHS, Backend, BackendOptions, Call, InputPointers, Memory, Recurrence, SavedSize, StatePointers,
                       backend, check, lib)
from .rule import Rule

PATH_NAMES = ("best", "recurrent", "chunkwise", "reference")


class Sizes(NamedTuple):
    """What the shapes of a call say: B and T as the tensors have them; rows and sequences as the library counts them."""
    B: Any
    T: Any
    H: int
    HV: int
    K: int
    V: int
    sequences: Any
    rows: Any


def _expected(axes: Tuple[Any, ...], B: Any, T: Any, named: Dict[str, int]) -> Tuple[Any, ...]:
    sizes = tuple(named[axis] if isinstance(axis, str) and axis != "rows" else axis for axis in axes)
    return (B, T) + sizes[1:] if axes[0] == "rows" else sizes


def _axes_text(axes: Tuple[Any, ...]) -> str:
    return "[" + ", ".join("B, T" if axis == "rows" else str(axis) for axis in axes) + "]"


def sizes_of(rule: Rule, shapes: Sequence[Tuple[Any, ...]], packed: Optional[Any]) -> Sizes:
    """Sizes of a call whose inputs, the rule's in its order, have these shapes; packed: the number of sequences of cu_seqlens.

    ValueError names the first input whose shape does not fit. Sizes may be symbolic.
    """
    if len(shapes) != len(rule.inputs):
        raise ValueError(f"rule {rule.text} reads {len(rule.inputs)} inputs ({', '.join(rule.inputs)}), {len(shapes)} were given")
    query, key, value = (shapes[rule.inputs.index(name)] for name in ("query", "key", "value"))
    if len(query) != 4:
        raise ValueError(f"query has shape {tuple(query)}, it must be [B, T, H, K]")
    B, T, H, K = query
    rank = 5 if rule.repeat > 1 else 4
    if len(value) != rank:
        raise ValueError(f"value has shape {tuple(value)}, it must be [B, T, {'n, ' if rank == 5 else ''}HV, V]")
    HV, V = value[-2:]
    if H < 1 or HV < 1 or K < 1 or V < 1:
        raise ValueError(f"heads and their sizes must be at least 1: query {tuple(query)}, value {tuple(value)}")
    if HV % H != 0:
        raise ValueError(f"{HV} value heads are no multiple of {H} key heads")
    named = {"H": H, "HV": HV, "K": K, "V": V}
    for name, axes, shape in zip(rule.inputs, rule.input_axes, shapes):
        expected = _expected(axes, B, T, named)
        if len(shape) != len(expected) or any(one != other for one, other in zip(shape, expected)):
            raise ValueError(f"rule {rule.text}: {name} has shape {tuple(shape)}, it must be {_axes_text(axes)} = {expected}, "
                             f"as query {tuple(query)} and value {tuple(value)} say")
    if packed is None:
        return Sizes(B, T, H, HV, K, V, B, B * T)
    if B != 1:
        raise ValueError(f"with cu_seqlens the sequences lie one after the other in a batch of 1, not {B}")
    if packed < 1:
        raise ValueError("cu_seqlens must be of at least one sequence: its first number is 0, its last the tokens")
    return Sizes(B, T, H, HV, K, V, packed, T)


def state_shapes(rule: Rule, sizes: Sizes, value_first: bool = False) -> Tuple[Tuple[Any, ...], ...]:
    named = {"H": sizes.H, "HV": sizes.HV, "K": sizes.K, "V": sizes.V, "sequences": sizes.sequences}
    shapes = tuple(tuple(named[axis] for axis in axes) for axes in rule.state_axes)
    return ((*shapes[0][:2], sizes.V, sizes.K), *shapes[1:]) if value_first else shapes


def number_of(scale: Any) -> float:
    """A scale that the caller named, as a number."""
    try:
        number = float("text" if isinstance(scale, str) else scale)
    except (TypeError, ValueError):
        raise TypeError(f"scale must be a number, not {scale!r}") from None
    if not 0 < number < float("inf"):
        raise ValueError(f"scale must be positive and finite, not {number:g}")
    return number


def check_options(scale: float, path: str, chunk: int) -> None:
    if path not in PATH_NAMES:
        raise ValueError(f"there is no path {path!r}; there are {', '.join(PATH_NAMES)}")
    if not 0 <= scale < float("inf"):
        raise ValueError(f"scale {scale} must be a positive number, or 0 for K^-1/2")
    if not isinstance(chunk, int):
        raise TypeError(f"chunk must be a whole number of tokens, not {chunk!r}")
    if not 0 <= chunk < 1 << 31:
        raise ValueError(f"chunk {chunk} must be at least 1 and below 2^31, or 0 for the planned one")


def recurrence_of(rule: Rule, sizes: Sizes, scale: float, path: str, chunk: int) -> Recurrence:
    check_options(scale, path, chunk)
    made = lib.dr_recurrence_default()
    made.rule = rule._handle
    made.layout.sequences, made.layout.rows = sizes.sequences, sizes.rows
    made.key_heads, made.value_heads, made.key_size, made.value_size = sizes.H, sizes.HV, sizes.K, sizes.V
    made.scale, made.path, made.chunk = scale, PATHS.get(path, 0), chunk
    return made


class Frame:
    """The structs of one thread's calls with a plan; each call overwrites what it needs."""

    __slots__ = ("call", "inputs", "initial", "final", "d_inputs", "d_final", "d_initial", "addresses", "reference")

    def __init__(self):
        self.inputs, self.d_inputs = InputPointers(), InputPointers()
        self.initial, self.final, self.d_final, self.d_initial = (StatePointers() for _ in range(4))
        self.call = Call()
        self.call.size = sizeof(Call)
        self.call.inputs = addressof(self.inputs)
        self.addresses = tuple(addressof(one) for one in (self.initial, self.final, self.d_inputs, self.d_final, self.d_initial))
        self.reference = byref(self.call)


class Plan:
    """A dr_plan with what Python needs of it: sizes, shapes, bytes, and where inputs and states go."""

    def __init__(self, rule: Rule, sizes: Sizes, scale: float, path: str, chunk: int, on: Backend, forms=None, value_first: bool = False):
        handle, memory, saved = c_void_p(), Memory(), SavedSize()
        recurrence = recurrence_of(rule, sizes, scale, path, chunk)
        made = None if forms is None else forms(on)
        check(lib.dr_plan_create_with_forms(on.handle, byref(recurrence), None if made is None else byref(made), byref(handle)))
        self.handle, self.destroy, self.backend = handle, lib.dr_plan_destroy, on
        check(lib.dr_plan_memory(handle, byref(memory)))
        check(lib.dr_plan_saved(handle, byref(saved)))
        self.rule, self.sizes, self.recurrence = rule, sizes, recurrence
        self.forward_bytes, self.backward_bytes, self.decode_bytes = memory.forward, memory.backward, memory.decode
        self.saved_bytes = saved_bytes(saved, sizes.rows, sizes.sequences)
        self.o_shape = (sizes.B, sizes.T, sizes.HV, sizes.V)
        self.state_shapes = state_shapes(rule, sizes, value_first)
        self.indices = rule.indices
        self.state_indices = tuple(("S", "A", "K", "P").index(name) for name in rule.states)
        self._frames = threading.local()

    def frame(self) -> Frame:
        try:
            return self._frames.one
        except AttributeError:
            self._frames.one = Frame()
            return self._frames.one

    def __del__(self):
        if getattr(self, "handle", None):
            self.destroy(self.handle)


def saved_bytes(saved: SavedSize, rows: Any, sequences: Any) -> Any:
    """dr_saved_bytes, also of symbolic rows and sequences."""
    return (saved.fixed + saved.per_row * rows + saved.per_sequence * sequences
            + saved.per_segment * (rows // saved.segment + sequences))


_plans: Dict[Tuple, Plan] = {}
MOST_PLANS = 1024


def plan_of(key: Tuple, rule: Rule, shapes: Sequence[Tuple[int, ...]], packed: Optional[int], scale: float, path: str,
            chunk: int, device: str, threads: int, dtype: str, index: int, forms=None, value_first: bool = False) -> Plan:
    """The plan under that key, which its caller makes of everything that follows; made where there is none yet. forms: gives the
    Forms of its calls for a backend; value_first: what they say of S."""
    name, options = device, (threads, 0, 0)
    if device == "cuda":
        if path == "reference":
            raise ValueError("path 'reference' is computed on the CPU: move the tensors there")
        options = (0, DTYPES[dtype], index)
    elif path == "reference":
        name, options = "reference", (0, 0, 0)
    plan = Plan(rule, sizes_of(rule, shapes, packed), scale, path, chunk, backend(name, *options), forms, value_first)
    while len(_plans) >= MOST_PLANS:  # whoever still uses the oldest plan holds it
        try:
            _plans.pop(next(iter(_plans)), None)
        except (StopIteration, RuntimeError):
            break
    return _plans.setdefault(key, plan)


def find_plan(key: Tuple) -> Optional[Plan]:
    return _plans.get(key)


def saved_size(rule: Rule, sizes: Sizes, scale: float, path: str, chunk: int, device: str, dtype: str,
               isa: Optional[str] = None) -> SavedSize:
    """The formula of what a forward saves, without a backend; rows and sequences of `sizes` do not matter."""
    recurrence = recurrence_of(rule, sizes._replace(sequences=1, rows=1), scale, path, chunk)
    saved = SavedSize()
    options = BackendOptions(isa=isa.encode() if isa else None, dtype=DTYPES[dtype] if device == "cuda" else 0)
    name = "reference" if path == "reference" else device
    check(lib.dr_recurrence_saved(name.encode(), byref(options), byref(recurrence), byref(saved)))
    return saved
