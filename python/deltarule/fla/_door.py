"""What the functions of flash-linear-attention have in common: checks, norms and gates before a rule, states after it."""

from __future__ import annotations

import collections
import functools
import sys
import warnings
from typing import Callable, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._forms import Made, text_of_made
from .._plan import number_of
from ..torch.functions import autocast_dtype, boundaries
from ..torch.operators import call

L2_EPS = 1e-6  # of flash-linear-attention's l2norm

# Why arguments of several functions are refused.
CONTEXT_PARALLEL = "context parallelism is flash-linear-attention's"
REVERSE = "sequences from their ends are no rule: flip them before and after"
MIDDLE = "states between chunks are not returned"

_calls: Dict[Tuple[str, str, str], int] = collections.Counter()
_last: Dict[str, str] = {}


def refuse(function: str, **arguments) -> None:
    """NotImplementedError for arguments that no rule has; the value says what would be right."""
    for name, (given, instead) in arguments.items():
        if given:
            raise NotImplementedError(f"{function}: {name} is not computed here: {instead}")


def check_packed(query: Tensor, initial: Optional[Tensor], cu_seqlens: Optional[Tensor]) -> None:
    if cu_seqlens is None:
        return
    if query.shape[0] != 1:
        raise ValueError(f"The batch size is expected to be 1 rather than {query.shape[0]} when using `cu_seqlens`: "
                         "lay the sequences one after the other first.")
    if initial is not None and initial.shape[0] != len(cu_seqlens) - 1:
        raise ValueError("The number of initial states is expected to be equal to the number of input sequences, "
                         f"i.e., {len(cu_seqlens) - 1} rather than {initial.shape[0]}.")


def check_heads(function: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{function}: q and k must have the same number of heads, not {query.shape[2]} and {key.shape[2]}")
    if value.shape[2] % query.shape[2] != 0:
        raise ValueError(f"{function}: for GVA the value heads (HV={value.shape[2]}) must be evenly divisible by the key heads "
                         f"(H={query.shape[2]})")


def values_first(state_v_first: bool, transpose_state_layout: Optional[bool]) -> bool:
    """state_v_first, or its older name."""
    if transpose_state_layout is None:
        return state_v_first
    if state_v_first:
        raise ValueError("Cannot pass both `state_v_first` and the deprecated `transpose_state_layout`.")
    warnings.warn("`transpose_state_layout` is deprecated and renamed to `state_v_first`.", DeprecationWarning, stacklevel=3)
    return transpose_state_layout


def check_old(head_first: Optional[bool]) -> None:
    if head_first is not None:
        raise DeprecationWarning("head_first has been removed. Inputs must be in `[B, T, H, ...]` format.")


def check_chunk(function: str, chunk_size: Optional[int], allowed: Sequence[int], told: str) -> None:
    """A chunk size is checked as flash-linear-attention does; results do not depend on it, the library plans its own."""
    if chunk_size is not None and chunk_size not in allowed:
        raise ValueError(f"`chunk_size` must be {told}{function}, got {chunk_size}.")


@functools.lru_cache(maxsize=None)
def _their_l2norm() -> Optional[Callable]:
    """flash-linear-attention's own kernel for GPUs, which reads x once where PyTorch's operators read it five times."""
    try:
        from fla.modules.norm.l2norm import l2norm as theirs  # of version 0.6
    except Exception:  # whatever an optional part of it fails with
        return None
    return theirs


def l2norm(x: Tensor) -> Tensor:
    """x rsqrt(sum x^2 + 1e-6) over the last axis, in x's dtype; on GPUs by flash-linear-attention where a program has loaded it."""
    theirs = _their_l2norm() if x.is_cuda and "fla" in sys.modules and not torch.compiler.is_compiling() else None
    if theirs is not None:
        return theirs(x, eps=L2_EPS)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + L2_EPS)).to(x.dtype)


class Raw:
    """What the library is still to make of a call's inputs."""

    __slots__ = ("norm", "beta", "decay", "bound", "A_log", "dt_bias")

    def __init__(self, norm: bool = False) -> None:
        self.norm, self.beta, self.decay, self.bound, self.A_log, self.dt_bias = norm, 0.0, "", 0.0, None, None

    def logits(self, sigmoid: bool, double: bool) -> None:
        """beta is sigmoid of what is given; twice as large for negative eigenvalues."""
        if double and not sigmoid:
            raise ValueError("`allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`.")
        self.beta = (2.0 if double else 1.0) if sigmoid else 0.0

    def gate(self, A_log: Optional[Tensor], dt_bias: Optional[Tensor], lower_bound: Optional[float] = None, safe: bool = False,
             channel: bool = False) -> None:
        """The log decay is made of a raw gate: -exp(A_log) softplus(g + dt_bias), or lower_bound sigmoid(exp(A_log)
        (g + dt_bias)), where a missing A_log is 0."""
        if safe and lower_bound is None:
            raise ValueError("`lower_bound` must be specified when `safe_gate=True` and `use_gate_in_kernel=True`.")
        if safe and not -5 <= lower_bound < 0:
            raise ValueError(f"`lower_bound` must be in the safe range [-5, 0), got {lower_bound}.")
        if A_log is None and lower_bound is None:
            raise ValueError("`A_log` must be provided when `use_gate_in_kernel=True`"
                             + (" and `lower_bound` is not set." if channel else "."))
        self.decay, self.bound = ("softplus", 0.0) if lower_bound is None else ("bounded", float(lower_bound))
        self.A_log = None if A_log is None else A_log.reshape(-1)
        self.dt_bias = dt_bias


def run(function: str, rule: str, vectors: Sequence[Tensor], gates: Sequence[Tensor], order: Optional[str] = None, *, scale: Optional[float],
        initial: Optional[Tensor] = None, scan: Optional[Tensor] = None, final: bool = False, cu_seqlens: Optional[Tensor] = None,
        cu_seqlens_cpu: Optional[Tensor] = None, v_first: bool = False, raw: Optional[Raw] = None) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """o, and the final S and scan or None. vectors: query, key, value and others, which get the query's dtype; gates: in any
    dtype. order: which of both comes next in the rule's inputs, "v" or "g"; all vectors first if it is not told. raw: what is made
    of query, key and the gates."""
    query = vectors[0]
    device = query.device.type
    dtype = autocast_dtype(device) or query.dtype
    extras: Sequence[Tensor] = ()
    made = Made(value_first=v_first)
    if raw is not None:
        extras = [x for x in (raw.A_log, raw.dt_bias) if x is not None]
        made = Made(L2_EPS if raw.norm else None, raw.beta, raw.decay, raw.bound, raw.A_log is not None, raw.dt_bias is not None, v_first)
    vectors = [x if x.dtype == dtype else x.to(dtype) for x in vectors]
    if order is None:
        inputs = [*vectors, *gates]
    else:
        left, right = iter(vectors), iter(gates)
        inputs = [next(left if one == "v" else right) for one in order]
    scale = 0.0 if scale is None else number_of(scale)
    check_packed(query, initial, cu_seqlens)
    cu = boundaries(cu_seqlens_cpu if cu_seqlens_cpu is not None and device == "cpu" else cu_seqlens, query.device)
    count(function, query)
    o, S, A = call([*inputs, *extras] if extras else inputs, initial, scan, cu, rule, scale, "best", 0, final, text_of_made(made))
    if not final:
        return o, None, None
    return o, S, A


def count(function: str, query: Tensor) -> None:
    if not torch.compiler.is_compiling():
        _calls[function, query.device.type, str(query.dtype)[6:]] += 1
        _last["function"], _last["device"] = function, query.device.type


def report() -> Dict[Tuple[str, str, str], int]:
    """How often each function was called since the start or `reset`, by (function, device, dtype); compiled graphs count once."""
    return dict(_calls)


def reset() -> None:
    _calls.clear()
    _last.clear()


def last_path() -> str:
    """The last function that was called, and where: "chunk_gated_delta_rule on cpu"; "" if none was."""
    return f"{_last['function']} on {_last['device']}" if _last else ""


def retention_gamma(query: Tensor) -> Tensor:
    """RetNet's log decays [H]: log(1 - 2^(-5 - h))."""
    return (1 - 2.0 ** (-5.0 - torch.arange(query.shape[2], dtype=torch.float, device=query.device))).log()
