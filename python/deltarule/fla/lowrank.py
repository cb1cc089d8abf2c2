"""Transitions of low rank under flash-linear-attention's names: DPLR, IPLR, RWKV-7.

S = Diag(exp(gk)) S + b (S_before^T a)^T + k v^T, all of q, k, a, b, gk ``[B, T, H, K]``; v ``[B, T, H, V]``. What flash-linear-
attention needs for its chunks (chunk_size, safe_gate, lower_bound, disable_recompute) changes no result here.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from torch import Tensor

from ._door import CONTEXT_PARALLEL, REVERSE, check_old, refuse, run

_IPLR = '{"base": "dplr", "decay": "none"}'
Result = Tuple[Tensor, Optional[Tensor]]


def chunk_dplr_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None,
        cu_seqlens_cpu: Optional[Tensor] = None, safe_gate: bool = False, chunk_size: Optional[int] = None,
        disable_recompute: bool = False, cp_context: Any = None, lower_bound: Optional[float] = None, *,
        head_first: Optional[bool] = None) -> Result:
    """DPLR over whole sequences."""
    name = "chunk_dplr_delta_rule"
    check_old(head_first)
    refuse(name, cp_context=(cp_context is not None, CONTEXT_PARALLEL))
    if lower_bound is not None and lower_bound >= 0:
        raise ValueError(f"`lower_bound` must be negative (gk is a log-decay < 0), got {lower_bound}.")
    return _dplr(name, q, k, v, a, b, gk, scale, initial_state, output_final_state, cu_seqlens, cu_seqlens_cpu)


def fused_recurrent_dplr_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, reverse: bool = False,
        cu_seqlens: Optional[Tensor] = None) -> Result:
    """DPLR token by token."""
    name = "fused_recurrent_dplr_delta_rule"
    refuse(name, reverse=(reverse, REVERSE))
    return _dplr(name, q, k, v, a, b, gk, scale, initial_state, output_final_state, cu_seqlens, None)


def _dplr(name, q, k, v, a, b, gk, scale, initial, final, cu_seqlens, cu_seqlens_cpu):
    o, S, _ = run(name, _IPLR if gk is None else "dplr", (q, k, v, a, b), () if gk is None else (gk,), "vvvvv" if gk is None else "vvvgvv",
                  scale=scale, initial=initial, final=final, cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    return o, S


def chunk_iplr_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None, *,
        chunk_size: Optional[int] = None, head_first: Optional[bool] = None) -> Result:
    """DPLR without decay."""
    check_old(head_first)
    if chunk_size is not None and chunk_size & (chunk_size - 1):
        raise ValueError(f"`chunk_size` must be a power of 2, got {chunk_size}.")
    return _dplr("chunk_iplr_delta_rule", q, k, v, a, b, None, scale, initial_state, output_final_state, cu_seqlens, cu_seqlens_cpu)


def fused_recurrent_iplr_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None) -> Result:
    """DPLR without decay."""
    return _dplr("fused_recurrent_iplr_delta_rule", q, k, v, a, b, None, scale, initial_state, output_final_state, cu_seqlens, None)


def chunk_rwkv7(
        r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Optional[float] = 1.0,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None,
        cu_seqlens_cpu: Optional[Tensor] = None, safe_gate: bool = False, chunk_size: Optional[int] = None,
        disable_recompute: bool = False, cp_context: Any = None, lower_bound: Optional[float] = None) -> Result:
    """RWKV-7 as DPLR: r is the query, w the log decay."""
    name = "chunk_rwkv7"
    refuse(name, cp_context=(cp_context is not None, CONTEXT_PARALLEL))
    if lower_bound is not None and lower_bound >= 0:
        raise ValueError(f"`lower_bound` must be negative (gk is a log-decay < 0), got {lower_bound}.")
    return _dplr(name, r, k, v, a, b, w, scale, initial_state, output_final_state, cu_seqlens, cu_seqlens_cpu)


def fused_recurrent_rwkv7(
        r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = True, cu_seqlens: Optional[Tensor] = None) -> Result:
    """RWKV-7 as DPLR."""
    return _dplr("fused_recurrent_rwkv7", r, k, v, a, b, w, scale, initial_state, output_final_state, cu_seqlens, None)


def fused_mul_recurrent_rwkv7(
        r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, scale: Optional[float] = 1.0,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, reverse: bool = False,
        cu_seqlens: Optional[Tensor] = None) -> Result:
    """RWKV-7 in its own terms: erased along kk, written at the rate a along it."""
    name = "fused_mul_recurrent_rwkv7"
    refuse(name, reverse=(reverse, REVERSE))
    o, S, _ = run(name, "rwkv7", (r, k, v, kk, a), (w,), "vvvgvv", scale=scale, initial=initial_state, final=output_final_state,
                  cu_seqlens=cu_seqlens)
    return o, S
