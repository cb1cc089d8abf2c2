"""The configuration of model_type "deltarule": the keys of the library's own config.json."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from transformers import PreTrainedConfig

from .._outline import outline

# The library's keys, and those of transformers that stand in a config.json beside them.
_DEFAULTS = {"rule": "gdn", "vocabulary": 257, "hidden": 256, "layers": 4, "heads": 4}
_BESIDE = ("architectures", "transformers_version", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id")


class DeltaruleConfig(PreTrainedConfig):
    """A model of the library.

    Args:
        rule: a name, or a dictionary of axes; vocabulary; hidden: the width; layers: how many, or a list of them
            (``"(gdn*3 attention)*2"``, docs/models.md); heads. The other keys of a config.json (value_heads, key_size,
            value_size, conv_size, intermediate, output_gate, tied, gate, lower_bound, ...) may be given too; those that are not
            are as the rule's family has them.

    Raises:
        ValueError: an unknown key, or a value that cannot be, with the library's sentence.
    """

    model_type = "deltarule"
    attribute_map = {"vocab_size": "vocabulary", "hidden_size": "hidden", "num_attention_heads": "heads"}

    def __init__(self, **options: Any):
        known = outline({"model_type": "deltarule", **_DEFAULTS})["config"]
        given = {name: options.pop(name) for name in list(options)
                 if name in known or name in ("lambda", "lower_bound", "negative_eigenvalues")}
        for name, key in self.attribute_map.items():
            if name in options:
                given[key] = options.pop(name)
        if "lam" in options:
            given["lambda"] = options.pop("lam")
        if "tie_word_embeddings" in options:
            given.setdefault("tied", options.pop("tie_word_embeddings"))
        dtype = given.pop("dtype", None)
        given.pop("model_type", None)
        own = outline({"model_type": "deltarule", **_DEFAULTS, **given})["config"]
        own.pop("model_type")
        own.pop("dtype")
        object.__setattr__(self, "_keys", tuple(own))
        for name, value in own.items():
            object.__setattr__(self, name, value)
        self.use_cache = options.pop("use_cache", True)
        self.bos_token_id, self.eos_token_id, self.pad_token_id = (options.pop(name, None) for name in _BESIDE[3:])
        options.pop("num_hidden_layers", None)
        super().__init__(dtype=dtype, tie_word_embeddings=own["tied"], **options)

    @property
    def num_hidden_layers(self) -> int:
        return len(self.outline()["layers"])

    def own(self) -> Dict[str, Any]:
        """The config.json that the library writes for this model."""
        return {"model_type": "deltarule", "dtype": str(self.dtype or "float32").replace("torch.", ""),
                **{name: getattr(self, name) for name in self._keys}}

    def outline(self) -> Dict[str, Any]:
        """How the model computes (docs/outline.md)."""
        return outline(self.own())

    def to_dict(self) -> Dict[str, Any]:
        made = self.own()
        made.update({name: getattr(self, name) for name in _BESIDE if getattr(self, name, None) is not None})
        return made

    to_diff_dict = to_dict

    @classmethod
    def get_config_dict(cls, *arguments: Any, **options: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """That of a folder, where a published type's keys become the library's own."""
        found, rest = super().get_config_dict(*arguments, **options)
        if found.get("model_type") != cls.model_type:
            known = {name: value for name, value in found.items() if not name.startswith("_")}  # what transformers adds to a file's keys
            found = {**outline(known)["config"], **{name: found[name] for name in _BESIDE[3:] if found.get(name) is not None}}
        return found, rest
