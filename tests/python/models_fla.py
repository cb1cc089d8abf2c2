"""flash-linear-attention's own model classes on a CPU: each Triton operator that its layers call is replaced by the naive
function that the package has beside it, or, where it has none, by a loop over tokens. The classes, their parameters, their
reading and writing of folders stay as they are.

Three types of models have no class there. gdn2 is the package's layer in the skeleton of KDA; qdelta and precond_deltanet are
layers of its classes with what their papers change (`LAYERS_OF_PAPERS`)."""
import glob
import importlib
import math
import os
import sys
import warnings

import torch
import torch.nn.functional as F

warnings.filterwarnings("ignore")


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def by_value_head(count, *streams):
    """Streams of key heads [B, T, H, ...] repeated for the value heads that read them."""
    return [x if x is None or x.shape[2] == count else x.repeat_interleave(count // x.shape[2], 2) for x in streams]


def of(module, name):
    return getattr(importlib.import_module("fla." + module), name)


# ---- operators of layers -------------------------------------------------------------------------------------------------


def gated_delta_rule(q, k, v, g=None, beta=None, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None,
                     use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, **_):
    if use_gate_in_kernel:
        g = of("ops.gated_delta_rule.gate", "naive_gdn_gate")(g, A_log, dt_bias)
    if use_beta_sigmoid_in_kernel:
        beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    if g is None:
        g = torch.zeros(v.shape[:3])
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    q, k = by_value_head(v.shape[2], q, k)
    o, _ = of("ops.gated_delta_rule.naive", "naive_recurrent_gated_delta_rule")(q, k, v, beta, g)
    return o, None


def delta_rule(q, k, v, beta=None, use_qk_l2norm_in_kernel=False, **_):
    return gated_delta_rule(q, k, v, None, torch.ones(v.shape[:3]) if beta is None else beta, use_qk_l2norm_in_kernel)


def kda_gate(g, A_log, dt_bias=None, lower_bound=None, **_):
    if lower_bound is None:
        return of("ops.kda.gate", "naive_kda_gate")(g, A_log, dt_bias)
    return of("ops.kda.gate", "naive_kda_lowerbound_gate")(g, A_log, dt_bias, lower_bound)


def kda(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval=False, lower_bound=None, **_):
    g, beta = kda_gate(g, A_log, dt_bias, lower_bound), beta.sigmoid() * (2 if allow_neg_eigval else 1)
    q, k = by_value_head(v.shape[2], unit(q), unit(k))
    o, _ = of("ops.kda.naive", "naive_recurrent_kda")(q, k, v, g, beta)
    return o, None


def gdn2(q, k, v, g, b, w, **_):
    o, _ = of("ops.gdn2.naive", "naive_recurrent_gdn2")(unit(q), unit(k), v, g, b, w)
    return o, None


def comba(q, k, v, p, g, beta, **_):
    # the chunked function: the recurrent one reads the decayed state, which the kernels do not
    o, _ = of("ops.comba.naive", "naive_chunk_comba")(unit(q), unit(k), v, unit(p), g, beta)
    return o, None


def delta_product(q, k, v, g, beta, num_householder, **_):
    o, _ = of("ops.gated_delta_product.naive", "naive_recurrent_gated_delta_product")(
        unit(q), unit(k), v, g, beta, q.shape[-1] ** -0.5, num_householder=num_householder)
    return o, None


def gla(q, k, v, g=None, gk=None, **_):
    gate = g if gk is None else gk
    o, _ = of("ops.gla.naive", "naive_recurrent_gla")(q, k, v, torch.zeros_like(k) if gate is None else gate)
    return o, None


def retention(q, k, v, **_):
    gamma = torch.log(1 - 2.0 ** (-5.0 - torch.arange(q.shape[2], dtype=torch.float)))
    return gla(q, k, v, gamma[None, None, :, None].expand_as(k).contiguous())


def mesa_net(q, k, v, g, beta, lamb, **_):
    """Systems solved exactly; the kernel takes 30 steps of conjugate gradients."""
    q, k = unit(q), unit(k)
    hkk = torch.zeros(*q.shape[:1], *q.shape[2:], q.shape[-1])
    hkv = torch.zeros_like(hkk)
    out = []
    for t in range(q.shape[1]):
        write = k[:, t] * beta[:, t, :, None]
        decay = g[:, t].exp()[..., None, None]
        hkk, hkv = (h * decay + write[..., None] * x[:, t][..., None, :] for h, x in ((hkk, k), (hkv, v)))
        system = (hkk + torch.diag_embed(lamb.expand(q.shape[0], *lamb.shape))).double()
        solved = torch.linalg.solve(system, q[:, t].double()).float()
        out.append(torch.einsum("bhkv,bhk->bhv", hkv, solved))
    return torch.stack(out, 1), None, None


def precond_gated_delta_rule(q, k, v, g, g_atk, beta, beta_atk, x, eps, log_atk_scale, **_):
    q, k, g_atk, beta_atk = by_value_head(v.shape[2], unit(q), unit(k), g_atk, beta_atk)
    if not isinstance(log_atk_scale, float):
        log_atk_scale = log_atk_scale.repeat_interleave(v.shape[2] // log_atk_scale.shape[0])
    return precond_kda(q, k, v, g[..., None].expand_as(k), beta, g_atk, beta_atk, x, eps, log_atk_scale, use_qk_l2norm_in_kernel=False)


def precond_kda(q, k, v, g, beta, g_atk, beta_atk, x, eps, log_atk_scale, use_qk_l2norm_in_kernel=True, **_):
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    o = of("ops.precond_kda.naive", "naive_recurrent_precond_kda")(q, k, v, g=g, g_atk=g_atk, beta_atk=beta_atk, beta=beta, x=x, eps=eps,
                                                                   log_atk_scale=log_atk_scale)[0]
    return o, None, None


def rwkv7(r, w, k, v, a, b, **_):
    state = torch.zeros(*r.shape[:1], *r.shape[2:], v.shape[-1])
    out = []
    for t in range(r.shape[1]):
        read = torch.einsum("bhk,bhkv->bhv", a[:, t], state)
        state = state * w[:, t].exp()[..., None] + b[:, t][..., None] * read[..., None, :] + k[:, t][..., None] * v[:, t][..., None, :]
        out.append(torch.einsum("bhk,bhkv->bhv", r[:, t], state))
    return torch.stack(out, 1), None


def mul_rwkv7(r, w, k, v, kk, a, **_):
    return rwkv7(r, w, k, v, -kk, kk * a)


def add_shifted(hidden, delta, *mixes):
    return tuple(hidden + delta * mix for mix in mixes if mix is not None)


def shift(x, cu_seqlens=None, cache=None, output_cache=False):
    delta = of("modules.token_shift", "token_shift_ref")(x)
    return (delta, None) if output_cache else delta


def attention(q, k, v, causal=True, window_size=(-1, -1), **_):
    result = of("ops.attn.naive", "naive_parallel_attn")(q, k, v, window_size=None if window_size[0] < 0 else window_size[0] + 1)
    return result[0] if isinstance(result, tuple) else result


# ---- modules of layers ---------------------------------------------------------------------------------------------------


def convolve(x, weight, bias, activation):
    width = weight.shape[-1]
    y = F.conv1d(F.pad(x.transpose(1, 2), (width - 1, 0)), weight.reshape(weight.shape[0], 1, width), bias, groups=weight.shape[0])
    return F.silu(y.transpose(1, 2)) if activation in ("silu", "swish") else y.transpose(1, 2)


def short_convolution(module, x, **_):
    return convolve(x, module.weight, module.bias, module.activation), None


def fused_convolution(x, weight, bias=None, activation=None, **_):
    return convolve(x, weight, bias, activation), None


def gated_norm(module, x, g, **_):
    normed = F.rms_norm(x.float(), (x.shape[-1],), module.weight, module.eps)
    return normed * (F.silu(g) if module.activation in ("swish", "silu") else g.sigmoid())


def norm_of(reference):
    def norm(module, x, residual=None, prenorm=False, residual_in_fp32=False):
        more = {"num_groups": module.num_groups, "is_rms_norm": module.is_rms_norm} if hasattr(module, "num_groups") else {}
        return reference(x=x, weight=module.weight, bias=module.bias, residual=residual, eps=module.eps, prenorm=prenorm, **more)
    return norm


def rotate(module, q, k, **_):
    angle = torch.arange(q.shape[1])[:, None] * module.base ** (-torch.arange(0, module.dim, 2) / module.dim)
    turn = of("modules.rotary.ops", "rotary_embedding_ref")
    return tuple(turn(x, angle.cos(), angle.sin(), module.interleaved) for x in (q, k))


def on_a_cpu():
    """Replaces the operators. The package says "cuda" even where there is none."""
    import fla.layers.attn  # noqa: F401, first, so that its optional kernel is found missing
    import fla.models  # noqa: F401
    modules = importlib.import_module("fla.modules")
    norms = importlib.import_module("fla.modules.norm.layernorm")
    modules.ShortConvolution.forward = short_convolution
    modules.FusedRMSNormGated.forward = gated_norm
    norms.RMSNorm.forward = norm_of(norms.rms_norm_ref)
    norms.LayerNorm.forward = norm_of(norms.layer_norm_ref)
    norms.GroupNorm.forward = norm_of(norms.group_norm_ref)
    modules.RotaryEmbedding.forward = rotate
    gated = importlib.import_module("fla.modules.norm.layernorm_gated")
    gated.RMSNormGated.forward = lambda module, x, z=None: gated.rms_norm_ref(
        x, module.weight, module.bias, z, module.eps, module.group_size, module.norm_before_gate)
    swiglu = lambda x, y: F.silu(x) * y
    operators = {
        "chunk_gated_delta_rule": gated_delta_rule, "fused_recurrent_gated_delta_rule": gated_delta_rule, "chunk_delta_rule": delta_rule,
        "fused_recurrent_delta_rule": delta_rule, "chunk_kda": kda, "fused_recurrent_kda": kda, "chunk_gdn2": gdn2, "fused_recurrent_gdn2": gdn2,
        "chunk_comba": comba, "fused_recurrent_comba": comba, "chunk_gated_delta_product": delta_product, "chunk_gla": gla,
        "fused_chunk_gla": gla, "fused_recurrent_gla": gla, "chunk_retention": retention, "fused_chunk_retention": retention,
        "fused_recurrent_retention": retention, "parallel_retention": retention, "chunk_mesa_net": mesa_net,
        "chunk_precond_gated_delta_rule": precond_gated_delta_rule, "fused_recurrent_precond_gated_delta_rule": precond_gated_delta_rule,
        "chunk_precond_kda": precond_kda, "fused_recurrent_precond_kda": precond_kda, "fused_kda_gate": kda_gate, "chunk_rwkv7": rwkv7,
        "fused_mul_recurrent_rwkv7": mul_rwkv7, "fused_addcmul_rwkv7": add_shifted, "token_shift": shift, "l2_norm": unit,
        "causal_conv1d": fused_convolution, "flash_attn_func": attention, "swiglu": swiglu,
        "swiglu_linear": lambda x, y, weight, bias: F.linear(swiglu(x, y), weight, bias),
        "fused_k_rwkv7": of("ops.rwkv7.fused_k_update", "k_update_ref"),
        "gate_output_correction": of("ops.rwkv7.gate_output_correction", "gate_output_correction_ref"),
        "fused_attnres": of("ops.attnres.naive", "naive_attnres"), "sqrelu": lambda x: F.relu(x).square(),
    }
    for name, module in list(sys.modules.items()):
        if not name.startswith(("fla.layers.", "fla.models.", "fla.modules.mlp")):
            continue
        for operator, function in operators.items():
            if operator in vars(module):
                setattr(module, operator, function)
        if "ACT2FN" in vars(module):
            module.ACT2FN = {"swish": F.silu, "silu": F.silu, "relu": F.relu, "sqrelu": operators["sqrelu"], "sigmoid": torch.sigmoid}


# ---- types without a class there -----------------------------------------------------------------------------------------


def layers_of_papers():
    """model_type: (the class whose skeleton it takes, a function that changes a layer of it)."""
    from fla.layers.gdn2 import GatedDeltaNet2
    from fla.models import GatedDeltaNetForCausalLM, KDAForCausalLM, PrecondGatedDeltaNetForCausalLM

    def gdn2_layer(config, layer):
        layer.attn = GatedDeltaNet2(hidden_size=config.hidden_size, expand_v=config.expand_v, head_dim=config.head_dim, num_heads=config.num_heads,
                                    num_v_heads=config.num_v_heads, conv_size=config.conv_size, allow_neg_eigval=config.allow_neg_eigval,
                                    norm_eps=config.norm_eps, layer_idx=layer.attn.layer_idx)

    def qdelta_layer(config, layer):
        """The state is read for its error by k + lambda q, of unit length both and q unscaled (arXiv 2606.08804, equations 19, 20)."""
        mixer = layer.attn
        mixer.lamb_proj = torch.nn.Linear(config.hidden_size, mixer.num_v_heads, bias=False)
        factor = 2 if config.allow_neg_eigval else 1

        def forward(hidden_states, **_):
            convolved = [convolve(p(hidden_states), c.weight, c.bias, "silu") for p, c in
                         ((mixer.q_proj, mixer.q_conv1d), (mixer.k_proj, mixer.k_conv1d), (mixer.v_proj, mixer.v_conv1d))]
            heads = mixer.num_v_heads
            v = convolved[2].unflatten(-1, (heads, -1))
            q, k = by_value_head(heads, *(unit(x.unflatten(-1, (mixer.num_heads, -1))) for x in convolved[:2]))
            decay = (-mixer.A_log.exp() * F.softplus(mixer.a_proj(hidden_states) + mixer.dt_bias)).exp()
            beta = mixer.b_proj(hidden_states).sigmoid() * factor
            read = k + (mixer.lamb_proj(hidden_states) - config.lamb_bias).sigmoid()[..., None] * factor * q
            state, out = torch.zeros(v.shape[0], heads, k.shape[-1], v.shape[-1]), []
            for t in range(v.shape[1]):
                state = state * decay[:, t, :, None, None]
                error = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkv->bhv", read[:, t], state))
                state = state + k[:, t][..., None] * error[..., None, :]
                out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) * k.shape[-1] ** -0.5)
            o = torch.stack(out, 1)
            o = mixer.o_norm(o, mixer.g_proj(hidden_states).unflatten(-1, (heads, -1))) if mixer.use_gate else mixer.o_norm(o)
            return mixer.o_proj(o.flatten(-2)), None, None

        mixer.forward = forward

    def precond_delta_layer(config, layer):
        """Without decay of the state: a gate of minus infinity, and no parameters of it (arXiv 2604.21100)."""
        mixer = layer.attn
        decay = mixer.A_log, mixer.dt_bias, mixer.a_proj
        del mixer.A_log, mixer.dt_bias, mixer.a_proj
        mixer.register_buffer("A_log", torch.full_like(decay[0], -math.inf), persistent=False)
        mixer.register_buffer("dt_bias", torch.zeros_like(decay[1]), persistent=False)
        mixer.a_proj = lambda x: torch.zeros(*x.shape[:-1], mixer.num_v_heads)

    return {"gdn2": (KDAForCausalLM, gdn2_layer), "qdelta": (GatedDeltaNetForCausalLM, qdelta_layer),
            "precond_deltanet": (PrecondGatedDeltaNetForCausalLM, precond_delta_layer)}


def make(model_type, keys):
    """A model of a type, with random weights as the class draws them."""
    from transformers import AutoConfig, AutoModelForCausalLM
    papers = layers_of_papers()
    if model_type not in papers:
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **keys)).float().eval()
    base, change = papers[model_type]
    config = base.config_class(**keys)
    model = base(config).float().eval()
    for layer in model.model.layers:
        if hasattr(layer.attn, "o_norm"):  # not one of softmax attention
            change(config, layer)
    config.model_type = model_type
    return model


def load(folder, model_type, keys):
    """What a folder of a type of `LAYERS_OF_PAPERS` holds; every tensor of it must be taken, and none be missing."""
    from safetensors.torch import load_file
    model, weights = make(model_type, keys), {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "model*.safetensors"))):
        weights.update({name: tensor.float() for name, tensor in load_file(path).items()})
    if "lm_head.weight" not in weights:
        weights["lm_head.weight"] = weights["model.embeddings.weight"]
    model.load_state_dict(weights)
    return model
