"""deltarule for Hugging Face transformers: models of the library as its classes.

Importing this package registers model_type "deltarule" with AutoConfig, AutoModel and AutoModelForCausalLM, so that folders that
`deltarule train` wrote load by ``AutoModelForCausalLM.from_pretrained``, train in a Trainer, and generate. Folders of published
types (gated_deltanet, kda, ...), which the library writes for rules that have one, load by
``DeltaruleForCausalLM.from_pretrained``.
"""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .cache import DeltaruleCache
from .configuration import DeltaruleConfig
from .fla import from_fla, to_fla
from .modeling import DeltaruleForCausalLM, DeltaruleModel

__all__ = ["DeltaruleCache", "DeltaruleConfig", "DeltaruleForCausalLM", "DeltaruleModel", "from_fla", "to_fla"]

AutoConfig.register("deltarule", DeltaruleConfig, exist_ok=True)
AutoModel.register(DeltaruleConfig, DeltaruleModel, exist_ok=True)
AutoModelForCausalLM.register(DeltaruleConfig, DeltaruleForCausalLM, exist_ok=True)
