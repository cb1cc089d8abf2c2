"""The operators on a GPU, where there is one: against the reference on the CPU, on streams, in CUDA graphs, with boundaries there."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

import deltarule
import deltarule.fla as ours
import deltarule.torch
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", ["gdn", "kda", "delta_net", "gla", "pgdn"])
def test_half_precision(rule, dtype):
    inputs = tensors(rule, B=2, T=256, H=2, HV=2, K=128, V=128)
    given = cuda(inputs, dtype, rule)
    exact = deltarule.recurrence(rule, **{n: x.double().cpu() for n, x in given.items()}, path="reference")
    leaves = {name: x.requires_grad_() for name, x in given.items()}
    o = deltarule.recurrence(rule, **leaves)
    o.float().square().mean().backward()
    assert o.dtype == dtype and error(o.detach().cpu(), exact) < 0.1
    assert all(x.grad.dtype == x.dtype and x.grad.isfinite().all() for x in leaves.values())
    again = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    deltarule.recurrence(rule, **again).float().square().mean().backward()
    assert all(torch.equal(again[name].grad, x.grad) for name, x in leaves.items())


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


def test_compile():
    torch._dynamo.reset()
    inputs = cuda(tensors("gdn", B=2, T=128, H=2, HV=2, K=64, V=64), torch.bfloat16)
    run = lambda **given: deltarule.recurrence("gdn", **given)
    assert torch.equal(torch.compile(run, backend="aot_eager", fullgraph=True)(**inputs), run(**inputs))


def test_flash_linear_attention_names():
    inputs = cuda(tensors("gdn", B=2, T=128, H=2, HV=4, K=64, V=64), torch.bfloat16)
    x = dict(zip(("q", "k", "v", "g", "beta"), inputs.values()))
    o, last = ours.chunk_gated_delta_rule(**x, use_qk_l2norm_in_kernel=True, output_final_state=True)
    host, host_last = ours.chunk_gated_delta_rule(**{n: one.cpu() for n, one in x.items()}, use_qk_l2norm_in_kernel=True, output_final_state=True)
    assert error(o.cpu(), host.double()) < 0.1 and error(last.cpu(), host_last.double()) < 0.1  # the largest of bf16's roundings
