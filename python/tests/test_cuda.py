"""The operators on a GPU, where there is one: against the reference on the CPU, on streams, in CUDA graphs, with boundaries there."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

import deltarule
import deltarule.fla as ours
import deltarule.torch
from deltarule.torch import operators
from conftest import value_heads
from test_torch import error, size, tensors, with_gradients

try:
    deltarule.kernel("gdn", device="cuda")
except (NotImplementedError, ValueError) as reason:
    pytest.skip(f"this build has no CUDA backend: {reason}", allow_module_level=True)

ops = torch.ops.deltarule


def cuda(inputs, dtype=None, rule="gdn"):
    vectors = dict(zip(deltarule.Rule(rule).inputs, deltarule.Rule(rule).vectors))
    return {name: x.cuda().to(dtype if dtype is not None and vectors[name] else torch.float32) for name, x in inputs.items()}


@pytest.mark.parametrize("rule", deltarule.rules(), ids=lambda r: r.name)
def test_gradients_agree_with_the_reference(rule):
    inputs = tensors(rule, torch.float64, B=2, T=70, H=2, HV=value_heads(rule), K=64, V=64)
    exact, exact_gradients = with_gradients(rule, inputs, path="reference")
    leaves = cuda(inputs, rule=rule)
    try:
        o, state = deltarule.recurrence(rule, **leaves, final=True)
    except NotImplementedError as reason:
        pytest.skip(str(reason))
    leaves = {name: x.requires_grad_() for name, x in leaves.items()}
    o, state = deltarule.recurrence(rule, **leaves, final=True)
    draw = torch.Generator().manual_seed(7)
    parts = [o, state.S] + ([] if state.scan is None else [state.scan])
    sum((torch.randn(one.shape, generator=draw, dtype=torch.float64).float().cuda() * one).sum() for one in parts).backward()
    for one, other in zip(parts, exact):
        assert error(one.detach().cpu(), other) < 1e-2
    least = 1e-3 * max(map(size, exact_gradients.values()))
    for name, x in leaves.items():
        assert error(x.grad.cpu(), exact_gradients[name], least) < 3e-2, name


def row_error(ours, exact):
    """The largest error of a row (the last axis) beside the rows' root mean square."""
    exact = exact.double()
    worst = (ours.double().cpu() - exact).square().mean(-1).sqrt().max()
    return (worst / exact.square().mean().sqrt()).item()


def plain_loop(rule, inputs, dtype, weight, before=None):
    """o and gradients of <o, weight> by a plain loop whose vectors and results are rounded to that type; dtype None: exact.
    before: what is made of the vectors first, from rounded ones, and rounded again."""
    vectors = dict(zip(deltarule.Rule(rule).inputs, deltarule.Rule(rule).vectors))
    rounded = lambda x: x if dtype is None else x.to(dtype).double()
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    given = {name: x + (rounded(x) - x).detach() if vectors[name] else x for name, x in leaves.items()}
    for name, make in (before or {}).items():
        made = make(given[name])
        given[name] = made + (rounded(made) - made).detach()
    o, state = deltarule.recurrence(rule, **given, final=True, path="reference")
    gradients = torch.autograd.grad((o * weight).sum(), list(leaves.values()))
    return rounded(o.detach()), state.S.detach(), {name: rounded(x) if vectors[name] else x for name, x in zip(leaves, gradients)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", ["gdn", "kda", "delta_net", "gla", "pgdn"])
def test_half_precision(rule, dtype):
    """No row is off by more than twice what the rounding of inputs and results costs a plain loop."""
    inputs = tensors(rule, torch.float64, B=2, T=256, H=2, HV=2, K=128, V=128)
    weight = torch.randn(2, 256, 2, 128, generator=torch.Generator().manual_seed(3)).to(dtype).double()
    exact, exact_state, exact_gradients = plain_loop(rule, inputs, None, weight)
    plain, plain_state, plain_gradients = plain_loop(rule, inputs, dtype, weight)

    def run():
        leaves = {name: x.requires_grad_() for name, x in cuda(inputs, dtype, rule).items()}
        o, state = deltarule.recurrence(rule, **leaves, final=True)
        (o * weight.to("cuda", dtype)).sum().backward()
        return o.detach(), state.S.detach(), {name: x.grad for name, x in leaves.items()}
    o, state, gradients = run()
    assert o.dtype == dtype
    told = {"o": (o, exact, plain), "S": (state, exact_state, plain_state),
            **{name: (one, exact_gradients[name], plain_gradients[name]) for name, one in gradients.items()}}
    found = {name: (row_error(one, other), row_error(third, other)) for name, (one, other, third) in told.items()}
    print({name: "%.2g beside %.2g" % pair for name, pair in found.items()})
    assert all(ours <= 2 * plain_error + 1e-4 for ours, plain_error in found.values()), found
    again = run()
    assert torch.equal(again[0], o) and all(torch.equal(again[2][name], one) for name, one in gradients.items())


def test_boundaries_on_the_device():
    inputs = cuda(tensors("gdn", B=1, T=300, H=2, HV=2, K=64, V=64), torch.bfloat16)
    for dtype in (torch.int32, torch.int64):
        cu = torch.tensor([0, 100, 100, 163, 300], dtype=dtype)
        a = deltarule.recurrence("gdn", **inputs, cu_seqlens=cu.cuda())
        b = deltarule.recurrence("gdn", **inputs, cu_seqlens=cu)
        assert torch.equal(a, b)
        parts = [deltarule.recurrence("gdn", **{n: x[:, i:j].contiguous() for n, x in inputs.items()}) for i, j in ((0, 100), (100, 163), (163, 300))]
        assert error(torch.cat(parts, 1).cpu(), a.double().cpu()) < 2e-2


def test_streams():
    inputs = cuda(tensors("gdn", B=2, T=512, H=4, HV=4, K=64, V=64), torch.bfloat16)
    wanted = deltarule.recurrence("gdn", **inputs)
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(3)], []
    for stream in streams:
        with torch.cuda.stream(stream):
            found.append(deltarule.recurrence("gdn", **inputs))
    torch.cuda.synchronize()
    assert all(torch.equal(one, wanted) for one in found)


def test_cuda_graphs():
    inputs = {name: x.requires_grad_() for name, x in cuda(tensors("gdn", B=2, T=256, H=2, HV=2, K=64, V=64), torch.bfloat16).items()}

    def run():
        o = deltarule.recurrence("gdn", **inputs)
        return o, torch.autograd.grad(o.float().square().sum(), list(inputs.values()))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        o, gradients = run()
    with torch.no_grad():
        inputs["value"].mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    wanted, wanted_gradients = run()
    assert torch.equal(o, wanted) and all(torch.equal(a, b) for a, b in zip(gradients, wanted_gradients))


def test_decode_in_place_and_in_slots():
    inputs = cuda(tensors("gdn", B=3, T=1, H=2, HV=2, K=64, V=64), torch.bfloat16)
    pool = torch.randn(6, 2, 64, 64, device="cuda")
    before, start = pool.clone(), torch.tensor([4, 0, 5], dtype=torch.int32, device="cuda")
    a = ops.decode_slots(list(inputs.values()), pool, None, start, None, "gdn", 0.0)
    state = deltarule.State("gdn", before[[4, 0, 5]].clone())
    b = deltarule.step("gdn", state, **{name: x[:, 0] for name, x in inputs.items()})
    assert torch.equal(a[:, 0], b) and torch.equal(pool[[4, 0, 5]], state.S) and torch.equal(pool[[1, 2, 3]], before[[1, 2, 3]])


def test_devices_that_differ_are_refused():
    inputs = cuda(tensors("gdn"))
    with pytest.raises(RuntimeError, match="beta is on cpu"):
        deltarule.recurrence("gdn", **{**inputs, "beta": inputs["beta"].cpu()})
    with pytest.raises(ValueError, match="reference"):
        deltarule.recurrence("gdn", **inputs, path="reference")
    after = deltarule.recurrence("gdn", **inputs, final=True)[1]
    for grad in (False, True):
        given = {name: x.requires_grad_(grad) for name, x in inputs.items()}
        with pytest.raises(RuntimeError, match="initial state S is on cpu and query on cuda"):
            deltarule.recurrence("gdn", **given, initial=deltarule.State("gdn", after.S.detach().cpu()))
    on_cpu = {name: x.detach().cpu() for name, x in inputs.items()}
    with pytest.raises(RuntimeError, match="initial state S is on cuda:0 and query on cpu"):
        deltarule.recurrence("gdn", **on_cpu, initial=deltarule.State("gdn", after.S.detach()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("function", [ours.chunk_kda, ours.chunk_gated_delta_rule])
def test_betas_of_logits_are_those_of_torch_on_the_cpu(function, dtype):
    """To the bit, so that no rounding behind them differs."""
    draw = torch.Generator().manual_seed(5)
    B, T, H, K = 1, 600, 4, 128
    q, k, v = (torch.randn(B, T, H, K, generator=draw).to(dtype) for _ in "qkv")
    logits = (3 * torch.randn(B, T, H, generator=draw)).to(dtype)
    g = -torch.rand(B, T, H, *([K] if function is ours.chunk_kda else []), generator=draw)
    found = []
    for beta, forms in ((2 * logits.float().sigmoid(), {}), (logits, {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True})):
        leaves = [x.cuda().requires_grad_() for x in (q, torch.nn.functional.normalize(k, dim=-1), v, g, beta)]
        o, last = function(*leaves, output_final_state=True, **forms)
        (o.float().square().sum() + last.square().sum()).backward()
        found.append([o, last, *[x.grad for x in leaves[:4]]])
    assert all(torch.equal(one, other) for one, other in zip(*found))


def test_compile():
    torch._dynamo.reset()
    inputs = cuda(tensors("gdn", B=2, T=128, H=2, HV=2, K=64, V=64), torch.bfloat16)
    run = lambda **given: deltarule.recurrence("gdn", **given)
    assert torch.equal(torch.compile(run, backend="aot_eager", fullgraph=True)(**inputs), run(**inputs))


def test_flash_linear_attention_names():
    inputs = tensors("gdn", torch.float64, B=2, T=128, H=2, HV=4, K=64, V=64)
    weight = torch.zeros(2, 128, 4, 64, dtype=torch.float64)
    norm = lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
    both = {"query": norm, "key": norm}
    exact, exact_state, _ = plain_loop("gdn", inputs, None, weight, both)
    plain, plain_state, _ = plain_loop("gdn", inputs, torch.bfloat16, weight, both)
    x = dict(zip(("q", "k", "v", "g", "beta"), cuda(inputs, torch.bfloat16).values()))
    o, last = ours.chunk_gated_delta_rule(**x, use_qk_l2norm_in_kernel=True, output_final_state=True)
    found = [(row_error(one, other), row_error(third, other)) for one, other, third in ((o, exact, plain), (last, exact_state, plain_state))]
    print("chunk_gated_delta_rule: o, S: %.2g beside %.2g, %.2g beside %.2g" % (*found[0], *found[1]))
    assert all(one <= 2 * another + 1e-4 for one, another in found), found


@pytest.mark.parametrize("rule", ["gdn", "kda"])
def test_one_token_keeps_little(rule, monkeypatch):
    """As decoding with gradients on does: near what chunks give, and nothing is kept for the backward but inputs and states."""
    function = {"gdn": ours.chunk_gated_delta_rule, "kda": ours.chunk_kda}[rule]
    x = dict(zip(("q", "k", "v", "g", "beta"), cuda(tensors(rule, B=4, T=1, H=2, HV=2, K=64, V=128), rule=rule).values()))
    x["g"] = torch.randn_like(x["g"])
    forms = {"use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "A_log": torch.randn(2, device="cuda"),
             "use_beta_sigmoid_in_kernel": True}
    S, found = torch.randn(4, 2, 64, 128, device="cuda"), []
    for single in (False, True):
        monkeypatch.setattr(operators, "is_single", lambda *_: single)
        leaves = {name: one.clone().requires_grad_() for name, one in x.items()}
        o, last = function(**leaves, initial_state=S, output_final_state=True, **forms)
        assert o.grad_fn.saved_tensors[0] is None
        (o.float().square().sum() + last.square().sum()).backward()
        found.append([o.detach(), last.detach(), *[one.grad for one in leaves.values()]])
    assert all(error(one.cpu(), other.cpu().double()) < 1e-3 for one, other in zip(*found))
