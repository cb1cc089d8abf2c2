"""Forms of a call's inputs (the library's forms.h) as text, a constant of a graph: what is made of them before a rule reads them.

    "normalize=1e-06 beta=2 decay=softplus A_log dt_bias value_first"

normalize: queries and keys by their length, with that epsilon; beta: that many times the sigmoid of what is given; decay: softplus,
or bounded=-5.0, of a raw log decay, with A_log and dt_bias behind the rule's inputs if they are named; value_first: S is [.., V, K].
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Optional, Sequence, Tuple

DECAYS = {"": 0, "softplus": 1, "bounded": 2}  # dr_decay_form


class Made(NamedTuple):
    normalize: Optional[float] = None
    beta: float = 0.0
    decay: str = ""
    bound: float = 0.0
    A_log: bool = False
    dt_bias: bool = False
    value_first: bool = False

    @property
    def extras(self) -> Tuple[str, ...]:
        """The inputs behind the rule's."""
        return tuple(name for name in ("A_log", "dt_bias") if getattr(self, name))


@functools.lru_cache(maxsize=4096)
def text_of_made(made: Made) -> str:
    words = [] if made.normalize is None else [f"normalize={made.normalize!r}"]
    words += [f"beta={made.beta!r}"] if made.beta else []
    words += ["decay=softplus"] if made.decay == "softplus" else [f"bounded={made.bound!r}"] if made.decay else []
    return " ".join(words + [name for name in ("A_log", "dt_bias", "value_first") if getattr(made, name)])


@functools.lru_cache(maxsize=4096)
def made_of(text: str) -> Made:
    found = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name == "decay" and value == "softplus":
            found["decay"] = value
        elif name == "bounded" and value:
            found.update(decay=name, bound=float(value))
        elif name in ("normalize", "beta") and value:
            found[name] = float(value)
        elif name in ("A_log", "dt_bias", "value_first") and not value:
            found[name] = True
        else:
            raise ValueError(f"there is no form {word!r} of inputs: {__doc__}")
    return Made(**found)


def pitch_of(shape: Sequence[int], strides: Sequence[int]) -> Optional[int]:
    """Elements from token to token of [B, T, ...] whose inner axes are dense and whose tokens are equally far apart; None if not."""
    inner = 1
    for size, stride in zip(reversed(shape[2:]), reversed(strides[2:])):
        if size != 1 and stride != inner:
            return None
        inner *= size
    B, T = shape[:2]
    if T == 1:
        pitch = strides[0] if B > 1 else inner
    else:
        pitch = strides[1]
        if B > 1 and strides[0] != T * pitch:
            return None
    return pitch if pitch >= inner else None
