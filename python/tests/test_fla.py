"""The functions with flash-linear-attention's names: against its plain loops where it is installed, and against our own rules."""

import inspect
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import deltarule
import deltarule.fla as ours
import torch.nn.functional as F

NAMES = [name for name in ours.__all__ if callable(getattr(ours, name)) and name.startswith(("chunk", "fused", "parallel", "mesa"))]


def fla(module):
    """A module of flash-linear-attention."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(module, reason="flash-linear-attention is not installed")


def made(B=2, T=40, H=2, HV=4, K=16, V=12, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    q, k = torch.randn(2, B, T, H, K)
    one = dict(q=q, k=F.normalize(k, dim=-1), v=torch.randn(B, T, HV, V))
    return {name: x.to(dtype) for name, x in one.items()}, dict(g=-torch.rand(B, T, HV), beta=torch.rand(B, T, HV))


def close(a, b, tolerance=2e-6):
    assert (a.double() - b.double()).abs().max() <= tolerance * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_flash_linear_attention(name):
    fla("fla")
    from deltarule.fla.accelerate import _FLA
    package = next(package for package, names in _FLA.items() if name in names.split())
    theirs = getattr(fla(package), name, None)
    assert theirs is not None
    theirs = [p for p in inspect.signature(inspect.unwrap(theirs)).parameters.values() if p.kind is not p.VAR_KEYWORD]
    mine = list(inspect.signature(getattr(ours, name)).parameters.values())
    assert [(p.name, p.default) for p in theirs] == [(p.name, p.default) for p in mine[:len(theirs)]]
    assert all(p.kind is p.KEYWORD_ONLY for p in mine[len(theirs):])


def test_gated_delta_rule_against_their_loop():
    naive = fla("fla.ops.gated_delta_rule.naive").naive_recurrent_gated_delta_rule
    x, gates = made(HV=2)
    S = torch.randn(2, 2, 16, 12)
    found = []
    for function in (ours.chunk_gated_delta_rule, ours.fused_recurrent_gated_delta_rule, naive):
        leaves = {name: one.clone().requires_grad_() for name, one in {**x, **gates, "initial_state": S}.items()}
        o, last = function(**leaves, output_final_state=True)
        (o.square().sum() + last.sum()).backward()
        found.append([o.detach(), last.detach(), *(one.grad for one in leaves.values())])
    for other in found[:2]:
        for a, b in zip(other, found[2]):
            close(a, b, 1e-5)


def test_kda_against_their_loop():
    naive = fla("fla.ops.kda.naive").naive_recurrent_kda
    x, gates = made(HV=2)
    gates["g"] = -torch.rand(2, 40, 2, 16)
    o, last = ours.chunk_kda(**x, **gates, output_final_state=True)
    theirs, their_last = naive(**x, **gates, output_final_state=True)
    close(o, theirs), close(last, their_last)


def test_norms_gates_and_logits():
    x, gates = made()
    A_log, dt_bias, logits = torch.randn(4), torch.randn(4), torch.randn(2, 40, 4)
    normal = lambda one: one / (one.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    o, _ = ours.chunk_gated_delta_rule(**x, g=gates["g"], beta=logits, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=A_log,
                                       dt_bias=dt_bias, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True)
    wanted = deltarule.recurrence("gdn", normal(x["q"]), normal(x["k"]), x["v"], beta=2 * logits.sigmoid(),
                                  log_decay=-A_log.exp() * F.softplus(gates["g"] + dt_bias))
    close(o, wanted)
    raw, bias = torch.randn(2, 40, 4, 16), torch.randn(64)
    o, _ = ours.chunk_kda(**x, g=raw, beta=gates["beta"], use_gate_in_kernel=True, A_log=A_log, dt_bias=bias, lower_bound=-5.0, safe_gate=True)
    slope = A_log.exp()[:, None]
    wanted = deltarule.recurrence("kda", x["q"], x["k"], x["v"], beta=gates["beta"], log_decay=-5 * torch.sigmoid(slope * (raw + bias.view(4, 16))))
    close(o, wanted)


def test_decays_by_head_and_by_channel_add():
    x, gates = made()
    gk = -torch.rand(2, 40, 4, 16)
    o, _ = ours.fused_recurrent_gated_delta_rule(**x, **gates, gk=gk)
    wanted, _ = ours.chunk_kda(**x, g=gk + gates["g"][..., None], beta=gates["beta"])
    close(o, wanted)
    A_log, dt_bias = torch.randn(4), torch.randn(4)
    o, _ = ours.fused_recurrent_gated_delta_rule(**x, **gates, gk=gk, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias)
    g = -A_log.exp() * torch.nn.functional.softplus(gates["g"] + dt_bias)
    wanted, _ = ours.chunk_kda(**x, g=gk + g[..., None], beta=gates["beta"])
    close(o, wanted)


def test_states_with_values_first():
    x, gates = made()
    S = torch.randn(2, 4, 16, 12)
    a, last = ours.chunk_gated_delta_rule(**x, **gates, initial_state=S, output_final_state=True)
    b, turned = ours.chunk_gated_delta_rule(**x, **gates, initial_state=S.mT.contiguous(), output_final_state=True, state_v_first=True)
    assert torch.equal(a, b) and torch.equal(last.mT, turned)
    with pytest.warns(DeprecationWarning):
        c, _ = ours.chunk_gated_delta_rule(**x, **gates, initial_state=S.mT.contiguous(), transpose_state_layout=True)
    assert torch.equal(a, c)
    assert ours.chunk_gated_delta_rule(**x, **gates)[1] is None


def test_delta_product():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 10, 2, 8), F.normalize(torch.randn(2, 30, 2, 8), dim=-1), torch.randn(2, 30, 2, 6)
    g, beta = -torch.rand(2, 10, 2), torch.rand(2, 30, 2)
    o, _ = ours.chunk_gated_delta_product(q, k, v, g, beta, 3)
    spread = torch.zeros(2, 30, 2).index_copy(1, torch.arange(0, 30, 3), g)
    wanted = deltarule.recurrence("gdn", q.repeat_interleave(3, 1), k, v, log_decay=spread, beta=beta)[:, 2::3]
    close(o, wanted)
    assert ours.chunk_gated_delta_product(q, k, v, None, beta, 3)[0].shape == o.shape
    with pytest.raises(ValueError, match="steps"):
        ours.chunk_gated_delta_product(q, k, v, g, beta, 2)


@pytest.mark.parametrize("packed", [False, True])
def test_normalized_linear_attention_goes_on(packed):
    x, _ = made(B=1, HV=2, V=16)
    x = {name: one.abs() for name, one in x.items()}
    if packed:
        o, (S, z) = ours.chunk_linear_attn(**x, output_final_state=True, cu_seqlens=torch.tensor([0, 15, 15, 40]))
        assert z.shape == (3, 1, 2, 16) and not z[1].any()
        a, (S0, z0) = ours.chunk_linear_attn(**{n: one[:, :15] for n, one in x.items()}, output_final_state=True)
        close(o[:, :15], a), close(S[:1], S0), close(z[:1], z0)
        b, _ = ours.chunk_linear_attn(**{n: one[:, 15:] for n, one in x.items()})
        close(o[:, 15:], b, 1e-5)
        return
    whole, _ = ours.chunk_linear_attn(**x)
    a, state = ours.chunk_linear_attn(**{n: one[:, :15] for n, one in x.items()}, output_final_state=True)
    b, _ = ours.chunk_linear_attn(**{n: one[:, 15:] for n, one in x.items()}, initial_state=state)
    close(torch.cat([a, b], 1), whole, 1e-5)
    qk = torch.einsum("bthk,bshk->bhts", x["q"], x["k"]).tril()
    close(torch.einsum("bhts,bshv->bthv", qk / qk.sum(-1, keepdim=True), x["v"]), whole, 1e-5)


def test_half_precision_and_mixed_vectors():
    x, gates = made(dtype=torch.bfloat16)
    o, last = ours.chunk_gated_delta_rule(**{**x, "v": x["v"].float()}, **gates, output_final_state=True)
    assert o.dtype == torch.bfloat16 and last.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours.chunk_gated_delta_rule(**made()[0], **gates)[0].dtype == torch.bfloat16


def test_compiles_whole():
    torch._dynamo.reset()
    x, gates = made(HV=2)

    def run(**given):
        a, _ = ours.chunk_gated_delta_rule(**given, use_qk_l2norm_in_kernel=True)
        b, _, _ = ours.fused_recurrent_precond_gated_delta_rule(**given, g_atk=given["g"], beta_atk=given["beta"], x=1.4)
        return a + b
    assert torch.allclose(torch.compile(run, backend="aot_eager", fullgraph=True)(**x, **gates), run(**x, **gates), atol=1e-6)


@pytest.mark.parametrize("call, failure, says", [
    (lambda x, g: ours.fused_recurrent_gated_delta_rule(**x, **g, gv=x["v"]), NotImplementedError, "gv"),
    (lambda x, g: ours.chunk_gated_delta_rule(**x, **g, cp_context=object()), NotImplementedError, "cp_context"),
    (lambda x, g: ours.chunk_gated_delta_rule(**x, **g, chunk_size=48), ValueError, "chunk_size"),
    (lambda x, g: ours.chunk_gated_delta_rule(**x, **g, allow_neg_eigval=True), ValueError, "use_beta_sigmoid"),
    (lambda x, g: ours.chunk_gated_delta_rule(**x, **g, use_gate_in_kernel=True), ValueError, "A_log"),
    (lambda x, g: ours.chunk_gated_delta_rule(**x, **g, cu_seqlens=torch.tensor([0, 40])), ValueError, "batch size"),
    (lambda x, g: ours.chunk_gated_delta_rule(**x, **g, scale=-1.0), ValueError, "scale"),
    (lambda x, g: ours.chunk_gated_delta_rule(x["q"], x["k"], x["v"][:, :, :3], g["g"], g["beta"]), ValueError, "divisible"),
    (lambda x, g: ours.chunk_gated_delta_rule(**x, g=g["g"], beta=x["v"]), NotImplementedError, "value channel"),
    (lambda x, g: ours.chunk_kda(**x, **g, return_intermediate_states=True), NotImplementedError, "return_intermediate_states"),
    (lambda x, g: ours.chunk_kda(**x, **g, use_gate_in_kernel=True, A_log=torch.zeros(4), safe_gate=True), ValueError, "lower_bound"),
    (lambda x, g: ours.fused_recurrent_retention(**x, reverse=True), NotImplementedError, "reverse"),
    (lambda x, g: ours.parallel_simple_gla(**x, output_attentions=True), NotImplementedError, "output_attentions"),
    (lambda x, g: ours.chunk_simple_gla(**x, chunk_size=48), ValueError, "power of 2"),
    (lambda x, g: ours.chunk_gated_delta_rule(**x, **g, unknown=1), TypeError, "unknown"),
])
def test_refusals(call, failure, says):
    with pytest.raises(failure, match=says):
        call(*made())


def test_report():
    ours.reset()
    assert ours.last_path() == "" and ours.report() == {}
    x, gates = made()
    ours.chunk_gdn(**x, **gates), ours.chunk_gdn(**x, **gates)
    assert ours.report() == {("chunk_gated_delta_rule", "cpu", "float32"): 2} and ours.last_path() == "chunk_gated_delta_rule on cpu"
