"""The C library through ctypes: its structs, its functions, its errors.

Where the shared object is looked for, in this order:

1. the file that the environment variable DELTARULE_LIBRARY names;
2. ``lib/`` of this package, where a wheel has it;
3. ``libdeltarule.so.N`` among the system's libraries (``make install``).

The structs below repeat include/deltarule/*.h; their sizes are compared with the library's before the first call.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p
from typing import Iterator, List, Optional

ABI = 1  # DELTARULE_ABI of include/deltarule/version.h
INPUTS = ("query", "key", "value", "log_decay", "beta", "erase_key", "erase_gain", "lambda", "feedback_key", "free_read",
          "free_write", "rate", "erase_gate", "write_gate", "correction", "scan_log_decay", "scan_gain", "scan_centre", "ridge")
STATES = ("S", "A", "K", "P")
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int32": 4, "int64": 5}  # dr_dtype
PATHS = {"best": 0, "recurrent": 1, "chunkwise": 2}  # dr_path
MAX_RANK = 6


class DeltaruleError(RuntimeError):
    """A failure of the library that is neither a wrong argument, nor missing memory, nor something that this machine lacks."""


class Layout(Structure):
    _fields_ = [("sequences", c_int64), ("rows", c_int64), ("cu_seqlens", c_void_p)]


class Recurrence(Structure):
    _fields_ = [("rule", c_void_p), ("layout", Layout), ("key_heads", c_int64), ("value_heads", c_int64), ("key_size", c_int64),
                ("value_size", c_int64), ("scale", c_double), ("path", c_int), ("chunk", c_int64), ("bf16_state", c_bool),
                ("longest", c_int64), ("forget", c_double)]


class BackendOptions(Structure):
    _fields_ = [("threads", c_int), ("isa", c_char_p), ("dtype", c_int), ("device", c_int), ("stream", c_void_p),
                ("weights", c_int)]


class Memory(Structure):
    _fields_ = [("forward", c_size_t), ("backward", c_size_t), ("saved", c_size_t), ("decode", c_size_t)]


class SavedSize(Structure):
    _fields_ = [("fixed", c_size_t), ("per_row", c_size_t), ("per_sequence", c_size_t), ("per_segment", c_size_t),
                ("segment", c_int64)]


class Boundaries(Structure):
    _fields_ = [("at", c_void_p), ("dtype", c_int), ("device", c_bool)]


class Slots(Structure):
    _fields_ = [("slots", c_int64), ("tokens", c_int64), ("start", c_void_p), ("to", c_void_p), ("checkpoints", c_int64),
                ("row", c_void_p), ("slot", c_void_p)]


InputPointers = c_void_p * len(INPUTS)  # dr_inputs, dr_input_gradients
StatePointers = MutableStates = c_void_p * len(STATES)  # dr_states, dr_mutable_states


class Call(Structure):
    _fields_ = [("size", c_size_t), ("stream", c_void_p), ("threads", c_int), ("boundaries", Boundaries), ("inputs", c_void_p),
                ("initial", c_void_p), ("o", c_void_p), ("final", c_void_p), ("saved", c_void_p), ("workspace", c_void_p),
                ("d_o", c_void_p), ("d_final", c_void_p), ("d_inputs", c_void_p), ("d_initial", c_void_p), ("states", c_void_p),
                ("slots", c_void_p), ("A_log", c_void_p), ("dt_bias", c_void_p), ("d_A_log", c_void_p), ("d_dt_bias", c_void_p)]


class Forms(Structure):
    _fields_ = [("size", c_size_t), ("dtype", c_int * len(INPUTS)), ("output", c_int), ("pitch", c_int64 * len(INPUTS)),
                ("gradient_pitch", c_int64 * len(INPUTS)), ("value_first", c_bool), ("normalize", c_bool),
                ("normalize_eps", c_double), ("beta_factor", c_double), ("decay", c_int), ("lower_bound", c_double)]


class StagePath(Structure):
    _fields_ = [("instance", ctypes.c_char * 64), ("storage", c_int), ("chunk", c_int64), ("parts", c_int64)]


_SIZES = {"dr_layout": Layout, "dr_recurrence": Recurrence, "dr_backend_options": BackendOptions,
          "dr_recurrence_memory": Memory, "dr_saved_size": SavedSize, "dr_boundaries": Boundaries, "dr_slots": Slots, "dr_forms": Forms,
          "dr_inputs": InputPointers, "dr_states": StatePointers, "dr_call": Call, "dr_stage_path": StagePath}

# name: (result, arguments); a result of None is a dr_status, which `check` turns into an exception
_STATUS = None
_LINE = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
_FUNCTIONS = {
    "dr_version": (c_char_p, []),
    "dr_abi": (c_int, []),
    "dr_size_of": (c_size_t, [c_char_p]),
    "dr_last_error": (c_char_p, []),
    "dr_rule_count": (c_int, []),
    "dr_rule_at": (c_void_p, [c_int]),
    "dr_rule_create": (_STATUS, [c_char_p, c_void_p]),
    "dr_rule_destroy": ("nothing", [c_void_p]),
    "dr_rule_get_name": (c_char_p, [c_void_p]),
    "dr_rule_get_title": (c_char_p, [c_void_p]),
    "dr_rule_get_source": (c_char_p, [c_void_p]),
    "dr_rule_get_repeat": (c_int, [c_void_p]),
    "dr_rule_uses": (c_bool, [c_void_p, c_int]),
    "dr_rule_carries": (c_bool, [c_void_p, c_int]),
    "dr_rule_write_text": (c_int, [c_void_p, c_void_p, c_char_p, c_size_t]),
    "dr_rule_equation": (c_int, [c_void_p, c_char_p, c_size_t]),
    "dr_input_name": (c_char_p, [c_int]),
    "dr_state_name": (c_char_p, [c_int]),
    "dr_backend_listed": (c_char_p, [c_int]),
    "dr_backend_open": (_STATUS, [c_char_p, c_void_p, c_void_p]),
    "dr_backend_close": ("nothing", [c_void_p]),
    "dr_backend_isa": (c_char_p, [c_void_p]),
    "dr_backend_threads": (c_int, [c_void_p]),
    "dr_backend_describe": ("nothing", [c_void_p, _LINE, c_void_p]),
    "dr_recurrence_default": (Recurrence, []),
    "dr_recurrence_input_shape": (c_int, [c_void_p, c_int, c_void_p]),
    "dr_recurrence_state_shape": (c_int, [c_void_p, c_int, c_void_p]),
    "dr_recurrence_saved": (_STATUS, [c_char_p, c_void_p, c_void_p, c_void_p]),
    "dr_recurrence_kernel": (c_int, [c_void_p, c_void_p, c_bool, c_char_p, c_size_t]),
    "dr_plan_create": (_STATUS, [c_void_p, c_void_p, c_void_p]),
    "dr_plan_create_with_forms": (_STATUS, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "dr_forms_default": (Forms, [c_void_p]),
    "dr_plan_destroy": ("nothing", [c_void_p]),
    "dr_plan_memory": (_STATUS, [c_void_p, c_void_p]),
    "dr_plan_saved": (_STATUS, [c_void_p, c_void_p]),
    "dr_plan_forward": (_STATUS, [c_void_p, c_void_p]),
    "dr_plan_backward": (_STATUS, [c_void_p, c_void_p]),
    "dr_plan_decode": (_STATUS, [c_void_p, c_void_p]),
    "dr_plan_path": (_STATUS, [c_void_p, c_bool, c_int, c_void_p]),
    "dr_stage_name": (c_char_p, [c_int]),
    "dr_state_create": (_STATUS, [c_void_p, c_void_p, c_void_p]),
    "dr_state_destroy": ("nothing", [c_void_p]),
    "dr_state_recurrence": (c_void_p, [c_void_p]),
    "dr_state_final": (_STATUS, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "dr_state_save": (_STATUS, [c_void_p, c_char_p]),
    "dr_model_outline": (c_int, [c_void_p, c_char_p, c_char_p, c_size_t]),
    "dr_state_load": (_STATUS, [c_void_p, c_void_p, c_char_p, c_void_p]),
}


def _files() -> Iterator[str]:
    named = os.environ.get("DELTARULE_LIBRARY")
    if named:
        yield named
        return
    import deltarule
    for folder in deltarule.__path__:  # an editable installation has two: the sources, and what was built
        for name in ("libdeltarule.so", f"libdeltarule.so.{ABI}"):
            file = os.path.join(folder, "lib", name)
            if os.path.exists(file):
                yield file
    yield f"libdeltarule.so.{ABI}"


def _load_openmp() -> bool:
    """Loads the OpenMP runtime that PyTorch's wheel brings along, for systems that have none; without importing torch."""
    torch = importlib.util.find_spec("torch")
    for folder in (torch.submodule_search_locations if torch else None) or []:
        lib = os.path.join(folder, "lib")
        for name in sorted(os.listdir(lib)) if os.path.isdir(lib) else []:
            if name.startswith("libgomp") and ".so" in name:
                ctypes.CDLL(os.path.join(lib, name), mode=ctypes.RTLD_GLOBAL)
                return True
    return False


def _open() -> ctypes.CDLL:
    reason: Optional[OSError] = None
    for file in _files():
        try:
            return ctypes.CDLL(file)
        except OSError as error:
            if "libgomp" in str(error):
                if _load_openmp():
                    return ctypes.CDLL(file)
                raise ImportError("deltarule needs the OpenMP runtime libgomp.so.1: install the package libgomp1") from error
            reason = error
    raise ImportError(f"deltarule's shared library cannot be loaded: {reason}. Install the wheel, run `make install`, or name "
                      "the file in the environment variable DELTARULE_LIBRARY") from reason


def _bind(handle: ctypes.CDLL) -> None:
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(handle, name)
        except AttributeError as error:
            raise ImportError(f"{handle._name} is no library of deltarule, or an older one: it lacks {name}") from error
        function.argtypes = arguments
        function.restype = c_int if result is _STATUS else None if result == "nothing" else result
    if handle.dr_abi() != ABI:
        raise ImportError(f"{handle._name} has binary interface {handle.dr_abi()}, this package needs {ABI}")
    for name, struct in _SIZES.items():
        if handle.dr_size_of(name.encode()) != ctypes.sizeof(struct):
            raise ImportError(f"{handle._name}: {name} has {handle.dr_size_of(name.encode())} bytes, this package knows "
                              f"{ctypes.sizeof(struct)}: library and package are of different versions")


lib = _open()
_bind(lib)

_ERRORS = {1: ValueError, 2: NotImplementedError, 3: MemoryError, 4: OSError, 5: ValueError}


def check(status: int) -> None:
    """Raises what a dr_status stands for, with the library's sentence: ValueError for a wrong argument or file,
    NotImplementedError for what this build or machine does not do, MemoryError, OSError, else DeltaruleError."""
    if status:
        raise _ERRORS.get(status, DeltaruleError)(lib.dr_last_error().decode())


def text_of(function, *arguments) -> str:
    """The text that a function of the snprintf kind writes: function(*arguments, text, size)."""
    length = function(*arguments, None, 0)
    if length < 0:
        raise ValueError(lib.dr_last_error().decode())
    buffer = ctypes.create_string_buffer(length + 1)
    function(*arguments, buffer, length + 1)
    return buffer.value.decode()


class Backend:
    """An open dr_backend, kept as long as the process lives or something uses it."""

    def __init__(self, name: str, threads: int = 0, dtype: int = 0, device: int = 0):
        handle = c_void_p()
        options = BackendOptions(threads=threads, dtype=dtype, device=device)
        check(lib.dr_backend_open(name.encode(), byref(options), byref(handle)))
        self.name, self.handle, self.close = name, handle, lib.dr_backend_close

    def __del__(self):
        if getattr(self, "handle", None):
            self.close(self.handle)

    def describe(self) -> List[str]:
        lines: List[str] = []
        lib.dr_backend_describe(self.handle, _LINE(lambda _, text: lines.append(text.decode())), None)
        return lines


_backends: dict = {}


def backend(name: str, threads: int = 0, dtype: int = 0, device: int = 0) -> Backend:
    """The backend of these options, opened once in a process."""
    key = (name, threads, dtype, device)
    found = _backends.get(key)
    if found is None:
        found = _backends.setdefault(key, Backend(*key))
    return found


def info() -> List[str]:
    """What this build and this machine have, a line each: version, file, backends, features, kernels."""
    lines = [f"deltarule {lib.dr_version().decode()}", f"library {lib._name}"]
    index = 0
    while True:
        name = lib.dr_backend_listed(index)
        if name is None:
            return lines
        try:
            one = backend(name.decode())
            lines.append(f"backend {name.decode()} ({lib.dr_backend_isa(one.handle).decode()})")
            lines += [f"  {line}" for line in one.describe()]
        except NotImplementedError as reason:
            lines += [f"backend {name.decode()} (not on this machine)", f"  {reason}"]
        index += 1
