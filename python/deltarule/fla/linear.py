"""Linear attention without erasure under flash-linear-attention's names: GLA, simple GLA (Mamba-2), RetNet, linear and lightning
attention.

Shapes as in delta.py; g ``[B, T, H]`` of simple GLA, ``[B, T, H, K]`` of GLA, g_gamma ``[H]``. Everything that is named parallel
gives o and, in the place of the attention matrix, None.
"""

from __future__ import annotations

from typing import Optional, Tuple, Union

import torch
from torch import Tensor

from ._door import REVERSE, check_old, refuse, retention_gamma, run, values_first

_GV = "decays by value channel are no axis of a rule"
_ATTENTION = "the matrix of attention is never made"
Result = Tuple[Tensor, Optional[Tensor]]


def chunk_gla(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None,
        cu_seqlens_cpu: Optional[Tensor] = None) -> Result:
    """Gated linear attention over whole sequences, g [B, T, H, K]."""
    o, S, _ = run("chunk_gla", "gla", (q, k, v), (g,), scale=scale, initial=initial_state, final=output_final_state,
                  cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, v_first=state_v_first)
    return o, S


def fused_recurrent_gla(
        q: Tensor, k: Tensor, v: Tensor, gk: Optional[Tensor] = None, gv: Optional[Tensor] = None, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
        cu_seqlens: Optional[Tensor] = None, *, transpose_state_layout: Optional[bool] = None) -> Result:
    """Gated linear attention token by token; without gk linear attention."""
    name = "fused_recurrent_gla"
    refuse(name, gv=(gv is not None, _GV), reverse=(reverse, REVERSE))
    v_first = values_first(state_v_first, transpose_state_layout)
    o, S, _ = run(name, "linear_attention" if gk is None else "gla", (q, k, v), () if gk is None else (gk,), scale=scale,
                  initial=initial_state, final=output_final_state, cu_seqlens=cu_seqlens, v_first=v_first)
    return o, S


def chunk_simple_gla(
        q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, g_gamma: Optional[Tensor] = None, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, state_v_first: bool = False,
        cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None, *, chunk_size: Optional[int] = None,
        head_first: Optional[bool] = None) -> Result:
    """Linear attention with one decay a head: g by token, g_gamma constant, both or none."""
    check_old(head_first)
    if chunk_size is not None and chunk_size & (chunk_size - 1):
        raise ValueError(f"`chunk_size` must be a power of 2, got {chunk_size}.")
    return _simple("chunk_simple_gla", q, k, v, g, g_gamma, scale, initial_state, output_final_state, state_v_first, cu_seqlens, cu_seqlens_cpu)


def fused_chunk_simple_gla(
        q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, g_gamma: Optional[Tensor] = None, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None) -> Result:
    """As chunk_simple_gla."""
    return _simple("fused_chunk_simple_gla", q, k, v, g, g_gamma, scale, initial_state, output_final_state, False, cu_seqlens, None)


def fused_recurrent_simple_gla(
        q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, g_gamma: Optional[Tensor] = None, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
        cu_seqlens: Optional[Tensor] = None, *, transpose_state_layout: Optional[bool] = None) -> Result:
    """As chunk_simple_gla."""
    name = "fused_recurrent_simple_gla"
    refuse(name, reverse=(reverse, REVERSE))
    v_first = values_first(state_v_first, transpose_state_layout)
    return _simple(name, q, k, v, g, g_gamma, scale, initial_state, output_final_state, v_first, cu_seqlens, None)


def parallel_simple_gla(
        q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, scale: Optional[float] = None, output_attentions: bool = False,
        cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None) -> Tuple[Tensor, None]:
    """As chunk_simple_gla; the second result is None."""
    name = "parallel_simple_gla"
    refuse(name, output_attentions=(output_attentions, _ATTENTION))
    return _simple(name, q, k, v, g, None, scale, None, False, False, cu_seqlens, cu_seqlens_cpu)


def _simple(name, q, k, v, g, g_gamma, scale, initial, final, v_first, cu_seqlens, cu_seqlens_cpu):
    if g is not None:
        rule, gates = "mamba2", (g if g_gamma is None else g + g_gamma,)
    else:
        rule, gates = ("linear_attention", ()) if g_gamma is None else ("retnet", (g_gamma,))
    o, S, _ = run(name, rule, (q, k, v), gates, scale=scale, initial=initial, final=final, cu_seqlens=cu_seqlens,
                  cu_seqlens_cpu=cu_seqlens_cpu, v_first=v_first)
    return o, S


def chunk_retention(
        q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None, *, chunk_size: Optional[int] = None,
        head_first: Optional[bool] = None) -> Result:
    """RetNet with its constant decays, 1 - 2^(-5 - h) of head h."""
    check_old(head_first)
    return _simple("chunk_retention", q, k, v, None, retention_gamma(q), scale, initial_state, output_final_state, False, cu_seqlens, None)


def fused_chunk_retention(
        q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None) -> Result:
    """As chunk_retention."""
    return _simple("fused_chunk_retention", q, k, v, None, retention_gamma(q), scale, initial_state, output_final_state, False, cu_seqlens, None)


def fused_recurrent_retention(
        q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None, *,
        transpose_state_layout: Optional[bool] = None) -> Result:
    """As chunk_retention."""
    name = "fused_recurrent_retention"
    refuse(name, reverse=(reverse, REVERSE))
    v_first = values_first(state_v_first, transpose_state_layout)
    return _simple(name, q, k, v, None, retention_gamma(q), scale, initial_state, output_final_state, v_first, cu_seqlens, None)


def parallel_retention(
        q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, output_attentions: bool = False,
        cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, None]:
    """As chunk_retention; the second result is None."""
    name = "parallel_retention"
    refuse(name, output_attentions=(output_attentions, _ATTENTION))
    return _simple(name, q, k, v, None, retention_gamma(q), scale, None, False, False, cu_seqlens, None)


State = Union[None, Tensor, Tuple[Optional[Tensor], Optional[Tensor]]]


def chunk_linear_attn(
        q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: State = None, output_final_state: bool = False,
        normalize: bool = True, cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, State]:
    """Linear attention; with normalize o is divided by scale q . (k_1 + .. + k_t) + 1e-10, and states are (S, sum of keys)."""
    return _linear("chunk_linear_attn", q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


def fused_chunk_linear_attn(
        q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: State = None, output_final_state: bool = False,
        normalize: bool = True, cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, State]:
    """As chunk_linear_attn."""
    return _linear("fused_chunk_linear_attn", q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


def fused_recurrent_linear_attn(
        q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: State = None, output_final_state: bool = False,
        reverse: bool = False, normalize: bool = False, cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, State]:
    """As chunk_linear_attn, by default without normalize."""
    name = "fused_recurrent_linear_attn"
    refuse(name, reverse=(reverse, REVERSE))
    return _linear(name, q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


def _linear(name, q, k, v, scale, initial, final, normalize, cu_seqlens):
    S, z = initial if normalize and isinstance(initial, tuple) else (initial, None)
    o, S = _simple(name, q, k, v, None, None, scale, S, final, False, cu_seqlens, None)
    if not normalize:
        return o, S
    sums, last = _key_sums(k, z, cu_seqlens)
    o = o / ((q * (q.shape[-1] ** -0.5 if scale is None else scale) * sums).sum(-1, keepdim=True) + 1e-10)
    return o, (S, last)


def _key_sums(k: Tensor, z: Optional[Tensor], cu_seqlens: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """Sums of each sequence's keys up to each token [B, T, H, K], and of all of them [N, 1, H, K]; z [N, 1, H, K] to start from."""
    if cu_seqlens is None:
        sums = k.cumsum(1) if z is None else k.cumsum(1) + z
        last = sums[:, -1:] if k.shape[1] else k.new_zeros(k.shape[0], 1, *k.shape[2:]) if z is None else z
        return sums, last
    begin, lengths = cu_seqlens[:-1], cu_seqlens[1:] - cu_seqlens[:-1]
    whole = torch.cat([torch.zeros_like(k[0, :1]), k[0].cumsum(0)])  # [T + 1, H, K]
    before = whole[begin]
    if z is not None:
        before = before - z[:, 0]
    sums = whole[1:] - torch.repeat_interleave(before, lengths, 0, output_size=k.shape[1])
    return sums[None].to(k.dtype), (whole[cu_seqlens[1:]] - before)[:, None].to(k.dtype)


def chunk_lightning_attn(
        q: Tensor, k: Tensor, v: Tensor, layer_idx: int, num_layers: int, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None, *,
        chunk_size: Optional[int] = None, head_first: Optional[bool] = None) -> Result:
    """Lightning attention: log decay -(8 / H)(1 - layer_idx / num_layers) h of head h."""
    check_old(head_first)
    return _lightning("chunk_lightning_attn", q, k, v, layer_idx, num_layers, scale, initial_state, output_final_state, cu_seqlens)


def fused_recurrent_lightning_attn(
        q: Tensor, k: Tensor, v: Tensor, layer_idx: int, num_layers: int, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, reverse: bool = False,
        cu_seqlens: Optional[Tensor] = None) -> Result:
    """As chunk_lightning_attn."""
    name = "fused_recurrent_lightning_attn"
    refuse(name, reverse=(reverse, REVERSE))
    return _lightning(name, q, k, v, layer_idx, num_layers, scale, initial_state, output_final_state, cu_seqlens)


def _lightning(name, q, k, v, layer_idx, num_layers, scale, initial, final, cu_seqlens):
    H = q.shape[2]
    gamma = -(8 / H * (1 - layer_idx / num_layers)) * torch.arange(H, dtype=torch.float, device=q.device)
    return _simple(name, q, k, v, None, gamma, scale, initial, final, False, cu_seqlens, None)
