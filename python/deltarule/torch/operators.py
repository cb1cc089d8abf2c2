"""The operators ``torch.ops.deltarule.*``: one family for all rules and compositions.

``forward`` gives o, ``forward_states`` also starts from states and gives the last ones, ``backward`` is their gradient,
``decode`` and ``decode_slots`` compute tokens with states that they update in place. ``inputs`` are the rule's inputs in the
order of ``Rule(rule).inputs``, and what ``forms`` names behind them; ``rule`` is its name or JSON, and ``forms`` says what is made
of inputs (``_forms.py``), both constants of a graph. ``saved`` is what a forward keeps for its
backward, bytes that only the library reads.

Each operator has kernels for CPU and CUDA, a fake one, and a kernel of its own for the dispatch key Autograd: it costs a third
of what PyTorch's ``register_autograd`` does, and lets ``backward`` refuse to be differentiated where it would give zeros.
"""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

import torch
from torch import Tensor, library

from . import kernels
from ..rule import Rule

_library = library.Library("deltarule", "DEF")
_library.define("forward(Tensor[] inputs, Tensor? cu_seqlens, str rule, float scale, str path, int chunk, bool save, str forms='') "
                "-> (Tensor o, Tensor saved)")
_library.define("forward_states(Tensor[] inputs, Tensor? initial, Tensor? initial_scan, Tensor? cu_seqlens, str rule, float scale, "
                "str path, int chunk, bool final, bool save, str forms='') -> (Tensor o, Tensor S, Tensor scan, Tensor saved)")
_library.define("backward(Tensor[] inputs, Tensor? initial, Tensor? initial_scan, Tensor? cu_seqlens, Tensor saved, Tensor? d_o, "
                "Tensor? d_final, Tensor? d_final_scan, str rule, float scale, str path, int chunk, bool[] wanted, str forms='') -> Tensor[]")
_library.define("decode(Tensor[] inputs, Tensor(a!) state, Tensor(b!)? scan, str rule, float scale, str forms='') -> Tensor")
_library.define("decode_slots(Tensor[] inputs, Tensor(a!) state, Tensor(b!)? scan, Tensor slots_from, Tensor? slots_to, str rule, "
                "float scale, str forms='') -> Tensor")

_Below = torch._C._AutoDispatchBelowAutograd


# ---- autograd --------------------------------------------------------------------------------------------------------------

_forward_op = torch.ops.deltarule.forward.default
_forward_states_op = torch.ops.deltarule.forward_states.default
_backward_op = torch.ops.deltarule.backward.default
_decode_op = torch.ops.deltarule.decode.default
_decode_slots_op = torch.ops.deltarule.decode_slots.default

_SECOND = ("deltarule has no second derivatives: the gradient of a recurrence cannot be differentiated. Call backward or "
           "torch.autograd.grad without create_graph, or path='reference' of small sizes with finite differences")

_FORWARD_MODE = "deltarule has no forward-mode derivatives: use backward or torch.func.vjp"


_forward_ad = torch.autograd.forward_ad
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_PLAIN = (Tensor, torch.nn.Parameter)


def _is_plain(tensors: Sequence[Optional[Tensor]]) -> bool:
    """Whether nothing looks on: no mode, no transform, no subclass. Then a kernel may be called without the dispatcher, which
    costs as much again."""
    if _modes() or _transforms():
        return False
    for one in tensors:
        if one is not None and (type(one) not in _PLAIN or one.is_meta or one.is_neg()):
            return False
    return True


def _refuse_tangents(tensors: Sequence[Optional[Tensor]]) -> None:
    if _forward_ad._current_level >= 0:
        for one in tensors:
            if one is not None and _forward_ad.unpack_dual(one).tangent is not None:
                raise NotImplementedError(_FORWARD_MODE)


def _requires_grad(tensors: Sequence[Optional[Tensor]]) -> bool:
    if torch.is_grad_enabled():
        for one in tensors:
            if one is not None and one.requires_grad:
                return True
    return False


class _Eager(torch.autograd.Function):
    """A call around the dispatcher, where nothing looks on: with its plan at hand, the backward looks nothing up."""
    @staticmethod
    def forward(ctx, planned, cu_seqlens, final, initial, initial_scan, *inputs):
        o, finals, saved = kernels.run_forward(planned, inputs, initial, initial_scan, cu_seqlens, final, not planned.remake)
        ctx.save_for_backward(None if planned.remake else saved, cu_seqlens, initial, initial_scan, *inputs)
        ctx.planned = planned
        if not final:
            return o
        ctx.set_materialize_grads(False)
        return (o, *finals)

    @staticmethod
    def backward(ctx, d_o, d_S=None, d_scan=None):
        needed = ctx.needs_input_grad
        if d_o is None and d_S is None and d_scan is None:
            return (None,) * len(needed)
        saved, cu_seqlens, initial, initial_scan, *inputs = ctx.saved_tensors
        if saved is None:
            saved = kernels.run_forward(ctx.planned, inputs, initial, initial_scan, cu_seqlens, False, True)[2]
        wanted = (*needed[5:], needed[3], needed[4])
        if torch.is_grad_enabled() or not _is_plain((d_o, d_S, d_scan)):
            rule, scale, path, chunk, forms = ctx.planned.options
            found = iter(_backward_op(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_S, d_scan, rule, scale, path, chunk,
                                      wanted, forms))
            made = [next(found) if want else None for want in wanted]
        else:
            made = kernels.run_backward(ctx.planned, inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_S, d_scan, wanted)
        return (None, None, None, made[-2], made[-1], *made[:-2])


class _States(torch.autograd.Function):
    """A call by the dispatcher, with or without states; saved is an output, so that it may be kept by checkpoints."""
    @staticmethod
    def forward(ctx, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, lean, forms, *inputs):
        with _Below():
            if lean:
                o, saved = _forward_op(inputs, cu_seqlens, rule, scale, path, chunk, True, forms)
                output = (o, saved)
            else:
                output = _forward_states_op(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, True, forms)
        _States.keep(ctx, (initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, lean, forms, *inputs), output)
        return output

    @staticmethod
    def keep(ctx, arguments, output):
        initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, lean, forms, *inputs = arguments
        _, *states, saved = output
        ctx.save_for_backward(saved, cu_seqlens, initial, initial_scan, *inputs)
        given = len(Rule(rule).states) if final else 0
        ctx.mark_non_differentiable(saved, *states[given:])
        ctx.set_materialize_grads(False)
        ctx.options = (rule, scale, path, chunk, forms)

    @staticmethod
    def backward(ctx, d_o, *d_others, derive=_backward_op):
        needed = ctx.needs_input_grad
        d_S, d_scan = d_others[:2] if len(d_others) > 1 else (None, None)
        if d_o is None and d_S is None and d_scan is None:
            return (None,) * len(needed)
        saved, cu_seqlens, initial, initial_scan, *inputs = ctx.saved_tensors
        wanted = [*needed[10:], needed[0], needed[1]]
        rule, scale, path, chunk, forms = ctx.options
        made = iter(derive(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_S, d_scan, rule, scale, path, chunk, wanted, forms))
        gradients = [next(made) if want else None for want in wanted]
        return (gradients[-2], gradients[-1], *(None,) * 8, *gradients[:-2])


class _Transformed(torch.autograd.Function):
    """The same for torch.func, which takes only functions with setup_context, and those before the dispatcher."""
    @staticmethod
    def forward(*arguments):
        initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, _, forms, *inputs = arguments
        return _forward_states_op(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, True, forms)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _States.keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx, *gradients):
        return _States.backward(ctx, *gradients, derive=_TransformedBackward.of)

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(_FORWARD_MODE)


class _TransformedBackward(torch.autograd.Function):
    """Its gradient for torch.func, which refuses to be differentiated."""
    @staticmethod
    def of(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted, forms):
        return _TransformedBackward.apply((rule, scale, path, chunk, wanted, forms), initial, initial_scan, cu_seqlens, saved, d_o,
                                          d_final, d_final_scan, *inputs)

    @staticmethod
    def forward(options, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, *inputs):
        return tuple(_backward_op(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, *options))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(_SECOND)


# Function.apply without its detour for torch.func.
_apply_eager = super(torch.autograd.Function, _Eager).apply
_apply_states = super(torch.autograd.Function, _States).apply


def is_single(query: Tensor, cu_seqlens: Optional[Tensor]) -> bool:
    """Whether there are no more tokens than sequences."""
    return query.dim() > 1 and 0 < query.shape[1] <= (1 if cu_seqlens is None else cu_seqlens.shape[0] - 1 if cu_seqlens.dim() else 0)


def call(inputs: Sequence[Tensor], initial: Optional[Tensor], initial_scan: Optional[Tensor], cu_seqlens: Optional[Tensor], rule: str,
         scale: float, path: str, chunk: int, final: bool, forms: str = "") -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """o, and with final S and scan: around the dispatcher where nothing looks on, else by the operator that has the least to do."""
    lean = initial is None and initial_scan is None and not final
    if not torch.compiler.is_compiling():
        tensors = inputs if lean else (*inputs, initial, initial_scan)
        if _transforms():
            return _Transformed.apply(initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, False, forms, *inputs)[:3]
        if _is_plain(tensors) and _forward_ad._current_level < 0 and inputs[0].dim() and inputs[0].shape[0]:
            if path == "best" and inputs[0].is_cuda and is_single(inputs[0], cu_seqlens):
                path = "recurrent"  # which takes a fifteenth of the time of a chunk
            planned = kernels.planned_of(inputs, cu_seqlens, rule, scale, path, chunk, forms)
            if _requires_grad(tensors):
                output = _apply_eager(planned, cu_seqlens, final, initial, initial_scan, *inputs)
                return (*output, None)[:3] if final else (output, None, None)
            o, finals, _ = kernels.run_forward(planned, inputs, initial, initial_scan, cu_seqlens, final, False)
            return (o, *finals, None, None)[:3]
    if lean:
        return _forward_op(inputs, cu_seqlens, rule, scale, path, chunk, False, forms)[0], None, None
    return _forward_states_op(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, False, forms)[:3]


def _forward_autograd(inputs, cu_seqlens, rule, scale, path, chunk, save, forms=""):
    _refuse_tangents(inputs)
    if _requires_grad(inputs):
        return _apply_states(None, None, cu_seqlens, rule, scale, path, chunk, False, True, forms, *inputs)
    with _Below():
        return _forward_op(inputs, cu_seqlens, rule, scale, path, chunk, save, forms)


def _forward_states_autograd(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save, forms=""):
    tensors = (*inputs, initial, initial_scan)
    _refuse_tangents(tensors)
    if _requires_grad(tensors):
        return _apply_states(initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, False, forms, *inputs)
    with _Below():
        return _forward_states_op(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save, forms)


class _Backward(torch.autograd.Function):
    """The gradient, which refuses to be differentiated."""
    @staticmethod
    def forward(ctx, arguments, *_):
        with _Below():
            return tuple(_backward_op(*arguments))

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(_SECOND)


_apply_backward = super(torch.autograd.Function, _Backward).apply


def _backward_autograd(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted, forms=""):
    arguments = (inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted, forms)
    tensors = (*inputs, initial, initial_scan, d_o, d_final, d_final_scan)
    if _requires_grad(tensors):
        return list(_apply_backward(arguments, *tensors))
    with _Below():
        return _backward_op(*arguments)


def _no_gradient(op):
    def call(inputs, state, scan, *rest):
        if _requires_grad((*inputs, state, scan)):
            raise NotImplementedError(f"deltarule.{op.name().split('::')[1]} updates states in place and has no gradient: call it under "
                                      "torch.no_grad(), or use recurrence")
        with _Below():
            return op(inputs, state, scan, *rest)
    return call


for _name, _kernel, _fake, _autograd in (
        ("forward", kernels.forward, kernels.fake_lean, _forward_autograd),
        ("forward_states", kernels.forward_states, kernels.fake_forward, _forward_states_autograd),
        ("backward", kernels.backward, kernels.fake_backward, _backward_autograd),
        ("decode", kernels.decode, kernels.fake_decode, _no_gradient(_decode_op)),
        ("decode_slots", kernels.decode_slots, kernels.fake_decode_slots, _no_gradient(_decode_slots_op))):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _kernel, "CUDA")
    _library.impl(_name, _autograd, "Autograd")
    library.register_fake(f"deltarule::{_name}", _fake, lib=_library)
