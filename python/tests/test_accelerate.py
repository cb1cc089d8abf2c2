"""`accelerate`: names of flash-linear-attention and transformers rebound and put back; models that compute the same."""

import sys
import types
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
warnings.simplefilter("ignore")

import deltarule.fla as ours


def test_what_is_not_there_is_told():
    with pytest.raises(ValueError, match="chunk_kdb"):
        ours.accelerate(only=["chunk_kdb"])
    with pytest.raises(TypeError, match="list of names"):
        ours.accelerate(only="chunk_kda")


@pytest.mark.slow
def test_flash_linear_attention_is_rebound_and_put_back():
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    import fla.ops.kda
    import fla.ops.gated_delta_rule as gated
    before, kda = gated.chunk_gated_delta_rule, fla.ops.kda.chunk_kda
    user = types.ModuleType("fla.layers.of_a_test")
    user.chunk_gated_delta_rule = before
    sys.modules[user.__name__] = user
    try:
        with ours.accelerate(transformers=False, only=["chunk_gated_delta_rule"]) as handle:
            assert gated.chunk_gated_delta_rule is ours.chunk_gated_delta_rule is user.chunk_gated_delta_rule
            assert fla.ops.kda.chunk_kda is kda
            assert "fla.layers.of_a_test.chunk_gated_delta_rule" in handle.names and "deltarule's" in handle.report()
        assert gated.chunk_gated_delta_rule is before is user.chunk_gated_delta_rule
        with ours.accelerate(transformers=False):
            assert fla.ops.kda.chunk_kda is ours.chunk_kda
        assert fla.ops.kda.chunk_kda is kda
        late = types.ModuleType("fla.layers.loaded_meanwhile")
        first, second = (ours.accelerate(transformers=False) for _ in range(2))
        sys.modules[late.__name__], late.chunk_kda = late, fla.ops.kda.chunk_kda
        first.undo()
        assert fla.ops.kda.chunk_kda is ours.chunk_kda is late.chunk_kda
        second.undo()
        first.undo()
        assert fla.ops.kda.chunk_kda is kda is late.chunk_kda and gated.chunk_gated_delta_rule is before
    finally:
        sys.modules.pop("fla.layers.loaded_meanwhile", None)
        del sys.modules[user.__name__]


def tiny(name, device="cpu"):
    """A small random model of transformers, with linear and full attention."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
                 vocab_size=97, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
    if name == "qwen3_next":
        config = transformers.Qwen3NextConfig(**sizes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                                              shared_expert_intermediate_size=32, decoder_sparse_step=1)
        kind = transformers.Qwen3NextForCausalLM
    else:
        config = transformers.Qwen3_5TextConfig(**sizes)
        kind = transformers.Qwen3_5ForCausalLM
    torch.manual_seed(0)
    return kind(config).eval().to(device)


def plain_functions(model, monkeypatch):
    """transformers' own torch code in the place of what it took from flash-linear-attention."""
    import inspect
    module = sys.modules[type(model).__module__]
    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", "causal_conv1d_fn", "causal_conv1d_update"):
        wrapped = getattr(module, name, None)
        if wrapped is not None and hasattr(wrapped, "__wrapped__"):
            own = wrapped.__wrapped__
            names = frozenset(inspect.signature(own).parameters)
            monkeypatch.setattr(module, name, lambda *a, own=own, names=names, **k: own(*a, **{n: x for n, x in k.items() if n in names}))


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_transformers_gives_the_same(name, device, monkeypatch):
    model, prompt = tiny(name, device), torch.arange(3, 23, device=device)[None] % 97
    plain_functions(model, monkeypatch)
    with torch.no_grad():
        logits = model(prompt).logits
        text = model.generate(prompt, max_new_tokens=12, do_sample=False)
        ours.reset()
        with ours.accelerate(fla=False) as handle:
            assert handle.names
            other = model(prompt).logits
            other_text = model.generate(prompt, max_new_tokens=12, do_sample=False)
        calls = ours.report()
        ours.reset()
        model(prompt)
    print(name, device, (logits - other).abs().max().item(), calls)
    assert (logits - other).abs().max() < (1e-5 if device == "cpu" else 1e-4) and torch.equal(text, other_text)
    assert {(function, on) for function, on, _ in calls} == {(one, device) for one in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")}
    assert not ours.report()  # after the end of `with`, transformers computes itself again
