/* Loads a file as a recurrent state. What loads must fit its own recurrence, and be whole enough to be copied and joined. */
#include "fuzz.h"

#include <deltarule/state.h>

static dr_backend *backend; /* opened once */

static void read_file(const char *path) {
    dr_state *state = NULL, *again = NULL, *twice = NULL;
    if (dr_state_load(backend, NULL, path, &state) != DR_OK) return;
    if (dr_state_load(backend, dr_state_recurrence(state), path, &again) != DR_OK) abort();
    const dr_state *parts[] = {state, again};
    if (dr_state_concatenate(parts, 2, &twice) != DR_OK) abort();
    dr_state_destroy(state);
    dr_state_destroy(again);
    dr_state_destroy(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!backend && dr_backend_open("cpu", &(dr_backend_options){.threads = 1}, &backend) != DR_OK) abort();
    fuzz_with_file(data, size, read_file);
    return 0;
}
