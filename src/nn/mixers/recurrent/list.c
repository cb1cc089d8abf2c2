/* From streams to nodes: the list that a mixer's forward walks from first to last and its backward from last to first. */
#include "nn/mixers/recurrent/recurrent.h"

/* A list as it grows. */
typedef struct {
    dr_backend *backend;
    const dr_recurrent_parts *parts;
    dr_layer_parameters *list;
    dr_recurrent *mixer;
    /* values of each stream: its projection, behind the map, behind the feature map, behind norm and rotary embedding */
    int raw[DR_MAX_STREAMS], mapped[DR_MAX_STREAMS], out[DR_MAX_STREAMS];
    int low[DR_MAX_STREAMS]; /* between the two matrices of a projection, where it is columns of the panel */
    int step;                /* value [rows, HV], or DR_NO_VALUE */
} builder;

/* ---- values and nodes ----------------------------------------------------------------------------------------------- */

/* A value with memory and a gradient of its own. */
static int add_value(builder *b, dr_kind kind, bool of_rows, int64_t columns) {
    const int index = b->mixer->values++;
    b->mixer->value[index] = (dr_node_value){.kind = kind,
                                             .of_rows = of_rows,
                                             .columns = columns,
                                             .parameter = DR_NO_PARAMETER,
                                             .memory = index,
                                             .panel = DR_NO_VALUE,
                                             .place = DR_GRADIENT_OWN};
    return index;
}

static int add_parameter(builder *b, int parameter, int64_t columns) {
    const int index = add_value(b, DR_NUMBER, false, columns);
    b->mixer->value[index].parameter = parameter;
    b->mixer->value[index].place = DR_GRADIENT_PARAMETER;
    return index;
}

static int add_constant(builder *b, const void *constant, int64_t columns) {
    const int index = add_value(b, DR_NUMBER, false, columns);
    b->mixer->value[index].constant = constant;
    b->mixer->value[index].place = DR_GRADIENT_NONE;
    return index;
}

/* The value that a node makes of another of its shape, whose gradients share memory. kept: where a backward follows the two
 * differ, else the node works in place. */
static int add_same(builder *b, int from, bool kept) {
    const dr_node_value *before = &b->mixer->value[from];
    const int index = add_value(b, before->kind, before->of_rows, before->columns);
    b->mixer->value[index].memory = from;
    b->mixer->value[index].kept = kept;
    b->mixer->value[from].place = DR_GRADIENT_SHARED;
    b->mixer->value[from].gradient = index;
    return index;
}

static dr_node *add_node(builder *b, const dr_node_operations *operations, int from, int to) {
    dr_node *node = &b->mixer->node[b->mixer->nodes++];
    *node = (dr_node){.operations = operations,
                      .from = from,
                      .with = DR_NO_VALUE,
                      .to = to,
                      .weight = DR_NO_PARAMETER,
                      .bias = DR_NO_PARAMETER};
    return node;
}

static dr_node *add_headed(builder *b, const dr_node_operations *operations, int from, int to, int64_t heads, int64_t dim) {
    dr_node *node = add_node(b, operations, from, to);
    node->heads = heads;
    node->dim = dim;
    return node;
}

static const dr_stream *stream_of(const builder *b, dr_input input) {
    return &b->parts->stream[b->parts->of[input]];
}

/* ---- projections and maps ------------------------------------------------------------------------------------------- */

/* Whether what reads the projection takes it from the columns of a panel, and leaves its gradient there: it alone reads it. */
static bool is_column(const builder *b, const dr_stream *stream) {
    const bool plain = stream->feature == DR_FUNCTION_IDENTITY && stream->length == DR_LENGTH_FREE && !stream->rotated;
    if (stream->down != DR_NO_PARAMETER || stream->bias != DR_NO_PARAMETER) return false;
    if (b->mixer->is.stepped && stream->input == DR_INPUT_LOG_DECAY) return false;       /* steps read it too */
    if (stream->map == DR_MAP_GATE && stream->gate.heads != stream->heads) return false; /* heads are rows of such a gate */
    return stream->map != DR_MAP_NONE || (stream->input == DR_INPUTS && plain);
}

/* A panel's weights are one matrix: rows that are stored apart have gaps between one weight and the next. */
static bool has_panels(const dr_backend *backend) {
    return backend->ops->panels && !dr_weights_apart(backend);
}

/* Of two matrices the first is, where products read columns of panels. */
static bool is_low_column(const builder *b, const dr_stream *stream) {
    return b->backend->ops->chains && stream->down != DR_NO_PARAMETER;
}

static int64_t panel_columns_of(const dr_stream *stream) {
    return stream->down != DR_NO_PARAMETER ? stream->rank : stream->heads * stream->dim;
}

/* Wide projections first, whose columns then begin at multiples of their widths; those of one column a head last. */
static int find_columns(const builder *b, int streams[DR_MAX_STREAMS]) {
    int found = 0;
    for (int narrow = 0; narrow <= 1; narrow++)
        for (int i = 0; i < b->parts->streams; i++) {
            const dr_stream *stream = &b->parts->stream[i];
            const bool whole = panel_columns_of(stream) % b->backend->ops->panels == 0, low = is_low_column(b, stream);
            if (whole && (low || is_column(b, stream)) && (!low && stream->dim == 1) == (narrow == 1)) streams[found++] = i;
        }
    return found > 1 ? found : 0;
}

static void project_panel(builder *b) {
    dr_recurrent *mixer = b->mixer;
    int streams[DR_MAX_STREAMS], weights[DR_MAX_STREAMS] = {0};
    const int count = has_panels(b->backend) ? find_columns(b, streams) : 0;
    if (count == 0) return;
    const int panel = add_value(b, DR_VECTOR, true, 0);
    mixer->value[panel].place = DR_GRADIENT_IN_PLACE;
    for (int i = 0; i < count; i++) {
        const dr_stream *stream = &b->parts->stream[streams[i]];
        const int64_t columns = panel_columns_of(stream);
        const int raw = add_value(b, DR_VECTOR, true, columns);
        mixer->value[raw].panel = panel;
        mixer->value[raw].column = mixer->value[panel].columns;
        mixer->value[raw].place = DR_GRADIENT_IN_PLACE;
        mixer->value[panel].columns += columns;
        mixer->panel_columns[i] = columns;
        const bool low = stream->down != DR_NO_PARAMETER;
        weights[i] = low ? stream->down : stream->weight;
        *(low ? &b->low[streams[i]] : &b->raw[streams[i]]) = raw;
    }
    dr_node *node = add_node(b, &dr_node_linear, DR_VALUE_X, panel);
    node->weight = weights[0];
    node->members = mixer->panel_members = count;
    dr_join_parameters(b->list, weights, count);
}

static void project(builder *b, int index) {
    const dr_stream *stream = &b->parts->stream[index];
    int from = DR_VALUE_X;
    if (b->raw[index] != DR_NO_VALUE) return; /* columns of the panel */
    if (b->low[index] != DR_NO_VALUE) {
        from = b->low[index];
    } else if (stream->down != DR_NO_PARAMETER) {
        from = add_value(b, DR_VECTOR, true, stream->rank);
        b->mixer->value[from].place = DR_GRADIENT_BRIEF_LOW;
        add_node(b, &dr_node_linear, DR_VALUE_X, from)->weight = stream->down;
    }
    b->raw[index] = add_value(b, DR_VECTOR, true, stream->heads * stream->dim);
    dr_node *node = add_headed(b, stream->grouped ? &dr_node_grouped_linear : &dr_node_linear, from, b->raw[index],
                               stream->heads, stream->dim);
    node->weight = stream->weight;
    node->bias = stream->bias;
}

static dr_kind kind_of(const dr_stream *stream) {
    return stream->input == DR_INPUTS ? DR_VECTOR : dr_input_kind(stream->input);
}

/* Whether the convolution of a stream divides vectors by their lengths itself, where nothing else reads them before. */
static bool is_unit_conv(const builder *b, const dr_stream *stream) {
    const dr_operations *ops = b->backend->ops;
    const bool read = stream->input == DR_INPUT_KEY || stream->input == DR_INPUT_QUERY;
    const bool coupled = read && (b->parts->feedback != DR_NO_PARAMETER || b->parts->correction != DR_NO_PARAMETER);
    return stream->map == DR_MAP_CONV && stream->length == DR_LENGTH_UNIT && stream->feature == DR_FUNCTION_IDENTITY &&
           !coupled && ops->conv_units && ops->conv_units(b->mixer->is.conv_size, stream->dim);
}

/* The gradient of a projection takes the place of that of what the map makes of it, unless the backward of the map cannot work
 * in place. */
static void map(builder *b, int index) {
    const dr_stream *stream = &b->parts->stream[index];
    const int raw = b->raw[index];
    b->mapped[index] = raw;
    if (stream->map == DR_MAP_NONE) return;
    const dr_kind kind = kind_of(stream);
    const bool conv = stream->map == DR_MAP_CONV;
    const bool in_place = !conv && dr_kind_dtype(b->backend, kind) == dr_kind_dtype(b->backend, DR_VECTOR);
    const int mapped = add_value(b, kind, true, stream->heads * stream->dim);
    if (b->mixer->value[raw].panel == DR_NO_VALUE) {
        b->mixer->value[raw].place = in_place ? DR_GRADIENT_SHARED : DR_GRADIENT_BRIEF;
        b->mixer->value[raw].gradient = mapped;
    }
    b->mapped[index] = mapped;
    dr_node *node = add_headed(b, conv ? &dr_node_conv : &dr_node_gate, raw, mapped, stream->heads, stream->dim);
    node->weight = stream->map_weight;
    node->bias = stream->map_bias;
    node->gate = stream->gate;
    if (!conv) return;
    node->activated = stream->activated;
    node->divides = is_unit_conv(b, stream);
    node->conv = b->mixer->convs++;
    b->mixer->conv_channels[node->conv] = stream->heads * stream->dim;
}

/* step = softplus(u), u the projection behind the decay. In front of the decay's own map, so that its backward adds to what
 * that of the map has written. */
static void add_step(builder *b) {
    const dr_stream *decay = stream_of(b, DR_INPUT_LOG_DECAY);
    b->step = add_value(b, DR_NUMBER, true, decay->heads);
    dr_node *node = add_node(b, &dr_node_gate, b->raw[b->parts->of[DR_INPUT_LOG_DECAY]], b->step);
    node->gate = (dr_gate){.kind = DR_GATE_SOFTPLUS, .heads = decay->heads, .dim = 1};
    node->bias = b->parts->step_bias;
}

/* ---- couplings ------------------------------------------------------------------------------------------------------ */

/* p = sigmoid(decay) key */
static int add_feedback(builder *b, int key) {
    const dr_recurrent *mixer = b->mixer;
    const int factor = add_value(b, DR_NUMBER, false, mixer->heads);
    dr_node *gate = add_node(b, &dr_node_gate, add_parameter(b, b->parts->feedback, mixer->heads), factor);
    gate->gate = (dr_gate){.kind = DR_GATE_SIGMOID, .heads = mixer->heads, .dim = 1, .multiplier = 1};
    const int feedback = add_value(b, DR_VECTOR, true, mixer->heads * mixer->key_size);
    add_headed(b, &dr_node_scale, key, feedback, mixer->heads, mixer->key_size)->with = factor;
    return feedback;
}

/* query -= D p, in place; without a feedback key p is the key */
static void add_correction(builder *b, int p) {
    const dr_recurrent *mixer = b->mixer;
    int *query = &b->mapped[b->parts->of[DR_INPUT_QUERY]];
    const int correction = add_value(b, DR_VECTOR, true, mixer->heads * mixer->key_size);
    b->mixer->value[correction].place = DR_GRADIENT_BRIEF;
    add_headed(b, &dr_node_scale, p, correction, mixer->heads, mixer->key_size)->with =
        add_parameter(b, b->parts->correction, mixer->heads);
    const int corrected = add_same(b, *query, false);
    dr_node *node = add_node(b, &dr_node_add, *query, corrected);
    node->with = correction;
    node->factor = -1;
    *query = corrected;
}

static void couple(builder *b) {
    const int key = b->mapped[b->parts->of[DR_INPUT_KEY]];
    int feedback = DR_NO_VALUE;
    if (b->parts->feedback != DR_NO_PARAMETER) feedback = add_feedback(b, key);
    if (b->parts->correction != DR_NO_PARAMETER) add_correction(b, feedback == DR_NO_VALUE ? key : feedback);
    if (feedback == DR_NO_VALUE) return;
    b->mixer->input[DR_INPUT_FEEDBACK_KEY] = feedback;
    if (b->mixer->is.key_length == DR_LENGTH_FREE) return;
    const int erasing = add_same(b, feedback, true);
    b->mixer->value[erasing].memory = erasing;
    add_headed(b, &dr_node_unit, feedback, erasing, b->mixer->heads, b->mixer->key_size);
    b->mixer->input[DR_INPUT_FEEDBACK_KEY] = erasing;
}

/* ---- what the recurrence reads -------------------------------------------------------------------------------------- */

static void finish(builder *b, int index) {
    const dr_stream *stream = &b->parts->stream[index];
    int at = b->mapped[index];
    if (stream->feature != DR_FUNCTION_IDENTITY) {
        const int featured = add_same(b, at, true);
        add_node(b, &dr_node_function, at, featured)->function = stream->feature;
        at = featured;
    }
    if (stream->length != DR_LENGTH_FREE && !is_unit_conv(b, stream)) {
        const int scaled = add_same(b, at, true);
        add_headed(b, stream->length == DR_LENGTH_UNIT ? &dr_node_unit : &dr_node_sum, at, scaled, stream->heads, stream->dim);
        at = scaled;
    }
    if (stream->rotated) {
        const int rotated = add_same(b, at, false);
        add_headed(b, &dr_node_rotary, at, rotated, stream->heads, stream->dim);
        at = rotated;
    }
    b->out[index] = at;
    if (stream->input != DR_INPUTS) b->mixer->input[stream->input] = at;
}

/* The recurrence reads the step times the value. */
static void step_values(builder *b) {
    const dr_recurrent *mixer = b->mixer;
    const int stepped = add_value(b, DR_VECTOR, true, mixer->value_heads * mixer->value_size);
    add_headed(b, &dr_node_scale, mixer->input[DR_INPUT_VALUE], stepped, mixer->value_heads, mixer->value_size)->with = b->step;
    b->mixer->input[DR_INPUT_VALUE] = stepped;
}

/* softplus of a parameter, plus the least that it may be */
static void add_ridge(builder *b) {
    const dr_recurrent *mixer = b->mixer;
    const int64_t count = mixer->heads * mixer->key_size;
    const int made = add_value(b, DR_NUMBER, false, count);
    dr_node *gate = add_node(b, &dr_node_gate, add_parameter(b, b->parts->ridge, count), made);
    gate->gate = (dr_gate){.kind = DR_GATE_SOFTPLUS, .heads = mixer->heads, .dim = mixer->key_size};
    const int ridge = add_same(b, made, false);
    dr_node *add = add_node(b, &dr_node_add, made, ridge);
    add->with = add_constant(b, mixer->ridge_floor, count);
    add->factor = 1;
    b->mixer->input[DR_INPUT_RIDGE] = ridge;
}

static void add_others(builder *b) {
    const dr_recurrent *mixer = b->mixer;
    if (b->step != DR_NO_VALUE) step_values(b);
    if (b->parts->ridge != DR_NO_PARAMETER) add_ridge(b);
    if (mixer->constant_decay) b->mixer->input[DR_INPUT_LOG_DECAY] = add_constant(b, mixer->constant_decay, mixer->value_heads);
    if (b->parts->fixed_lambda >= 0) {
        const int lambda = add_value(b, DR_NUMBER, true, mixer->value_heads);
        b->mixer->value[lambda].place = DR_GRADIENT_NONE;
        add_node(b, &dr_node_fill, DR_NO_VALUE, lambda)->factor = b->parts->fixed_lambda;
        b->mixer->input[DR_INPUT_LAMBDA] = lambda;
    }
    if (b->parts->scan_centre == DR_NO_PARAMETER) return;
    const int parameter = add_parameter(b, b->parts->scan_centre, mixer->heads), centre = add_same(b, parameter, false);
    b->mixer->value[parameter].place = DR_GRADIENT_PARAMETER;
    b->mixer->value[centre].parameter = b->parts->scan_centre;
    add_node(b, &dr_node_read, parameter, centre);
    b->mixer->input[DR_INPUT_SCAN_CENTRE] = centre;
}

/* ---- recurrence and output ------------------------------------------------------------------------------------------ */

static dr_activation activation_of(const builder *b) {
    if (b->parts->of[DR_INPUTS] < 0) return DR_ACTIVATION_NONE;
    return b->mixer->is.gate == DR_FUNCTION_SIGMOID ? DR_ACTIVATION_SIGMOID : DR_ACTIVATION_SILU;
}

static void add_output(builder *b) {
    dr_recurrent *mixer = b->mixer;
    const int64_t heads = mixer->value_heads, dim = mixer->value_size;
    const bool whole = mixer->is.gate_first; /* all heads as one group */
    int o = add_value(b, DR_VECTOR, true, heads * dim);
    mixer->output = o;
    mixer->value[o].place = DR_GRADIENT_NORMED;
    add_node(b, &dr_node_recurrence, DR_NO_VALUE, o);
    if (b->parts->skip != DR_NO_PARAMETER) {
        const int skipped = add_same(b, o, false);
        mixer->value[skipped].place = DR_GRADIENT_NORMED;
        dr_node *skip = add_headed(b, &dr_node_scale, b->out[b->parts->of[DR_INPUT_VALUE]], skipped, heads, dim);
        skip->with = add_parameter(b, b->parts->skip, heads);
        skip->adds = true;
        o = skipped;
    }
    dr_node *output = add_node(b, &dr_node_output, o, DR_VALUE_Y);
    if (b->parts->of[DR_INPUTS] >= 0) output->with = b->out[b->parts->of[DR_INPUTS]];
    output->weight = b->parts->output;
    output->bias = b->parts->output_norm;
    output->norm = (dr_rms_norm){
        .dim = dim * (whole ? heads : 1), .eps = mixer->is.norm_eps, .gate = activation_of(b), .gate_first = whole};
}

/* Which nodes add to the gradient of what they read: those behind which, in the backward's order, it has been written. */
static void order_gradients(dr_recurrent *mixer) {
    bool written[DR_MAX_VALUES] = {false};
    for (int i = mixer->nodes - 1; i >= 0; i--) {
        dr_node *node = &mixer->node[i];
        if (node->operations == &dr_node_recurrence)
            for (int input = 0; input < DR_INPUTS; input++)
                if (mixer->input[input] != DR_NO_VALUE) written[dr_gradient_of(mixer, mixer->input[input])] = true;
        if (node->from == DR_NO_VALUE) continue;
        const int root = dr_gradient_of(mixer, node->from);
        const bool in_place = node->to != DR_VALUE_Y && dr_gradient_of(mixer, node->to) == root;
        node->accumulates = !in_place && (written[root] || mixer->value[root].place == DR_GRADIENT_PARAMETER);
        written[root] = true;
    }
}

/* What convolutions make, and what nodes make of that alone in its place. Where something else has that memory nothing is. */
static void find_remade(dr_recurrent *mixer) {
    bool all = true;
    for (int i = 0; i < mixer->nodes; i++) {
        const dr_node *node = &mixer->node[i];
        const bool of_remade = node->from != DR_NO_VALUE && mixer->value[node->from].remade;
        const bool in_place = of_remade && node->to != DR_VALUE_Y && mixer->value[node->to].memory == node->from;
        if (node->to == DR_VALUE_Y) continue;
        mixer->value[node->to].remade = node->operations == &dr_node_conv || in_place;
        all &= !in_place || (!node->adds && node->with == DR_NO_VALUE);
    }
    for (int i = 0; i < mixer->values; i++) {
        const dr_node_value *value = &mixer->value[i];
        all &= value->remade || !mixer->value[value->memory].remade;
    }
    for (int i = 0; i < mixer->values; i++) mixer->value[i].remade &= all;
}

void dr_recurrent_list(dr_backend *backend, const dr_recurrent_parts *parts, dr_layer_parameters *list, dr_recurrent *mixer) {
    builder b = {.backend = backend, .parts = parts, .list = list, .mixer = mixer, .step = DR_NO_VALUE};
    for (int input = 0; input < DR_INPUTS; input++) mixer->input[input] = DR_NO_VALUE;
    for (int i = 0; i < parts->streams; i++) b.raw[i] = b.low[i] = DR_NO_VALUE;
    add_value(&b, DR_VECTOR, true, mixer->module.hidden); /* x */
    add_value(&b, DR_VECTOR, true, mixer->module.hidden); /* y */
    project_panel(&b);
    for (int i = 0; i < parts->streams; i++) {
        project(&b, i);
        if (mixer->is.stepped && parts->stream[i].input == DR_INPUT_LOG_DECAY) add_step(&b);
        map(&b, i);
    }
    couple(&b);
    for (int i = 0; i < parts->streams; i++) finish(&b, i);
    add_others(&b);
    add_output(&b);
    order_gradients(mixer);
    find_remade(mixer);
}
