/* The one place that knows which modules there are: a switch over the kinds of mixers and one over those of feed-forwards. */
#include "nn/build.h"
#include "base/error.h"
#include "nn/mixers/attention.h"
#include "nn/mixers/latent_attention.h"
#include "nn/mixers/mamba2.h"
#include "nn/mixers/recurrent/recurrent.h"
#include "nn/mixers/rwkv7.h"
#include "nn/modules/experts.h"
#include "nn/modules/feed_forward.h"
#include "nn/modules/rwkv7_channel_mix.h"
#include "nn/modules/sum.h"

static dr_status make_mixer(dr_backend *backend, int64_t hidden, const dr_mixer_description *mixer, const char *prefix,
                            dr_layer_parameters *list, dr_module **module) {
    switch (mixer->kind) {
    case DR_MIXER_RECURRENT:
        return dr_recurrent_create(backend, hidden, &mixer->of.recurrent, prefix, list, module);
    case DR_MIXER_ATTENTION:
        return dr_attention_create(backend, hidden, &mixer->of.attention, prefix, list, module);
    case DR_MIXER_LATENT_ATTENTION:
        return dr_latent_attention_create(backend, hidden, &mixer->of.latent, prefix, list, module);
    case DR_MIXER_RWKV7:
        return dr_rwkv7_create(backend, hidden, &mixer->of.rwkv7, prefix, list, module);
    case DR_MIXER_MAMBA2:
        return dr_mamba2_create(backend, hidden, &mixer->of.mamba2, prefix, list, module);
    case DR_MIXER_KINDS:
        break;
    }
    return dr_fail(DR_ERROR_ARGUMENT, "%d is no kind of mixer", (int)mixer->kind);
}

static dr_status make_feed(dr_backend *backend, int64_t hidden, const dr_feed_description *feed, dr_layer_parameters *list,
                           dr_module **module) {
    switch (feed->kind) {
    case DR_FEED_GATED:
    case DR_FEED_PLAIN:
        return dr_feed_forward_create(backend, hidden, &feed->of.forward, feed->kind == DR_FEED_GATED, "mlp.", list, module);
    case DR_FEED_EXPERTS:
        return dr_experts_create(backend, hidden, &feed->of.experts, "mlp.", list, module);
    case DR_FEED_RWKV7:
        return dr_rwkv7_channel_mix_create(backend, hidden, feed->of.forward.width, "mlp.", list, module);
    case DR_FEED_NONE:
    case DR_FEED_KINDS:
        break;
    }
    return dr_fail(DR_ERROR_ARGUMENT, "%d is no kind of feed-forward", (int)feed->kind);
}

/* One mixer as it is, or those of a description side by side. */
static dr_status make_mixers(dr_backend *backend, int64_t hidden, const dr_layer_description *layer, dr_layer_parameters *list,
                             dr_module **module) {
    static const char *const prefixes[DR_SUM_MOST] = {"attn.", "attn2."};
    const dr_mixer_description *mixer = layer->mixer;
    dr_summand summands[DR_SUM_MOST] = {{NULL, 0, 0}};
    int made = 0;
    dr_status status = DR_OK;
    if (layer->mixers == 1 && mixer->input_scale == 1 && mixer->output_scale == 1)
        return make_mixer(backend, hidden, mixer, prefixes[0], list, module);
    if (layer->mixers > DR_SUM_MOST)
        return dr_fail(DR_ERROR_ARGUMENT, "a layer has %d mixers; at most %d are possible", layer->mixers, DR_SUM_MOST);
    for (; made < layer->mixers && status == DR_OK; made += status == DR_OK) {
        summands[made] = (dr_summand){NULL, mixer[made].input_scale, mixer[made].output_scale};
        status = make_mixer(backend, hidden, &mixer[made], prefixes[made], list, &summands[made].module);
    }
    if (status == DR_OK) status = dr_sum_create(made, summands, module);
    if (status == DR_OK) return DR_OK;
    for (int i = 0; i < made; i++) summands[i].module->operations->destroy(backend, summands[i].module);
    return status;
}

static dr_status add_part(const dr_layer_description *layer, bool mixer, dr_backend *backend, dr_layer *made) {
    const dr_norm_description *before = mixer ? &layer->mixer_norm : &layer->feed_norm,
                              *after = mixer ? &layer->mixer_after : &layer->feed_after;
    const int64_t hidden = made->hidden;
    dr_part part = {0};
    if (layer->depth_norm.kind != DR_NORM_NONE)
        DR_TRY(dr_depth_query_create(&layer->depth_norm, hidden, mixer ? "attn_res_" : "mlp_res_", &made->list, &part.depth));
    DR_TRY(dr_norm_create(before, hidden, mixer ? "attn_norm." : "mlp_norm.", &made->list, &part.before));
    if (mixer)
        DR_TRY(make_mixers(backend, hidden, layer, &made->list, &part.module));
    else
        DR_TRY(make_feed(backend, hidden, &layer->feed, &made->list, &part.module));
    dr_layer_add(made, &part); /* which owns the module from here on */
    return dr_norm_create(after, hidden, mixer ? "attn_post_norm." : "mlp_post_norm.", &made->list,
                          &made->part[made->parts - 1].after);
}

dr_status dr_layer_build(dr_backend *backend, int64_t hidden, const dr_layer_description *description, dr_layer *layer) {
    layer->description = description;
    layer->hidden = hidden;
    layer->list.backend = backend;
    if (description->mixers > 0) DR_TRY(add_part(description, true, backend, layer));
    if (description->feed.kind != DR_FEED_NONE) DR_TRY(add_part(description, false, backend, layer));
    if (layer->parts > 0) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "a layer has neither a mixer nor a feed-forward");
}

/* ---- what a backend must have --------------------------------------------------------------------------------------- */

dr_status dr_operations_check_backend(const dr_operation *needed, const dr_backend *backend) {
    for (; *needed != DR_OPERATIONS; needed++)
        if (!dr_supports(backend, *needed))
            return dr_fail(
                DR_ERROR_UNSUPPORTED,
                "backend %s does not compute networks (it has no %s): models train, score and generate on backend cpu "
                "or reference",
                backend->ops->name, dr_operation_name(*needed));
    return DR_OK;
}

dr_status dr_norm_check_backend(const dr_norm *norm, const dr_backend *backend) {
    static const dr_operation rms[] = {DR_OPERATION_RMS_NORM, DR_OPERATIONS},
                              layer[] = {DR_OPERATION_LAYER_NORM, DR_OPERATIONS};
    switch (norm->kind) {
    case DR_NORM_NONE:
        return DR_OK;
    case DR_NORM_RMS:
        return dr_operations_check_backend(rms, backend);
    case DR_NORM_LAYER:
        return dr_operations_check_backend(layer, backend);
    }
    return DR_OK;
}

dr_status dr_layer_check_backend(const dr_layer *layer, const dr_backend *backend) {
    static const dr_operation depth[] = {DR_OPERATION_DEPTH, DR_OPERATIONS};
    if (layer->description->depth_norm.kind != DR_NORM_NONE) DR_TRY(dr_operations_check_backend(depth, backend));
    for (int i = 0; i < layer->parts; i++) {
        const dr_part *part = &layer->part[i];
        DR_TRY(dr_norm_check_backend(&part->before, backend));
        DR_TRY(dr_norm_check_backend(&part->after, backend));
        DR_TRY(dr_operations_check_backend(part->module->operations->needs, backend));
    }
    return DR_OK;
}
