"""Delta-rule and linear-attention recurrences from the C library deltarule, for numpy and PyTorch.

    import deltarule, torch
    q, k = (torch.randn(2, 512, 4, 64) for _ in "qk")
    v = torch.randn(2, 512, 4, 64)
    o = deltarule.recurrence("delta_net", q, torch.nn.functional.normalize(k, dim=-1), v, beta=torch.rand(2, 512, 4))

``rules()`` lists the named rules, ``Rule({...})`` composes others, ``recurrence`` computes one over many tokens, ``step`` one
token more, and ``State`` is what they carry. ``deltarule.torch`` has the operators of PyTorch, ``deltarule.fla`` the functions
of flash-linear-attention under their names. Importing this package imports neither PyTorch nor numpy.
"""

from __future__ import annotations

from ._library import DeltaruleError, info, lib as _lib
from .rule import Rule, rules
from .state import State
from .recurrence import kernel, recurrence, step

__version__ = _lib.dr_version().decode()
__all__ = ["DeltaruleError", "Rule", "State", "info", "kernel", "recurrence", "rules", "step", "__version__"]
