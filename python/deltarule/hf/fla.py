"""Models of flash-linear-attention's classes from ours, and ours from theirs, where a class computes the same."""

from __future__ import annotations

import json
import os
from typing import Any, Union

import torch

from .._outline import outline
from .configuration import DeltaruleConfig
from .modeling import DeltaruleForCausalLM

__all__ = ["from_fla", "to_fla"]


def from_fla(model: Any) -> DeltaruleForCausalLM:
    """Our model of a folder, or of a module, of flash-linear-attention's classes.

    NotImplementedError, ValueError: of a type, or with an option, that no rule of the library computes.
    """
    if isinstance(model, (str, os.PathLike)):
        return DeltaruleForCausalLM.from_pretrained(model)
    config = outline(model.config.to_dict())["config"]
    config.pop("model_type")
    made = DeltaruleForCausalLM(DeltaruleConfig(**config)).to(model.device)
    made.load_state_dict(model.state_dict())
    return made


def to_fla(model: DeltaruleForCausalLM, folder: Union[str, os.PathLike, None] = None) -> Any:
    """The model as flash-linear-attention's class; with a folder, written there for that class to load (None is returned).

    NotImplementedError: no class of it computes this rule with these sizes and gates.
    """
    published = model.config.outline()["published"]
    if "architectures" not in published:
        raise NotImplementedError(f"flash-linear-attention has no class for rule {model.config.rule} as this model has it: the layer, its "
                                  "gates and sizes must all be what one of its configurations can say")
    if folder is not None:
        from safetensors.torch import save_file
        os.makedirs(folder, exist_ok=True)
        state = {name: one.detach().contiguous() for name, one in model.state_dict().items()
                 if not (model.config.tied and name == "lm_head.weight")}
        save_file(state, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        published["dtype"] = str(next(model.parameters()).dtype).replace("torch.", "")
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(published, file, indent=2)
        return None
    import fla.models  # noqa: F401  (registers its classes)
    from transformers import AutoConfig, AutoModelForCausalLM
    published = {name: value for name, value in published.items() if name != "dtype"}
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**published), dtype=next(model.parameters()).dtype)
    made.load_state_dict(model.state_dict())
    return made.to(model.device)
