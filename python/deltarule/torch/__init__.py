"""deltarule for PyTorch: ``torch.ops.deltarule.*``, which ``deltarule.recurrence`` calls with torch tensors.

Gradients of every rule, CPU and CUDA, ``torch.compile(fullgraph=True)`` with dynamic shapes, ``torch.export``, checkpointing,
autocast. Second and forward-mode derivatives are refused. Results are the same bits from run to run, for any number of threads,
and packed (``cu_seqlens``) as separate.
"""

from __future__ import annotations

import torch

from ..recurrence import _load, recurrence, step
from . import operators  # noqa: F401  (defines torch.ops.deltarule)
from .mixer import Mixer, MixerState, Packing

__all__ = ["Mixer", "MixerState", "Packing", "checkpoint_policy", "ops", "recurrence", "step"]

ops = torch.ops.deltarule
_load("torch")  # now: torch.compile would see a first call load it, and compile anew at the second


def checkpoint_policy(*others):
    """For torch.utils.checkpoint.create_selective_checkpoint_contexts: the operators whose outputs are worth keeping, and others."""
    return [ops.forward.default, ops.forward_states.default, *others]
