"""Tensor parallelism of a mixer: each process of a mesh computes some of its heads.

Heads do not meet before the last projection. Each process therefore runs the same layer with 1/n of the heads, over its rows of
the projections, convolutions and gates and its columns of the last projection, and the sum over the processes is y (Shoeybi et
al. 2019, Megatron-LM, section 3, of attention).
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Tuple

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.func import functional_call

from .mixer import Mixer

__all__ = ["shard_heads"]


def _placement(name: str, whole: Tuple[int, ...], part: Tuple[int, ...], processes: int) -> Placement:
    """How a parameter of shape `whole` is divided, when that of 1/processes of the heads has shape `part`."""
    if whole == part:
        return Replicate()
    differ = [i for i, (a, b) in enumerate(zip(whole, part)) if a != b]
    if len(whole) != len(part) or len(differ) != 1 or whole[differ[0]] != processes * part[differ[0]]:
        raise NotImplementedError(f"{name} of shape {whole} is not divided by heads: with 1/{processes} of them it has shape {part}")
    return Shard(differ[0])


def _check(mixer: Mixer, part: Mixer, mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise ValueError(f"heads are divided over a mesh of one dimension, not {mesh.ndim}: name one of it, mesh['tp']")
    whole, one, processes = mixer.module, part.module, mesh.size()
    if mixer.rule != part.rule or (whole.heads, whole.value_heads) != (processes * one.heads, processes * one.value_heads):
        raise ValueError(f"{processes} processes divide {whole.heads} heads and {whole.value_heads} value heads of rule {mixer.rule.text}, and "
                         f"part has {one.heads} and {one.value_heads} of rule {part.rule.text}")
    if (whole.key_size, whole.value_size, whole.conv_size) != (one.key_size, one.value_size, one.conv_size):
        raise ValueError("part must have the sizes of heads and convolutions that the mixer has")
    if mixer.rule.repeat > 1:
        raise NotImplementedError(f"rule {mixer.rule.text} repeats its step: a token's {mixer.rule.repeat} keys lie between its heads, which "
                                  "are therefore not divided")
    if [node.norm and node.norm.dim for node in whole.nodes] != [node.norm and node.norm.dim for node in one.nodes]:
        raise NotImplementedError(f"the output's norm of rule {mixer.rule.text} is over all heads together, which are therefore not divided")


class _Sharded(Mixer):
    """A mixer whose parameters are DTensors; `part` computes this process's heads with what is local of them."""

    def forward(self, x: Tensor, *, initial: Any = None, final: bool = False, cu_seqlens: Any = None) -> Tensor:
        if initial is not None or final:
            raise NotImplementedError("a mixer that is divided by heads carries no states: it is for training")
        names, part = tuple(self.placements), self.part[0]

        def local(x: Tensor, *weights: Tensor) -> Tensor:
            return functional_call(part, dict(zip(names, weights)), (x,), {"cu_seqlens": cu_seqlens})

        one = lambda placements: tuple((placement,) for placement in placements)
        # each process's gradient of what all have is that through its own heads
        gradients = [placement if placement.is_shard() else Partial() for placement in self.placements.values()]
        divided = local_map(local, out_placements=[Partial()], in_placements=one([Replicate(), *self.placements.values()]),
                            in_grad_placements=one([Partial(), *gradients]), device_mesh=self.mesh)
        whole = DTensor.from_local(x, self.mesh, (Replicate(),), run_check=False)
        y = divided(whole, *(self.get_parameter(name) for name in names))
        return y.redistribute(placements=(Replicate(),)).to_local()

    def step(self, x: Tensor, state: Any) -> Tensor:
        raise NotImplementedError("a mixer that is divided by heads carries no states: it is for training")


def _with_constants_of(mixer: Mixer, part: Mixer, rank: int, processes: int) -> Mixer:
    """part with the constants of this process's heads, such as retnet's decays, which differ from head to head."""
    values = []
    for whole, one in zip(mixer.module.values, part.module.values):
        if whole.constant is not None and len(whole.constant) == processes * len(one.constant):
            one = one._replace(constant=whole.constant[rank * len(one.constant):(rank + 1) * len(one.constant)])
        if whole.constant is not None and len(whole.constant) == len(one.constant) and whole.constant != one.constant:
            raise NotImplementedError(f"rule {mixer.rule.text} has constants that depend on the number of heads, which are therefore not divided")
        values.append(one)
    part = copy.copy(part)
    part.module = part.module._replace(values=tuple(values))
    return part


def _summed(parameter: nn.Parameter) -> None:
    """After a backward: the gradient of what all processes have, summed over them."""
    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)


def shard_heads(mixer: Mixer, part: Mixer, mesh: DeviceMesh) -> Mixer:
    """Divides a mixer's heads over the processes of a mesh, in place, as torch.distributed's fully_shard and parallelize_module do.

    The parameters become DTensors under their names, with the weights of the mesh's first process. Every process gives the same x
    and has the same y; gradients are those of the whole mixer.

    Args:
        mixer: with a multiple of the mesh's size of heads and value heads.
        part: the same mixer with 1/size of both and the same sizes of heads. Its weights are not read: make it on device "meta".
        mesh: of one dimension.

    Returns:
        the mixer.

    Raises:
        ValueError: part has other heads or sizes. NotImplementedError: a rule with a repeated step or a norm over all heads.
    """
    _check(mixer, part, mesh)
    of_part = {name: tuple(one.shape) for name, one in part.named_parameters()}
    placements: Dict[str, Placement] = {name: _placement(name, tuple(one.shape), of_part[name], mesh.size())
                                        for name, one in mixer.named_parameters()}
    for name, placement in placements.items():
        *path, last = name.split(".")
        holder = mixer.get_submodule(".".join(path))
        divided = nn.Parameter(distribute_tensor(getattr(holder, last).detach(), mesh, (placement,)))
        if placement.is_replicate():
            divided.register_post_accumulate_grad_hook(_summed)
        setattr(holder, last, divided)
    part = _with_constants_of(mixer, part, mesh.get_local_rank(), mesh.size())
    mixer.__class__ = _Sharded
    mixer.placements, mixer.mesh, mixer.part = placements, mesh, (part,)  # in a tuple: it is no module of the model's own
    return mixer
