"""Random shapes of published model types: for each type a function from a random generator to the keys of its configuration,
those that change what is computed varied, the sizes small and uneven. `TYPES` has those of transformers, `FLA_TYPES` those of
flash-linear-attention, `PAPER_TYPES` those whose layers come from papers (models_fla.py), `MULTIMODAL` those whose folders also
have parts that are no text."""


def divisors(number, most=99):
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def maybe(r, share=0.5):
    return r.random() < share


# ---- transformers ----------------------------------------------------------------------------------------------------------


def common(r):
    return dict(vocab_size=r.randint(50, 130), hidden_size=4 * r.randint(5, 14), num_hidden_layers=r.choice([1, 2, 3, 4]),
                intermediate_size=r.randint(10, 90), rms_norm_eps=r.choice([1e-6, 1e-5, 0.004]), tie_word_embeddings=maybe(r),
                bos_token_id=1, eos_token_id=2, pad_token_id=None)


def heads_of(r, most=6):
    heads = r.randint(1, most)
    return dict(num_attention_heads=heads, num_key_value_heads=r.choice(divisors(heads)))


def rotary(r):
    keys = dict(rope_theta=r.choice([1e4, 5e5, 1e6]), rope_type=r.choice(["default", "linear", "llama3", "yarn", "default"]))
    if keys["rope_type"] == "linear":
        keys.update(factor=r.choice([2.0, 4.0]))
    if keys["rope_type"] == "llama3":
        keys.update(factor=r.choice([8.0, 3.0]), low_freq_factor=1.0, high_freq_factor=r.choice([4.0, 2.0]), original_max_position_embeddings=32)
    if keys["rope_type"] == "yarn":
        keys.update(factor=4.0, original_max_position_embeddings=32)
        if maybe(r, .3):
            keys.update(beta_fast=16, beta_slow=2)
        if maybe(r, .3):
            keys.update(attention_factor=1.2)
        if maybe(r, .3):
            keys.update(truncate=False)
        if maybe(r, .3):
            keys.update(mscale=1.3, mscale_all_dim=0.7)
    return keys


def experts(r):
    count = r.randint(2, 7)
    return dict(num_experts=count, num_experts_per_tok=r.randint(1, count), moe_intermediate_size=r.randint(4, 24))


def llama(r):
    keys = dict(common(r), **heads_of(r), head_dim=2 * r.randint(2, 9), rope_parameters=rotary(r), max_position_embeddings=64,
                attention_bias=maybe(r), mlp_bias=maybe(r))
    return dict(keys, hidden_size=keys["num_attention_heads"] * r.randint(4, 12))


def without(keys, *names):
    return {name: value for name, value in keys.items() if name not in names}


def mistral(r):
    return dict(without(llama(r), "attention_bias", "mlp_bias"), sliding_window=r.choice([None, 1, 3, 8, 100]))


def windows(r):
    return dict(use_sliding_window=maybe(r), sliding_window=r.choice([2, 5]), max_window_layers=r.randint(0, 3))


def qwen2(r):
    keys = without(llama(r), "attention_bias", "mlp_bias")
    return dict(without(keys, "head_dim"), hidden_size=keys["head_dim"] * keys["num_attention_heads"], **windows(r))


def qwen3(r):
    return dict(without(llama(r), "mlp_bias"), **windows(r))


def qwen3_moe(r):
    return dict(without(llama(r), "mlp_bias"), **experts(r), norm_topk_prob=maybe(r), decoder_sparse_step=r.choice([1, 2]),
                mlp_only_layers=r.choice([[], [0]]))


def delta_layers(r):
    heads = r.choice([1, 2, 3])
    return dict(linear_num_key_heads=heads, linear_num_value_heads=heads * r.choice([1, 2, 3]), linear_key_head_dim=r.choice([4, 7, 12, 16]),
                linear_value_head_dim=r.choice([5, 8, 16, 20]), linear_conv_kernel_dim=r.choice([2, 3, 4]))


def kinds(r, count, *names):
    return [r.choice(names) for _ in range(count)]


def qwen3_next(r):
    keys = common(r)
    keys.update(**heads_of(r), head_dim=4 * r.randint(2, 6), **delta_layers(r), **experts(r), shared_expert_intermediate_size=r.randint(4, 24),
                norm_topk_prob=maybe(r), decoder_sparse_step=r.choice([1, 2]), mlp_only_layers=r.choice([[], [0], [1]]), attention_bias=maybe(r, .3))
    keys["layer_types"] = kinds(r, keys["num_hidden_layers"], "linear_attention", "full_attention")
    keys["rope_parameters"] = dict(rope_theta=r.choice([1e4, 1e6]), rope_type="default", partial_rotary_factor=r.choice([.25, .5, 1.0]))
    return keys


def qwen3_5_text(r):
    return without(qwen3_next(r), "num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
                   "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")


def qwen3_5_moe_text(r):
    return without(qwen3_next(r), "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "intermediate_size")


def with_vision(text, r):
    keys = text(r)
    width = 8 * r.randint(1, 3)
    vision = dict(depth=1, hidden_size=width, intermediate_size=2 * width, num_heads=2, out_hidden_size=keys["hidden_size"], patch_size=2,
                  num_position_embeddings=4)
    return dict(text_config=without(keys, "tie_word_embeddings"), vision_config=vision, tie_word_embeddings=keys["tie_word_embeddings"])


def qwen3_5(r):
    return with_vision(qwen3_5_text, r)


def qwen3_5_moe(r):
    return with_vision(qwen3_5_moe_text, r)


def olmo_hybrid(r):
    keys = dict(common(r), **heads_of(r), **delta_layers(r), linear_allow_neg_eigval=maybe(r), attention_bias=maybe(r), max_position_embeddings=64)
    keys["hidden_size"] = keys["num_attention_heads"] * 2 * r.randint(2, 8)
    keys["num_hidden_layers"] = max(2, keys["num_hidden_layers"])
    inner = kinds(r, keys["num_hidden_layers"] - 2, "linear_attention", "full_attention")
    keys["layer_types"] = ["linear_attention", *inner, "full_attention"]
    if maybe(r):
        keys["rope_parameters"] = dict(rope_theta=r.choice([1e4, 5e5]), rope_type="default")
    return keys


def lara_mini(r):
    keys = dict(without(common(r), "intermediate_size"), **heads_of(r), head_dim=2 * r.randint(2, 8), **delta_layers(r), **experts(r),
                shared_expert_intermediate_size=r.randint(4, 24), sliding_window=r.choice([1, 3, 8]), norm_topk_prob=maybe(r, .7))
    keys["layer_types"] = kinds(r, keys["num_hidden_layers"], "linear_attention", "full_attention", "sliding_attention")
    return keys


def latent_layers(r):
    heads, groups = r.randint(1, 4), r.choice([1, 2])
    count = groups * r.randint(2, 4)
    return dict(num_attention_heads=heads, num_key_value_heads=heads, kv_lora_rank=r.randint(4, 20), q_lora_rank=r.choice([None, None, 9]),
                qk_nope_head_dim=r.randint(3, 12), qk_rope_head_dim=2 * r.randint(1, 4), v_head_dim=r.randint(3, 12), num_experts=count,
                num_experts_per_token=r.randint(1, max(1, count // groups)), moe_intermediate_size=r.randint(4, 20),
                num_shared_experts=r.choice([1, 2]), routed_scaling_factor=r.choice([1.0, 2.4]), first_k_dense_replace=r.randint(0, 2),
                num_expert_group=groups, topk_group=r.randint(1, groups), moe_renormalize=maybe(r, .7))


def kimi_linear(r):
    keys = dict(common(r), **latent_layers(r), linear_num_heads=r.randint(1, 3), linear_head_dim=r.choice([5, 8, 12]),
                linear_conv_kernel_dim=r.choice([2, 3, 4]))
    keys["layer_types"] = kinds(r, keys["num_hidden_layers"], "linear_attention", "full_attention")
    return keys


def bailing_hybrid(r):
    keys = dict(common(r), **latent_layers(r), kda_safe_gate=maybe(r), kda_lower_bound=r.choice([-5.0, -2.0]), linear_head_dim=r.choice([5, 8, 12]),
                linear_conv_kernel_dim=r.choice([2, 3, 4]), head_dim=r.choice([5, 8, 12]))
    keys["linear_num_heads"] = keys["num_attention_heads"]
    keys["layer_types"] = kinds(r, keys["num_hidden_layers"], "linear_attention", "full_attention")
    return keys


def mamba2(r):
    groups = r.choice([1, 2, 3])
    heads, size = groups * r.randint(1, 3), 4 * r.randint(1, 4)
    return dict(vocab_size=r.randint(50, 130), hidden_size=heads * size // 2, expand=2, num_hidden_layers=r.choice([1, 2, 3]), num_heads=heads,
                head_dim=size, state_size=r.choice([4, 8, 11]), n_groups=groups, conv_kernel=r.choice([2, 3, 4]), use_bias=maybe(r),
                use_conv_bias=maybe(r), layer_norm_epsilon=r.choice([1e-5, .004]), chunk_size=8,
                time_step_limit=r.choice([(0.0, float("inf")), (0.01, 0.5)]), tie_word_embeddings=maybe(r), bos_token_id=1, eos_token_id=2,
                pad_token_id=0)


def nemotron_h(r):
    groups, choices = r.choice([1, 2]), r.choice([1, 2])
    count = choices * r.randint(2, 4)
    types = ["mamba", "attention"] + kinds(r, r.choice([1, 2, 3]), "mamba", "attention", "mlp", "moe")
    r.shuffle(types)
    return dict(without(common(r), "num_hidden_layers", "rms_norm_eps"), layers_block_type=types, **heads_of(r), head_dim=2 * r.randint(2, 8),
                mamba_num_heads=groups * r.randint(1, 3), mamba_head_dim=4 * r.randint(1, 4), n_groups=groups, ssm_state_size=r.choice([4, 8, 11]),
                conv_kernel=r.choice([2, 3, 4]), use_conv_bias=maybe(r), chunk_size=8, n_routed_experts=count,
                num_experts_per_tok=r.randint(1, max(1, count // choices)), moe_intermediate_size=r.randint(4, 20),
                moe_shared_expert_intermediate_size=r.randint(4, 20), n_group=choices, topk_group=r.randint(1, choices),
                norm_topk_prob=maybe(r, .7), routed_scaling_factor=r.choice([1.0, 2.5]), moe_latent_size=r.choice([None, 9]),
                layer_norm_epsilon=r.choice([1e-5, .004]), use_bias=maybe(r, .3), mlp_bias=maybe(r, .3), attention_bias=maybe(r, .3),
                time_step_min=r.choice([0.001, 0.05]), mamba_proj_bias=maybe(r, .3))


def bamba(r):
    keys = dict(common(r), **heads_of(r, 4))
    keys["hidden_size"] = keys["num_attention_heads"] * 4 * r.randint(1, 5)
    groups, inner = r.choice([1, 2]), 2 * keys["hidden_size"]
    heads = r.choice([x for x in divisors(inner, 8) if x % groups == 0])
    layers = keys["num_hidden_layers"]
    return dict(keys, attn_layer_indices=sorted(r.sample(range(layers), r.randint(0, layers - 1))), mamba_n_heads=heads, mamba_d_head=inner // heads,
                mamba_n_groups=groups, mamba_d_state=r.choice([4, 8, 11]), mamba_d_conv=r.choice([2, 3, 4]), mamba_expand=2, mamba_chunk_size=8,
                mamba_conv_bias=maybe(r), mamba_proj_bias=maybe(r), attention_bias=maybe(r), mlp_bias=maybe(r), max_position_embeddings=64)


def falcon_h1(r):
    groups = r.choice([1, 2])
    heads, size = groups * r.randint(1, 3), 4 * r.randint(1, 5)
    factor = lambda: r.uniform(.5, 1.5)
    return dict(common(r), **heads_of(r, 4), head_dim=4 * r.randint(1, 5), mamba_n_heads=heads, mamba_d_head=size, mamba_d_ssm=heads * size,
                mamba_n_groups=groups, mamba_d_state=r.choice([4, 8, 11]), mamba_d_conv=r.choice([2, 3, 4]), mamba_chunk_size=8,
                mamba_conv_bias=maybe(r), mamba_proj_bias=maybe(r, .3), projectors_bias=maybe(r, .3), attention_bias=maybe(r), mlp_bias=maybe(r), mamba_rms_norm=maybe(r, .7),
                mamba_norm_before_gate=maybe(r), attention_in_multiplier=factor(), attention_out_multiplier=factor(), key_multiplier=factor(),
                embedding_multiplier=factor(), lm_head_multiplier=factor(), mlp_multipliers=[factor(), factor()], ssm_in_multiplier=factor(),
                ssm_out_multiplier=factor(), ssm_multipliers=[factor() for _ in range(5)], max_position_embeddings=64)


# ---- flash-linear-attention --------------------------------------------------------------------------------------------------


def fla_common(r):
    return dict(vocab_size=r.randint(50, 130), num_hidden_layers=r.choice([1, 2, 3, 4]), intermediate_size=r.choice([None, 40, 72]),
                hidden_ratio=r.choice([1, 2]), norm_eps=r.choice([1e-6, 1e-5, .004]), tie_word_embeddings=maybe(r), fuse_cross_entropy=False,
                hidden_size=12 * r.randint(2, 5), bos_token_id=1, eos_token_id=2, fuse_norm=maybe(r, .8))


def softmax(r, hidden, layers):
    heads = r.choice([x for x in (1, 2, 3, 6) if hidden % (2 * x) == 0])
    keys = dict(layers=layers, num_heads=heads, num_kv_heads=r.choice(divisors(heads)), qkv_bias=maybe(r), window_size=r.choice([None, 1, 5]),
                rope_theta=r.choice([1e4, 2e4]))
    return without(keys, *[key for key in ("num_kv_heads", "qkv_bias", "window_size", "rope_theta") if maybe(r, .2)])


def hybrid(r, keys):
    """`attn`: none, some layers alike, or two kinds of them."""
    places = [i for i in range(keys["num_hidden_layers"]) if maybe(r, .4)]
    if not places or maybe(r, .3):
        return dict(attn=None)
    if len(places) > 1 and maybe(r):
        return dict(attn=[softmax(r, keys["hidden_size"], places[:1]), softmax(r, keys["hidden_size"], places[1:])])
    return dict(attn=softmax(r, keys["hidden_size"], places))


def residuals(r):
    return dict(attnres_block_size=r.choice([None, None, 1, 2, 4, 6]))


def fla_delta(r, expand=(1, 2, 1.5), grouped=True):
    keys, heads, factor = fla_common(r), r.randint(1, 3), r.choice(expand)
    return dict(keys, num_heads=heads, num_v_heads=r.choice([None, heads, 2 * heads, 3 * heads]) if grouped else None,
                head_dim=r.choice([4, 8, 10, 17] if factor == int(factor) else [4, 8, 10]), expand_v=factor, conv_size=r.choice([2, 3, 4]), use_short_conv=maybe(r, .85),
                **hybrid(r, keys))


def gated_deltanet(r):
    return dict(fla_delta(r), **residuals(r), use_gate=maybe(r, .7), allow_neg_eigval=maybe(r),
                output_gate_activation=r.choice(["swish", "sigmoid", "silu"]))


def kda(r):
    bounded = maybe(r)
    return dict(fla_delta(r), **residuals(r), allow_neg_eigval=maybe(r), safe_gate=bounded, lower_bound=r.choice([-5, -2.5]) if bounded else None)


def comba(r):
    return dict(fla_delta(r, grouped=False), **residuals(r), use_output_gate=maybe(r, .7), use_output_correction=maybe(r, .7),
                use_inner_decay=maybe(r, .7))


def gated_deltaproduct(r):
    return dict(fla_delta(r), **residuals(r), use_output_gate=maybe(r, .7), use_forget_gate=maybe(r), allow_neg_eigval=maybe(r),
                num_householder=r.choice([1, 2, 3]))


def alike(keys):
    """Of `attn` one kind only, which is all that the preconditioned types have."""
    return dict(keys, attn=keys["attn"][0] if isinstance(keys["attn"], list) else keys["attn"])


def squash(r):
    return dict(squash_x=r.choice([1.5, 1.2, 2.0]), squash_eps=r.choice([1e-6, 1e-4]))


def precond_gated_deltanet(r):
    return dict(alike(fla_delta(r)), use_gate=maybe(r), allow_neg_eigval=maybe(r), **squash(r))


def precond_kda(r):
    bounded = maybe(r)
    return dict(alike(fla_delta(r, grouped=False)), allow_neg_eigval=maybe(r), safe_gate=bounded, lower_bound=-5 if bounded else None, **squash(r))


def by_model(r, expand_k, expand_v):
    """Types whose head sizes are parts of the model's width."""
    keys, heads = fla_common(r), r.choice([1, 2, 3])
    return dict(keys, num_heads=heads, expand_k=r.choice(expand_k), expand_v=r.choice(expand_v), conv_size=r.choice([2, 3, 4]),
                use_short_conv=maybe(r), **hybrid(r, keys), **residuals(r))


def delta_net(r):
    keys = by_model(r, [1.0, .5], [1.0, 2.0, .5])
    return dict(keys, use_gate=maybe(r), allow_neg_eigval=maybe(r), qk_activation=r.choice(["silu", "relu", "elu", "identity"]),
                qk_norm=r.choice(["l2", "l2", "sum"]) if keys["use_short_conv"] else "l2")


def gla(r):
    keys = by_model(r, [1.0, .5], [1.0, 2.0])
    return dict(keys, use_output_gate=maybe(r, .7), feature_map=None if keys["use_short_conv"] else r.choice([None, "relu", "swish", "sigmoid"]))


def retnet(r):
    keys = by_model(r, [1.0], [1.0, 2.0])
    keys["hidden_size"] = 12 * keys["num_heads"]  # rotary embeddings need even heads
    return dict(keys, attn=None, use_output_gate=maybe(r, .7), feature_map=r.choice([None, None, "relu", "silu"]))


def mesa_net(r):
    return dict(without(fla_delta(r, grouped=False), "expand_v", "num_v_heads"), **residuals(r), use_output_gate=maybe(r),
                lambda_lower_bound=r.choice([.25, .5]))


def transformer(r):
    keys = fla_common(r)
    return dict(keys, **without(softmax(r, keys["hidden_size"], []), "layers"), qk_norm=maybe(r), **residuals(r))


def rwkv7(r):
    keys, size = fla_common(r), r.choice([4, 8, 12])
    keys = dict(without(keys, "hidden_size"), num_hidden_layers=r.choice([2, 3, 4]))  # the class cannot draw one layer
    rank = lambda: r.choice([None, 4, 9])
    return dict(keys, hidden_size=size * r.randint(1, 5), head_dim=size, decay_low_rank_dim=rank(), gate_low_rank_dim=rank(), a_low_rank_dim=rank(),
                v_low_rank_dim=rank(), norm_bias=maybe(r), use_l2warp=maybe(r))


def mamba2_fla(r):
    # groups of one head, or one group: else the class on a CPU has other heads in a group than on a GPU
    groups, size = r.choice([1, 2, 3]), 4 * r.randint(1, 4)
    heads = r.randint(1, 5) if groups == 1 else groups
    return dict(vocab_size=r.randint(50, 130), hidden_size=heads * size // 2, expand=2, num_hidden_layers=r.choice([1, 2, 3]), head_dim=size,
                state_size=r.choice([4, 8, 11]), n_groups=groups, conv_kernel=r.choice([2, 3, 4]), use_bias=maybe(r), use_conv_bias=maybe(r),
                norm_eps=r.choice([1e-5, .004]), chunk_size=8, dt_limit=r.choice([(0.0, float("inf")), (0.01, 0.5)]), tie_word_embeddings=maybe(r),
                fuse_cross_entropy=False, pad_token_id=0, rmsnorm=maybe(r, .7), norm_before_gate=maybe(r, .3))


def gdn2(r):
    return dict(without(fla_delta(r, grouped=False), "use_short_conv"), allow_neg_eigval=maybe(r))


def qdelta(r):
    return dict(without(fla_delta(r), "use_short_conv"), use_gate=maybe(r, .7), allow_neg_eigval=maybe(r), lamb_bias=r.choice([.9, .3]))


def precond_deltanet(r):
    return precond_gated_deltanet(r)


TYPES = {f.__name__: f for f in (llama, mistral, qwen2, qwen3, qwen3_moe, qwen3_next, qwen3_5_text, qwen3_5_moe_text, olmo_hybrid, lara_mini,
                                 kimi_linear, bailing_hybrid, mamba2, nemotron_h, bamba, falcon_h1)}
MULTIMODAL = {f.__name__: f for f in (qwen3_5, qwen3_5_moe)}
FLA_TYPES = {f.__name__: f for f in (gated_deltanet, kda, comba, gated_deltaproduct, precond_gated_deltanet, precond_kda, delta_net, gla, retnet,
                                     mesa_net, transformer, rwkv7, mamba2_fla)}
PAPER_TYPES = {f.__name__: f for f in (gdn2, qdelta, precond_deltanet)}
