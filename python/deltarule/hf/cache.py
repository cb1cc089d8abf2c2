"""What a model carries from token to token: states of layers, which can be kept, put back, and cut."""

from __future__ import annotations

import collections
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

# What transformers calls a model's cache in arguments and outputs: past_key_values in older versions.
CACHE_NAME = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"

__all__ = ["DeltaruleCache"]


class DeltaruleCache:
    """States of all layers, as `generate` passes them from call to call.

    A recurrent state cannot be cut like keys and values: what it read is mixed into it. The cache therefore keeps the states
    from before the last call of several tokens, at no cost since calls make new ones, and reads the tokens that stay again when
    it is cut within that call. keep_steps: of how many calls of one token it keeps the states too, each a copy.

    snapshot(), restore(): the states as they are now, to come back to as often as wanted.
    """

    is_compileable = False
    is_croppable = True
    is_linear = (True,)
    layers = ()  # of transformers' own caches: what generate asks each of them
    RECORDED = 24  # single steps that generate may want to take back: what an assistant drafts at most, and some

    def __init__(self, layers: int, keep_steps: int = 0):
        self.states: List[Any] = [None] * layers
        self.columns = 0  # tokens read, with those that an attention mask left out
        self.pending: Optional[Tuple[Tensor, Optional[Tensor]]] = None  # embeddings and mask that must be read again
        self.keep_steps = keep_steps
        self._before: Optional[Tuple[List[Any], int, Tensor, Optional[Tensor]]] = None
        self._steps: Any = collections.deque(maxlen=keep_steps or None)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def __len__(self) -> int:
        return len(self.states)

    # ---- for the model

    def begin(self, embeds: Tensor, mask: Optional[Tensor]) -> None:
        """Before a call that reads these embeddings ``[B, T, hidden]``."""
        if embeds.shape[1] > 1:
            self._before = (list(self.states), self.columns, embeds.detach(), mask)
            self._steps.clear()
            return
        if self._before is not None and self._before[1] == self.columns:
            self._before = None  # the states it keeps are about to be overwritten
        if self.keep_steps:
            self._steps.append((self.columns, [None if one is None else one.clone() for one in self.states]))

    def activate_past_recording(self) -> None:
        """What generate calls where it will take steps back."""
        if self.keep_steps < self.RECORDED:
            self.keep_steps = self.RECORDED
            self._steps = collections.deque(self._steps, maxlen=self.keep_steps)

    # ---- for callers

    def snapshot(self) -> "DeltaruleCache":
        """A copy that shares nothing."""
        made = DeltaruleCache(len(self.states), self.keep_steps)
        made.states = [None if one is None else one.clone() for one in self.states]
        made.columns, made.pending = self.columns, self.pending
        return made

    def restore(self, snapshot: "DeltaruleCache") -> None:
        """Back to a snapshot, which stays as it is."""
        copy = snapshot.snapshot()
        self.states, self.columns, self.pending, self._before = copy.states, copy.columns, copy.pending, None
        self._steps.clear()

    def crop(self, length: int) -> None:
        """Keeps the first `length` tokens; a negative number, or 0: leaves out so many of the last ones.

        ValueError: that is before what the cache can come back to.
        """
        length = int(length)  # generate gives a tensor, which would go on being counted in place
        wanted = self.columns + length if length <= 0 else min(length, self.columns)
        if wanted == self.columns:
            return
        if wanted == 0:
            self.states, self.columns, self.pending, self._before = [None] * len(self.states), 0, None, None
            return
        for columns, states in self._steps:
            if columns == wanted:
                self.states, self.columns = [None if one is None else one.clone() for one in states], wanted
                while self._steps and self._steps[-1][0] >= wanted:
                    self._steps.pop()
                return
        if self._before is None or wanted < self._before[1]:
            raise ValueError(f"the cache holds {self.columns} tokens and cannot be cut to {wanted}: a recurrent state goes back to the "
                             "last call of several tokens, to one of keep_steps single ones, or to a snapshot()")
        states, columns, embeds, mask = self._before
        count = wanted - columns
        self.pending = (embeds[:, :count], None if mask is None else mask[:, :count]) if count else None
        self.states, self.columns, self._before = list(states), wanted, None  # the tokens that stay count as read already

    def each(self, function: Callable[[Tensor], Tensor]) -> None:
        """Applies a function over the first axis, that of sequences, to every tensor."""
        self.states = [None if one is None else one.each(function) for one in self.states]
        if self.pending is not None:
            self.pending = tuple(None if one is None else function(one) for one in self.pending)
        self._before = None
        self._steps.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.each(lambda one: one.index_select(0, beam_idx.to(one.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.each(lambda one: one[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.each(lambda one: one.repeat_interleave(repeats, 0))

    def reset(self) -> None:
        self.restore(DeltaruleCache(len(self.states)))
