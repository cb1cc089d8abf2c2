/* Sizes of the public structs of rules, recurrences and plans, by name. */
#include <deltarule/plan.h>
#include <string.h>

size_t dr_size_of(const char *type) {
#define SIZE(name)                                                                                                             \
    { #name, sizeof(name) }
    static const struct {
        const char *name;
        size_t bytes;
    } sizes[] = {SIZE(dr_backend_options),
                 SIZE(dr_boundaries),
                 SIZE(dr_call),
                 SIZE(dr_forms),
                 SIZE(dr_input_gradients),
                 SIZE(dr_inputs),
                 SIZE(dr_layout),
                 SIZE(dr_mutable_states),
                 SIZE(dr_recurrence),
                 SIZE(dr_recurrence_memory),
                 SIZE(dr_row),
                 SIZE(dr_rule),
                 SIZE(dr_saved_size),
                 SIZE(dr_slots),
                 SIZE(dr_squash),
                 SIZE(dr_stage_path),
                 SIZE(dr_states),
                 SIZE(dr_tensor)};
    for (size_t i = 0; type && i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, type) == 0) return sizes[i].bytes;
    return 0;
}
