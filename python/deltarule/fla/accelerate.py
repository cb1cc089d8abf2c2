"""Our functions in the place of flash-linear-attention's and of transformers' own, and back.

Names are rebound in every loaded module of the packages that has them, so that layers and models that have imported a function
by name call ours, and torch.compile sees through it. Modules that are loaded later take what flash-linear-attention's packages then
offer, which is ours.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from . import _door

# Packages of flash-linear-attention, and the functions of theirs that are served.
_FLA = {
    "fla.ops.gated_delta_rule": "chunk_gated_delta_rule chunk_gdn fused_recurrent_gated_delta_rule fused_recurrent_gdn",
    "fla.ops.kda": "chunk_kda fused_recurrent_kda",
    "fla.ops.delta_rule": "chunk_delta_rule fused_recurrent_delta_rule",
    "fla.ops.gdn2": "chunk_gdn2 fused_recurrent_gdn2",
    "fla.ops.gated_delta_product": "chunk_gated_delta_product",
    "fla.ops.comba": "chunk_comba fused_recurrent_comba",
    "fla.ops.generalized_delta_rule": "chunk_dplr_delta_rule fused_recurrent_dplr_delta_rule chunk_iplr_delta_rule "
                                      "fused_recurrent_iplr_delta_rule",
    "fla.ops.rwkv7": "chunk_rwkv7 fused_recurrent_rwkv7 fused_mul_recurrent_rwkv7",
    "fla.ops.mesa_net": "chunk_mesa_net mesa_net_decoding_one_step",
    "fla.ops.gla": "chunk_gla fused_recurrent_gla",
    "fla.ops.simple_gla": "chunk_simple_gla fused_chunk_simple_gla fused_recurrent_simple_gla parallel_simple_gla",
    "fla.ops.retention": "chunk_retention fused_chunk_retention fused_recurrent_retention parallel_retention",
    "fla.ops.linear_attn": "chunk_linear_attn fused_chunk_linear_attn fused_recurrent_linear_attn",
    "fla.ops.lightning_attn": "chunk_lightning_attn fused_recurrent_lightning_attn",
    "fla.ops.precond_gated_delta_rule": "chunk_precond_gated_delta_rule fused_recurrent_precond_gated_delta_rule",
    "fla.ops.precond_kda": "chunk_precond_kda fused_recurrent_precond_kda",
}

# Names of transformers' modelling modules, and the function that has their arguments.
_TRANSFORMERS = {
    "torch_chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
    "chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention": "chunk_kda",
    "recurrent_kimi_delta_attention": "fused_recurrent_kda",
}


class _Binding:
    """A name that is ours for now, and how many handles want it so."""
    __slots__ = ("before", "now", "wanted")

    def __init__(self, before: Any, now: Any) -> None:
        self.before, self.now, self.wanted = before, now, 1


_bindings: Dict[Tuple[ModuleType, str], _Binding] = {}


class Accelerated:
    """What `accelerate` changed; ``undo()`` or the end of a ``with`` puts it back. Handles may be undone in any order."""

    def __init__(self) -> None:
        self._rebound: List[Tuple[ModuleType, str]] = []
        self.left: Dict[str, str] = {}

    @property
    def names(self) -> Tuple[str, ...]:
        """What was rebound, as module.name."""
        return tuple(f"{module.__name__}.{name}" for module, name in self._rebound)

    def rebind(self, module: ModuleType, name: str, new: Any) -> None:
        now, found = getattr(module, name), _bindings.get((module, name))
        if found is not None and now is found.now:
            found.wanted += 1
        else:
            _bindings[module, name] = _Binding(now, new)
            setattr(module, name, new)
        self._rebound.append((module, name))

    def undo(self) -> None:
        """Puts back what was there before the first handle, where no other handle wants it and nobody has changed it since; also
        in modules of flash-linear-attention that were loaded meanwhile."""
        ended: Dict[str, _Binding] = {}
        while self._rebound:
            module, name = self._rebound.pop()
            binding = _bindings.get((module, name))
            if binding is None:
                continue
            binding.wanted -= 1
            if binding.wanted == 0:
                del _bindings[module, name]
                if getattr(module, name, None) is binding.now:
                    setattr(module, name, binding.before)
                ended[name] = binding
        for module in _modules("fla") if ended else ():
            for name, value in list(vars(module).items()):
                if name in ended and value is ended[name].now and (module, name) not in _bindings:
                    setattr(module, name, ended[name].before)

    def report(self) -> str:
        """What was rebound, what was left alone and why, and the calls since the start, a line each."""
        lines = [f"{len(self._rebound)} names in {len({m.__name__ for m, _ in self._rebound})} modules are deltarule's"]
        lines += [f"left alone: {name}: {why}" for name, why in sorted(self.left.items())]
        lines += [f"{count} calls of {function} on {device}, {dtype}" for (function, device, dtype), count in sorted(_door.report().items())]
        return "\n".join(lines)

    def __enter__(self) -> "Accelerated":
        return self

    def __exit__(self, *_: Any) -> None:
        self.undo()


def accelerate(fla: bool = True, transformers: bool = True, only: Optional[Iterable[str]] = None) -> Accelerated:
    """Rebinds the names of flash-linear-attention and of transformers' models to the functions of this package.

    Args:
        fla: whether flash-linear-attention's names are rebound, where it is installed.
        transformers: whether those of transformers' modelling modules are that are loaded: load the model's class first.
        only: the functions of this package to use ("chunk_kda"); all if not told.

    Returns:
        a handle: ``handle.undo()``, ``with accelerate(): ...``, ``print(handle.report())``.

    Raises:
        ValueError: a name in ``only`` is none of this package's. TypeError: it is one name, not a list of them.
    """
    import deltarule.fla as ours
    if isinstance(only, str):
        raise TypeError(f"only is a list of names, not {only!r}")
    served = {name for names in _FLA.values() for name in names.split()}
    wanted = served if only is None else set(only)
    if wanted - served:
        raise ValueError(f"deltarule.fla has no {', '.join(sorted(wanted - served))}")
    handle = Accelerated()
    if fla:
        _rebind_fla(handle, ours, wanted)
    if transformers:
        _rebind_transformers(handle, ours, wanted)
    return handle


def _modules(*roots: str) -> List[ModuleType]:
    return [module for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType) and any(name == root or name.startswith(root + ".") for root in roots)]


def _rebind_fla(handle: Accelerated, ours: ModuleType, wanted: Iterable[str]) -> None:
    if importlib.util.find_spec("fla") is None:
        handle.left["fla"] = "flash-linear-attention is not installed"
        return
    originals = {}
    for package, names in _FLA.items():
        try:
            loaded = importlib.import_module(package)
        except Exception as reason:  # whatever an optional part of it fails with
            handle.left[package] = f"cannot be imported: {reason}"
            continue
        for name in names.split():
            if name in wanted and hasattr(loaded, name):
                originals[name] = getattr(loaded, name)
            elif name in wanted:
                handle.left[f"{package}.{name}"] = "this version does not have it"
    for module in _modules("fla"):
        for name, value in list(vars(module).items()):
            new = originals.get(name)
            if new is not None and value is new:
                handle.rebind(module, name, getattr(ours, name))


def _rebind_transformers(handle: Accelerated, ours: ModuleType, wanted: Iterable[str]) -> None:
    for module in _modules("transformers.models"):
        for name, served in _TRANSFORMERS.items():
            value = vars(module).get(name)
            if served not in wanted or not callable(value) or value is getattr(ours, served):
                continue
            handle.rebind(module, name, _with_arguments_of(getattr(ours, served), value))


def _with_arguments_of(new: Callable, old: Callable) -> Callable:
    """The new function for callers of the old one: arguments that the new one does not have are dropped, as transformers does."""
    names = frozenset(inspect.signature(new).parameters)

    @functools.wraps(new)
    def call(*arguments, **named):
        return new(*arguments, **{name: value for name, value in named.items() if name in names})
    call.__wrapped__ = new
    call.replaced = old
    return call
