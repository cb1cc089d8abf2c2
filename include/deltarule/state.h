/* Recurrent states as objects: what a recurrence carries from token to token, of some sequences, together with what it is of.
 *
 * A state knows its rule, heads and sizes, its layout and element type, and the backend in whose memory it lies. Every use
 * names the recurrence that it is for, and one that does not fit is refused with a sentence, never misread. States of sequences
 * can be cut out and put together, kept in files, and taken up again:
 *
 *     dr_state_create(backend, &recurrence, &state);
 *     dr_state_initial(state, backend, &recurrence, &initial);  dr_state_final(state, backend, &recurrence, &final);
 *     dr_recurrence_forward(backend, &recurrence, &inputs, &initial, o, &final, NULL, workspace);     (again and again)
 *     dr_state_save(state, "prefix.safetensors");
 *
 * Layout: each of the states that the rule carries is dense, shaped as dr_recurrence_state_shape says, sequences first.
 *
 * Threads. Different states may be used at once, also of one backend. One state may be read at once by any number of threads:
 * what takes it as const reads it, as do calls that start from it. What writes it (dr_state_reset, dr_state_destroy, calls that
 * end in it or update it) needs it alone. */
#ifndef DELTARULE_STATE_H
#define DELTARULE_STATE_H

#include <deltarule/recurrence.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_state dr_state;

/* The state before any token, of recurrence->layout.sequences sequences, in the backend's memory and type, or with S in
 * bfloat16 if the recurrence says so. Rule, heads, sizes, sequences and that count; the recurrence's rows, scale, path and
 * chunk do not. The backend must outlive the state. */
DR_API dr_status dr_state_create(dr_backend *backend, const dr_recurrence *recurrence, dr_state **state);
/* A state of its own on the same backend, with the same numbers: what is computed with one does not change the other. */
DR_API dr_status dr_state_clone(const dr_state *state, dr_state **copy);
/* Back to the state before any token: zero, which stands for a missing initial state in every rule. NULL is allowed. */
DR_API void dr_state_reset(dr_state *state);
DR_API void dr_state_destroy(dr_state *state); /* NULL is allowed */

/* Rule (its name, title and source are NULL), heads, sizes and type, and a layout of one row a sequence, for
 * dr_recurrence_decode. Valid as long as the state. NULL of NULL, as is its backend. */
DR_API const dr_recurrence *dr_state_recurrence(const dr_state *state);
DR_API dr_backend *dr_state_backend(const dr_state *state);

/* DR_ERROR_ARGUMENT unless the state can go into and out of calls on that backend with that recurrence: the same rule in every
 * option and number, heads, sizes and sequences, memory and element type. */
DR_API dr_status dr_state_check(const dr_state *state, const dr_backend *backend, const dr_recurrence *recurrence);
/* After that check, the pointers for a call: to start from (forward, backward), and to end in (forward), be updated in (decode)
 * or be filled by hand. Both may be of the same state. They are valid until the state is destroyed. */
DR_API dr_status dr_state_initial(const dr_state *state, const dr_backend *backend, const dr_recurrence *recurrence,
                                  dr_states *initial);
DR_API dr_status dr_state_final(dr_state *state, const dr_backend *backend, const dr_recurrence *recurrence,
                                dr_mutable_states *final);

/* A state of its own of the sequences first .. first + count - 1, count at least 1; of all sequences of all parts, in order.
 * The parts must agree in everything but their sequences. */
DR_API dr_status dr_state_slice(const dr_state *state, int64_t first, int64_t count, dr_state **part);
DR_API dr_status dr_state_concatenate(const dr_state *const *parts, int64_t count, dr_state **whole);

/* One safetensors file: a tensor for each state (S, A, K, P) in the state's element type, and metadata: format
 * "deltarule.state", layout, rule (JSON), key_heads, value_heads, key_size, value_size, sequences. Saving replaces a file at
 * once: a kill leaves the old one or the new one, and of several that save under one name at once one has its file there,
 * whole. Loading trusts nothing in the file: DR_ERROR_FORMAT if it is no such file, DR_ERROR_ARGUMENT if it is one that does
 * not fit. recurrence NULL: whatever is in it; its element type must be one that the backend has in any case. */
DR_API dr_status dr_state_save(const dr_state *state, const char *file);
DR_API dr_status dr_state_load(dr_backend *backend, const dr_recurrence *recurrence, const char *file, dr_state **state);

#ifdef __cplusplus
}
#endif
#endif
