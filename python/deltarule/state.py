"""What a recurrence carries from token to token, as an object."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_void_p
from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple, Union

from ._library import MutableStates, Recurrence, backend, check, lib
from ._plan import Sizes, recurrence_of, state_shapes
from .rule import Rule

__all__ = ["State"]


def _torch_of(value: Any):
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


class State:
    """The states of some sequences under a rule: S, and a scan's A, K or P where the rule has one.

    Args:
        rule: the rule that carries them.
        S: ``[sequences, HV, K, V]``, or ``[sequences, HV, V, K]`` with layout "vk"; a torch tensor or a numpy array, float32
            (float64 on path "reference").
        scan: A ``[sequences, H, K]``, K or P ``[sequences, HV, K, K]``; None where the rule has no scan.
        layout: "kv" or "vk", how S lies.

    Tensors are kept as they are, not copied. ``state[i:j]`` shares memory with the state; ``State.cat`` and ``clone`` copy.
    """

    __slots__ = ("rule", "S", "scan", "layout")

    def __init__(self, rule: Union[str, Mapping[str, Any], Rule], S: Any, scan: Any = None, layout: str = "kv"):
        self.rule, self.S, self.scan, self.layout = Rule(rule), S, scan, layout
        if layout not in ("kv", "vk"):
            raise ValueError(f"there is no layout {layout!r}; there are 'kv' and 'vk'")
        if (scan is not None) != (len(self.rule.states) > 1):
            raise ValueError(f"rule {self.rule.text} carries {' and '.join(self.rule.states)}: scan must "
                             f"{'be given' if scan is None else 'be None'}")

    @classmethod
    def zeros(cls, rule: Union[str, Mapping[str, Any], Rule], *, sequences: int, H: int, K: int, V: int, HV: Optional[int] = None,
              like: Any = None, layout: str = "kv") -> "State":
        """The state before any token. like: a tensor or array whose kind and device to take, the dtype too if it is float64;
        numpy float32 if not told."""
        rule = Rule(rule)
        shapes = list(state_shapes(rule, Sizes(sequences, 1, H, HV or H, K, V, sequences, sequences)))
        if layout == "vk":
            shapes[0] = shapes[0][:2] + (V, K)
        torch = _torch_of(like)
        if torch is not None:
            dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
            made = [torch.zeros(shape, dtype=dtype, device=like.device) for shape in shapes]
        else:
            import numpy
            dtype = numpy.float64 if like is not None and like.dtype == numpy.float64 else numpy.float32
            made = [numpy.zeros(shape, dtype) for shape in shapes]
        return cls(rule, *made, layout=layout) if len(made) > 1 else cls(rule, made[0], None, layout)

    def parts(self, rule: Rule, shapes: Sequence[Tuple[int, ...]]) -> Iterator[Tuple[str, Any]]:
        """Names and tensors in the library's layout, after a check that they fit a call of that rule with these shapes."""
        if self.rule != rule:
            raise ValueError(f"the state is of rule {self.rule.text}, not of {rule.text}")
        tensors = [self.S if self.layout == "kv" else _transposed(self.S)] + ([] if self.scan is None else [self.scan])
        for name, tensor, shape in zip(rule.states, tensors, shapes):
            if tuple(tensor.shape) != tuple(shape):
                raise ValueError(f"state {name} has shape {tuple(tensor.shape)}, this call needs {tuple(shape)}")
        return zip(rule.states, tensors)

    @property
    def sequences(self) -> int:
        return self.S.shape[0]

    def _each(self, function) -> "State":
        return State(self.rule, function(self.S), None if self.scan is None else function(self.scan), self.layout)

    def clone(self) -> "State":
        """A copy that shares nothing."""
        return self._each(lambda one: one.clone() if _torch_of(one) else one.copy())

    def detach(self) -> "State":
        """The same memory without its history of gradients (torch)."""
        return self._each(lambda one: one.detach() if _torch_of(one) else one)

    def to(self, *arguments, **named) -> "State":
        """torch's Tensor.to of each tensor."""
        return self._each(lambda one: one.to(*arguments, **named))

    def __getitem__(self, index: Union[int, slice]) -> "State":
        """The states of some sequences; an int keeps the axis."""
        if isinstance(index, int):
            count = self.sequences
            if not -count <= index < count:
                raise IndexError(f"sequence {index} of {count}")
            index = slice(index % count, index % count + 1)
        if not isinstance(index, slice):
            raise TypeError(f"a state is indexed by an int or a slice, not {type(index).__name__}")
        return self._each(lambda one: one[index])

    def __len__(self) -> int:
        return self.sequences

    @classmethod
    def cat(cls, states: Sequence["State"]) -> "State":
        """The sequences of all states, in order."""
        states = list(states)
        if not states:
            raise ValueError("there is no state to put together")
        first = states[0]
        for other in states[1:]:
            if other.rule != first.rule or other.layout != first.layout:
                raise ValueError(f"states of one rule and layout only: {first.rule.text} {first.layout}, {other.rule.text} {other.layout}")
        torch = _torch_of(first.S)
        if torch is not None:
            together = torch.cat
        else:
            from numpy import concatenate as together
        scan = None if first.scan is None else together([one.scan for one in states])
        return cls(first.rule, together([one.S for one in states]), scan, first.layout)

    def __repr__(self) -> str:
        scan = "" if self.scan is None else f", {self.rule.states[1]} {tuple(self.scan.shape)}"
        return f"State({self.rule.text!r}, S {tuple(self.S.shape)}{scan}, layout {self.layout!r})"

    def __reduce__(self):
        return State, (self.rule, self.S, self.scan, self.layout)

    # ---- files

    def _sizes(self) -> Sizes:
        sequences, HV, K, V = self.S.shape if self.layout == "kv" else (self.S.shape[i] for i in (0, 1, 3, 2))
        H = self.scan.shape[1] if self.rule.states[-1] == "A" else HV
        return Sizes(sequences, 1, H, HV, K, V, sequences, sequences)

    def save(self, path: Union[str, os.PathLike], *, H: Optional[int] = None) -> None:
        """Writes a safetensors file that the C library reads too (dr_state_load), in float32; replaces a file at once.

        H: key heads, which S does not tell; those of the scan, else as many as value heads.
        """
        import numpy
        sizes = self._sizes()
        sizes = sizes._replace(H=H or sizes.H)
        to_array = lambda one: numpy.ascontiguousarray(one.detach().float().cpu().numpy() if _torch_of(one) else one, dtype=numpy.float32)
        arrays = [to_array(one) for _, one in self.parts(self.rule, state_shapes(self.rule, sizes))]
        with _Handle(self.rule, sizes) as (handle, pointers):
            for index, array in zip(_indices(self.rule), arrays):
                ctypes.memmove(pointers[index], array.ctypes.data, array.nbytes)
            check(lib.dr_state_save(handle, os.fsencode(path)))

    @classmethod
    def load(cls, path: Union[str, os.PathLike], *, like: Any = None) -> "State":
        """The state of such a file, checked; its rule is in it. like: a torch tensor, on whose device torch tensors are made;
        numpy arrays if not told. ValueError if the file is none."""
        import numpy
        handle = c_void_p()
        on = backend("cpu")
        check(lib.dr_state_load(on.handle, None, os.fsencode(path), byref(handle)))
        try:
            found = Recurrence.from_address(lib.dr_state_recurrence(handle))
            rule = Rule(_json_of(found.rule))
            sizes = Sizes(found.layout.sequences, 1, found.key_heads, found.value_heads, found.key_size, found.value_size,
                          found.layout.sequences, found.layout.sequences)
            pointers = MutableStates()
            check(lib.dr_state_final(handle, on.handle, byref(found), byref(pointers)))
            arrays = []
            for index, shape in zip(_indices(rule), state_shapes(rule, sizes)):
                array = numpy.empty(shape, numpy.float32)
                ctypes.memmove(array.ctypes.data, pointers[index], array.nbytes)
                arrays.append(array)
        finally:
            lib.dr_state_destroy(handle)
        torch = _torch_of(like)
        if torch is not None:
            arrays = [torch.from_numpy(one).to(like.device) for one in arrays]
        return cls(rule, *arrays)


def _transposed(tensor: Any) -> Any:
    return tensor.transpose(-1, -2) if _torch_of(tensor) else tensor.swapaxes(-1, -2)


def _indices(rule: Rule) -> Tuple[int, ...]:
    return tuple("SAKP".index(name) for name in rule.states)


def _json_of(handle: int) -> str:
    from ._library import text_of
    return text_of(lambda *rest: lib.dr_rule_write_text(handle, None, *rest))


class _Handle:
    """A dr_state on backend cpu for the time of a `with`, and the addresses of what it holds."""

    def __init__(self, rule: Rule, sizes: Sizes):
        self.recurrence, self.handle = recurrence_of(rule, sizes, 0.0, "best", 0), c_void_p()
        self.rule = rule

    def __enter__(self):
        on, pointers = backend("cpu"), MutableStates()
        check(lib.dr_state_create(on.handle, byref(self.recurrence), byref(self.handle)))
        check(lib.dr_state_final(self.handle, on.handle, byref(self.recurrence), byref(pointers)))
        return self.handle, pointers

    def __exit__(self, *_):
        lib.dr_state_destroy(self.handle)
