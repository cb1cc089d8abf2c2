"""JAX arrays on the CPU are read through DLPack, and results go back to JAX that way."""

import pytest

np = pytest.importorskip("numpy")
jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
if jax.default_backend() != "cpu":
    pytest.skip("JAX's default device is no CPU", allow_module_level=True)

import deltarule


def drawn(dtype="float32"):
    keys = jax.random.split(jax.random.key(0), 5)
    q, k, v = (jax.random.normal(key, (2, 70, 2, 16), dtype) for key in keys[:3])
    k = k / jax.numpy.linalg.norm(k, axis=-1, keepdims=True)
    gates = {"log_decay": -jax.random.uniform(keys[3], (2, 70, 2)), "beta": jax.random.uniform(keys[4], (2, 70, 2))}
    return (q, k, v), gates


def gated_delta_rule(q, k, v, log_decay, beta):
    """o and the last state ``[B, H, K, V]``, token by token in JAX."""
    def token(state, one):
        q, k, v, g, b = one
        state = state * jax.numpy.exp(g)[..., None, None]
        error = v - jax.numpy.einsum("bhk,bhkv->bhv", k, state)
        state = state + jax.numpy.einsum("bhk,bhv->bhkv", k, error * b[..., None])
        return state, jax.numpy.einsum("bhk,bhkv->bhv", q, state) * q.shape[-1] ** -0.5
    first = jax.numpy.zeros((q.shape[0], q.shape[2], q.shape[3], v.shape[3]))
    state, o = jax.lax.scan(token, first, [jax.numpy.moveaxis(one, 1, 0) for one in (q, k, v, log_decay, beta)])
    return jax.numpy.moveaxis(o, 0, 1), state


def test_arrays_of_jax():
    vectors, gates = drawn()
    o, state = deltarule.recurrence("gdn", *vectors, **gates, final=True)
    assert type(o) is np.ndarray and o.dtype == np.float32
    expected, last = gated_delta_rule(*vectors, **gates)
    back = jax.dlpack.from_dlpack(o)
    assert isinstance(back, jax.Array)
    assert float(abs(back - expected).max()) <= 2e-5 * float(abs(expected).max())
    assert float(abs(state.S - last).max()) <= 2e-5 * float(abs(last).max())
    same, _ = deltarule.recurrence("gdn", *map(np.asarray, vectors), **{name: np.asarray(one) for name, one in gates.items()}, final=True)
    np.testing.assert_array_equal(o, same)


def test_a_traced_array_is_refused():
    vectors, gates = drawn()
    with pytest.raises(TypeError, match="query"):
        jax.jit(lambda q: deltarule.recurrence("gdn", q, *vectors[1:], **gates))(vectors[0])
