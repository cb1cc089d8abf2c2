"""Models of the library as classes of transformers: folders there and back, the same numbers, generation with caches."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

import transformers
from conftest import slow_after
from deltarule.hf.cache import CACHE_NAME
from deltarule.hf import DeltaruleCache, DeltaruleConfig, DeltaruleForCausalLM, from_fla, to_fla
from deltarule.model import Model

ROOT = Path(__file__).parents[2]
SIZES = {"vocabulary": 31, "hidden": 24, "heads": 2, "intermediate": 40}
MODELS = {
    "gdn": {"rule": "gdn", "layers": 2},
    "composition": {"rule": {"base": "kda", "rows": [{"read": "key", "write": "key", "gain": "implicit", "value": "gain_v"}]}, "layers": 2,
                    "tied": True},
    "hybrid": {"rule": "eda", "layers": "(eda attention)*2 retnet+none"},
    "attention": {"rule": "gdn", "layers": [
        {"mixer": "gdn"}, {"mixer": "attention", "heads": 4, "key_heads": 2, "key_size": 6, "window": 5, "gate": "head",
                           "query_key_norm": True, "rotary_size": 4},
        {"mixer": "attention", "gate": "element", "bias": True, "rotary_base": 0}]},
    "experts": {"rule": "gdn", "layers": [
        {"mixer": "kda", "feed": "experts"},
        {"mixer": "gdn", "feed": "experts", "experts": {"count": 5, "chosen": 2, "shared": 8, "shared_gate": True, "scores": "sigmoid",
                                                        "corrected": True, "scale": 1.5}}]},
}


def model_of(name, seed=0, **options):
    torch.manual_seed(seed)
    model = DeltaruleForCausalLM(DeltaruleConfig(**SIZES, **MODELS[name], **options)).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.15 * torch.randn_like(one))
    return model


def error(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max())


@pytest.mark.parametrize("name", slow_after(4, ["gdn", "attention", "experts", "hybrid", "composition"]))
def test_c_reads_what_transformers_writes(name, tmp_path):
    """Logits of the C library from the folder, and all gradients of the loss."""
    model = model_of(name)
    model.save_pretrained(tmp_path)
    c = Model(tmp_path, "reference")
    ids = torch.randint(0, 31, (2, 23))
    output = model(ids, labels=ids)
    for row, expected in zip(output.logits.detach(), c.logits(list(ids.numpy()))):
        assert error(row, expected) < 1e-5
    output.loss.backward()
    loss, gradients = c.gradient(list(ids.numpy()), [range(22)] * 2, [row[1:] for row in ids.numpy()])
    assert abs(output.loss.item() - loss / 44) < 1e-5 * loss
    largest = max(np.abs(one).max() for one in gradients.values())
    for key, one in model.named_parameters():
        if key in gradients and one.grad is not None:
            assert np.abs(one.grad.numpy() * 44 - gradients[key]).max() < 1e-4 * max(np.abs(gradients[key]).max(), 0.01 * largest), key


@pytest.mark.parametrize("rule,layers", [pytest.param("gdn", "2", marks=pytest.mark.slow), pytest.param("eda", "2", marks=pytest.mark.slow),
                                         ("eda", "eda attention")])
def test_folders_of_the_trainer(rule, layers, tmp_path):
    """`deltarule train` writes, transformers loads and saves, `deltarule score` gives the same numbers."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    run = lambda *words: subprocess.run([sys.executable, "-m", "deltarule", *map(str, words)], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    sizes = ["--layers", layers] if layers.isdigit() else ["--layer-list", layers]
    run("train", "--rule", rule, "--corpus", "text.txt", "--hidden", 32, "--heads", 2, *sizes, "--steps", 2, "--batch", 2, "--seq-len", 64,
        "--out", "run")
    folder = next(path.parent for path in (tmp_path / "run").rglob("config.json"))
    model = DeltaruleForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "saved")
    own = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert own["model_type"] == "deltarule" and own["architectures"] == ["DeltaruleForCausalLM"]
    scores = [json.loads(run("score", "--model", one, "--corpus", "text.txt", "--json")) for one in (folder, tmp_path / "saved")]
    for key in ("loss", "bits_per_byte", "perplexity"):
        assert scores[0][key] == scores[1][key]
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert isinstance(again, DeltaruleForCausalLM)
    ids = torch.randint(0, 256, (1, 40))
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert error(model(ids).logits[0].detach(), Model(folder).logits([ids[0].numpy()])[0]) < 1e-5


@pytest.mark.parametrize("name", slow_after(1, ["hybrid", "gdn", "attention", "experts", "composition"]))
def test_generate(name):
    """Greedy text with a cache is that without one, also of prompts of unequal lengths with padding on the left."""
    model = model_of(name)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    prompts = [torch.randint(1, 31, (n,)) for n in (9, 4, 1)]
    alone = [model.generate(one[None], use_cache=False, **options)[0, len(one):] for one in prompts]
    for one, expected in zip(prompts, alone):
        assert torch.equal(model.generate(one[None], **options)[0, len(one):], expected)
    padded = torch.stack([torch.nn.functional.pad(one, (9 - len(one), 0)) for one in prompts])
    mask = torch.stack([torch.nn.functional.pad(torch.ones(len(one), dtype=torch.long), (9 - len(one), 0)) for one in prompts])
    made = model.generate(padded, attention_mask=mask, **options)[:, 9:]
    assert torch.equal(made, torch.stack(alone))


def test_beams_and_packed():
    model = model_of("hybrid")
    prompt = torch.randint(1, 31, (2, 7))
    options = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(prompt, **options), model.generate(prompt, use_cache=False, **options))
    lengths = (5, 1, 8)
    ids = torch.randint(0, 31, (1, 14))
    whole = model(ids, cu_seqlens=torch.tensor(np.cumsum((0,) + lengths)), use_cache=False).logits[0]
    apart = torch.cat([model(one[None], use_cache=False).logits[0] for one in ids[0].split(lengths)])
    assert error(whole.detach(), apart.detach()) < 1e-5


@pytest.mark.parametrize("name", ["gdn", "hybrid"])
def test_cache_goes_back(name):
    model = model_of(name)
    ids = torch.randint(0, 31, (2, 30))
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        cache = model(ids[:, :10])[CACHE_NAME]
        kept = cache.snapshot()
        for length in (14, torch.tensor(-6)):  # which generate may say by a tensor
            cache.restore(kept)
            model(ids[:, 10:20], cache=cache)
            cache.crop(length)  # within the last call: four tokens are read again
            assert cache.get_seq_length() == 14
            assert error(model(ids[:, 14:17], cache=cache).logits, whole[:, 14:17]) < 1e-4
            cache.crop(-1)
            assert error(model(ids[:, 16:17], cache=cache).logits, whole[:, 16:17]) < 1e-4
        with pytest.raises(ValueError, match="cannot be cut to 5: a recurrent state goes back to"):
            cache.crop(5)
        for _ in range(2):
            cache.restore(kept)
            assert error(model(ids[:, 10:], cache=cache).logits, whole[:, 10:]) < 1e-4
        model.model.keep_steps = 4
        cache = model(ids[:, :10])[CACHE_NAME]
        for t in range(10, 16):
            model(ids[:, t:t + 1], cache=cache)
        cache.crop(-3)
        assert cache.get_seq_length() == 13
        assert error(model(ids[:, 13:14], cache=cache).logits, whole[:, 13:14]) < 1e-4


@pytest.mark.slow
def test_assisted_generation():
    """Candidates of a smaller model: its cache and ours are cut behind what was right."""
    model, assistant = model_of("hybrid"), model_of("gdn", seed=1)
    prompt = torch.randint(1, 31, (1, 6))
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(prompt, assistant_model=assistant, **options), model.generate(prompt, **options))
    assert torch.equal(model.generate(prompt, prompt_lookup_num_tokens=3, **options), model.generate(prompt, **options))


def test_learns_and_checkpoints():
    model = model_of("gdn").train()
    ids = torch.randint(0, 31, (2, 16))
    plain = torch.autograd.grad(model(ids, labels=ids).loss, list(model.parameters()))
    model.gradient_checkpointing_enable()
    for a, b in zip(plain, torch.autograd.grad(model(ids, labels=ids).loss, list(model.parameters()))):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("name", ["gated_deltanet_gva", "precond_kda"])
def test_from_fla(name):
    """Recorded logits of flash-linear-attention's classes."""
    folder = ROOT / "tests" / "checkpoints" / name
    model = from_fla(folder)
    expected = safetensors.load_file(folder / "expected.safetensors")
    assert error(model(expected["input_ids"]).logits.detach(), expected["logits"]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["delta_net", "gdn", "kda", "pgdn", "pkda"])
def test_to_fla(rule, tmp_path):
    """Its class takes all weights, and gives the model back."""
    pytest.importorskip("fla")
    config = DeltaruleConfig(**{**SIZES, "hidden": 32}, rule=rule, layers=2, output_gate=True if "k" in rule else None)
    model = DeltaruleForCausalLM(config)
    theirs = to_fla(model)
    assert type(theirs).__module__.startswith("fla.")
    back = from_fla(theirs)
    ids = torch.randint(0, 31, (1, 20))
    assert torch.equal(back(ids).logits, model(ids).logits)
    to_fla(model, tmp_path)
    assert torch.equal(from_fla(tmp_path)(ids).logits, model(ids).logits)
    again = type(theirs).from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), theirs.state_dict().values()))


def test_no_class_of_fla():
    with pytest.raises(NotImplementedError, match="has no class for rule eda"):
        to_fla(DeltaruleForCausalLM(DeltaruleConfig(**SIZES, rule="eda", layers=1)))


def test_configuration():
    config = DeltaruleConfig(rule="kda", vocab_size=50, hidden_size=32, heads=2, layers=3, tie_word_embeddings=True, eos_token_id=7)
    assert (config.vocabulary, config.hidden, config.num_hidden_layers, config.tied, config.eos_token_id) == (50, 32, 3, True, 7)
    assert config.key_size == 16 and config.output_gate is True
    assert DeltaruleConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    with pytest.raises(ValueError, match="heads"):
        DeltaruleConfig(hidden=30, heads=4)
