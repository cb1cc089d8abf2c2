"""What the operators do: checks, plans by the shapes, dtypes and strides of a call's tensors, and the calls themselves.

The library takes bfloat16 and float16 as they are, and slices of one tensor (queries, keys and values of one projection) where they
lie. Nothing here is differentiable: operators.py is.
"""

from __future__ import annotations

import functools
import threading
from ctypes import addressof
from struct import Struct
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._forms import DECAYS, Made, made_of, pitch_of
from .._library import DTYPES, Slots, backend, check, lib
from .._plan import Plan, Sizes, check_options, plan_of, saved_bytes, saved_size, sizes_of, state_shapes
from ..rule import Rule

_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
          torch.int32: "int32", torch.int64: "int64"}
_BOUNDARIES = {torch.int32: DTYPES["int32"], torch.int64: DTYPES["int64"]}


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
        return (torch.float64,) * len(rule.inputs)
    return tuple(dtype if axes[0] == "rows" else torch.float32 for dtype, axes in zip(dtypes, rule.input_axes))


def packed_of(cu_seqlens: Optional[Tensor]):
    """The sequences of boundaries; None without."""
    if cu_seqlens is None:
        return None
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in _BOUNDARIES:
        raise TypeError(f"cu_seqlens must be a row of int32 or int64, not {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}")
    return cu_seqlens.shape[0] - 1


def check_device(rule: Rule, inputs: Sequence[Tensor]) -> None:
    for name, one in zip((*rule.inputs, "A_log", "dt_bias"), inputs):
        if one.device != inputs[0].device:
            raise RuntimeError(f"rule {rule.text}: {name} is on {one.device} and query on {inputs[0].device}: all must be on one device")


def sizes_and_extras(rule: Rule, inputs: Sequence[Tensor], packed, made: Made, device: str) -> Sizes:
    """Sizes of a call; what is made of its inputs can be, and what it takes behind the rule's inputs is there."""
    count = len(rule.inputs)
    if len(inputs) != count + len(made.extras):
        raise ValueError(f"rule {rule.text} reads {', '.join((*rule.inputs, *made.extras))} here, {len(inputs)} inputs were given")
    sizes = sizes_of(rule, [x.shape for x in inputs[:count]], packed)
    for name, one in zip(made.extras, inputs[count:]):
        at = "log_decay" in rule.inputs and rule.input_axes[rule.inputs.index("log_decay")]
        shapes = [(sizes.HV,)] if name == "A_log" or not at or len(at) < 3 else [(sizes.HV, sizes.K), (sizes.HV * sizes.K,)]
        if tuple(one.shape) not in shapes or not one.dtype.is_floating_point:
            raise ValueError(f"{name} is {one.dtype} of shape {tuple(one.shape)}, it must be floating of shape {shapes[0]}")
    return sizes


# ---- plans -----------------------------------------------------------------------------------------------------------------


class Planned:
    """A plan, and what its calls do to tensors before and after it."""
    __slots__ = ("plan", "changes", "aligned", "vector", "working", "state", "count", "options", "made", "room", "dense", "put", "like",
                 "remake")

    def __init__(self, plan: Plan, inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype], path: str, options: Tuple, made: Made):
        self.plan, self.vector, self.options, self.made = plan, inputs[0].dtype, options, made
        self.working = self.vector if path != "reference" else torch.float64
        self.state = torch.float64 if path == "reference" else torch.float32
        self.count = len(plan.rule.inputs)
        self.aligned = inputs[0].is_cuda  # whose fast forms want tensors that begin at 16 bytes
        wanted = (*dtypes, *[self.state] * len(made.extras))
        pitched = path != "reference"
        # inputs that are not handed over as they are: which, and the dtype that they must have
        self.changes = tuple((i, dtype) for i, (x, dtype) in enumerate(zip(inputs, wanted))
                             if x.dtype != dtype or not (x.is_contiguous() or (pitched and is_pitched(plan.rule, i, x))))
        self.dense = all(x.is_contiguous() for x in inputs)
        # writes the addresses of all inputs at once; None where there are extras or tensors without elements
        self.put = None if made.extras or not all(x.numel() for x in inputs) else _writer(plan.indices)
        value = inputs[2]
        self.like = value.is_contiguous() and value.shape == plan.o_shape and value.dtype == self.working  # o is as the value
        # what a backward reads of a forward of single tokens is more than their inputs, and made again sooner than read
        self.remake = self.aligned and plan.sizes.rows <= plan.sizes.sequences
        self.room = max(plan.forward_bytes, plan.backward_bytes) if not self.aligned else _MOST_ROOM + 1


@functools.lru_cache(maxsize=1024)
def _writer(indices: Tuple[int, ...]):
    """pack_into of addresses at those places of an array of pointers, and NULL between them."""
    gaps = [i - before - 1 for before, i in zip((-1, *indices), indices)]
    return Struct("=" + "".join(f"{8 * gap}xQ" for gap in gaps)).pack_into


def is_pitched(rule: Rule, index: int, x: Tensor) -> bool:
    return index < len(rule.inputs) and rule.input_axes[index][0] == "rows" and pitch_of(x.shape, x.stride()) is not None


def _forms(rule: Rule, inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype], made: Made, path: str, on) -> object:
    """The library's struct for these tensors."""
    forms = lib.dr_forms_default(on.handle)
    if path != "reference":
        for i, (index, x, dtype) in enumerate(zip(rule.indices, inputs, dtypes)):
            forms.dtype[index] = DTYPES[_NAMES[dtype]]
            if x.dtype == dtype and not x.is_contiguous() and is_pitched(rule, i, x):
                forms.pitch[index] = pitch_of(x.shape, x.stride())
        forms.output = DTYPES[_NAMES[dtypes[0]]]
    forms.value_first, forms.normalize = made.value_first, made.normalize is not None
    forms.normalize_eps = made.normalize or 0.0
    forms.beta_factor, forms.decay, forms.lower_bound = made.beta, DECAYS[made.decay], made.bound
    return forms


_planned: dict = {}


def planned_of(inputs: Sequence[Tensor], cu_seqlens: Optional[Tensor], rule: str, scale: float, path: str, chunk: int, forms: str) -> Planned:
    """The plan of a call; everything about the call's tensors but their memory is in its key, and checked when it is made."""
    index = inputs[0].get_device()
    key = (rule, scale, path, chunk, forms, None if cu_seqlens is None else (cu_seqlens.shape, cu_seqlens.dtype), index,
           torch.get_num_threads() if index < 0 else 0,
           *[(x.shape, x.dtype) if x.is_contiguous() else (x.shape, x.dtype, x.stride()) for x in inputs])
    found = _planned.get(key)
    if found is not None and all([x.get_device() == index for x in inputs]):
        return found
    made, ruled = made_of(forms), Rule(rule)
    packed = packed_of(cu_seqlens)
    device = inputs[0].device.type
    sizes_and_extras(ruled, inputs, packed, made, device)
    check_device(ruled, inputs)
    dtypes = computed_in(ruled, [x.dtype for x in inputs], path, device)
    dtype = _NAMES[dtypes[0]] if device == "cuda" else "float32"
    struct = lambda on: _forms(ruled, inputs, dtypes, made, path, on)
    plan = plan_of(key, ruled, [tuple(x.shape) for x in inputs[:len(ruled.inputs)]], packed, scale, path, chunk, device,
                   torch.get_num_threads(), dtype, max(index, 0), struct, made.value_first)
    while len(_planned) >= 1024:
        try:
            _planned.pop(next(iter(_planned)), None)
        except (StopIteration, RuntimeError):
            break
    return _planned.setdefault(key, Planned(plan, inputs, dtypes, path, (rule, scale, path, chunk, forms), made))


def _dense(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).contiguous() if x.dtype != dtype or not x.is_contiguous() else x


def _ready(planned: Planned, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The inputs as the plan takes them."""
    if planned.changes:
        inputs = list(inputs)
        for index, dtype in planned.changes:
            inputs[index] = _dense(inputs[index], dtype)
    return _aligned(inputs) if planned.aligned else inputs


def _aligned(tensors: Sequence[Tensor]) -> List[Tensor]:
    return [x.clone() if x.data_ptr() & 15 and x.is_contiguous() else x for x in tensors]


# ---- memory ----------------------------------------------------------------------------------------------------------------

_NOWHERE = 64  # stands for the memory of a tensor without elements, whose address PyTorch tells as 0: nothing there is read
_MOST_ROOM = 1 << 20


class _Kept(threading.local):
    """A thread's workspace for small calls on the CPU, which begin and end in the thread."""

    def __init__(self) -> None:
        self.memory = torch.empty(_MOST_ROOM, dtype=torch.uint8, device="cpu")
        self.at = self.memory.data_ptr()


_kept = _Kept()


def _begin(planned: Planned, inputs: Sequence[Tensor], cu_seqlens: Optional[Tensor], bytes_needed: int):
    """This thread's structs of a call, with inputs, boundaries, stream and workspace set; and the workspace, to be held."""
    frame = planned.plan.frame()
    call, pointers = frame.call, frame.inputs
    if planned.put is not None:
        planned.put(pointers, 0, *[x.data_ptr() for x in inputs])
    else:
        for index, one in zip(planned.plan.indices, inputs):
            pointers[index] = one.data_ptr() or _NOWHERE
        for name, one in zip(planned.made.extras, inputs[planned.count:]):
            setattr(call, name, one.data_ptr())
    if cu_seqlens is None:
        call.boundaries.at = None
    else:
        call.boundaries.at = cu_seqlens.data_ptr()
        call.boundaries.dtype = _BOUNDARIES[cu_seqlens.dtype]
        call.boundaries.device = cu_seqlens.is_cuda
    if planned.room <= _MOST_ROOM:
        call.workspace = _kept.at
        return frame, None
    device = inputs[0].device
    workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=device)
    call.workspace = workspace.data_ptr() or _NOWHERE
    call.stream = torch._C._cuda_getCurrentRawStream(device.index) if planned.aligned else None
    return frame, workspace


def check_state(rule: Rule, name: str, shape: Sequence, one: Tensor, what: str) -> None:
    if one.dim() != len(shape) or any(a != b for a, b in zip(one.shape, shape)):
        raise ValueError(f"rule {rule.text}: {what} {name} has shape {tuple(one.shape)}, it must be {tuple(shape)}")


def _check_place(device: torch.device, what: str, one: Tensor) -> None:
    if one.device != device:
        raise RuntimeError(f"{what} is on {one.device} and query on {device}: all must be on one device")


def _states(planned: Planned, device: torch.device, states: Sequence[Optional[Tensor]], what: str) -> Sequence[Optional[Tensor]]:
    """Given states as the library takes them; a missing one stays None. () if all are missing."""
    if states[0] is None and states[1] is None:
        return ()
    made, plan = [], planned.plan
    if len(plan.state_shapes) < 2 and states[1] is not None:
        raise ValueError(f"rule {plan.rule.text} carries S only: {what} of a scan must be None")
    for name, shape, one in zip(plan.rule.states, plan.state_shapes, states):
        if one is not None:
            if one.shape != shape:
                check_state(plan.rule, name, shape, one, what)
            if one.device != device:
                _check_place(device, f"{what} {name}", one)
            if not one.dtype.is_floating_point:
                raise TypeError(f"{what} {name} has dtype {one.dtype}, it must be a floating one")
            one = _dense(one, planned.state)
            if planned.aligned:
                one, = _aligned([one])
        made.append(one)
    return made


def _point(planned: Planned, pointers, address: int, states: Sequence[Optional[Tensor]]) -> Optional[int]:
    if not states:
        return None
    for index, one in zip(planned.plan.state_indices, states):
        pointers[index] = None if one is None else one.data_ptr() or _NOWHERE
    return address


def _host(cu_seqlens: Optional[Tensor]) -> Optional[Tensor]:
    return cu_seqlens if cu_seqlens is None or cu_seqlens.is_contiguous() else cu_seqlens.contiguous()


# ---- forward ---------------------------------------------------------------------------------------------------------------


def run_forward(planned: Planned, inputs: Sequence[Tensor], initial: Optional[Tensor], initial_scan: Optional[Tensor],
                cu_seqlens: Optional[Tensor], final: bool, save: bool):
    """o, the final states (none unless final), saved (empty unless save)."""
    plan, device = planned.plan, inputs[0].device
    if planned.changes or planned.aligned:
        inputs = _ready(planned, inputs)
    if cu_seqlens is not None:
        cu_seqlens = _host(cu_seqlens)
    o = torch.empty_like(inputs[2]) if planned.like else torch.empty(plan.o_shape, dtype=planned.working, device=device)
    saved = torch.empty(plan.saved_bytes if save else 0, dtype=torch.uint8, device=device)
    initials = () if initial is None and initial_scan is None else _states(planned, device, (initial, initial_scan), "initial state")
    finals = [torch.empty(shape, dtype=planned.state, device=device) for shape in plan.state_shapes] if final else ()
    frame, workspace = _begin(planned, inputs, cu_seqlens, plan.forward_bytes)
    call, addresses = frame.call, frame.addresses
    call.o = o.data_ptr() or _NOWHERE
    call.saved = (saved.data_ptr() or _NOWHERE) if save else None
    call.initial = _point(planned, frame.initial, addresses[0], initials) if initials else None
    call.final = _point(planned, frame.final, addresses[1], finals) if finals else None
    status = lib.dr_plan_forward(plan.handle, frame.reference)
    if status:
        check(status)
    return (o if planned.working == planned.vector else o.to(planned.vector)), finals, saved


def _is_empty(inputs: Sequence[Tensor]) -> bool:
    return inputs[0].dim() > 0 and inputs[0].shape[0] == 0


def forward(inputs, cu_seqlens, rule, scale, path, chunk, save, forms=""):
    if _is_empty(inputs):
        o, saved = fake_lean(inputs, cu_seqlens, rule, scale, path, chunk, save, forms)
        return o, saved.zero_()
    o, _, saved = run_forward(planned_of(inputs, cu_seqlens, rule, scale, path, chunk, forms), inputs, None, None, cu_seqlens, False, save)
    return o, saved


def forward_states(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save, forms=""):
    if _is_empty(inputs):
        o, S, scan, saved = fake_forward(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save, forms)
        return o, S, scan, saved.zero_()
    planned = planned_of(inputs, cu_seqlens, rule, scale, path, chunk, forms)
    o, finals, saved = run_forward(planned, inputs, initial, initial_scan, cu_seqlens, final, save)
    nothing = lambda: torch.empty(0, dtype=planned.state, device=o.device)
    S = finals[0] if final else nothing()
    return o, S, (finals[1] if final and len(finals) > 1 else nothing()), saved


@functools.lru_cache(maxsize=4096)
def _saved_size(rule: str, numbers: Tuple[int, ...], path: str, chunk: int, device: str, dtype: str, index: int):
    isa = None
    if device == "cuda" and torch.cuda.is_available():
        isa = lib.dr_backend_isa(backend("cuda", 0, DTYPES[dtype], index).handle).decode()
    device = "cuda" if device == "cuda" else "cpu"
    return saved_size(Rule(rule), Sizes(1, 1, *numbers, 1, 1), 0.0, path, chunk, device, dtype, isa)


def _formula(rule: Rule, sizes: Sizes, path: str, chunk: int, device: torch.device, dtype: torch.dtype):
    """Bytes of saved, for sizes that may be symbolic."""
    numbers = (int(sizes.H), int(sizes.HV), int(sizes.K), int(sizes.V))
    return saved_bytes(_saved_size(rule.text, numbers, path, chunk, device.type, _NAMES[dtype], device.index or 0), sizes.rows, sizes.sequences)


def fake_forward(inputs, initial, initial_scan, cu_seqlens, rule, scale, path, chunk, final, save, forms=""):
    ruled, first, made = Rule(rule), inputs[0], made_of(forms)
    check_options(scale, path, chunk)
    sizes = sizes_and_extras(ruled, inputs, packed_of(cu_seqlens), made, first.device.type)
    dtypes = computed_in(ruled, [x.dtype for x in inputs], path, first.device.type)
    check_device(ruled, inputs)
    shapes = state_shapes(ruled, sizes, made.value_first)
    if len(shapes) < 2 and initial_scan is not None:
        raise ValueError(f"rule {ruled.text} carries S only: initial state of a scan must be None")
    for name, shape, one in zip(ruled.states, shapes, (initial, initial_scan)):
        if one is not None:
            check_state(ruled, name, shape, one, "initial state")
            _check_place(first.device, f"initial state {name}", one)
    o = first.new_empty((sizes.B, sizes.T, sizes.HV, sizes.V))
    size = _formula(ruled, sizes, path, chunk, first.device, dtypes[0]) if save else 0
    saved = first.new_empty((size,), dtype=torch.uint8)
    dtype = torch.float64 if path == "reference" else torch.float32
    states = [first.new_empty(shape, dtype=dtype) for shape in shapes] if final else []
    states += [first.new_empty((0,), dtype=dtype) for _ in range(2 - len(states))]
    return o, states[0], states[1], saved


def fake_lean(inputs, cu_seqlens, rule, scale, path, chunk, save, forms=""):
    o, _, _, saved = fake_forward(inputs, None, None, cu_seqlens, rule, scale, path, chunk, False, save, forms)
    return o, saved


# ---- backward --------------------------------------------------------------------------------------------------------------


def run_backward(planned: Planned, inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, wanted) -> List[Optional[Tensor]]:
    """Gradients of (inputs, initial, initial_scan), None where they are not wanted."""
    plan, device, count = planned.plan, inputs[0].device, len(inputs)
    d_o = torch.zeros(plan.o_shape, dtype=planned.working, device=device) if d_o is None else _dense(d_o, planned.working)
    ready = inputs
    if planned.changes or planned.aligned:
        ready = _ready(planned, inputs)
        if planned.aligned:
            d_o, = _aligned([d_o])
    if cu_seqlens is not None:
        cu_seqlens = _host(cu_seqlens)
    stateless = initial is None and initial_scan is None
    initials = () if stateless else _states(planned, device, (initial, initial_scan), "initial state")
    d_finals = () if d_final is None and d_final_scan is None else _states(planned, device, (d_final, d_final_scan), "gradient of the final state")
    if planned.dense:
        dense = [torch.empty_like(x) if want else None for x, want in zip(ready, wanted)]
    else:
        dense = [torch.empty_like(x, memory_format=torch.contiguous_format) if want else None for x, want in zip(ready, wanted)]
    d_initials = [torch.empty_like(x) if want and x is not None else None for x, want in zip(initials, wanted[count:])] if initials else []
    frame, workspace = _begin(planned, ready, cu_seqlens, plan.backward_bytes)
    call, addresses, pointers = frame.call, frame.addresses, frame.d_inputs
    call.saved, call.d_o = saved.data_ptr() or _NOWHERE, d_o.data_ptr() or _NOWHERE
    call.initial = _point(planned, frame.initial, addresses[0], initials) if initials else None
    call.d_final = _point(planned, frame.d_final, addresses[3], d_finals) if d_finals else None
    call.d_initial = _point(planned, frame.d_initial, addresses[4], d_initials) if d_initials else None
    if planned.put is not None:
        planned.put(pointers, 0, *[0 if x is None else x.data_ptr() for x in dense])
    else:
        for index, one in zip(plan.indices, dense):
            pointers[index] = None if one is None else one.data_ptr() or _NOWHERE
        for name, one in zip(planned.made.extras, dense[planned.count:]):
            setattr(call, "d_" + name, None if one is None else one.data_ptr())
    call.d_inputs = addresses[2]
    status = lib.dr_plan_backward(plan.handle, frame.reference)
    if status:
        check(status)
    for index, _ in planned.changes:
        if dense[index] is not None and dense[index].dtype != inputs[index].dtype:
            dense[index] = dense[index].to(inputs[index].dtype)
    if stateless:
        dense += (None, None)
        return dense
    for given, one in zip((initial, initial_scan), d_initials):
        dense.append(one if one is None or one.dtype == given.dtype else one.to(given.dtype))
    return dense + [None] * (count + 2 - len(dense))


def backward(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted, forms=""):
    """Gradients of those of (inputs, initial, initial_scan) that are wanted."""
    if _is_empty(inputs):
        return [torch.zeros_like(one) for one, want in zip((*inputs, initial, initial_scan), wanted) if want and one is not None]
    planned = planned_of(inputs, cu_seqlens, rule, scale, path, chunk, forms)
    plan, first = planned.plan, inputs[0]
    if saved.nbytes != plan.saved_bytes or saved.get_device() != first.get_device() or not saved.is_contiguous():
        raise ValueError(f"saved has {saved.nbytes} bytes on {saved.device}, not the {plan.saved_bytes} bytes of this forward")
    if d_o is not None:
        if d_o.shape != plan.o_shape:
            raise ValueError(f"d_o has shape {tuple(d_o.shape)}, it must be {plan.o_shape}")
        _check_place(first.device, "d_o", d_o)
    if len(wanted) != len(inputs) + 2:
        raise ValueError(f"wanted has {len(wanted)} entries, it must have one for each of the {len(inputs)} inputs and the two initial states")
    made = run_backward(planned, inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, wanted)
    return [one for one in made if one is not None]


def fake_backward(inputs, initial, initial_scan, cu_seqlens, saved, d_o, d_final, d_final_scan, rule, scale, path, chunk, wanted, forms=""):
    return [torch.empty_like(one, memory_format=torch.contiguous_format)
            for one, want in zip((*inputs, initial, initial_scan), wanted) if want and one is not None]


# ---- decode ----------------------------------------------------------------------------------------------------------------


def decode(inputs, state, scan, rule, scale, forms=""):
    """o of one token of each sequence (T = 1); state and scan are updated."""
    if _is_empty(inputs):
        return fake_decode(inputs, state, scan, rule, scale, forms)
    planned = planned_of(inputs, None, rule, scale, "best", 0, forms)
    if planned.plan.sizes.T != 1:
        raise ValueError(f"decode computes one token of each sequence: T must be 1, not {planned.plan.sizes.T}")
    return _run_decode(planned, inputs, state, scan, None)


def decode_slots(inputs, state, scan, slots_from, slots_to, rule, scale, forms=""):
    """o of T tokens of each sequence, whose states lie in a pool [slots, ...] that is updated."""
    if _is_empty(inputs):
        return fake_decode(inputs, state, scan, rule, scale, forms)
    planned = planned_of(inputs, None, rule, scale, "best", 0, forms)
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
        check_state(plan.rule, name, shape if slots is None else (slots.slots, *shape[1:]), one, "state")
        if one.device != inputs[0].device or not one.dtype.is_floating_point:
            raise TypeError(f"state {name} is {one.dtype} on {one.device}, it must be a floating tensor on {inputs[0].device}")
    inputs = _ready(planned, inputs)
    states = [_dense(one, planned.state) for one in given]
    o = torch.empty(plan.o_shape, dtype=planned.working, device=inputs[0].device)
    workspace = torch.empty(plan.decode_bytes, dtype=torch.uint8, device=inputs[0].device)
    frame, _ = _begin(planned, inputs, None, plan.decode_bytes)
    call = frame.call
    call.workspace = workspace.data_ptr() or _NOWHERE
    call.o, call.states = o.data_ptr(), _point(planned, frame.final, addressof(frame.final), states)
    call.slots = None if slots is None else addressof(slots)
    status = lib.dr_plan_decode(plan.handle, frame.reference)
    call.slots = None
    if status:
        check(status)
    for one, used in zip(given, states):
        if one is not used:
            one.copy_(used)
    return o if planned.working == planned.vector else o.to(planned.vector)


def fake_decode(inputs, state, scan, rule, scale, forms=""):
    ruled = Rule(rule)
    sizes = sizes_and_extras(ruled, inputs, None, made_of(forms), inputs[0].device.type)
    computed_in(ruled, [x.dtype for x in inputs], "best", inputs[0].device.type)
    return inputs[0].new_empty((sizes.B, sizes.T, sizes.HV, sizes.V))


def fake_decode_slots(inputs, state, scan, slots_from, slots_to, rule, scale, forms=""):
    return fake_decode(inputs, state, scan, rule, scale, forms)
