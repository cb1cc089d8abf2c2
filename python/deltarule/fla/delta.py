"""Delta rules under flash-linear-attention's names: Gated DeltaNet, Kimi Delta Attention, DeltaNet, GDN-2, Gated DeltaProduct, Comba.

Shapes: q, k ``[B, T, H, K]``; v ``[B, T, HV, V]``; g ``[B, T, HV]`` or, by channel, ``[B, T, HV, K]``, natural log; beta
``[B, T, HV]``; states ``[N, HV, K, V]``, or ``[N, HV, V, K]`` with state_v_first. Results: o ``[B, T, HV, V]`` in q's dtype and
the final state in float32, or None. Every argument is named, so that callers that look at signatures find them.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ._door import CONTEXT_PARALLEL, MIDDLE, Raw, check_chunk, check_heads, check_old, l2norm, refuse, run, values_first

Result = Tuple[Tensor, Optional[Tensor]]


def chunk_gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
        allow_neg_eigval: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None,
        cu_seqlens_cpu: Optional[Tensor] = None, chunk_indices: Optional[Tensor] = None, cp_context: Any = None, *,
        use_gate_in_kernel: bool = False, A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None, chunk_size: int = 64,
        transpose_state_layout: Optional[bool] = None, head_first: Optional[bool] = None) -> Result:
    """Gated DeltaNet over whole sequences."""
    name = "chunk_gated_delta_rule"
    check_old(head_first)
    check_chunk(" for Gated Delta Rule", chunk_size, (16, 32, 64), "16, 32, or 64")
    refuse(name, cp_context=(cp_context is not None, CONTEXT_PARALLEL))
    v_first = values_first(state_v_first, transpose_state_layout)
    return _gdn(name, q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log,
                dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval, v_first, cu_seqlens, cu_seqlens_cpu)


def fused_recurrent_gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, gk: Optional[Tensor] = None, gv: Optional[Tensor] = None,
        beta: Optional[Tensor] = None, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
        A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None, use_beta_sigmoid_in_kernel: bool = False,
        allow_neg_eigval: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None, *,
        transpose_state_layout: Optional[bool] = None) -> Result:
    """Gated DeltaNet with one decay a head, one a channel (gk), both or none."""
    name = "fused_recurrent_gated_delta_rule"
    refuse(name, gv=(gv is not None, "decays by value channel are no axis of a rule"))
    v_first = values_first(state_v_first, transpose_state_layout)
    if use_gate_in_kernel and g is None:
        raise ValueError("`g` (raw pre-activation) must be provided when `use_gate_in_kernel=True`.")
    if gk is not None:
        if use_gate_in_kernel:  # both decays are added: the gate's is made first
            Raw().gate(A_log, dt_bias)
            g = g.float() if dt_bias is None else g.float() + dt_bias.float()
            g, use_gate_in_kernel = -A_log.float().exp() * torch.nn.functional.softplus(g), False
        g = gk.float() if g is None else gk.float() + g.float().unsqueeze(-1)
    return _gdn(name, q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log, dt_bias,
                use_beta_sigmoid_in_kernel, allow_neg_eigval, v_first, cu_seqlens, None)


def _gdn(name, q, k, v, g, beta, scale, initial, final, norm, gate, A_log, dt_bias, sigmoid, double, v_first, cu_seqlens, cu_seqlens_cpu):
    check_heads(name, q, k, v)
    if beta is None:
        beta = torch.ones(v.shape[:-1], dtype=torch.float32, device=v.device)
    refuse(name, beta=(beta.dim() == 4, "a beta by value channel is no axis of a rule; one number a head is"))
    raw = Raw(norm)
    raw.logits(sigmoid, double)
    if gate:
        raw.gate(A_log, dt_bias)
    rule = "delta_net" if g is None else "kda" if g.dim() == 4 else "gdn"
    o, S, _ = run(name, rule, (q, k, v), (beta,) if g is None else (g, beta), scale=scale, initial=initial, final=final,
                  cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, v_first=v_first, raw=raw)
    return o, S


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule


def chunk_kda(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
        use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, safe_gate: bool = False,
        lower_bound: Optional[float] = None, disable_recompute: bool = False, return_intermediate_states: bool = False,
        state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None,
        cp_context: Any = None, use_graph: bool = False, max_num_seqs: Optional[int] = None, *, A_log: Optional[Tensor] = None,
        dt_bias: Optional[Tensor] = None, chunk_size: int = 64, transpose_state_layout: Optional[bool] = None) -> Result:
    """Kimi Delta Attention over whole sequences."""
    name = "chunk_kda"
    check_chunk(" for KDA", chunk_size, (32, 64), "either 32 or 64")
    refuse(name, cp_context=(cp_context is not None, CONTEXT_PARALLEL),
           return_intermediate_states=(return_intermediate_states, MIDDLE))
    v_first = values_first(state_v_first, transpose_state_layout)
    raw = Raw(use_qk_l2norm_in_kernel)
    if use_gate_in_kernel:
        raw.gate(A_log, dt_bias, lower_bound, safe_gate, True)
    return _kda(name, q, k, v, g, beta, scale, initial_state, output_final_state, raw, use_beta_sigmoid_in_kernel, allow_neg_eigval,
                v_first, cu_seqlens, cu_seqlens_cpu)


def fused_recurrent_kda(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None,
        scale: Optional[float] = None, initial_state: Optional[Tensor] = None, output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
        allow_neg_eigval: bool = False, lower_bound: Optional[float] = None, state_v_first: bool = False,
        cu_seqlens: Optional[Tensor] = None, *, transpose_state_layout: Optional[bool] = None) -> Result:
    """Kimi Delta Attention token by token."""
    name = "fused_recurrent_kda"
    v_first = values_first(state_v_first, transpose_state_layout)
    raw = Raw(use_qk_l2norm_in_kernel)
    if use_gate_in_kernel:
        raw.gate(A_log, dt_bias, lower_bound, channel=True)
    return _kda(name, q, k, v, g, beta, scale, initial_state, output_final_state, raw, use_beta_sigmoid_in_kernel, allow_neg_eigval,
                v_first, cu_seqlens, None)


def _kda(name, q, k, v, g, beta, scale, initial, final, raw, sigmoid, double, v_first, cu_seqlens, cu_seqlens_cpu):
    check_heads(name, q, k, v)
    refuse(name, beta=(beta.dim() == 4, "a beta by value channel is no axis of a rule; one number a head is"))
    raw.logits(sigmoid, double)
    o, S, _ = run(name, "kda", (q, k, v), (g, beta), scale=scale, initial=initial, final=final, cu_seqlens=cu_seqlens,
                  cu_seqlens_cpu=cu_seqlens_cpu, v_first=v_first, raw=raw)
    return o, S


def chunk_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Optional[Tensor] = None,
        cu_seqlens_cpu: Optional[Tensor] = None, *, chunk_size: int = 64, head_first: Optional[bool] = None) -> Result:
    """DeltaNet over whole sequences; float32 too, which flash-linear-attention refuses."""
    check_old(head_first)
    check_chunk("", chunk_size, (16, 32, 64), "16, 32, or 64")
    return _gdn("chunk_delta_rule", q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, False, None,
                None, False, False, False, cu_seqlens, cu_seqlens_cpu)


def fused_recurrent_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, beta: Optional[Tensor] = None, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: Optional[Tensor] = None) -> Result:
    """DeltaNet token by token; a missing beta is 1."""
    return _gdn("fused_recurrent_delta_rule", q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                False, None, None, False, False, False, cu_seqlens, None)


def chunk_gdn2(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
        use_gate_in_kernel: bool = False, cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None,
        safe_gate: bool = False, lower_bound: Optional[float] = None, disable_recompute: bool = False,
        return_intermediate_states: bool = False, state_v_first: bool = False, cp_context: Any = None, *,
        A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None, chunk_size: int = 64,
        transpose_state_layout: Optional[bool] = None) -> Result:
    """GDN-2 over whole sequences: b [B, T, HV, K] erases, w [B, T, HV, V] writes."""
    name = "chunk_gdn2"
    check_chunk(" for GDN-2", chunk_size, (64,), "64")
    refuse(name, cp_context=(cp_context is not None, CONTEXT_PARALLEL),
           return_intermediate_states=(return_intermediate_states, MIDDLE))
    v_first = values_first(state_v_first, transpose_state_layout)
    return _gdn2(name, q, k, v, g, b, w, A_log, dt_bias, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                 use_gate_in_kernel, lower_bound, safe_gate, v_first, cu_seqlens, cu_seqlens_cpu)


def fused_recurrent_gdn2(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None,
        scale: Optional[float] = None, initial_state: Optional[Tensor] = None, output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False, lower_bound: Optional[float] = None,
        state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None, *, transpose_state_layout: Optional[bool] = None) -> Result:
    """GDN-2 token by token."""
    v_first = values_first(state_v_first, transpose_state_layout)
    return _gdn2("fused_recurrent_gdn2", q, k, v, g, b, w, A_log, dt_bias, scale, initial_state, output_final_state,
                 use_qk_l2norm_in_kernel, use_gate_in_kernel, lower_bound, False, v_first, cu_seqlens, None)


def _gdn2(name, q, k, v, g, b, w, A_log, dt_bias, scale, initial, final, norm, gate, lower_bound, safe, v_first, cu_seqlens, cu_seqlens_cpu):
    check_heads(name, q, k, v)
    raw = Raw(norm)
    if gate:
        raw.gate(A_log, dt_bias, lower_bound, safe, True)
    o, S, _ = run(name, "gdn2", (q, k, v, b, w), (g,), "vvvgvv", scale=scale, initial=initial, final=final, cu_seqlens=cu_seqlens,
                  cu_seqlens_cpu=cu_seqlens_cpu, v_first=v_first, raw=raw)
    return o, S


def chunk_gated_delta_product(
        q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, num_householder: int, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None, cp_context: Any = None) -> Result:
    """Gated DeltaProduct: k, v and beta have num_householder steps for each token of q, [B, T n, ...]; g may be None."""
    name, n = "chunk_gated_delta_product", num_householder
    refuse(name, cp_context=(cp_context is not None, CONTEXT_PARALLEL))
    if n == 1:
        return _gdn(name, q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, False, None, None, False,
                    False, False, cu_seqlens, cu_seqlens_cpu)
    T = q.shape[1]
    for told, one in (("k", k), ("v", v), ("beta", beta)):
        if one.shape[1] != T * n:
            raise ValueError(f"{name}: {told} has {one.shape[1]} steps, it must have T num_householder = {T * n}")
    k, v, beta = (x.unflatten(1, (T, n)) for x in (k, v, beta))
    decay = '' if g is not None else ', "decay": "none"'
    o, S, _ = run(name, f'{{"base": "delta_product", "repeat": {n}{decay}}}', (q, k, v), (beta,) if g is None else (g, beta), scale=scale,
                  initial=initial_state, final=output_final_state, cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu,
                  raw=Raw(use_qk_l2norm_in_kernel))
    return o, S


_COMBA = '{"base": "comba", "query": "query"}'  # the corrected query is the layer's


def chunk_comba(
        q: Tensor, k: Tensor, v: Tensor, p: Optional[Tensor], g: Tensor, beta: Optional[Tensor] = None, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None) -> Result:
    """Comba over whole sequences: the value is corrected by what p [B, T, H, K] reads before the decay."""
    return _comba("chunk_comba", q, k, v, p, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens,
                  cu_seqlens_cpu)


def fused_recurrent_comba(
        q: Tensor, k: Tensor, p: Optional[Tensor], v: Tensor, g: Tensor, beta: Optional[Tensor] = None, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: Optional[Tensor] = None) -> Result:
    """Comba token by token; p comes before v here."""
    return _comba("fused_recurrent_comba", q, k, v, p, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                  cu_seqlens, None)


def _comba(name, q, k, v, p, g, beta, scale, initial, final, norm, cu_seqlens, cu_seqlens_cpu):
    check_heads(name, q, k, v)
    if norm:
        p = None if p is None else l2norm(p)
        q, k = l2norm(q), l2norm(k)
    if p is None:
        p = k
    if beta is None:
        beta = torch.ones(v.shape[:-1], dtype=torch.float32, device=v.device)
    refuse(name, beta=(beta.dim() == 4, "a beta by value channel is no axis of a rule; one number a head is"))
    o, S, _ = run(name, _COMBA, (q, k, v, p), (g, beta), "vvvggv", scale=scale, initial=initial, final=final, cu_seqlens=cu_seqlens,
                  cu_seqlens_cpu=cu_seqlens_cpu)
    return o, S
