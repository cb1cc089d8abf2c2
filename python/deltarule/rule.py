"""Rules: named rows of the library's table, and compositions of the same axes."""

from __future__ import annotations

import json
import os
from ctypes import byref, c_int64, c_void_p
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from ._library import INPUTS, MAX_RANK, STATES, Layout, Recurrence, backend, check, lib, text_of

__all__ = ["Rule", "rules"]

# What the library's parameter `lambda` is called in Python, where that word is taken.
SPELLED = {"lambda": "lam"}
VECTORS = frozenset(("query", "key", "value", "erase_key", "feedback_key", "free_read", "free_write", "rate", "erase_gate",
                     "write_gate"))

# Sizes that occur once each, from which a shape's axes are told.
_MARKS = {10007: "rows", 1009: "H", 2018: "HV", 1013: "K", 1019: "V", 10009: "sequences"}


def _axes_of(function, probe: Recurrence, index: int) -> Tuple[Any, ...]:
    shape = (c_int64 * MAX_RANK)()
    rank = function(byref(probe), index, shape)
    return tuple(_MARKS.get(size, size) for size in shape[:rank])


def _axes_text(handle: c_void_p) -> str:
    """All axes of a rule without its family, as sorted JSON: the same text of the same recurrence."""
    axes = json.loads(text_of(lambda *rest: lib.dr_rule_write_text(handle, None, *rest)))
    return json.dumps({name: value for name, value in axes.items() if name not in ("base", "family")}, sort_keys=True)


_names: Dict[str, str] = {}


def _named() -> Dict[str, str]:
    """Names of the table's rules by their axes. A rule of the table is written as its name; that of a state has none, and is
    written whole."""
    if not _names:
        on, found, pointer = backend("cpu"), {}, c_void_p()
        for i in range(lib.dr_rule_count()):
            small = Recurrence(rule=lib.dr_rule_at(i), layout=Layout(1, 1, None), key_heads=1, value_heads=1, key_size=2, value_size=2)
            check(lib.dr_state_create(on.handle, byref(small), byref(pointer)))
            whole = Recurrence.from_address(lib.dr_state_recurrence(pointer)).rule
            found.setdefault(_axes_text(whole), lib.dr_rule_get_name(lib.dr_rule_at(i)).decode())
            lib.dr_state_destroy(pointer)
        _names.update(found)
    return _names


class Rule:
    """A delta-rule recurrence, checked when it is made; immutable, hashable, pickled as its JSON.

    Args:
        rule: a name of the table (``"gdn"``; ``deltarule.rules()`` lists them), a mapping of axes as docs/adding-a-rule.md
            tells (``{"base": "kda", "rows": [...]}``), the same as JSON text, or a Rule.

    Raises:
        ValueError: no such name, an unknown key or option (told with its place and what is near), or a combination that makes
            no sense.

    Attributes:
        text: what the operators take: the name, or the JSON of a composition.
        name, title, source: of a named rule; None of a composition.
        json: the axes as JSON, which reads back the same.
        equation: the recurrence in symbols (docs/notation.md).
        inputs: the names of what it reads, in the library's order; ``lambda`` is ``lam`` here.
        states: the names of what it carries: ``("S",)``, or S and one of A, K, P.
        repeat: steps a token takes, with key, value and beta ``[.., n, ..]``; 1: none of it.
    """

    __slots__ = ("text", "name", "title", "source", "json", "equation", "inputs", "states", "repeat", "input_axes",
                 "state_axes", "indices", "vectors", "_handle", "_destroy")
    text: str
    name: Optional[str]
    title: Optional[str]
    source: Optional[str]
    json: str
    equation: str
    inputs: Tuple[str, ...]
    states: Tuple[str, ...]
    repeat: int
    input_axes: Tuple[Tuple[Any, ...], ...]
    state_axes: Tuple[Tuple[Any, ...], ...]
    indices: Tuple[int, ...]
    vectors: Tuple[bool, ...]
    _handle: c_void_p
    _destroy: Any
    _known: Dict[str, "Rule"] = {}

    def __new__(cls, rule: Union[str, Mapping[str, Any], "Rule"]) -> "Rule":
        if isinstance(rule, Rule):
            return rule
        if isinstance(rule, str):
            text = rule
        elif isinstance(rule, Mapping):
            text = json.dumps(dict(rule))
        else:
            raise TypeError(f"a rule is a name, a mapping of axes, JSON text or a Rule, not {type(rule).__name__}")
        found = cls._known.get(text)
        if found is None:
            made = cls._make(text)
            found = cls._known.setdefault(made.text, made)
            if len(cls._known) < 4096:
                cls._known[text] = found
        return found

    @classmethod
    def _make(cls, text: str) -> "Rule":
        handle = c_void_p()
        check(lib.dr_rule_create(text.encode(), byref(handle)))
        axes = _axes_text(handle)
        is_named = axes == "{}"  # the library keeps a base's name where only numbers differ (cg_iters, squash), and writes them
        if not is_named and axes in _named():  # a composition that has the axes of a named rule is that rule
            lib.dr_rule_destroy(handle)
            return cls(_named()[axes])
        self = object.__new__(cls)
        put = lambda name, value: object.__setattr__(self, name, value)
        decoded = lambda value: None if value is None else value.decode()
        put("_handle", handle)
        put("_destroy", lib.dr_rule_destroy)
        put("name", decoded(lib.dr_rule_get_name(handle)) if is_named else None)
        put("title", decoded(lib.dr_rule_get_title(handle)) if is_named else None)
        put("source", decoded(lib.dr_rule_get_source(handle)) if is_named else None)
        put("json", text_of(lambda *rest: lib.dr_rule_write_text(handle, None, *rest)))
        put("text", self.name or self.json)
        put("equation", text_of(lib.dr_rule_equation, handle))
        put("repeat", lib.dr_rule_get_repeat(handle))
        indices = tuple(i for i in range(len(INPUTS)) if lib.dr_rule_uses(handle, i))
        carried = tuple(i for i in range(len(STATES)) if lib.dr_rule_carries(handle, i))
        put("indices", indices)
        put("inputs", tuple(SPELLED.get(INPUTS[i], INPUTS[i]) for i in indices))
        put("states", tuple(STATES[i] for i in carried))
        put("vectors", tuple(INPUTS[i] in VECTORS for i in indices))
        probe = Recurrence(rule=handle, layout=Layout(10009, 10007, None), key_heads=1009, value_heads=2018, key_size=1013,
                           value_size=1019)
        put("input_axes", tuple(_axes_of(lib.dr_recurrence_input_shape, probe, i) for i in indices))
        put("state_axes", tuple(_axes_of(lib.dr_recurrence_state_shape, probe, i) for i in carried))
        return self

    @classmethod
    def load(cls, path: Union[str, os.PathLike]) -> "Rule":
        """The rule of a JSON file."""
        with open(path, encoding="utf-8") as file:
            return cls(file.read().strip())

    def shapes(self, *, B: int, T: int, H: int, K: int, V: int, HV: Optional[int] = None) -> Dict[str, Tuple[int, ...]]:
        """Shapes of all inputs, of o and of the states, for B sequences of T tokens, H key heads of size K and HV value heads
        (H if not told) of size V."""
        sizes = {"H": H, "HV": H if HV is None else HV, "K": K, "V": V, "sequences": B}
        shape = lambda axes: tuple(n for axis in axes for n in ((B, T) if axis == "rows" else (sizes.get(axis, axis),)))
        told = {name: shape(axes) for name, axes in zip(self.inputs, self.input_axes)}
        told["o"] = (B, T, sizes["HV"], V)
        told.update({name: shape(axes) for name, axes in zip(self.states, self.state_axes)})
        return told

    def __setattr__(self, name, value):
        raise AttributeError(f"a Rule cannot be changed: {name}")

    __delattr__ = __setattr__

    def __eq__(self, other) -> bool:
        return isinstance(other, Rule) and self.json == other.json

    def __hash__(self) -> int:
        return hash(self.json)

    def __repr__(self) -> str:
        return f"Rule({self.text!r})"

    def __reduce__(self):
        return Rule, (self.text,)

    def __copy__(self) -> "Rule":
        return self

    def __deepcopy__(self, memo) -> "Rule":
        return self

    def __del__(self):
        if getattr(self, "_handle", None):
            self._destroy(self._handle)


def rules() -> Tuple[Rule, ...]:
    """All named rules, in the order of ``deltarule rules``."""
    return tuple(Rule(lib.dr_rule_get_name(lib.dr_rule_at(i)).decode()) for i in range(lib.dr_rule_count()))
