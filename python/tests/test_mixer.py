"""The layer of every rule and of composed rules as an nn.Module, held against the C library's layer: same weights, same numbers.

A C model of one layer without a feed-forward is embedding, norm, mixer, sum, norm, head. The same in PyTorch with a Mixer has
its logits and the gradients of all its parameters, which go through what the mixer gives back to its input too."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

import deltarule
from conftest import random_compositions, slow_after
from deltarule.model import Model
from deltarule.torch import Mixer, MixerState

HIDDEN, VOCABULARY = 24, 17
LENGTHS = (19, 1, 70, 2)


class Small(torch.nn.Module):
    """Embedding, norm, mixer, norm, head."""

    def __init__(self, mixer, eps=1e-6):
        super().__init__()
        self.embeddings = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.attn_norm, self.norm = torch.nn.RMSNorm(HIDDEN, eps), torch.nn.RMSNorm(HIDDEN, eps)
        self.mixer, self.lm_head = mixer, torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids, **options):
        x = self.embeddings(ids)
        y = self.mixer(self.attn_norm(x), **options)
        y, state = y if isinstance(y, tuple) else (y, None)
        logits = self.lm_head(self.norm(x + y))
        return logits if state is None else (logits, state)

    def named(self):
        """Parameters under the names of model.safetensors."""
        for name, one in self.named_parameters():
            name = name.replace("mixer.", "model.layers.0.attn.").replace("attn_norm", "model.layers.0.attn_norm")
            yield (f"model.{name}" if name.startswith(("embeddings", "norm")) else name), one


def config_of(rule, **options):
    rule = deltarule.Rule(rule)
    heads = 2
    tied = json.loads(rule.json).get("tied_scan", False)
    return {"model_type": "deltarule", "rule": rule.name or json.loads(rule.json), "vocabulary": VOCABULARY, "hidden": HIDDEN, "layers": 1,
            "heads": heads, "value_heads": heads if tied else 4, "key_size": 8, "value_size": 6, "intermediate": 0, **options}


def small_of(rule, seed=0, dtype=torch.float32, **options):
    config = config_of(rule, **options)
    torch.manual_seed(seed)
    mixer = Mixer(rule, HIDDEN, config["heads"], config["value_heads"], head_dim=8, expand_v=0.75, **options)
    small = Small(mixer, options.get("norm_eps", 1e-6))
    with torch.no_grad():  # larger than first values are, so that everything has a part in the result
        for name, one in small.named_parameters():
            if one.dim() > 1 and not name.endswith(("ridge", "A_log")):
                one.normal_(0, 0.4 if "conv" in name else 0.2)
            else:
                one.add_(0.2 * torch.randn_like(one))
    return small.to(dtype), config


def save(small, config, folder):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file({name: one.detach().contiguous() for name, one in small.named()}, str(folder / "model.safetensors"))


def ids_of(seed=1):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, VOCABULARY, n).astype(np.int32) for n in LENGTHS]


def error(a, b):
    """The largest difference as a share of the largest number."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if a.size else 0.0


def c_numbers(folder, backend):
    """Logits, loss and gradients by name of a C model."""
    model, sequences = Model(folder, backend), ids_of()
    logits = model.logits(sequences)
    loss, gradients = model.gradient(sequences, [range(len(one)) for one in sequences], [np.roll(one, 1) for one in sequences])
    return {"packed": np.concatenate(logits), "separate": np.concatenate(logits), "loss": loss, **gradients}


def torch_numbers(small):
    """The same of the model in PyTorch, of packed sequences; and its logits of separate ones."""
    sequences = ids_of()
    labels = torch.from_numpy(np.concatenate([np.roll(one, 1) for one in sequences])).long()
    logits = small(torch.from_numpy(np.concatenate(sequences)).long()[None], cu_seqlens=torch.tensor(np.cumsum((0,) + LENGTHS)))
    separate = [small(torch.from_numpy(one).long()[None]).detach()[0] for one in sequences]
    loss = torch.nn.functional.cross_entropy(logits[0], labels, reduction="sum")
    loss.backward()
    return {"packed": logits.detach()[0].numpy(), "separate": torch.cat(separate).numpy(), "loss": loss.item(),
            **{name: one.grad.numpy() for name, one in small.named()}}


def errors(found, expected):
    """Of each number; a gradient that is nothing beside the others is held against a thousandth of the largest."""
    largest = max(np.abs(one).max() for name, one in expected.items() if name.startswith(("model.", "lm_head.")))
    made = {}
    for name, one in expected.items():
        scale = np.abs(one).max()
        if name.startswith(("model.", "lm_head.")):
            scale = max(scale, 1e-3 * largest)
        made[name] = float(np.abs(np.asarray(found[name], np.float64) - one).max() / scale)
    return made


NAMED = [rule.name for rule in deltarule.rules()]
COMPOSED = [rule.text for rule in random_compositions(50, seed=39)]


def hold(found, bound):
    assert not {name: one for name, one in found.items() if not one <= bound}, found


ALL = NAMED[1::8] + COMPOSED[::25] + [name for i, name in enumerate(NAMED) if i % 8 != 1] + [
    text for i, text in enumerate(COMPOSED) if i % 25]


# Both sides are plain loops in double: there is next to no rounding, and a formula that differs shows.
@pytest.mark.parametrize("rule", slow_after(6, ALL))
def test_double(rule, tmp_path):
    small, config = small_of(rule, dtype=torch.float64)
    save(small, config, tmp_path)
    hold(errors(torch_numbers(small), c_numbers(tmp_path, "reference")), 1e-8)


@pytest.mark.parametrize("rule", slow_after(6, ALL))
def test_float32(rule, tmp_path):
    """Both within 1e-5 of the numbers in double; where the C layer rounds more than that, as near as four times what it is."""
    small, config = small_of(rule)
    save(small, config, tmp_path)
    exact = c_numbers(tmp_path, "reference")
    ours, theirs = errors(torch_numbers(small), exact), errors(c_numbers(tmp_path, "cpu"), exact)
    bound = max(1e-5, 4 * max(theirs.values()))
    assert bound < 1e-2, theirs
    hold(ours, bound)


@pytest.mark.parametrize("rule,options", [
    ("kda", {"gate": "kda_bounded", "lower_bound": -4.0}), ("kda", {"a_log_per_channel": True}), ("eda", {"conv_size": 0}),
    ("gdn", {"negative_eigenvalues": True, "output_gate": False}), ("qdelta", {"lambda": {"kind": "fixed", "value": 0.3}}),
    ("qdelta", {"lambda": {"bias": "learned"}}), ("mamba2", {"conv_size": 2, "norm_eps": 1e-3})],
    ids=lambda one: one if isinstance(one, str) else "-".join(one))
def test_options(rule, options, tmp_path):
    small, config = small_of(rule, dtype=torch.float64, **options)
    save(small, config, tmp_path)
    hold(errors(torch_numbers(small), c_numbers(tmp_path, "reference")), 1e-8)


CARRIED = ["gdn", "kda", "retnet", "mamba2", "mesanet", "pgdn", "delta_product", "rwkv7"]


@pytest.mark.parametrize("rule", slow_after(3, CARRIED[2:5] + CARRIED[:2] + CARRIED[5:]))
def test_states(rule):
    """In parts, token by token, and packed behind states: what the whole gives."""
    small, _ = small_of(rule)
    mixer = small.mixer
    x = torch.randn(2, 37, HIDDEN)
    with torch.no_grad():
        whole, last = mixer(x, final=True)
        first, state = mixer(x[:, :2], final=True)
        parts = [first]
        for begin, end in ((2, 3), (3, 20)):
            y, state = mixer(x[:, begin:end], initial=state, final=True)
            parts.append(y)
        kept = state.clone()
        for t in range(20, 37):
            parts.append(mixer.step(x[:, t], state).unsqueeze(1))
        hold({"parts": error(torch.cat(parts, 1), whole), "S": error(state.recurrence.S, last.recurrence.S),
              "conv": max([error(a, b) for a, b in zip(state.conv, last.conv)], default=0.0)}, 2e-5)
        assert state.seen.tolist() == [37, 37]
        # sequence 0 goes on by 17 tokens, sequence 1 by one
        packed = torch.cat([x[:1, 20:], x[1:, 20:21]], 1)
        y, after = mixer(packed, initial=kept, final=True, cu_seqlens=torch.tensor([0, 17, 18]))
        hold({"packed": error(y[0, :17], whole[0, 20:]), "one": error(y[0, 17], whole[1, 20]),
              "S": error(after.recurrence.S[0], last.recurrence.S[0]),
              "conv": max([error(a[0], b[0]) for a, b in zip(after.conv, last.conv)], default=0.0)}, 2e-5)
        _, other = mixer(x[1:, :21], final=True)
        hold({"S": error(after.recurrence.S[1], other.recurrence.S[0]),
              "conv": max([error(a[1], b[0]) for a, b in zip(after.conv, other.conv)], default=0.0)}, 2e-5)
        assert after.seen.tolist() == [37, 21]


def test_state_before_any_token():
    mixer = Mixer("pgdn", HIDDEN, 2)
    x = torch.randn(3, 5, HIDDEN)
    assert torch.equal(mixer(x, initial=mixer.state(3)), mixer(x))


COMPOSITION = {"base": "kda", "rows": [{"read": "key", "write": "key", "gain": "implicit", "value": "gain_v"}]}


def test_composition_trains():
    """Somebody's own loop: a composed rule learns to repeat its input of two tokens ago."""
    torch.manual_seed(0)
    small = Small(Mixer(COMPOSITION, HIDDEN, 2))
    optimizer = torch.optim.AdamW(small.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        ids = torch.randint(0, VOCABULARY, (8, 24))
        logits = small(ids)
        loss = torch.nn.functional.cross_entropy(logits[:, 2:].flatten(0, 1), ids[:, :-2].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["gdn", "retnet", "mamba2", COMPOSITION], ids=str)
def test_compile(rule):
    small, _ = small_of(rule)
    whole = torch.compile(small, fullgraph=True)
    ids = torch.randint(0, VOCABULARY, (2, 40))
    a, b = small(ids), whole(ids)
    hold({"logits": error(b.detach(), a.detach())}, 1e-5)
    expected = torch.autograd.grad(a.square().sum(), list(small.parameters()))
    for one, other in zip(expected, torch.autograd.grad(b.square().sum(), list(small.parameters()))):
        hold({"gradient": error(other, one)}, 1e-4)


def test_low_precision():
    """bf16 weights and inputs, with A_log and dt_bias in float32; and autocast."""
    torch.manual_seed(0)
    mixer = Mixer("gdn", 64, 2)
    x = torch.randn(2, 30, 64)
    expected = mixer(x).detach()
    with torch.autocast("cpu", torch.bfloat16):
        assert error(mixer(x).detach().float(), expected) < 0.03
    low = Mixer("gdn", 64, 2, dtype=torch.bfloat16)
    low.load_state_dict(mixer.state_dict())
    for name in ("A_log", "dt_bias"):
        setattr(low, name, torch.nn.Parameter(getattr(mixer, name).detach().clone()))
    made = low(x.bfloat16())
    assert made.dtype == torch.bfloat16 and error(made.detach().float(), expected) < 0.03


def test_first_values():
    torch.manual_seed(0)
    mixer = Mixer("gdn", 512, 8)
    assert abs(mixer.q_proj.weight.std().item() - 0.02) < 1e-3
    assert 0 < mixer.A_log.exp().min() and mixer.A_log.exp().max() <= 16
    steps = torch.nn.functional.softplus(mixer.dt_bias)
    assert 0.9e-3 < steps.min() and steps.max() < 0.11
    assert torch.equal(mixer.o_norm.weight, torch.ones(128))
    with torch.device("meta"):
        empty = Mixer("gdn", 512, 8)
    assert empty.q_proj.weight.is_meta
    empty.to_empty(device="cpu").reset_parameters()
    assert torch.isfinite(empty(torch.randn(1, 3, 512))).all()


def test_names_are_those_of_the_documentation():
    import re
    from pathlib import Path
    page = Path(__file__).parents[2] / "docs" / "rules.md"
    for rule, text in re.findall(r"## (\w+)\n.*?\| layer \| [^:]*: (.*?) \|\n", page.read_text(), re.S):
        told = [name if name.rsplit(".", 1)[-1] == "bias" else name for name in re.findall(r"`([^`]+)`", text)]
        found = [name[:-len(".weight")] if name.endswith(".weight") else name for name, _ in Mixer(rule, 32, 2).named_parameters()]
        assert sorted(found) == sorted(told), rule


@pytest.mark.parametrize("arguments,sentence", [
    (("gdn", 24, 0), "heads"), (("gdn", 24, 2, 3), "value_heads"), (("nonsense", 24, 2), "nonsense")])
def test_refusals(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Mixer(*arguments)


def test_refused_calls():
    mixer = Mixer("gdn", 24, 2)
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 5\); this mixer reads \[B, T, 24\]"):
        mixer(torch.randn(2, 3, 5))
    with pytest.raises(ValueError, match="one row of tokens"):
        mixer(torch.randn(2, 3, 24), cu_seqlens=torch.tensor([0, 6]))
    with pytest.raises(ValueError, match='unknown key "gat"'):
        Mixer("gdn", 24, 2, gat="log")
