"""Rules with a second state under flash-linear-attention's names: MesaNet, preconditioned Gated DeltaNet and KDA.

Shapes as in delta.py. MesaNet's second state h_kk is K ``[N, H, K, K]``; the preconditioned rules' is A ``[N, H, K]``.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from ._door import CONTEXT_PARALLEL, MIDDLE, Raw, check_heads, l2norm, refuse, run

Result = Tuple[Tensor, Optional[Tensor], Optional[Tensor]]


def chunk_mesa_net(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lamb: Tensor, h_kk_init: Optional[Tensor] = None,
        h_kv_init: Optional[Tensor] = None, output_final_state: bool = False, max_CG_iteration: int = 30,
        use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None) -> Result:
    """MesaNet, (o, h_kk, h_kv): the query is solved for exactly, where flash-linear-attention takes max_CG_iteration steps of
    conjugate gradients. lamb [H, K] is the ridge."""
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    o, S, K = run("chunk_mesa_net", "mesanet", (q, k, v), (g, beta, lamb), scale=1.0, initial=h_kv_init, scan=h_kk_init,
                  final=output_final_state, cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    return o, K, S


def mesa_net_decoding_one_step(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, lamb: Tensor, beta: Tensor, prev_h_kk: Tensor, prev_h_kv: Tensor,
        max_CG_iteration: int = 30) -> Tuple[Tensor, Tensor, Tensor]:
    """One token, q, k, v [B, H, K], with flash-linear-attention's conjugate gradients: (o, h_kk, h_kv), new ones."""
    rule = (f'{{"base": "mesanet", "query": "conjugate_gradient", "cg_iters": {max_CG_iteration}, "cg_start": "jacobi", '
            '"cg_eps": 1e-5}')
    one = lambda x: x.unsqueeze(1)
    o, S, K = run("mesa_net_decoding_one_step", rule, (one(q), one(k), one(v)), (one(g), one(beta), lamb), scale=1.0, initial=prev_h_kv,
                  scan=prev_h_kk, final=True)
    return o.squeeze(1), K.to(prev_h_kk.dtype), S.to(prev_h_kv.dtype)


def chunk_precond_gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, g_atk: Tensor, g: Tensor, beta_atk: Tensor, beta: Tensor, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, initial_A_state: Optional[Tensor] = None, output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = True, cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None,
        cp_context: Any = None, transpose_state_layout: bool = False, x: float = 1.5, eps: float = 1e-6,
        log_atk_scale: Union[None, float, Tensor] = None) -> Result:
    """Preconditioned Gated DeltaNet, (o, S, A): g_atk, beta_atk [B, T, H] are the scan's decay and gain, log_atk_scale [H] its
    centre."""
    name = "chunk_precond_gated_delta_rule"
    refuse(name, cp_context=(cp_context is not None, CONTEXT_PARALLEL))
    return _precond(name, "pgdn", q, k, v, g, g_atk, beta_atk, beta, scale, initial_state, initial_A_state, output_final_state,
                    use_qk_l2norm_in_kernel, cu_seqlens, cu_seqlens_cpu, transpose_state_layout, x, eps, log_atk_scale)


def fused_recurrent_precond_gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, gk: Optional[Tensor] = None, gv: Optional[Tensor] = None,
        beta: Optional[Tensor] = None, g_atk: Optional[Tensor] = None, beta_atk: Optional[Tensor] = None, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, initial_A_state: Optional[Tensor] = None, output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = True, cu_seqlens: Optional[Tensor] = None, transpose_state_layout: bool = False, x: float = 1.5,
        eps: float = 1e-6, log_atk_scale: Union[None, float, Tensor] = None) -> Result:
    """The same token by token, with decays by head (g), by channel (gk) or both."""
    name = "fused_recurrent_precond_gated_delta_rule"
    refuse(name, gv=(gv is not None, "decays by value channel are no axis of a rule"))
    if g_atk is None or beta_atk is None:
        raise ValueError(f"{name}: g_atk and beta_atk must be given, the decay and the gain of the scan")
    if beta is None:
        beta = torch.ones(v.shape[:-1], dtype=torch.float32, device=v.device)
    if gk is not None:
        g = gk.float() if g is None else gk.float() + g.float().unsqueeze(-1)
    elif g is None:
        g = torch.zeros(v.shape[:-1], dtype=torch.float32, device=v.device)
    return _precond(name, "pgdn" if g.dim() == 3 else "pkda", q, k, v, g, g_atk, beta_atk, beta, scale, initial_state, initial_A_state,
                    output_final_state, use_qk_l2norm_in_kernel, cu_seqlens, None, transpose_state_layout, x, eps, log_atk_scale)


def chunk_precond_kda(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, g_atk: Tensor, beta_atk: Tensor, beta: Tensor, scale: Optional[float] = None,
        initial_state: Optional[Tensor] = None, initial_A_state: Optional[Tensor] = None, output_final_state: bool = False,
        use_gate_in_kernel: bool = False, safe_gate: bool = False, lower_bound: Optional[float] = None,
        cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None, chunk_indices: Optional[Tensor] = None,
        cp_context: Any = None, transpose_state_layout: bool = False, x: float = 1.5, eps: float = 1e-6,
        log_atk_scale: Union[None, float, Tensor] = None, solve_tril_precision: Optional[str] = None, disable_recompute: bool = False,
        return_intermediate_states: bool = False, *, A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None,
        use_qk_l2norm_in_kernel: bool = True) -> Result:
    """Preconditioned KDA, (o, S, A). Queries and keys are always normalized, whatever use_qk_l2norm_in_kernel says, as there."""
    name = "chunk_precond_kda"
    refuse(name, cp_context=(cp_context is not None, CONTEXT_PARALLEL),
           return_intermediate_states=(return_intermediate_states, MIDDLE))
    raw = Raw()
    if use_gate_in_kernel:
        raw.gate(A_log, dt_bias, lower_bound, safe_gate, True)
    return _precond(name, "pkda", q, k, v, g, g_atk, beta_atk, beta, scale, initial_state, initial_A_state, output_final_state, True,
                    cu_seqlens, cu_seqlens_cpu, transpose_state_layout, x, eps, log_atk_scale, raw)


def fused_recurrent_precond_kda(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, g_atk: Tensor, beta_atk: Tensor, beta: Tensor, A_log: Optional[Tensor] = None,
        dt_bias: Optional[Tensor] = None, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        initial_A_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = True,
        use_gate_in_kernel: bool = False, lower_bound: Optional[float] = None, cu_seqlens: Optional[Tensor] = None,
        transpose_state_layout: bool = False, x: float = 1.5, eps: float = 1e-6,
        log_atk_scale: Union[None, float, Tensor] = None) -> Result:
    """The same token by token."""
    raw = Raw()
    if use_gate_in_kernel:
        raw.gate(A_log, dt_bias, lower_bound, channel=True)
    return _precond("fused_recurrent_precond_kda", "pkda", q, k, v, g, g_atk, beta_atk, beta, scale, initial_state, initial_A_state,
                    output_final_state, use_qk_l2norm_in_kernel, cu_seqlens, None, transpose_state_layout, x, eps, log_atk_scale, raw)


def _precond(name, base, q, k, v, g, g_atk, beta_atk, beta, scale, initial, initial_A, final, norm, cu_seqlens, cu_seqlens_cpu, v_first, x,
             eps, centre, raw=None):
    check_heads(name, q, k, v)
    raw = raw or Raw()
    raw.norm = norm
    if centre is None or isinstance(centre, (int, float)):
        centre = torch.full((k.shape[2],), -0.2 if centre is None else float(centre), dtype=torch.float32, device=k.device)
    rule = base if (x, eps) == (1.5, 1e-6) else f'{{"base": "{base}", "squash": {{"x": {float(x)!r}, "eps": {float(eps)!r}}}}}'
    return run(name, rule, (q, k, v), (g, beta, g_atk, beta_atk, centre), scale=scale, initial=initial, scan=initial_A, final=final,
               cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, v_first=v_first, raw=raw)
