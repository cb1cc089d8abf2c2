"""The operators ``torch.ops.deltarule.*``: one family for all rules and compositions.

``forward`` gives o, ``forward_states`` also starts from states and gives the last ones, ``backward`` is their gradient,
``decode`` and ``decode_slots`` compute tokens with states that they update in place. ``inputs`` are the rule's inputs in the
order of ``Rule(rule).inputs``; ``rule`` is its name or JSON, a constant of a graph. ``saved`` is what a forward keeps for its
backward, bytes that only the library reads.

Each operator has kernels for CPU and CUDA, a fake one, and a kernel of its own for the dispatch key Autograd: it costs a third
of what PyTorch's ``register_autograd`` does, and lets ``backward`` refuse to be differentiated where it would give zeros.
"""

from __future__ import annotations

import functools
from ctypes import addressof
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, library

from .._library import DTYPES, Slots, backend, check, lib
from .._plan import Plan, Sizes, check_options, find_plan, plan_of, saved_bytes, saved_size, sizes_of, state_shapes
from ..rule import Rule

_library = library.Library("deltarule", "DEF")
_library.define("forward(Tensor[] inputs, Tensor? cu_seqlens, str rule, float scale, str path, int chunk, bool save) "
                "-> (Tensor o, Tensor saved)")
_library.define("forward_states(Tensor[] inputs, Tensor? initial, Tensor? initial_scan, Tensor? cu_seqlens, str rule, float scale, "
                "str path, int chunk, bool final, bool save) -> (Tensor o, Tensor S, Tensor scan, Tensor saved)")
_library.define("backward(Tensor[] inputs, Tensor? initial, Tensor? initial_scan, Tensor? cu_seqlens, Tensor saved, Tensor? d_o, "
                "Tensor? d_final, Tensor? d_final_scan, str rule, float scale, str path, int chunk, bool[] wanted) -> Tensor[]")
_library.define("decode(Tensor[] inputs, Tensor(a!) state, Tensor(b!)? scan, str rule, float scale) -> Tensor")
_library.define("decode_slots(Tensor[] inputs, Tensor(a!) state, Tensor(b!)? scan, Tensor slots_from, Tensor? slots_to, str rule, "
                "float scale) -> Tensor")

_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
          torch.int32: "int32", torch.int64: "int64"}
_BOUNDARIES = {torch.int32: DTYPES["int32"], torch.int64: DTYPES["int64"]}
_Below = torch._C._AutoDispatchBelowAutograd


# ---- checks ----------------------------------------------------------------------------------------------------------------


def computed_in(rule: Rule, dtypes: Sequence[torch.dtype], path: str, device: str) -> Tuple[torch.dtype, ...]:
    """The dtype in which each input is handed to the library; TypeError for one that it does not take."""
    allowed = (torch.float32, torch.bfloat16, torch.float16) + ((torch.float64,) if path == "reference" else ())
    vector = dtypes[0]
    for name, dtype, is_vector in zip(rule.inputs, dtypes, rule.vectors):
        if dtype not in allowed:
            hint = "; path='reference' computes in float64" if dtype == torch.float64 else ""
            raise TypeError(f"rule {rule.text}: {name} has dtype {dtype}, it must be one of {', '.join(map(str, allowed))}{hint}")
        if is_vector and dtype != vector:
            raise TypeError(f"rule {rule.text}: {name} has dtype {dtype} and query {vector}: vectors must be of one dtype")
    if path == "reference":
        return (torch.float64,) * len(dtypes)
    if device == "cuda":
        return tuple(vector if is_vector else torch.float32 for is_vector in rule.vectors)
    return (torch.float32,) * len(dtypes)


def _packed(cu_seqlens: Optional[Tensor]):
    """The sequences of boundaries; None without."""
    if cu_seqlens is None:
        return None
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in _BOUNDARIES:
        raise TypeError(f"cu_seqlens must be a row of int32 or int64, not {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}")
    return cu_seqlens.shape[0] - 1


def _check_device(rule: Rule, inputs: Sequence[Tensor]) -> None:
    for name, one in zip(rule.inputs, inputs):
        if one.device != inputs[0].device:
            raise RuntimeError(f"rule {rule.text}: {name} is on {one.device} and query on {inputs[0].device}: all must be on one device")


class _Planned:
    """A plan, and the dtypes of its call."""
    __slots__ = ("plan", "dtypes", "dense", "vector", "working", "state")

    def __init__(self, plan: Plan, dtypes: Tuple[torch.dtype, ...], given: Sequence[torch.dtype], path: str):
        self.plan, self.dtypes, self.vector, self.working = plan, dtypes, given[0], dtypes[0]
        self.dense = tuple(dtypes) == tuple(given)
        self.state = torch.float64 if path == "reference" else torch.float32


_planned: dict = {}


def _plan(inputs: Sequence[Tensor], cu_seqlens: Optional[Tensor], rule: str, scale: float, path: str, chunk: int) -> _Planned:
    """The plan of a call; everything about the call's tensors but their memory is in its key, and checked when it is made."""
    first = inputs[0]
    index = first.get_device()
    key = (rule, scale, path, chunk, None if cu_seqlens is None else cu_seqlens.shape[0], index,
           torch.get_num_threads() if index < 0 else 0, *[(x.shape, x.dtype) for x in inputs])
    found = _planned.get(key)
    if found is not None and all([x.get_device() == index for x in inputs]):
        return found
    made = Rule(rule)
    shapes, given = [tuple(x.shape) for x in inputs], [x.dtype for x in inputs]
    packed = _packed(cu_seqlens)
    sizes_of(made, shapes, packed)
    _check_device(made, inputs)
    device = first.device.type
    dtypes = computed_in(made, given, path, device)
    dtype = _NAMES[dtypes[0]] if device == "cuda" else "float32"
    plan = plan_of(key, made, shapes, packed, scale, path, chunk, device, torch.get_num_threads(), dtype, max(index, 0))
    while len(_planned) >= 1024:
        try:
            _planned.pop(next(iter(_planned)), None)
        except (StopIteration, RuntimeError):
            break
    return _planned.setdefault(key, _Planned(plan, dtypes, given, path))


def _ready(inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype], dense: bool) -> List[Tensor]:
    """The tensors in these dtypes, dense, and on CUDA aligned as its fast forms need."""
    if not dense:
        inputs = [x if x.dtype == dtype else x.to(dtype) for x, dtype in zip(inputs, dtypes)]
    if not inputs[0].is_cuda and all([x.is_contiguous() for x in inputs]):
        return inputs
    return [x if x.is_contiguous() and not (x.is_cuda and x.data_ptr() & 15) else x.clone(memory_format=torch.contiguous_format)
            for x in inputs]


def _states(planned: _Planned, states: Sequence[Optional[Tensor]], what: str) -> List[Optional[Tensor]]:
    """Given states as the library takes them; a missing one stays None."""
    made, plan = [], planned.plan
    if len(plan.state_shapes) < 2 and states[1] is not None:
        raise ValueError(f"rule {plan.rule.text} carries S only: {what} of a scan must be None")
    for name, shape, one in zip(plan.rule.states, plan.state_shapes, states):
        if one is not None:
            _check_state(plan.rule, name, shape, one, what)
            if not one.dtype.is_floating_point:
                raise TypeError(f"{what} {name} has dtype {one.dtype}, it must be a floating one")
            one = _ready([one], [planned.state], False)[0]
        made.append(one)
    return made


def _check_state(rule: Rule, name: str, shape: Sequence, one: Tensor, what: str) -> None:
    if one.dim() != len(shape) or any(a != b for a, b in zip(one.shape, shape)):
        raise ValueError(f"rule {rule.text}: {what} {name} has shape {tuple(one.shape)}, it must be {tuple(shape)}")


def _stream(device: torch.device) -> Optional[int]:
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else None


def _begin(planned: _Planned, inputs: Sequence[Tensor], cu_seqlens: Optional[Tensor], workspace: Tensor):
    """This thread's structs of a call, with inputs, boundaries, stream and workspace set."""
    frame = planned.plan.frame()
    call, pointers = frame.call, frame.inputs
    for index, one in zip(planned.plan.indices, inputs):
        pointers[index] = one.data_ptr() or _NOWHERE
    if cu_seqlens is None:
        call.boundaries.at = None
    else:
        call.boundaries.at = cu_seqlens.data_ptr()
        call.boundaries.dtype = _BOUNDARIES[cu_seqlens.dtype]
        call.boundaries.device = cu_seqlens.is_cuda
    call.workspace = workspace.data_ptr() or _NOWHERE
    call.stream = _stream(workspace.device) if workspace.is_cuda else None
    return frame


_NOWHERE = 64  # stands for the memory of a tensor without elements, whose address PyTorch tells as 0: nothing there is read


def _point(planned: _Planned, pointers, states: Sequence[Optional[Tensor]]) -> int:
    for index, one in zip(planned.plan.state_indices, states):
        pointers[index] = None if one is None else one.data_ptr() or _NOWHERE
    return addressof(pointers)


# ---- forward ---------------------------------------------------------------------------------------------------------------


def _formula(rule: Rule, sizes: Sizes, path: str, chunk: int, device: torch.device, dtype: torch.dtype):
    """Bytes of saved, for sizes that may be symbolic."""
    numbers = (int(sizes.H), int(sizes.HV), int(sizes.K), int(sizes.V))
    return saved_bytes(_saved_size(rule.text, numbers, path, chunk, device.type, _NAMES[dtype], device.index or 0), sizes.rows, sizes.sequences)


@functools.lru_cache(maxsize=4096)
def _saved_size(rule: str, numbers: Tuple[int, ...], path: str, chunk: int, device: str, dtype: str, index: int):
    isa = None
    if device == "cuda" and torch.cuda.is_available():
        isa = lib.dr_backend_isa(backend("cuda", 0, DTYPES[dtype], index).handle).decode()
    device = "cuda" if device == "cuda" else "cpu"
    return saved_size(Rule(rule), Sizes(1, 1, *numbers, 1, 1), 0.0, path, chunk, device, dtype, isa)


def _is_empty(inputs: Sequence[Tensor]) -> bool:
    return inputs[0].dim() > 0 and inputs[0].shape[0] == 0


def _run_forward(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save):
    """o, the final states (none unless final), saved (empty unless save)."""
    first = inputs[0]
    if _is_empty(inputs):
        o, S, scan, saved = _fake_forward(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save)
        return o, [S, scan], saved.zero_()
    planned = _plan(inputs, cu_seqlens, rule, scale, path, chunk)
    plan = planned.plan
    inputs = _ready(inputs, planned.dtypes, planned.dense)
    if cu_seqlens is not None and not cu_seqlens.is_contiguous():
        cu_seqlens = cu_seqlens.contiguous()
    device = first.device
    o = torch.empty(plan.o_shape, dtype=planned.working, device=device)
    saved = torch.empty(plan.saved_bytes if save else 0, dtype=torch.uint8, device=device)
    workspace = torch.empty(plan.forward_bytes, dtype=torch.uint8, device=device)
    initials = _states(planned, (initial, initial_scan), "initial state") if initial is not None or initial_scan is not None else ()
    finals = [torch.empty(shape, dtype=planned.state, device=device) for shape in plan.state_shapes] if final else ()
    frame = _begin(planned, inputs, cu_seqlens, workspace)
    call = frame.call
    call.o = o.data_ptr() or _NOWHERE
    call.saved = (saved.data_ptr() or _NOWHERE) if save else None
    call.initial = _point(planned, frame.initial, initials) if initials else None
    call.final = _point(planned, frame.final, finals) if final else None
    status = lib.dr_plan_forward(plan.handle, frame.reference)
    if status:
        check(status)
    return (o if planned.working == planned.vector else o.to(planned.vector)), finals, saved


def _forward(inputs, cu_seqlens, rule, scale, path, chunk, save):
    o, _, saved = _run_forward(inputs, None, None, cu_seqlens, rule, scale, path, chunk, False, save)
    return o, saved


def _forward_states(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save):
    o, finals, saved = _run_forward(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save)
    nothing = lambda: torch.empty(0, dtype=torch.float64 if path == "reference" else torch.float32, device=o.device)
    S = finals[0] if final else nothing()
    return o, S, (finals[1] if final and len(finals) > 1 else nothing()), saved


def _fake_forward(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save):
    made, first = Rule(rule), inputs[0]
    check_options(scale, path, chunk)
    sizes = sizes_of(made, [x.shape for x in inputs], _packed(cu_seqlens))
    dtypes = computed_in(made, [x.dtype for x in inputs], path, first.device.type)
    _check_device(made, inputs)
    shapes = state_shapes(made, sizes)
    if len(shapes) < 2 and initial_scan is not None:
        raise ValueError(f"rule {made.text} carries S only: initial state of a scan must be None")
    for name, shape, one in zip(made.states, shapes, (initial, initial_scan)):
        if one is not None:
            _check_state(made, name, shape, one, "initial state")
    o = first.new_empty((sizes.B, sizes.T, sizes.HV, sizes.V))
    size = _formula(made, sizes, path, chunk, first.device, dtypes[0]) if save else 0
    saved = first.new_empty((size,), dtype=torch.uint8)
    dtype = torch.float64 if path == "reference" else torch.float32
    states = [first.new_empty(shape, dtype=dtype) for shape in shapes] if final else []
    states += [first.new_empty((0,), dtype=dtype) for _ in range(2 - len(states))]
    return o, states[0], states[1], saved


def _fake_lean(inputs, cu_seqlens, rule, scale, path, chunk, save):
    o, _, _, saved = _fake_forward(inputs, None, None, cu_seqlens, rule, scale, path, chunk, False, save)
    return o, saved


# ---- backward --------------------------------------------------------------------------------------------------------------


def _backward(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted):
    """Gradients of those of (inputs, initial, initial_scan) that are wanted."""
    all_given = (*inputs, initial, initial_scan)
    if _is_empty(inputs):
        return [torch.zeros_like(one) for one, want in zip(all_given, wanted) if want and one is not None]
    planned = _plan(inputs, cu_seqlens, rule, scale, path, chunk)
    plan, first = planned.plan, inputs[0]
    device, count = first.device, len(inputs)
    if saved.nbytes != plan.saved_bytes or saved.get_device() != first.get_device() or not saved.is_contiguous():
        raise ValueError(f"saved has {saved.nbytes} bytes on {saved.device}, not the {plan.saved_bytes} bytes of this forward")
    if d_o is None:
        d_o = torch.zeros(plan.o_shape, dtype=planned.working, device=device)
    elif d_o.shape != plan.o_shape:
        raise ValueError(f"d_o has shape {tuple(d_o.shape)}, it must be {plan.o_shape}")
    else:
        d_o = _ready((d_o,), (planned.working,), False)[0]
    ready = _ready(inputs, planned.dtypes, planned.dense)
    if cu_seqlens is not None and not cu_seqlens.is_contiguous():
        cu_seqlens = cu_seqlens.contiguous()
    initials = _states(planned, (initial, initial_scan), "initial state") if initial is not None or initial_scan is not None else ()
    d_finals = _states(planned, (d_final, d_final_scan), "gradient of the final state") if d_final is not None or d_final_scan is not None else ()
    d_inputs = [torch.empty_like(x) if want else None for x, want in zip(ready, wanted)]
    d_initials = [torch.empty_like(x) if want and x is not None else None for x, want in zip(initials, wanted[count:])]
    workspace = torch.empty(plan.backward_bytes, dtype=torch.uint8, device=device)
    frame = _begin(planned, ready, cu_seqlens, workspace)
    call = frame.call
    call.saved, call.d_o = saved.data_ptr() or _NOWHERE, d_o.data_ptr() or _NOWHERE
    call.initial = _point(planned, frame.initial, initials) if initials else None
    call.d_final = _point(planned, frame.d_final, d_finals) if d_finals else None
    call.d_initial = _point(planned, frame.d_initial, d_initials) if d_initials else None
    pointers = frame.d_inputs
    for index, one in zip(plan.indices, d_inputs):
        pointers[index] = None if one is None else one.data_ptr() or _NOWHERE
    call.d_inputs = addressof(pointers)
    status = lib.dr_plan_backward(plan.handle, frame.reference)
    if status:
        check(status)
    if planned.dense and not d_initials:
        return [one for one in d_inputs if one is not None]
    return [one if one.dtype == given.dtype else one.to(given.dtype)
            for one, given in zip((*d_inputs, *d_initials), all_given) if one is not None]


def _fake_backward(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted):
    return [torch.empty_like(one, memory_format=torch.contiguous_format)
            for one, want in zip((*inputs, initial, initial_scan), wanted) if want and one is not None]


# ---- decode ----------------------------------------------------------------------------------------------------------------


def _decode(inputs, state, scan, rule, scale):
    """o of one token of each sequence (T = 1); state and scan are updated."""
    if _is_empty(inputs):
        return _fake_decode(inputs, state, scan, rule, scale)
    planned = _plan(inputs, None, rule, scale, "best", 0)
    if planned.plan.sizes.T != 1:
        raise ValueError(f"decode computes one token of each sequence: T must be 1, not {planned.plan.sizes.T}")
    return _run_decode(planned, inputs, state, scan, None)


def _decode_slots(inputs, state, scan, slots_from, slots_to, rule, scale):
    """o of T tokens of each sequence, whose states lie in a pool [slots, ...] that is updated."""
    if _is_empty(inputs):
        return _fake_decode(inputs, state, scan, rule, scale)
    planned = _plan(inputs, None, rule, scale, "best", 0)
    sizes = planned.plan.sizes
    for name, one, shape in (("slots_from", slots_from, (sizes.B,)), ("slots_to", slots_to, (sizes.B, sizes.T))):
        if one is not None and (tuple(one.shape) != shape or one.dtype != torch.int32 or one.device != state.device):
            raise ValueError(f"{name} must be int32 of shape {shape} on {state.device}, not {one.dtype} {tuple(one.shape)} on {one.device}")
    slots_from = slots_from.contiguous()
    slots_to = None if slots_to is None else slots_to.contiguous()
    slots = Slots(state.shape[0] if state.dim() else 0, sizes.T, slots_from.data_ptr(), None if slots_to is None else slots_to.data_ptr())
    return _run_decode(planned, inputs, state, scan, slots)


def _run_decode(planned, inputs, state, scan, slots):
    plan = planned.plan
    given = [state] + ([] if scan is None else [scan])
    if len(given) != len(plan.state_shapes):
        raise ValueError(f"rule {plan.rule.text} carries {' and '.join(plan.rule.states)}: {len(given)} states were given")
    for name, shape, one in zip(plan.rule.states, plan.state_shapes, given):
        _check_state(plan.rule, name, shape if slots is None else (slots.slots, *shape[1:]), one, "state")
        if one.device != inputs[0].device or not one.dtype.is_floating_point:
            raise TypeError(f"state {name} is {one.dtype} on {one.device}, it must be a floating tensor on {inputs[0].device}")
    inputs = _ready(inputs, planned.dtypes, planned.dense)
    states = _ready(given, [planned.state] * len(given), False)
    device = inputs[0].device
    o = torch.empty(plan.o_shape, dtype=planned.working, device=device)
    workspace = torch.empty(plan.decode_bytes, dtype=torch.uint8, device=device)
    frame = _begin(planned, inputs, None, workspace)
    call = frame.call
    call.o, call.states = o.data_ptr(), _point(planned, frame.final, states)
    call.slots = None if slots is None else addressof(slots)
    status = lib.dr_plan_decode(plan.handle, frame.reference)
    call.slots = None
    if status:
        check(status)
    for one, used in zip(given, states):
        if one is not used:
            one.copy_(used)
    return o if planned.working == planned.vector else o.to(planned.vector)


def _fake_decode(inputs, state, scan, rule, scale):
    made = Rule(rule)
    sizes = sizes_of(made, [x.shape for x in inputs], None)
    computed_in(made, [x.dtype for x in inputs], "best", inputs[0].device.type)
    return inputs[0].new_empty((sizes.B, sizes.T, sizes.HV, sizes.V))


def _fake_decode_slots(inputs, state, scan, slots_from, slots_to, rule, scale):
    return _fake_decode(inputs, state, scan, rule, scale)


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


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing looks on: no mode, no transform, no subclass. Then a kernel may be called without the dispatcher, which
    costs as much again."""
    if _modes() or _transforms():
        return False
    for one in tensors:
        if type(one) not in _PLAIN or one.is_meta or one.is_neg():
            return False
    return True


def _refuse_tangents(tensors: Sequence[Optional[Tensor]]) -> None:
    if _forward_ad._current_level >= 0:
        for one in tensors:
            if one is not None and _forward_ad.unpack_dual(one).tangent is not None:
                raise NotImplementedError(_FORWARD_MODE)


class _Lean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cu_seqlens, rule, scale, path, chunk, *inputs):
        with _Below():
            o, saved = (_forward if _is_plain(inputs) else _forward_op)(inputs, cu_seqlens, rule, scale, path, chunk, True)
        ctx.save_for_backward(saved, cu_seqlens, *inputs)
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)
        ctx.options = (rule, scale, path, chunk)
        return o, saved

    @staticmethod
    def backward(ctx, d_o, _):
        needed = ctx.needs_input_grad
        if d_o is None:
            return (None,) * len(needed)
        saved, cu_seqlens, *inputs = ctx.saved_tensors
        wanted = needed[5:]
        derive = _backward if not torch.is_grad_enabled() and _is_plain(inputs) and _is_plain((saved, d_o)) else _backward_op
        made = derive(inputs, None, None, cu_seqlens, saved, d_o, None, None, *ctx.options, [*wanted, False, False])
        if len(made) == len(wanted):
            return (None, None, None, None, None, *made)
        made = iter(made)
        return (None, None, None, None, None, *[next(made) if want else None for want in wanted])


class _States(torch.autograd.Function):
    @staticmethod
    def forward(ctx, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, *inputs):
        plain = _is_plain([x for x in (*inputs, initial, initial_scan) if x is not None])
        with _Below():
            output = (_forward_states if plain else _forward_states_op)(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, True)
        _States.keep(ctx, (initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, *inputs), output)
        return output

    @staticmethod
    def keep(ctx, arguments, output):
        initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, *inputs = arguments
        _, S, scan, saved = output
        ctx.save_for_backward(saved, cu_seqlens, initial, initial_scan, *inputs)
        ctx.mark_non_differentiable(saved, *((S, scan) if not final else () if len(Rule(rule).states) > 1 else (scan,)))
        ctx.set_materialize_grads(False)
        ctx.options = (rule, scale, path, chunk)

    @staticmethod
    def backward(ctx, d_o, d_S, d_scan, _, derive=None):
        needed = ctx.needs_input_grad
        if d_o is None and d_S is None and d_scan is None:
            return (None,) * len(needed)
        saved, cu_seqlens, initial, initial_scan, *inputs = ctx.saved_tensors
        wanted = [*needed[8:], needed[0], needed[1]]
        if derive is None:
            tensors = [x for x in (*inputs, initial, initial_scan, saved, d_o, d_S, d_scan) if x is not None]
            derive = _backward if not torch.is_grad_enabled() and _is_plain(tensors) else _backward_op
        made = iter(derive(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_S, d_scan, *ctx.options, wanted))
        gradients = [next(made) if want else None for want in wanted]
        return (gradients[-2], gradients[-1], None, None, None, None, None, None, *gradients[:-2])


class _Transformed(torch.autograd.Function):
    """The same for torch.func, which takes only functions with setup_context, and those before the dispatcher."""
    @staticmethod
    def forward(*arguments):
        initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, *inputs = arguments
        return _forward_states_op(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, True)

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
    def of(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted):
        return _TransformedBackward.apply((rule, scale, path, chunk), wanted, initial, initial_scan, cu_seqlens, saved, d_o, d_final,
                                          d_final_scan, *inputs)

    @staticmethod
    def forward(options, wanted, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, *inputs):
        return tuple(_backward_op(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, *options, wanted))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(_SECOND)


def call(inputs: Sequence[Tensor], initial: Optional[Tensor], initial_scan: Optional[Tensor], cu_seqlens: Optional[Tensor], rule: str,
         scale: float, path: str, chunk: int, final: bool) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """o, and with final S and scan, by the operator that has the least to do."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return _Transformed.apply(initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, *inputs)[:3]
    if initial is None and initial_scan is None and not final:
        return _forward_op(inputs, cu_seqlens, rule, scale, path, chunk, False)[0], None, None
    return _forward_states_op(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, False)[:3]


# Function.apply without its detour for torch.func.
_apply_lean = super(torch.autograd.Function, _Lean).apply
_apply_states = super(torch.autograd.Function, _States).apply


def _requires_grad(tensors: Sequence[Optional[Tensor]]) -> bool:
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def _forward_autograd(inputs, cu_seqlens, rule, scale, path, chunk, save):
    _refuse_tangents(inputs)
    if _requires_grad(inputs):
        return _apply_lean(cu_seqlens, rule, scale, path, chunk, *inputs)
    with _Below():
        return (_forward if _is_plain(inputs) else _forward_op)(inputs, cu_seqlens, rule, scale, path, chunk, save)


def _forward_states_autograd(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save):
    tensors = (*inputs, initial, initial_scan)
    _refuse_tangents(tensors)
    if _requires_grad(tensors):
        return _apply_states(initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, *inputs)
    plain = _is_plain([x for x in tensors if x is not None])
    with _Below():
        return (_forward_states if plain else _forward_states_op)(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save)


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


def _backward_autograd(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted):
    arguments = (inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted)
    if torch.is_grad_enabled():
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
        ("forward", _forward, _fake_lean, _forward_autograd),
        ("forward_states", _forward_states, _fake_forward, _forward_states_autograd),
        ("backward", _backward, _fake_backward, _backward_autograd),
        ("decode", _decode, _fake_decode, _no_gradient(_decode_op)),
        ("decode_slots", _decode_slots, _fake_decode_slots, _no_gradient(_decode_slots_op))):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _kernel, "CUDA")
    _library.impl(_name, _autograd, "Autograd")
    library.register_fake(f"deltarule::{_name}", _fake, lib=_library)
