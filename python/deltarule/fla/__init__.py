"""flash-linear-attention's functions under their names, computed by deltarule: CPU and CUDA, float32, bf16 and fp16.

Each has flash-linear-attention 0.6's order of arguments and defaults, and every argument in its signature. What no rule computes
(decays by value channel, reversed sequences, context parallelism, states between chunks, attention matrices) raises
NotImplementedError. `accelerate` puts them in the place of flash-linear-attention's and transformers' own.
"""

from ._door import last_path, report, reset
from .accelerate import Accelerated, accelerate
from .delta import (chunk_comba, chunk_delta_rule, chunk_gated_delta_product, chunk_gated_delta_rule, chunk_gdn, chunk_gdn2, chunk_kda,
                    fused_recurrent_comba, fused_recurrent_delta_rule, fused_recurrent_gated_delta_rule, fused_recurrent_gdn,
                    fused_recurrent_gdn2, fused_recurrent_kda)
from .linear import (chunk_gla, chunk_lightning_attn, chunk_linear_attn, chunk_retention, chunk_simple_gla, fused_chunk_linear_attn,
                     fused_chunk_retention, fused_chunk_simple_gla, fused_recurrent_gla, fused_recurrent_lightning_attn,
                     fused_recurrent_linear_attn, fused_recurrent_retention, fused_recurrent_simple_gla, parallel_retention,
                     parallel_simple_gla)
from .lowrank import (chunk_dplr_delta_rule, chunk_iplr_delta_rule, chunk_rwkv7, fused_mul_recurrent_rwkv7,
                      fused_recurrent_dplr_delta_rule, fused_recurrent_iplr_delta_rule, fused_recurrent_rwkv7)
from .precond import (chunk_mesa_net, chunk_precond_gated_delta_rule, chunk_precond_kda, fused_recurrent_precond_gated_delta_rule,
                      fused_recurrent_precond_kda, mesa_net_decoding_one_step)

__all__ = ["Accelerated", "accelerate", "last_path", "report", "reset", "chunk_comba", "chunk_delta_rule", "chunk_dplr_delta_rule",
           "chunk_gated_delta_product", "chunk_gated_delta_rule", "chunk_gdn", "chunk_gdn2", "chunk_gla", "chunk_iplr_delta_rule",
           "chunk_kda", "chunk_lightning_attn", "chunk_linear_attn", "chunk_mesa_net", "chunk_precond_gated_delta_rule",
           "chunk_precond_kda", "chunk_retention", "chunk_rwkv7", "chunk_simple_gla", "fused_chunk_linear_attn",
           "fused_chunk_retention", "fused_chunk_simple_gla", "fused_mul_recurrent_rwkv7", "fused_recurrent_comba",
           "fused_recurrent_delta_rule", "fused_recurrent_dplr_delta_rule", "fused_recurrent_gated_delta_rule", "fused_recurrent_gdn",
           "fused_recurrent_gdn2", "fused_recurrent_gla", "fused_recurrent_iplr_delta_rule", "fused_recurrent_kda",
           "fused_recurrent_lightning_attn", "fused_recurrent_linear_attn", "fused_recurrent_precond_gated_delta_rule",
           "fused_recurrent_precond_kda", "fused_recurrent_retention", "fused_recurrent_rwkv7", "fused_recurrent_simple_gla",
           "mesa_net_decoding_one_step", "parallel_retention", "parallel_simple_gla"]
