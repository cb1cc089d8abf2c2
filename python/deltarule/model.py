"""Whole models of the C library: folders as `deltarule train` writes them, scored and differentiated on numpy arrays."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import POINTER, Structure, byref, c_bool, c_char, c_double, c_int, c_int32, c_int64, c_void_p
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

from ._library import MAX_RANK, Layout, backend as opened, check, lib

__all__ = ["Model", "Scored"]


class _Parameter(Structure):
    _fields_ = [("name", c_char * 96), ("rank", c_int), ("shape", c_int64 * MAX_RANK), ("offset", c_int64), ("count", c_int64),
                ("decays", c_bool)]


class _Batch(Structure):
    _fields_ = [("layout", Layout), ("ids", c_void_p), ("targets", c_int64), ("positions", c_void_p), ("labels", c_void_p)]


for _name, _arguments in {
        "dr_model_load": [c_void_p, ctypes.c_char_p, c_void_p], "dr_model_save": [c_void_p, ctypes.c_char_p],
        "dr_model_changed": [c_void_p], "dr_model_gradients_create": [c_void_p, c_void_p],
        "dr_session_create": [c_void_p, c_void_p],
        "dr_session_loss": [c_void_p] * 7, "dr_session_gradient": [c_void_p, c_void_p, c_double, c_void_p, c_void_p, c_void_p],
        "dr_session_logits": [c_void_p, c_void_p, c_void_p, c_int, c_void_p],
        "dr_model_state_create": [c_void_p, c_int64, c_void_p], "dr_model_step": [c_void_p, c_void_p, c_void_p, c_void_p]}.items():
    getattr(lib, _name).argtypes, getattr(lib, _name).restype = _arguments, c_int
for _name in ("dr_model_destroy", "dr_session_destroy", "dr_model_state_destroy"):
    getattr(lib, _name).argtypes, getattr(lib, _name).restype = [c_void_p], None
lib.dr_model_parameters.argtypes, lib.dr_model_parameters.restype = [c_void_p, c_void_p], c_int64
lib.dr_model_parameter_block.argtypes, lib.dr_model_parameter_block.restype = [c_void_p], c_void_p
lib.dr_model_block_count.argtypes, lib.dr_model_block_count.restype = [c_void_p], c_int64
lib.dr_backend_free.argtypes, lib.dr_backend_free.restype = [c_void_p, c_void_p], None


class Scored(NamedTuple):
    """Of one sequence: log-probabilities of its labels, and whether each was the likeliest, ``[targets]``."""
    logprobs: Any
    greedy: Any


def _ids(one: Any):
    """Token ids as int32; others than whole numbers, and those that int32 does not hold, are refused."""
    import numpy
    array = numpy.asarray(one)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"token ids must be whole numbers, not {array.dtype}")
    if array.ndim != 1:
        raise TypeError(f"a sequence of token ids must have one axis, not the shape {array.shape}")
    if array.size and (array.min() < -2**31 or array.max() >= 2**31):
        raise ValueError(f"token ids must be from -2^31 to 2^31 - 1, not {array.min()} to {array.max()}")
    return array.astype(numpy.int32)


class Model:
    """A language model in the C library's memory.

    Args:
        folder: with config.json and model.safetensors, of model_type "deltarule" or a published type that the library reads.
        backend: "cpu" computes in float32, "reference" in float64 with plain loops, "cuda" on a GPU.
        threads: of backend cpu; 0: as many as the machine has.

    Raises:
        OSError, ValueError, NotImplementedError: no such folder; a damaged one; a model that the backend does not compute.
    """

    def __init__(self, folder: Union[str, os.PathLike], backend: str = "cpu", threads: int = 0):
        self.folder, self._on = os.fspath(folder), opened(backend, threads)
        handle, session = c_void_p(), c_void_p()
        check(lib.dr_model_load(self._on.handle, os.fsencode(folder), byref(handle)))
        self._handle = handle
        check(lib.dr_session_create(handle, byref(session)))
        self._session = session
        listed = POINTER(_Parameter)()
        count = lib.dr_model_parameters(handle, byref(listed))
        self._parameters = [listed[i] for i in range(count)]
        with open(os.path.join(self.folder, "config.json"), encoding="utf-8") as file:
            self.config: Dict[str, Any] = json.load(file)

    _destroy = (("_session", lib.dr_session_destroy), ("_handle", lib.dr_model_destroy))  # kept: Python may end before a model does

    def __del__(self):
        for name, destroy in self._destroy:
            if getattr(self, name, None):
                destroy(getattr(self, name))
                setattr(self, name, None)

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self._parameters[0].shape[0]

    def _arrays(self, block: int) -> Dict[str, Any]:
        import numpy
        kind = numpy.float64 if self._on.name == "reference" else numpy.float32
        size = lib.dr_model_block_count(self._handle)
        whole = numpy.frombuffer((c_char * (size * kind().itemsize)).from_address(block), kind)
        return {one.name.decode(): whole[one.offset:one.offset + one.count].reshape(tuple(one.shape[:one.rank]))
                for one in self._parameters}

    def parameters(self) -> Dict[str, Any]:
        """Copies of all parameters by their names in model.safetensors; backends cpu and reference only."""
        if self._on.name == "cuda":
            raise NotImplementedError("parameters are read from backends cpu and reference, whose memory is this process's")
        return {name: one.copy() for name, one in self._arrays(lib.dr_model_parameter_block(self._handle)).items()}

    def save(self, folder: Union[str, os.PathLike]) -> None:
        """Writes config.json and model.safetensors."""
        check(lib.dr_model_save(self._handle, os.fsencode(folder)))

    def _batch(self, sequences: Sequence[Any], positions: Optional[Sequence[Any]] = None, labels: Optional[Sequence[Any]] = None):
        """A dr_batch of sequences of ids, with targets at positions of each (all), and what must outlive it."""
        import numpy
        sequences = [_ids(one) for one in sequences]
        cu = numpy.zeros(len(sequences) + 1, numpy.int64)
        cu[1:] = numpy.cumsum([len(one) for one in sequences])
        ids = numpy.concatenate(sequences) if sequences else numpy.zeros(0, numpy.int32)
        if positions is None:
            at = numpy.arange(cu[-1])
        else:
            at = numpy.concatenate([numpy.asarray(one, numpy.int64) + begin for one, begin in zip(positions, cu)])
        at = numpy.ascontiguousarray(at, numpy.int64)
        wanted = numpy.zeros(len(at), numpy.int32) if labels is None else numpy.concatenate([_ids(one) for one in labels])
        if len(wanted) != len(at):
            raise ValueError(f"there are {len(at)} positions and {len(wanted)} labels")
        made = _Batch(Layout(len(sequences), len(ids), cu.ctypes.data), ids.ctypes.data, len(at), at.ctypes.data, wanted.ctypes.data)
        return made, (cu, ids, at, wanted)

    def logits(self, sequences: Sequence[Any], positions: Optional[Sequence[Any]] = None) -> List[Any]:
        """Of each sequence of ids its logits ``[positions, vocabulary]`` float32 (float64 of backend reference); positions: which
        of its tokens, rising; None: all."""
        import numpy
        batch, kept = self._batch(sequences, positions)
        double = self._on.name == "reference"
        made = numpy.empty((batch.targets, self.vocabulary), numpy.float64 if double else numpy.float32)
        check(lib.dr_session_logits(self._session, byref(batch), None, 1 if double else 0, made.ctypes.data))
        counts = [len(one) for one in (sequences if positions is None else positions)]
        return list(numpy.split(made, numpy.cumsum(counts)[:-1]))

    def score(self, sequences: Sequence[Any], positions: Optional[Sequence[Any]] = None,
              labels: Optional[Sequence[Any]] = None) -> List[Scored]:
        """Of each sequence the log-probability of each label at its position; None: the next token at all but the last."""
        import numpy
        if labels is None:
            positions = [range(len(one) - 1) for one in sequences]
            labels = [one[1:] for one in sequences]
        batch, kept = self._batch(sequences, positions, labels)
        losses, hits = numpy.empty(batch.targets, numpy.float64), numpy.empty(batch.targets, numpy.uint8)
        total = c_double()
        check(lib.dr_session_loss(self._session, byref(batch), None, byref(total), None, losses.ctypes.data, hits.ctypes.data))
        cuts = numpy.cumsum([len(one) for one in labels])[:-1]
        return [Scored(-loss, hit.astype(bool)) for loss, hit in zip(numpy.split(losses, cuts), numpy.split(hits, cuts))]

    def gradient(self, sequences: Sequence[Any], positions: Sequence[Any], labels: Sequence[Any]):
        """(loss, gradients by name) of the sum of the cross-entropies of labels at positions."""
        batch, kept = self._batch(sequences, positions, labels)
        block, loss = c_void_p(), c_double()
        check(lib.dr_model_gradients_create(self._handle, byref(block)))
        try:
            check(lib.dr_session_gradient(self._session, byref(batch), 1.0, block, byref(loss), None))
            return loss.value, {name: one.copy() for name, one in self._arrays(block.value).items()}
        finally:
            lib.dr_backend_free(self._on.handle, block)

    def tokens(self, ids: Sequence[int], count: int) -> Iterator[int]:
        """The likeliest next ids behind these, so many at most, one by one."""
        import numpy
        state = c_void_p()
        check(lib.dr_model_state_create(self._handle, 1, byref(state)))
        try:
            batch, kept = self._batch([ids], [[len(ids) - 1]])
            logits = numpy.empty(self.vocabulary, numpy.float32)
            check(lib.dr_session_logits(self._session, byref(batch), state, 0, logits.ctypes.data))
            for _ in range(count):
                best = int(logits.argmax())
                yield best
                check(lib.dr_model_step(self._handle, byref(c_int32(best)), state, logits.ctypes.data))
        finally:
            lib.dr_model_state_destroy(state)
