"""Models of the library as transformers' classes: the same weights under the same names, the same numbers."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .._outline import parameters_of, recurrent_of
from ..torch.blocks import Attention, Block, Experts, FeedForward, Norm
from ..torch.mixer import Mixer, Packing
from .cache import CACHE_NAME, DeltaruleCache
from .configuration import DeltaruleConfig

__all__ = ["DeltaruleForCausalLM", "DeltaruleModel"]


class DeltaruleLayer(nn.Module):
    """Norm and mixer, norm and feed-forward, each added to the residual stream: as the outline of a kind of layers tells."""

    def __init__(self, kind: Mapping[str, Any], initializer_range: float, index: int):
        super().__init__()
        self.parts: List[Tuple[str, str]] = []
        options = {"initializer_range": initializer_range}
        for part in kind["parts"]:
            norm, module = part["norm"], part["module"]
            before = norm["weight"].rsplit(".", 1)[0]
            name = before[:-len("_norm")]
            listed = parameters_of(kind["parameters"], name + ".")
            if module["kind"] == "recurrent":
                made: nn.Module = Mixer.from_outline(recurrent_of(module, name + "."), listed, initializer_range, index)
            else:
                made = {"attention": Attention, "gated": FeedForward, "experts": Experts}[module["kind"]](module, listed, **options)
            self.add_module(before, Norm(norm["eps"], parameters_of(kind["parameters"], before + "."), **options))
            self.add_module(name, made)
            self.parts.append((before, name))

    def forward(self, x: Tensor, state: Any = None, final: bool = False, packing: Optional[Packing] = None) -> Tuple[Tensor, Any]:
        for before, name in self.parts:
            module, made = getattr(self, name), None
            normed = getattr(self, before)(x)
            if not isinstance(module, (Mixer, Attention)):
                y = module(normed)
            elif isinstance(module, Mixer) and state is not None and final and x.shape[1] == 1 and packing is None and not torch.is_grad_enabled():
                y, made = module.step(normed.squeeze(1), state).unsqueeze(1), state
            else:
                y = module(normed, initial=state, final=final, cu_seqlens=packing)
                y, made = y if final else (y, None)
            if made is not None:
                state = made
            x = x + y
        return x, state


class DeltarulePreTrainedModel(PreTrainedModel):
    config_class = DeltaruleConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DeltaruleLayer"]
    _is_stateful = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (Block, Mixer)):
            module.reset_parameters()
        elif isinstance(module, nn.Embedding) or module is getattr(self, "lm_head", None):
            if not getattr(module.weight, "_is_hf_initialized", False):
                module.weight.normal_(0.0, self.config.initializer_range)


class DeltaruleModel(DeltarulePreTrainedModel):
    """The layers, from ids ``[B, T]`` to hidden states ``[B, T, hidden]`` behind the last norm."""

    def __init__(self, config: DeltaruleConfig):
        super().__init__(config)
        outline = config.outline()
        self.embeddings = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(DeltaruleLayer(outline["kinds"][kind], config.initializer_range, i)
                                    for i, kind in enumerate(outline["layers"]))
        self.norm = Norm(outline["norm"]["eps"], parameters_of(outline["trunk"], "model.norm."))
        self.gradient_checkpointing = False
        self.keep_steps = 0  # of caches that the model makes (DeltaruleCache)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings = value

    def forward(self, input_ids: Optional[Tensor] = None, attention_mask: Optional[Tensor] = None, cache: Optional[DeltaruleCache] = None,
                inputs_embeds: Optional[Tensor] = None, use_cache: Optional[bool] = None, cu_seqlens: Optional[Tensor] = None,
                output_hidden_states: Optional[bool] = None, past_key_values: Optional[DeltaruleCache] = None,
                **_: Any) -> BaseModelOutputWithPast:
        """past_key_values: another name of cache. attention_mask: ``[B, tokens so far]``, 0 at padding, which no state reads. cu_seqlens: of a packed batch of B = 1."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        cache = past_key_values if cache is None else cache
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = (cache is not None or (self.config.use_cache and not self.training)) if use_cache is None else use_cache
        if use_cache and cache is None:
            cache = DeltaruleCache(len(self.layers), self.keep_steps)
        if not use_cache:
            cache = None
        mask = None if attention_mask is None else attention_mask[:, attention_mask.shape[1] - x.shape[1]:].bool()
        wanted = x.shape[1]
        if cache is not None:
            x, mask = _behind_pending(cache, x, mask)
            cache.begin(x, mask)
        read = x.shape[1]
        x, packing, put_back = _without_padding(x, mask, cu_seqlens)
        seen: List[Tensor] = []
        for i, layer in enumerate(self.layers):
            if output_hidden_states:
                seen.append(put_back(x)[:, -wanted:])
            state = cache.states[i] if cache is not None else None
            if self.gradient_checkpointing and self.training:
                x, made = checkpoint(layer, x, state, cache is not None, packing, use_reentrant=False)
            else:
                x, made = layer(x, state, cache is not None, packing)
            if cache is not None:
                cache.states[i] = made
        if cache is not None:
            cache.columns += read
        x = put_back(self.norm(x))[:, -wanted:]
        return BaseModelOutputWithPast(last_hidden_state=x, hidden_states=(*seen, x) if output_hidden_states else None, **{CACHE_NAME: cache})


def _behind_pending(cache: DeltaruleCache, x: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:
    """Embeddings and mask of a call with those in front that a cut left to be read again, which no longer count as read."""
    if cache.pending is None:
        return x, mask
    embeds, kept = cache.pending
    cache.pending = None
    cache.columns -= embeds.shape[1]
    if kept is not None or mask is not None:
        ones = lambda like: torch.ones(like.shape[:2], dtype=torch.bool, device=x.device)
        mask = torch.cat([ones(embeds) if kept is None else kept, ones(x) if mask is None else mask], 1)
    x = torch.cat([embeds.to(x.dtype), x], 1)
    return x, mask


def _without_padding(x: Tensor, mask: Optional[Tensor], cu_seqlens: Optional[Tensor]):
    """x with its packing, where the mask leaves tokens out as one row without them; and what puts hidden states back."""
    if cu_seqlens is not None:
        return x, Packing.of(cu_seqlens, x.shape[1], x.device), lambda y: y
    if mask is None or bool(mask.all()):
        return x, None, lambda y: y
    rows = mask.flatten().nonzero().squeeze(1)
    cu = F.pad(mask.sum(1).cumsum(0), (1, 0))
    shape = x.shape[:2]

    def put_back(y: Tensor) -> Tensor:
        return y.new_zeros(shape[0] * shape[1], y.shape[2]).index_copy(0, rows, y[0]).view(*shape, -1)

    return x.flatten(0, 1)[rows][None], Packing.of(cu, len(rows), x.device), put_back


class DeltaruleForCausalLM(DeltarulePreTrainedModel, GenerationMixin):
    """A language model: the layers and a head. Loads the folders that `deltarule train` writes, and writes such."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config: DeltaruleConfig):
        super().__init__(config)
        self.model = DeltaruleModel(config)
        self.lm_head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.post_init()

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: Any, *_: Any) -> None:
        if generation_config.use_cache is False:
            return
        if model_kwargs.get(CACHE_NAME) is None:
            model_kwargs[CACHE_NAME] = DeltaruleCache(len(self.model.layers), self.model.keep_steps)
        if generation_config.is_assistant:
            model_kwargs[CACHE_NAME].activate_past_recording()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def forward(self, input_ids: Optional[Tensor] = None, attention_mask: Optional[Tensor] = None, cache: Optional[DeltaruleCache] = None,
                inputs_embeds: Optional[Tensor] = None, labels: Optional[Tensor] = None, use_cache: Optional[bool] = None,
                cu_seqlens: Optional[Tensor] = None, logits_to_keep: Union[int, Tensor] = 0, output_hidden_states: Optional[bool] = None,
                past_key_values: Optional[DeltaruleCache] = None, **_: Any) -> CausalLMOutputWithPast:
        """labels ``[B, T]``: ids to predict one token earlier, -100 where none counts; loss is the mean cross-entropy."""
        made = self.model(input_ids, attention_mask, past_key_values if cache is None else cache, inputs_embeds, use_cache, cu_seqlens, output_hidden_states)
        hidden = made.last_hidden_state
        if isinstance(logits_to_keep, int):
            hidden = hidden[:, -logits_to_keep:] if logits_to_keep else hidden
        else:
            hidden = hidden[:, logits_to_keep]
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            # the labels are moved, not the logits, which would be copied
            loss = F.cross_entropy(logits.flatten(0, 1).float(), F.pad(labels[:, 1:], (0, 1), value=-100).flatten(), ignore_index=-100)
        return CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=made.hidden_states, **{CACHE_NAME: made[CACHE_NAME] if CACHE_NAME in made else None})
