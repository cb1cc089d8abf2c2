"""The two calls that most need: a rule's recurrence over many tokens, and one token more."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _library
from ._library import DTYPES, INPUTS, byref, lib, text_of
from ._plan import Sizes, number_of, recurrence_of
from .rule import SPELLED, Rule
from .state import State

RuleLike = Union[str, Mapping[str, Any], Rule]


_NAMES = tuple(SPELLED.get(name, name) for name in INPUTS)


def _in_order(rule: Rule, given: Sequence[Any]) -> List[Any]:
    """The rule's inputs in its order, of all inputs in the order of _NAMES; TypeError if some are missing or are none of it."""
    inputs = [given[i] for i in rule.indices]
    if len([1 for one in given if one is not None]) == len(inputs) and all([one is not None for one in inputs]):
        return inputs
    missing = [name for name, one in zip(rule.inputs, inputs) if one is None]
    other = [name for name, one in zip(_NAMES, given) if one is not None and name not in rule.inputs]
    raise TypeError(f"rule {rule.text} reads {', '.join(rule.inputs)}; " + "; ".join(
        ([f"missing: {', '.join(missing)}"] if missing else []) + ([f"not read by it: {', '.join(other)}"] if other else [])))


_modules: Dict[str, Any] = {}  # an import statement inside a function takes longer than the rest of that function


def _module_of(query: Any) -> Any:
    """The module that computes with arrays of the query's kind: for torch tensors, or for all that numpy reads."""
    torch = sys.modules.get("torch")
    kind = "torch" if torch is not None and isinstance(query, torch.Tensor) else "numpy"
    return _modules.get(kind) or _load(kind)


def _load(kind: str) -> Any:
    if kind == "torch":
        from .torch import functions as module
    else:
        from . import _arrays as module
    _modules[kind] = module
    return module


def _check_state(name: str, state: Any) -> None:
    if not isinstance(state, State):
        raise TypeError(f"{name} must be a deltarule.State, not {type(state).__name__}")


def recurrence(rule: RuleLike, query: Any, key: Any, value: Any, *, log_decay: Any = None, beta: Any = None, erase_key: Any = None,
               erase_gain: Any = None, lam: Any = None, feedback_key: Any = None, free_read: Any = None, free_write: Any = None,
               rate: Any = None, erase_gate: Any = None, write_gate: Any = None, correction: Any = None, scan_log_decay: Any = None,
               scan_gain: Any = None, scan_centre: Any = None, ridge: Any = None, initial: Optional[State] = None,
               final: bool = False, cu_seqlens: Any = None, scale: Optional[float] = None, chunk: int = 0,
               path: str = "best") -> Union[Any, Tuple[Any, State]]:
    """o of a rule over sequences of tokens; with final also the state after them.

    Torch tensors give torch tensors, with gradients; numpy arrays and CPU objects with ``__dlpack__`` give numpy arrays. A rule
    reads some of the inputs: ``rule.inputs`` names them, ``rule.shapes(...)`` their shapes.

    Args:
        rule: a name, a mapping of axes or a Rule.
        query, key: ``[B, T, H, K]``; of a rule with repeat n, key is ``[B, T, n, H, K]``.
        value: ``[B, T, HV, V]`` (``[B, T, n, HV, V]``), HV a multiple of H: value head j uses key head j // (HV // H).
        log_decay: natural log of the decay, at most 0: ``[HV]``, ``[B, T, HV]`` or ``[B, T, HV, K]``, as the rule has it.
        beta: ``[B, T, HV]`` (``[B, T, n, HV]``), after its sigmoid.
        erase_gain, lam: ``[B, T, HV]``.
        erase_key, feedback_key, free_read, free_write, rate: ``[B, T, H, K]``.
        erase_gate: ``[B, T, HV, K]``; write_gate: ``[B, T, HV, V]``.
        scan_log_decay, scan_gain: ``[B, T, H]``; correction, scan_centre: ``[H]``; ridge: ``[H, K]``, positive.
        initial: the State to start from; None: the one before any token.
        final: whether the State after the last token is wanted.
        cu_seqlens: ``[N + 1]`` int32 or int64, where N sequences begin that lie one after the other in a batch of B = 1.
        scale: of the query's read; None: K^-1/2.
        chunk: tokens a chunk; 0: as planned from the shapes.
        path: "best", "recurrent", "chunkwise", or "reference": double precision, plain loops, on the CPU.

    dtypes: float32, bfloat16, float16, the vectors (all inputs with a last axis K or V but log_decay and ridge) of one dtype;
    o has it. Computed in float32 on the CPU; float64 on path "reference" only. States are float32 (float64).

    Returns:
        o ``[B, T, HV, V]``, or (o, State).

    Raises:
        TypeError: inputs missing or not read by the rule; a wrong dtype. ValueError: shapes, options or boundaries that cannot
        be. NotImplementedError: what this machine or build does not do.

    Source: each rule's ``source`` names its paper and equation.
    """
    rule = Rule(rule)
    inputs = _in_order(rule, (query, key, value, log_decay, beta, erase_key, erase_gain, lam, feedback_key, free_read, free_write,
                              rate, erase_gate, write_gate, correction, scan_log_decay, scan_gain, scan_centre, ridge))
    if initial is not None:
        _check_state("initial", initial)
    o, after = _module_of(query).recurrence(rule, inputs, initial, final, cu_seqlens, 0.0 if scale is None else number_of(scale), chunk, path)
    return (o, after) if final else o


def step(rule: RuleLike, state: State, query: Any, key: Any, value: Any, *, scale: Optional[float] = None, **inputs: Any) -> Any:
    """o of one token of each sequence; the state is updated in place.

    Inputs as of `recurrence` without the axis T: query ``[B, H, K]``, value ``[B, HV, V]``, beta ``[B, HV]``; o ``[B, HV, V]``.
    No gradients: refused where an input asks for one.
    """
    rule = Rule(rule)
    inputs.update(query=query, key=key, value=value)
    unknown = [name for name in inputs if name not in _NAMES]
    if unknown:
        raise TypeError(f"rule {rule.text} reads {', '.join(rule.inputs)}; there is no input {', '.join(unknown)}")
    given = _in_order(rule, [inputs.get(name) for name in _NAMES])
    _check_state("state", state)
    return _module_of(query).step(rule, state, given, 0.0 if scale is None else number_of(scale))


def kernel(rule: RuleLike, *, B: int = 1, T: int = 2048, H: int = 4, K: int = 64, V: int = 64, HV: Optional[int] = None,
           dtype: str = "float32", device: str = "cpu", decode: bool = False, chunk: int = 0, path: str = "best") -> str:
    """The kernel that runs a rule at these sizes, e.g. "cpu chunkwise avx512 chunk 16". device: "cpu", "cuda", "cuda:1"."""
    rule = Rule(rule)
    if dtype not in DTYPES:
        raise ValueError(f"there is no dtype {dtype!r}; there are {', '.join(DTYPES)}")
    name, _, index = device.partition(":")
    on = _library.backend("reference" if path == "reference" else name, 0, DTYPES[dtype] if name == "cuda" else 0, int(index or 0))
    rows = B if decode else B * T
    recurrence = recurrence_of(rule, Sizes(B, T, H, HV or H, K, V, B, rows), 0.0, path, chunk)
    return text_of(lib.dr_recurrence_kernel, on.handle, byref(recurrence), decode)
