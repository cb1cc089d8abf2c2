"""The PyTorch operators: gradients, compilation, and everything that a training script does around them."""

import copy
import functools
import io
import multiprocessing
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import deltarule
import deltarule.torch
from conftest import random_compositions, random_inputs, slow_after, value_heads
from torch import library
from torch.utils._python_dispatch import TorchDispatchMode

GDN = deltarule.Rule("gdn")
ops = torch.ops.deltarule


def tensors(rule, dtype=torch.float32, grad=False, **sizes):
    made = {name: torch.from_numpy(x).to(dtype) for name, x in random_inputs(deltarule.Rule(rule), **sizes).items()}
    return {name: x.requires_grad_() for name, x in made.items()} if grad else made


def with_gradients(rule, inputs, seed=7, **options):
    """o, final states and all gradients of a random linear function of them."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    o, state = deltarule.recurrence(rule, **leaves, final=True, **options)
    draw = torch.Generator().manual_seed(seed)
    parts = [o, state.S] + ([] if state.scan is None else [state.scan])
    loss = sum((torch.randn(one.shape, generator=draw, dtype=torch.float64).to(one.dtype) * one).sum() for one in parts)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return [one.detach() for one in parts], dict(zip(leaves, gradients))


def size(x):
    return x.double().square().mean().sqrt().item()


def error(ours, exact, least=1e-9):
    """The largest error beside the exact values' root mean square, or beside `least` if that is larger."""
    return ((ours.double() - exact).abs().max() / max(size(exact), least)).item() if exact.numel() else 0.0


# ---- gradients -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*deltarule.rules(), *slow_after(40, random_compositions(200, 2))], ids=lambda r: r.name)
def test_gradients_agree_with_the_reference(rule):
    inputs = tensors(rule, torch.float64, B=2, T=19, H=2, HV=value_heads(rule), K=8, V=6)
    exact, exact_gradients = with_gradients(rule, inputs, path="reference")
    ours, gradients = with_gradients(rule, {name: x.float() for name, x in inputs.items()})
    # how far results move with inputs that are rounded a little: a gain whose denominator passes through zero moves them much
    draw = torch.Generator().manual_seed(5)
    near = {name: x * (1 + 1e-6 * torch.randn(x.shape, generator=draw, dtype=x.dtype)) for name, x in inputs.items()}
    moved, moved_gradients = with_gradients(rule, near, path="reference")
    for one, other, third in zip(ours, exact, moved):
        assert one.dtype == torch.float32 and error(one, other) < 2e-3 + error(third, other)
    least = 1e-4 * max(map(size, exact_gradients.values()))  # what should cancel to zero is of the rounding of its terms
    for name, one in gradients.items():
        other = exact_gradients[name]
        assert one.dtype == torch.float32 and error(one, other, least) < 5e-3 + error(moved_gradients[name], other, least), name


@pytest.mark.parametrize("rule", ["gdn", "pkda", "mesanet", "pla_exact", "delta_product", "qdelta"])
def test_gradcheck_in_double(rule):
    rule = deltarule.Rule(rule)
    inputs = tensors(rule, torch.float64, grad=True, B=1, T=4, H=1, HV=1, K=3, V=2)

    def run(*given):
        o, state = deltarule.recurrence(rule, **dict(zip(inputs, given)), final=True, path="reference")
        return (o, state.S) if state.scan is None else (o, state.S, state.scan)
    assert torch.autograd.gradcheck(run, tuple(inputs.values()), eps=1e-6, atol=1e-6)


def test_gradcheck_in_float32_with_states():
    inputs = tensors("gdn", grad=True, B=1, T=4, H=1, HV=2, K=3, V=2)
    before = torch.randn(1, 2, 3, 2, requires_grad=True)

    def run(S, *given):
        o, state = deltarule.recurrence("gdn", **dict(zip(inputs, given)), initial=deltarule.State("gdn", S), final=True)
        return o, state.S
    assert torch.autograd.gradcheck(run, (before, *inputs.values()), eps=1e-2, atol=2e-3, rtol=2e-2, nondet_tol=0.0)


def test_only_wanted_gradients():
    inputs = tensors("gdn")
    _, every = with_gradients("gdn", inputs)
    for name in inputs:
        leaves = {n: x.clone().requires_grad_(n == name) for n, x in inputs.items()}
        o, state = deltarule.recurrence("gdn", **leaves, final=True)
        draw = torch.Generator().manual_seed(7)
        sum((torch.randn(one.shape, generator=draw, dtype=torch.float64).float() * one).sum() for one in (o, state.S)).backward()
        assert torch.equal(leaves[name].grad, every[name])
        assert all(x.grad is None for n, x in leaves.items() if n != name)


def test_second_and_forward_derivatives_are_refused():
    inputs = tensors("gdn", grad=True)
    first, = torch.autograd.grad(deltarule.recurrence("gdn", **inputs).square().sum(), inputs["value"], create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        first.sum().backward()
    value = inputs["value"].detach()
    run = lambda v: deltarule.recurrence("gdn", **{**tensors("gdn"), "value": v})
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(run, (value,), (value,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        run(torch.autograd.forward_ad.make_dual(value, value))
    loss = lambda v: run(v).square().sum()
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.func.grad(lambda v: torch.func.grad(loss)(v).sum())(value)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.vmap(run)(value[None])


def test_torch_func_grad():
    inputs = tensors("gdn")
    loss = lambda v: deltarule.recurrence("gdn", **{**inputs, "value": v}).square().sum()
    value = inputs["value"].clone().requires_grad_()
    wanted, = torch.autograd.grad(loss(value), value)
    assert torch.equal(torch.func.grad(loss)(inputs["value"]), wanted)


def test_decode_has_no_gradient():
    inputs = tensors("gdn", grad=True, T=1)
    state = deltarule.State.zeros("gdn", sequences=2, H=2, HV=4, K=8, V=6, like=inputs["query"])
    with pytest.raises(NotImplementedError, match="no gradient"):
        deltarule.step("gdn", state, **{name: x[:, 0] for name, x in inputs.items()})


# ---- types, shapes, devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_converted_at_the_door(dtype):
    inputs = {name: x.to(dtype) if wide else x for (name, x), wide in zip(tensors("gdn").items(), GDN.vectors)}
    (o, S), gradients = with_gradients("gdn", inputs)
    (o32, S32), gradients32 = with_gradients("gdn", {name: x.float() for name, x in inputs.items()})
    assert o.dtype == dtype and torch.equal(o, o32.to(dtype)) and torch.equal(S, S32)
    d_o = torch.randn(o.shape).to(dtype)
    for given, precise in ((inputs, {name: x.float() for name, x in inputs.items()}),):
        a = {name: x.clone().requires_grad_() for name, x in given.items()}
        b = {name: x.clone().requires_grad_() for name, x in precise.items()}
        deltarule.recurrence("gdn", **a).backward(d_o)
        deltarule.recurrence("gdn", **b).backward(d_o.float())
        for name in a:
            assert a[name].grad.dtype == a[name].dtype and torch.equal(a[name].grad, b[name].grad.to(a[name].dtype)), name


def test_autocast():
    inputs = tensors("gdn")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = deltarule.recurrence("gdn", **inputs)
        compiled = torch.compile(lambda **x: deltarule.recurrence("gdn", **x), backend="aot_eager", fullgraph=True)(**inputs)
    assert o.dtype == torch.bfloat16 and torch.equal(o, compiled)
    assert error(o, deltarule.recurrence("gdn", **inputs).double()) < 5e-2


def test_strided_and_misaligned_inputs():
    torch.manual_seed(0)
    B, T, H, K = 2, 20, 4, 8
    fused = torch.randn(B, T, 3 * H * K, requires_grad=True)
    gates = dict(log_decay=-torch.rand(B, T, H), beta=torch.rand(B, T, H))

    def run(take):
        q, k, v = (take(x.unflatten(-1, (H, K))) for x in fused.split(H * K, -1))
        o = deltarule.recurrence("gdn", q, k, v, **gates)
        return o.detach(), torch.autograd.grad(o.square().sum(), fused)[0]
    for one, other in zip(run(lambda x: x), run(lambda x: x.contiguous())):
        assert torch.equal(one, other)
    inputs = tensors("gdn")
    shifted = {name: torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape) for name, x in inputs.items()}
    assert torch.equal(deltarule.recurrence("gdn", **shifted), deltarule.recurrence("gdn", **inputs))
    expanded = deltarule.recurrence("gdn", **tensors("gdn", grad=True))
    expanded.sum().backward()


@pytest.mark.parametrize("B, T", [(0, 5), (2, 0), (0, 0)])
def test_nothing(B, T):
    inputs = tensors("pgdn", grad=True, B=B, T=T)
    before = deltarule.State("pgdn", torch.randn(B, 4, 8, 6, requires_grad=True), torch.rand(B, 2, 8, requires_grad=True))
    o, after = deltarule.recurrence("pgdn", **inputs, initial=before, final=True)
    assert o.shape == (B, T, 4, 6) and torch.equal(after.S, before.S) and torch.equal(after.scan, before.scan)
    (o.sum() + after.S.sum() + after.scan.sum()).backward()
    assert (before.S.grad == 1).all() and (before.scan.grad == 1).all()
    assert all(x.grad is not None and x.grad.shape == x.shape and not x.grad.any() for x in inputs.values())


def test_options_and_states_that_cannot_be():
    inputs = tensors("gdn", B=1)
    state = deltarule.recurrence("gdn", **inputs, final=True)[1]
    run = lambda **given: deltarule.recurrence("gdn", **{**inputs, **given})
    tokens = inputs["query"].shape[1]
    run(cu_seqlens=[0, tokens]), run(initial=state)  # whose plans are then kept
    for failure, says, given in (
            (TypeError, "scale must be a number", {"scale": "1"}), (ValueError, "scale must be positive and finite", {"scale": float("nan")}),
            (ValueError, "below 2", {"chunk": 10**30}), (TypeError, "chunk must be a whole number", {"chunk": 1.5}),
            (TypeError, "int32 or int64", {"cu_seqlens": torch.tensor([0.0, tokens])}),
            (TypeError, "int32 or int64", {"cu_seqlens": torch.tensor([[0, 5], [5, tokens]])}),
            (TypeError, "initial must be a deltarule.State", {"initial": state.S}),
            (TypeError, "must be tensors too", {"initial": deltarule.State("gdn", state.S.numpy())}),
            (RuntimeError, "initial state S is on meta", {"initial": deltarule.State("gdn", state.S.to("meta"))})):
        with pytest.raises(failure, match=says):
            run(**given)
    with pytest.raises(TypeError, match="state must be a deltarule.State"):
        deltarule.step("gdn", None, **{name: x[:, 0] for name, x in inputs.items()})
    o, saved = ops.forward(list(inputs.values()), None, "gdn", 0.0, "best", 0, True)
    with pytest.raises(ValueError, match="wanted has 3 entries"):
        ops.backward(list(inputs.values()), None, None, None, saved, o, None, None, "gdn", 0.0, "best", 0, [True] * 3)


@pytest.mark.parametrize("change, failure, says", [
    (dict(query=torch.zeros(2, 20, 2, 8, dtype=torch.float64)), TypeError, "float64"),
    (dict(query=torch.zeros(2, 20, 2, 8, dtype=torch.bfloat16)), TypeError, "one dtype"),
    (dict(beta=torch.zeros(2, 20, 4, dtype=torch.int64)), TypeError, "beta has dtype torch.int64"),
    (dict(query=torch.zeros(2, 20, 2, 8, dtype=torch.complex64)), TypeError, "complex"),
    (dict(query=torch.zeros(2, 10, 2, 8)), ValueError, "it must be"),
    (dict(beta=torch.zeros(2, 20, 2)), ValueError, "beta has shape"),
    (dict(value=torch.zeros(2, 20, 3, 6)), ValueError, "no multiple"),
    (dict(value=torch.zeros(2, 20, 24)), ValueError, "value has shape"),
    (dict(beta=None), TypeError, "missing: beta"),
    (dict(beta=np.zeros((2, 20, 4), "float32")), TypeError, "ndarray"),
    (dict(cu_seqlens=torch.tensor([0, 20])), ValueError, "batch of 1"),
    (dict(cu_seqlens=torch.tensor([0.0, 20.0])), TypeError, "int32 or int64"),
    (dict(initial=deltarule.State("gdn", torch.zeros(1, 4, 8, 6))), ValueError, "initial state S"),
    (dict(initial=deltarule.State("gdn", torch.zeros(2, 4, 8, 6, dtype=torch.int32))), TypeError, "initial state S"),
    (dict(initial=deltarule.State("kda", torch.zeros(2, 4, 8, 6))), ValueError, "kda"),
    (dict(scale=float("inf")), ValueError, "scale"),
    (dict(path="fast"), ValueError, "no path"),
    (dict(chunk=-1), ValueError, "chunk"),
])
def test_refusals(change, failure, says):
    with pytest.raises(failure, match=says):
        deltarule.recurrence("gdn", **{**tensors("gdn"), **change})


def test_devices_that_differ():
    inputs = tensors("gdn")
    deltarule.recurrence("gdn", **inputs)  # whose plan the next call must not take
    with pytest.raises((RuntimeError, NotImplementedError)):
        deltarule.recurrence("gdn", **{**inputs, "beta": inputs["beta"].to("meta")})


def test_meta_and_fake():
    inputs = {name: x.to("meta") for name, x in tensors("pgdn").items()}
    o, state = deltarule.recurrence("pgdn", **inputs, final=True)
    assert o.is_meta and o.shape == (2, 20, 4, 6) and state.scan.shape == (2, 2, 8)
    with torch._subclasses.FakeTensorMode() as mode:
        leaves = {name: mode.from_tensor(x).requires_grad_() for name, x in tensors("gdn").items()}
        deltarule.recurrence("gdn", **leaves).sum().backward()
        assert leaves["beta"].grad.shape == (2, 20, 4)


# ---- the operators as PyTorch checks them ----------------------------------------------------------------------------------


def test_opcheck():
    opcheck = library.opcheck
    quick = ("test_schema", "test_autograd_registration", "test_faketensor")
    inputs = list(tensors("pgdn", grad=True).values())
    detached = [x.detach() for x in inputs]
    text = deltarule.Rule("pgdn").text
    S, A = torch.rand(2, 4, 8, 6), torch.rand(2, 2, 8)
    lean = (list(tensors("gdn", grad=True).values()), None, "gdn", 0.0, "best", 0, False)
    opcheck(ops.forward.default, lean)
    opcheck(ops.forward.default, ([x[:1] for x in lean[0]], torch.tensor([0, 5, 5, 20]), *lean[2:]), test_utils=quick)
    states = (inputs, S.clone().requires_grad_(), A.clone().requires_grad_(), None, text, 0.5, "best", 16, True, True)
    opcheck(ops.forward_states.default, states)
    o, last, scan, saved = ops.forward_states(*[detached, S, A, *states[3:]])
    opcheck(ops.backward.default, (detached, S, A, None, saved, torch.rand_like(o), torch.rand_like(last), None, text,
                                                 0.5, "best", 16, [True] * (len(inputs) + 1) + [False]), test_utils=quick)
    step = [x[:, :1].contiguous() if x.dim() > 1 else x for x in detached]
    opcheck(ops.decode.default, (step, S, A, text, 0.0))


# ---- compilation -----------------------------------------------------------------------------------------------------------


class Counter:
    """A compiler backend that counts graphs."""

    def __init__(self):
        from torch._dynamo.backends.debugging import aot_eager
        self.graphs, self.inner = 0, aot_eager

    def __call__(self, graph, examples):
        self.graphs += 1
        return self.inner(graph, examples)


@pytest.mark.parametrize("dynamic, most", [(None, 2), (True, 1)])
def test_compile(dynamic, most):
    torch._dynamo.reset()
    counter = Counter()
    rule = deltarule.Rule({"base": "kda", "query": "corrected"})

    def run(initial, **inputs):
        o, state = deltarule.recurrence(rule, **inputs, initial=initial, final=True)
        return o.square().sum() + state.S.sum()
    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=dynamic)
    for T in (64, 100, 100, 130):
        found = []
        for function in (run, compiled):
            inputs = tensors(rule, grad=True, T=T)
            S = torch.ones(2, 4, 8, 6, requires_grad=True)
            loss = function(deltarule.State(rule, S), **inputs)
            loss.backward()
            found.append([loss.detach(), S.grad, *(x.grad for x in inputs.values())])
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(*found))
    assert counter.graphs <= most


def test_compile_packed():
    torch._dynamo.reset()
    run = lambda cu, **inputs: deltarule.recurrence("gdn", **inputs, cu_seqlens=cu)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for cu in ([0, 7, 20], [0, 3, 3, 30], [0, 11, 25, 26, 41]):
        inputs, cu = tensors("gdn", B=1, T=cu[-1]), torch.tensor(cu)
        assert torch.equal(run(cu, **inputs), compiled(cu, **inputs))


def test_compile_decode():
    torch._dynamo.reset()
    inputs = {name: x[:, 0] for name, x in tensors("gdn", T=1).items()}
    run = lambda state, **given: deltarule.step("gdn", state, **given)
    made = [deltarule.State("gdn", torch.ones(2, 4, 8, 6)) for _ in range(2)]
    a = run(made[0], **inputs)
    b = torch.compile(run, backend="aot_eager", fullgraph=True)(made[1], **inputs)
    assert torch.equal(a, b) and torch.equal(made[0].S, made[1].S) and not (made[0].S == 1).all()


def test_compile_with_inductor():
    torch._dynamo.reset()

    def run(query, key, value, log_decay, beta):
        return deltarule.recurrence("gdn", query * 2, torch.nn.functional.normalize(key, dim=-1), value, log_decay=-log_decay.exp(), beta=beta.sigmoid())
    inputs = [x.clone() for x in tensors("gdn").values()]
    found = []
    try:
        for function in (run, torch.compile(run, fullgraph=True)):
            leaves = [x.clone().requires_grad_() for x in inputs]
            o = function(*leaves)
            o.square().sum().backward()
            found.append([o.detach(), *(x.grad for x in leaves)])
    except torch._inductor.exc.InductorError as reason:
        pytest.skip(f"inductor has no compiler here: {reason}")
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*found))


class Layer(torch.nn.Module):
    def __init__(self, rule="gdn"):
        super().__init__()
        self.rule, self.mix = deltarule.Rule(rule), torch.nn.Linear(16, 3 * 16 + 2 * 2)

    def forward(self, x):
        q, k, v, g, b = self.mix(x).split([16, 16, 16, 2, 2], -1)
        q, k, v = (one.unflatten(-1, (2, 8)) for one in (q, k, v))
        return deltarule.recurrence(self.rule, q, torch.nn.functional.normalize(k, dim=-1), v, log_decay=-torch.nn.functional.softplus(g), beta=b.sigmoid()).flatten(-2)


def test_export():
    layer, x = Layer(), torch.randn(2, 12, 16)
    B, T = torch.export.Dim("B", min=2, max=64), torch.export.Dim("T", min=2, max=4096)
    exported = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: B, 1: T}})
    assert sum("deltarule.forward" in str(node.target) for node in exported.graph.nodes) == 1
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file)
    for shape in ((2, 12, 16), (5, 33, 16)):
        x = torch.randn(shape)
        assert torch.equal(layer(x), loaded.module()(x))


def test_modules_copy_and_load():
    layer = Layer()
    twin = copy.deepcopy(layer)
    other = Layer()
    other.load_state_dict(layer.state_dict())
    x = torch.randn(2, 12, 16)
    assert torch.equal(layer(x), twin(x)) and torch.equal(layer(x), other(x))


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.forward = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.forward += function is ops.forward.default
        return function(*args, **(kwargs or {}))


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    layer, x = Layer(), torch.randn(2, 12, 16)
    layer(x).square().sum().backward()
    wanted = layer.mix.weight.grad.clone()
    select = lambda: create_selective_checkpoint_contexts(deltarule.torch.checkpoint_policy())
    for options, runs in ((dict(use_reentrant=False), 2), (dict(use_reentrant=True), 2), (dict(use_reentrant=False, context_fn=select), 1)):
        layer.zero_grad()
        with Calls() as calls:
            checkpoint(layer, x.clone().requires_grad_(), **options).square().sum().backward()
        assert torch.equal(layer.mix.weight.grad, wanted) and calls.forward == runs, options


@pytest.mark.parametrize("kept, runs", [(False, 1), (True, 0)])
def test_checkpointing_compiled(kept, runs):
    """The backward's graph computes a checkpointed forward again, but for what the policy keeps."""
    from torch._dynamo.backends.common import aot_autograd
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    from functorch.compile import min_cut_rematerialization_partition
    torch._dynamo.reset()
    layer, x = Layer(), torch.randn(2, 12, 16)
    layer(x).square().sum().backward()
    wanted = layer.mix.weight.grad.clone()
    layer.zero_grad()
    found = {}

    def count(where):
        def compiler(graph, _):
            found[where] = sum(node.target is ops.forward.default for node in graph.graph.nodes)
            return graph.forward
        return compiler
    options = {"context_fn": functools.partial(create_selective_checkpoint_contexts, deltarule.torch.checkpoint_policy())} if kept else {}
    backend = aot_autograd(fw_compiler=count("forward"), bw_compiler=count("backward"), partition_fn=min_cut_rematerialization_partition)
    run = torch.compile(lambda x: checkpoint(layer, x, use_reentrant=False, **options), backend=backend, fullgraph=True)
    run(x.clone().requires_grad_()).square().sum().backward()
    assert found == {"forward": 1, "backward": runs}
    assert torch.allclose(layer.mix.weight.grad, wanted, rtol=1e-6, atol=1e-6)


def test_inference():
    inputs = tensors("gdn", grad=True)
    wanted = deltarule.recurrence("gdn", **inputs).detach()
    with torch.no_grad():
        assert torch.equal(deltarule.recurrence("gdn", **inputs), wanted)
    with torch.inference_mode():
        o, state = deltarule.recurrence("gdn", **inputs, final=True)
        assert torch.equal(o, wanted) and state.S.is_inference()
        before = state.S.clone()
        deltarule.step("gdn", state, **{name: x[:, -1] for name, x in inputs.items()})
        assert not torch.equal(state.S, before)


def test_saved_tensors_hooks():
    inputs = tensors("gdn", grad=True)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.nbytes) or x.clone(), lambda x: x):
        deltarule.recurrence("gdn", **inputs).sum().backward()
    assert len(sizes) >= 6


# ---- the same bits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["gdn", "pkda", "mesanet"])
def test_packed_is_separate(rule):
    rule, cu = deltarule.Rule(rule), [0, 5, 5, 70, 100]
    inputs = tensors(rule, B=1, T=100)
    d_o = torch.randn(1, 100, 4, 6)

    def run(a, b, boundaries=None):
        cut = lambda x, axes: (x[:, a:b] if axes[0] == "rows" else x).clone().requires_grad_()
        leaves = {name: cut(x, axes) for (name, x), axes in zip(inputs.items(), rule.input_axes)}
        o = deltarule.recurrence(rule, **leaves, cu_seqlens=boundaries)
        o.backward(d_o[:, a:b])
        return [o.detach(), *(x.grad for x, axes in zip(leaves.values(), rule.input_axes) if axes[0] == "rows")]
    whole = run(0, 100, torch.tensor(cu, dtype=torch.int32))
    parts = [run(cu[i], cu[i + 1]) for i in range(4)]
    for one, pieces in zip(whole, zip(*parts)):
        assert torch.equal(one, torch.cat(pieces, 1))


def test_bits_do_not_depend_on_threads():
    inputs = tensors("gdn", B=3, T=150, K=64, V=64)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(with_gradients("gdn", inputs))
    finally:
        torch.set_num_threads(before)
    for (parts, gradients) in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(parts, found[0][0]))
        assert all(torch.equal(one, found[0][1][name]) for name, one in gradients.items())


def test_threads_at_once():
    given = [tensors("gdn", seed=i, T=30 + i % 3) for i in range(4)]
    wanted = [with_gradients("gdn", one) for one in given]
    wrong = []

    def work(i):
        for _ in range(20):
            parts, gradients = with_gradients("gdn", given[i])
            if not all(torch.equal(a, b) for a, b in zip(parts, wanted[i][0])) or not all(
                    torch.equal(x, wanted[i][1][name]) for name, x in gradients.items()):
                wrong.append(i)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [one.start() for one in threads], [one.join() for one in threads]
    assert not wrong


class Outputs(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return deltarule.recurrence("gdn", **tensors("gdn", seed=index, T=80))


@pytest.mark.parametrize("method", ["fork", *[pytest.param(one, marks=pytest.mark.slow) for one in ("spawn", "forkserver")]])
def test_loaders_in_other_processes(method):
    wanted = [Outputs()[i] for i in range(4)]  # the parent has used its threads
    loader = torch.utils.data.DataLoader(Outputs(), batch_size=None, num_workers=2, multiprocessing_context=multiprocessing.get_context(method))
    assert all(torch.equal(a, b) for a, b in zip(loader, wanted))


# ---- states ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["gdn", "pkda", "mesanet", "pla_exact"])
@pytest.mark.parametrize("layout", ["kv", "vk"])
def test_states_go_on(rule, layout, tmp_path):
    rule = deltarule.Rule(rule)
    inputs = tensors(rule, T=30)
    cut = lambda a, b: {name: x[:, a:b] if axes[0] == "rows" else x for (name, x), axes in zip(inputs.items(), rule.input_axes)}
    whole, last = deltarule.recurrence(rule, **inputs, final=True)
    start = deltarule.State.zeros(rule, sequences=2, H=2, HV=4, K=8, V=6, like=whole, layout=layout)
    first, state = deltarule.recurrence(rule, **cut(0, 17), initial=start, final=True)
    assert state.layout == layout
    state = deltarule.State.cat([state[0], state[1]])
    state.save(tmp_path / "state", H=2)
    loaded = deltarule.State.load(tmp_path / "state", like=whole)
    assert torch.equal(loaded.S, state.S if layout == "kv" else state.S.mT)
    second = deltarule.recurrence(rule, **cut(17, 30), initial=state)
    assert error(torch.cat([first, second], 1), whole.double()) < 1e-4
    with torch.no_grad():
        for t in range(17, 30):
            o = deltarule.step(rule, state, **{name: x[:, t] if axes[0] == "rows" else x for (name, x), axes in zip(inputs.items(), rule.input_axes)})
            assert error(o, whole[:, t].double()) < 1e-3
    assert error(state.S if layout == "kv" else state.S.mT, last.S.double()) < 1e-3


def test_initial_states_have_gradients():
    inputs = tensors("pgdn", torch.float64)
    found = []
    for dtype, path in ((torch.float32, "best"), (torch.float64, "reference")):
        torch.manual_seed(3)
        S = torch.randn(2, 4, 8, 6, dtype=torch.float64).to(dtype).requires_grad_()
        A = torch.rand(2, 2, 8, dtype=torch.float64).to(dtype).requires_grad_()
        o, after = deltarule.recurrence("pgdn", **{n: x.to(dtype) for n, x in inputs.items()}, initial=deltarule.State("pgdn", S, A), final=True, path=path)
        (o.square().sum() + after.S.square().sum() + after.scan.square().sum()).backward()
        found.append((S.grad, A.grad))
    assert all(error(a, b) < 1e-4 for a, b in zip(*found))


def test_decode_slots():
    inputs = tensors("gdn", T=2)
    pool = torch.randn(5, 4, 8, 6)
    start, to = torch.tensor([3, 1], dtype=torch.int32), torch.tensor([[-1, 0], [2, 4]], dtype=torch.int32)
    before = pool.clone()
    o = ops.decode_slots(list(inputs.values()), pool, None, start, to, "gdn", 0.0)
    wanted, state = deltarule.recurrence("gdn", **inputs, initial=deltarule.State("gdn", before[[3, 1]]), final=True)
    assert error(o, wanted.double()) < 1e-5 and error(pool[[0, 4]], state.S.double()) < 1e-5
    assert torch.equal(pool[[1, 3]], before[[1, 3]])
