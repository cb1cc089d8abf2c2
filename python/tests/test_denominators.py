"""Gains whose denominator comes near zero: 1 / (r.w), beta / (1 + beta r.w), (1 - exp(-beta k.k)) / k.k.

Random compositions keep away from there (conftest.py gives them a gain_eps), since results move without bound. Here a token of
each sequence has a denominator of a chosen size d. float32 rounds a dot product of K terms of at most 1 by at most K u, with
u = 2^-24, so the gain by K u / d of itself, and its gradient, which has its square, by twice as much; all that comes after it in a
sequence is as wrong. That is the tolerance, with a factor of 2 for the dot products around it.
"""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import deltarule
from test_torch import tensors, with_gradients

K, SINGULAR = 8, 2  # the token whose denominator is small


def row(read, gain):
    return deltarule.Rule({"base": "gdn", "rows": [{"read": read, "write": "free" if read == "free" else "key", "gain": gain, "value": "v"}]})


def nearly_orthogonal(inputs, read, write, dot):
    """The read vector at the token turned until its product with the write vector is `dot`."""
    r, w = inputs[read][:, SINGULAR], inputs[write][:, SINGULAR]
    w /= w.norm(dim=-1, keepdim=True)
    r -= (r * w).sum(-1, keepdim=True) * w
    r /= r.norm(dim=-1, keepdim=True)
    r += dot * w


def agree(rule, inputs, d, grows):
    """Float32 against the reference on the same, already rounded, inputs; grows: the input whose gradient has the square of 1 / d."""
    inputs = {name: x.float() for name, x in inputs.items()}
    ours, gradients = with_gradients(rule, inputs)
    exact, exact_gradients = with_gradients(rule, {name: x.double() for name, x in inputs.items()}, path="reference")
    most = 2 * 2 * K * 2.0 ** -24 * (1 + 1 / d)
    for one, other in [*zip(ours, exact), *((gradients[name], other) for name, other in exact_gradients.items())]:
        wrong, largest = (one.double() - other).abs().max().item(), other.abs().max().item()
        assert wrong <= most * largest
    if grows:
        assert exact_gradients[grows].abs().max() > 0.05 / d ** 2  # so the term is there, and not lost beside others


@pytest.mark.parametrize("d", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("read, write", [("erase_key", "key"), ("free_read", "free_write")])
def test_a_normalized_gain(read, write, sign, d):
    rule = row("free" if read == "free_read" else read, "normalized")
    inputs = tensors(rule, torch.float64, B=3, T=7, H=1, HV=1, K=K, V=6)
    nearly_orthogonal(inputs, read, write, sign * d)
    agree(rule, inputs, d, read)


@pytest.mark.parametrize("d", [1e-1, 1e-2, 1e-3, 1e-4])
def test_an_implicit_gain(d):
    rule = row("erase_key", "implicit")
    inputs = tensors(rule, torch.float64, B=3, T=7, H=1, HV=1, K=K, V=6)
    inputs["beta"][:, SINGULAR] = 0.75
    nearly_orthogonal(inputs, "erase_key", "key", (d - 1) / 0.75)
    agree(rule, inputs, d, "erase_key")


@pytest.mark.parametrize("length", [1e-1, 1e-3, 1e-6, 0])
def test_an_exponential_gain_of_a_short_key(length):
    """Whose limit is beta: nothing grows, and the tolerance is that of an ordinary token."""
    rule = row("key", "exponential")
    inputs = tensors(rule, torch.float64, B=3, T=7, H=1, HV=1, K=K, V=6)
    inputs["key"][:, SINGULAR] *= length
    agree(rule, inputs, 1.0, None)
