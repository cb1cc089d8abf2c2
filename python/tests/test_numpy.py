"""The package without PyTorch: rules, recurrences of numpy arrays, states, the command."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import deltarule
from conftest import random_compositions, random_inputs, value_heads

SIZES = dict(B=2, T=37, H=2, HV=4, K=16, V=12)


def sizes_for(rule):
    return dict(SIZES, HV=value_heads(rule))


def close(ours, theirs, tolerance):
    scale = np.sqrt(np.mean(np.square(theirs))) + 1e-12
    assert np.isfinite(ours).all()
    assert np.abs(ours - theirs).max() <= tolerance * scale, np.abs(ours - theirs).max() / scale


def test_rules():
    rules = deltarule.rules()
    assert len(rules) == 31 and rules[0].name == "linear_attention"
    gdn = deltarule.Rule("gdn")
    assert gdn.inputs == ("query", "key", "value", "log_decay", "beta") and gdn.states == ("S",) and gdn.repeat == 1
    assert gdn.title == "Gated DeltaNet" and "eq." in gdn.source and "D = a S" in gdn.equation
    assert gdn.shapes(B=2, T=5, H=3, HV=6, K=7, V=8) == {
        "query": (2, 5, 3, 7), "key": (2, 5, 3, 7), "value": (2, 5, 6, 8), "log_decay": (2, 5, 6), "beta": (2, 5, 6),
        "o": (2, 5, 6, 8), "S": (2, 6, 7, 8)}
    assert deltarule.Rule({"base": "gdn"}) == gdn and hash(deltarule.Rule({"base": "gdn"})) == hash(gdn)
    assert pickle.loads(pickle.dumps(gdn)) == gdn and deltarule.Rule(gdn) is gdn
    assert deltarule.Rule(json.loads(gdn.json)) == gdn
    whole = {"decay": "scalar", "rows": [{"read": "key", "gain": "beta", "value": "gain_v"}]}
    assert deltarule.Rule(whole) is gdn and deltarule.Rule({**whole, "decay": "channel"}).name == "kda"
    other = deltarule.Rule({"base": "gdn", "query": "corrected"})
    assert other.name is None and deltarule.Rule(json.loads(other.json)) == other != gdn
    with pytest.raises(AttributeError):
        gdn.name = "other"


@pytest.mark.parametrize("base, one, other", [
    ("mesanet", {"query": "conjugate_gradient", "cg_iters": 1}, {"query": "conjugate_gradient", "cg_iters": 2}),
    ("pgdn", {"squash": {"x": 1.1}}, {"squash": {"x": 1.9}}), ("nlms", {"gain_eps": 0.1}, {"gain_eps": 0.9})])
def test_rules_that_differ_in_numbers_are_different(base, one, other):
    rules = [deltarule.Rule({"base": base, **axes}) for axes in ({}, one, other)]
    assert len(set(rules)) == 3 and len({rule.text for rule in rules}) == 3 and [rule.name for rule in rules] == [base, None, None]
    inputs = random_inputs(rules[0], **SIZES, dtype="float32")
    found = [deltarule.recurrence(rule, **inputs) for rule in rules]
    assert all(np.abs(found[i] - found[j]).max() > 1e-5 for i, j in ((0, 1), (0, 2), (1, 2)))
    for rule, o in zip(rules, found):
        exact = deltarule.recurrence(rule, **{name: x.astype("float64") for name, x in inputs.items()}, path="reference")
        close(o, exact, 2e-3)
        assert deltarule.Rule(json.loads(rule.json)) == rule == pickle.loads(pickle.dumps(rule))


@pytest.mark.parametrize("wrong, says", [
    ("gnd", "gdn"), ({"base": "gdn", "decya": "none"}, "decay"), ({"rows": [{"read": "none"}]}, "row"), ("{", "end of file")])
def test_rules_that_are_none(wrong, says):
    with pytest.raises(ValueError, match=says):
        deltarule.Rule(wrong)


def test_a_rule_is_no_number():
    with pytest.raises(TypeError, match="int"):
        deltarule.Rule(3)


def test_rule_of_a_file(tmp_path):
    (tmp_path / "rule.json").write_text('{"base": "kda", "query": "query"}\n')
    assert deltarule.Rule.load(tmp_path / "rule.json") == deltarule.Rule("kda")


@pytest.mark.parametrize("rule", list(deltarule.rules()) + random_compositions(40, 1), ids=lambda r: r.name)
def test_float32_agrees_with_the_reference(rule):
    inputs = random_inputs(rule, **sizes_for(rule))
    o, state = deltarule.recurrence(rule, **{n: x.astype("float32") for n, x in inputs.items()}, final=True)
    exact, exact_state = deltarule.recurrence(rule, **inputs, final=True, path="reference")
    assert o.dtype == np.float32 and exact.dtype == np.float64
    close(o, exact, 2e-3)
    close(state.S, exact_state.S, 2e-3)


def gdn_by_hand(query, key, value, log_decay, beta):
    B, T, H, K = query.shape
    HV, V = value.shape[2:]
    o, S = np.zeros((B, T, HV, V)), np.zeros((B, HV, K, V))
    for b in range(B):
        for h in range(HV):
            for t in range(T):
                q, k = query[b, t, h // (HV // H)], key[b, t, h // (HV // H)]
                S[b, h] *= np.exp(log_decay[b, t, h])
                S[b, h] += beta[b, t, h] * np.outer(k, value[b, t, h] - k @ S[b, h])
                o[b, t, h] = q @ S[b, h] / np.sqrt(K)
    return o, S


def test_gdn_by_hand():
    inputs = random_inputs(deltarule.Rule("gdn"), **SIZES)
    o, state = deltarule.recurrence("gdn", **inputs, final=True, path="reference")
    mine, S = gdn_by_hand(**inputs)
    np.testing.assert_allclose(o, mine, atol=1e-12)
    np.testing.assert_allclose(state.S, S, atol=1e-12)


def test_packed_is_separate():
    rule = deltarule.Rule("kda")
    inputs = random_inputs(rule, **dict(SIZES, B=1, T=50), dtype="float32")
    for cu in ([0, 7, 7, 31, 50], np.array([0, 7, 7, 31, 50], np.int32)):
        o, state = deltarule.recurrence(rule, **inputs, cu_seqlens=cu, final=True)
        assert np.array_equal(o, deltarule.recurrence(rule, **inputs, cu_seqlens=np.asarray(cu).astype(">i8")))
        assert len(state) == 4
        for i in range(4):
            part = {name: x[:, cu[i]:cu[i + 1]] for name, x in inputs.items()}
            o_i, state_i = deltarule.recurrence(rule, **part, final=True)
            assert (o_i == o[:, cu[i]:cu[i + 1]]).all() and (state_i.S == state[i].S).all()


def test_states_go_on(tmp_path):
    for name in ("gdn", "pgdn", "mesanet"):
        rule = deltarule.Rule(name)
        inputs = random_inputs(rule, **SIZES, dtype="float32")
        token = [axes[0] == "rows" for axes in rule.input_axes]
        cut = lambda a, b: {n: (x[:, a:b] if t else x) for (n, x), t in zip(inputs.items(), token)}
        whole, last = deltarule.recurrence(rule, **inputs, final=True)
        first, state = deltarule.recurrence(rule, **cut(0, 20), final=True)
        halves = deltarule.State.cat([state[0], state[1:]])
        halves.save(tmp_path / "state.safetensors", H=SIZES["H"])
        loaded = deltarule.State.load(tmp_path / "state.safetensors")
        assert loaded.rule == rule and (loaded.S == state.S).all()
        second = deltarule.recurrence(rule, **cut(20, 37), initial=loaded)
        close(np.concatenate([first, second], 1), whole, 1e-5)
        kept = state.clone()
        for t in range(20, 37):
            token_t = {n: (x[:, t] if is_token else x) for (n, x), is_token in zip(inputs.items(), token)}
            close(deltarule.step(rule, state, **token_t), whole[:, t], 1e-4)
        close(state.S, last.S, 1e-4)
        assert (kept.S == loaded.S).all()


def test_state_values_first():
    inputs = random_inputs(deltarule.Rule("gdn"), **SIZES, dtype="float32")
    _, state = deltarule.recurrence("gdn", **inputs, final=True)
    turned = deltarule.State("gdn", state.S.swapaxes(-1, -2), layout="vk")
    a, b = (deltarule.recurrence("gdn", **inputs, initial=one) for one in (state, turned))
    assert (a == b).all()


def test_half_precision_and_strides():
    inputs = random_inputs(deltarule.Rule("gdn"), **SIZES, dtype="float16")
    o = deltarule.recurrence("gdn", **inputs)
    assert o.dtype == np.float16
    exact = deltarule.recurrence("gdn", **{n: x.astype("float32") for n, x in inputs.items()})
    assert (o == exact.astype("float16")).all()
    strided = {n: np.asfortranarray(x.astype("float32")) for n, x in inputs.items()}
    assert (deltarule.recurrence("gdn", **strided) == exact).all()


def test_nothing():
    for B, T in ((0, 5), (2, 0), (0, 0)):
        inputs = random_inputs(deltarule.Rule("gdn"), B=B, T=T, dtype="float32")
        o, state = deltarule.recurrence("gdn", **inputs, final=True)
        assert o.shape == (B, T, 4, 6) and state.S.shape == (B, 4, 8, 6) and not state.S.any()


def test_dlpack():
    class Other:
        def __init__(self, array): self.array = array
        def __dlpack__(self, **named): return self.array.__dlpack__(**named)
        def __dlpack_device__(self): return self.array.__dlpack_device__()
    inputs = random_inputs(deltarule.Rule("gdn"), **SIZES, dtype="float32")
    o = deltarule.recurrence("gdn", **{n: Other(x) for n, x in inputs.items()})
    assert (o == deltarule.recurrence("gdn", **inputs)).all()


@pytest.mark.parametrize("change, error, says", [
    (dict(beta=None), TypeError, "missing: beta"),
    (dict(lam=np.zeros((2, 37, 4), "f4")), TypeError, "not read by it: lam"),
    (dict(beta=np.zeros((2, 36, 4), "f4")), ValueError, r"beta has shape \(2, 36, 4\)"),
    (dict(query=np.zeros((2, 37, 2), "f4")), ValueError, r"\[B, T, H, K\]"),
    (dict(value=np.zeros((2, 37, 3, 12), "f4")), ValueError, "no multiple"),
    (dict(query=np.zeros((2, 37, 2, 16))), TypeError, "float64"),
    (dict(query=np.zeros((2, 37, 2, 16), "i4")), TypeError, "int32"),
    (dict(query=[1.0]), TypeError, "list"),
    (dict(scale=-1.0), ValueError, "scale"),
    (dict(scale=0.0), ValueError, "scale"),
    (dict(path="fast"), ValueError, "fast"),
    (dict(chunk=-3), ValueError, "chunk"),
    (dict(cu_seqlens=[0, 37]), ValueError, "batch of 1"),
    (dict(cu_seqlens=[0.0, 37.0]), TypeError, "cu_seqlens"),
    (dict(initial=deltarule.State("kda", np.zeros((2, 4, 16, 12), "f4"))), ValueError, "kda"),
    (dict(initial=deltarule.State("gdn", np.zeros((1, 4, 16, 12), "f4"))), ValueError, "state S"),
])
def test_refusals(change, error, says):
    inputs = random_inputs(deltarule.Rule("gdn"), **SIZES, dtype="float32")
    with pytest.raises(error, match=says):
        deltarule.recurrence("gdn", **{**inputs, **change})


def test_boundaries_that_fall():
    inputs = random_inputs(deltarule.Rule("gdn"), **dict(SIZES, B=1), dtype="float32")
    for wrong in ([0, 20, 10, 37], [0, 36], [1, 37]):
        with pytest.raises(ValueError):
            deltarule.recurrence("gdn", **inputs, cu_seqlens=wrong)


def test_state_files_that_are_none(tmp_path):
    (tmp_path / "file").write_bytes(b"no state")
    with pytest.raises(ValueError):
        deltarule.State.load(tmp_path / "file")
    with pytest.raises(OSError):
        deltarule.State.load(tmp_path / "none")


def test_info_and_kernel():
    lines = deltarule.info()
    assert lines[0] == f"deltarule {deltarule.__version__}" and any(line.startswith("backend cpu") for line in lines)
    assert "chunkwise" in deltarule.kernel("gdn", T=1024)


def test_import_is_light():
    code = "import sys, time; t = time.process_time(); import deltarule; print(time.process_time() - t, 'torch' in sys.modules, 'numpy' in sys.modules)"
    seconds, torch, numpy = min(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() for _ in range(3))
    assert float(seconds) < 0.3 and (torch, numpy) == ("False", "False")


def test_command():
    if "DELTARULE_COMMAND" not in os.environ and not any(os.path.exists(os.path.join(p, "bin/deltarule")) for p in deltarule.__path__):
        pytest.skip("the command is not beside the package, and DELTARULE_COMMAND names none")
    done = subprocess.run([sys.executable, "-m", "deltarule", "rules", "gdn"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Gated DeltaNet" in done.stdout
    assert subprocess.run([sys.executable, "-m", "deltarule", "nonsense"], capture_output=True, check=False).returncode != 0
