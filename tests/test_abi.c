/* Sizes and places of all public structs, as numbers: what a program that was compiled with these headers counts on.
 * docs/abi.md says what to do when a line here fails. tests/tools/abi.sh holds the list against the headers. */
#include <deltarule/backend.h>
#include <deltarule/bench.h>
#include <deltarule/evaluate.h>
#include <deltarule/generate.h>
#include <deltarule/model.h>
#include <deltarule/plan.h>
#include <deltarule/recurrence.h>
#include <deltarule/rule.h>
#include <deltarule/state.h>
#include <deltarule/status.h>
#include <deltarule/tensor.h>
#include <deltarule/theory.h>
#include <deltarule/train.h>
#include <deltarule/verify.h>
#include <deltarule/version.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The number of the interface that the numbers below are of. */
enum { ABI = 1 };

#define SIZE(type, bytes)       assert_int_equal(sizeof(type), bytes)
#define AT(type, member, bytes) assert_int_equal(offsetof(type, member), bytes)

static void structs_of_backend(void **state) {
    (void)state;
    SIZE(dr_backend_options, 32);
    AT(dr_backend_options, threads, 0);
    AT(dr_backend_options, isa, 8);
    AT(dr_backend_options, dtype, 16);
    AT(dr_backend_options, device, 20);
    AT(dr_backend_options, stream, 24);
}

static void structs_of_bench(void **state) {
    (void)state;
    SIZE(dr_bench_options, 72);
    AT(dr_bench_options, repeats, 0);
    AT(dr_bench_options, threads, 8);
    AT(dr_bench_options, thread_counts, 16);
    AT(dr_bench_options, isa, 24);
    AT(dr_bench_options, seed, 32);
    AT(dr_bench_options, log_decay, 40);
    AT(dr_bench_options, weak_heads, 48);
    AT(dr_bench_options, backend, 56);
    AT(dr_bench_options, dtype, 64);
    AT(dr_bench_options, device, 68);

    SIZE(dr_bench_seconds, 24);
    AT(dr_bench_seconds, median, 0);
    AT(dr_bench_seconds, best, 8);
    AT(dr_bench_seconds, spread, 16);

    SIZE(dr_bench_moved, 32);
    AT(dr_bench_moved, bytes, 0);
    AT(dr_bench_moved, rate, 8);
    AT(dr_bench_moved, limit, 16);
    AT(dr_bench_moved, share, 24);

    SIZE(dr_bench_work, 120);
    AT(dr_bench_work, seconds, 0);
    AT(dr_bench_work, amount, 24);
    AT(dr_bench_work, rate, 32);
    AT(dr_bench_work, limit, 40);
    AT(dr_bench_work, limit_best, 48);
    AT(dr_bench_work, share, 56);
    AT(dr_bench_work, share_best, 64);
    AT(dr_bench_work, ratio, 72);
    AT(dr_bench_work, speed_up, 80);
    AT(dr_bench_work, moved, 88);

    SIZE(dr_bench_op_result, 560);
    AT(dr_bench_op_result, kernel, 0);
    AT(dr_bench_op_result, threads, 96);
    AT(dr_bench_op_result, chunk, 104);
    AT(dr_bench_op_result, performed_forward, 112);
    AT(dr_bench_op_result, performed_forward_backward, 120);
    AT(dr_bench_op_result, workspace_forward, 128);
    AT(dr_bench_op_result, workspace_forward_backward, 136);
    AT(dr_bench_op_result, saved, 144);
    AT(dr_bench_op_result, first, 152);
    AT(dr_bench_op_result, lacking, 160);
    AT(dr_bench_op_result, forward, 320);
    AT(dr_bench_op_result, forward_backward, 440);

    SIZE(dr_bench_decode_result, 224);
    AT(dr_bench_decode_result, kernel, 0);
    AT(dr_bench_decode_result, threads, 96);
    AT(dr_bench_decode_result, token, 104);

    SIZE(dr_bench_train_result, 184);
    AT(dr_bench_train_result, rule, 0);
    AT(dr_bench_train_result, threads, 32);
    AT(dr_bench_train_result, parameters, 40);
    AT(dr_bench_train_result, tokens, 48);
    AT(dr_bench_train_result, recurrence, 56);
    AT(dr_bench_train_result, step, 64);
}

static void structs_of_evaluate(void **state) {
    (void)state;
    SIZE(dr_score, 56);
    AT(dr_score, files, 0);
    AT(dr_score, bytes, 8);
    AT(dr_score, tokens, 16);
    AT(dr_score, loss, 24);
    AT(dr_score, perplexity, 32);
    AT(dr_score, bits_per_byte, 40);
    AT(dr_score, seconds, 48);
}

static void structs_of_generate(void **state) {
    (void)state;
    SIZE(dr_generate_options, 40);
    AT(dr_generate_options, tokens, 0);
    AT(dr_generate_options, temperature, 8);
    AT(dr_generate_options, top_k, 16);
    AT(dr_generate_options, top_p, 24);
    AT(dr_generate_options, seed, 32);
}

static void structs_of_model(void **state) {
    (void)state;
    SIZE(dr_model_config, 312);
    AT(dr_model_config, rule, 0);
    AT(dr_model_config, vocabulary, 152);
    AT(dr_model_config, hidden, 160);
    AT(dr_model_config, layers, 168);
    AT(dr_model_config, heads, 176);
    AT(dr_model_config, value_heads, 184);
    AT(dr_model_config, key_size, 192);
    AT(dr_model_config, value_size, 200);
    AT(dr_model_config, intermediate, 208);
    AT(dr_model_config, conv_size, 216);
    AT(dr_model_config, output_gate, 224);
    AT(dr_model_config, tied, 228);
    AT(dr_model_config, gates, 232);
    AT(dr_model_config, force, 272);
    AT(dr_model_config, a_log_per_channel, 273);
    AT(dr_model_config, lambda_bias, 280);
    AT(dr_model_config, norm_eps, 288);
    AT(dr_model_config, initializer_range, 296);
    AT(dr_model_config, conv_initializer_range, 304);

    SIZE(dr_parameter, 176);
    AT(dr_parameter, name, 0);
    AT(dr_parameter, rank, 96);
    AT(dr_parameter, shape, 104);
    AT(dr_parameter, offset, 152);
    AT(dr_parameter, count, 160);
    AT(dr_parameter, decays, 168);

    SIZE(dr_batch, 56);
    AT(dr_batch, layout, 0);
    AT(dr_batch, ids, 24);
    AT(dr_batch, targets, 32);
    AT(dr_batch, positions, 40);
    AT(dr_batch, labels, 48);
}

static void structs_of_plan(void **state) {
    (void)state;
    SIZE(dr_saved_size, 40);
    AT(dr_saved_size, fixed, 0);
    AT(dr_saved_size, per_row, 8);
    AT(dr_saved_size, per_sequence, 16);
    AT(dr_saved_size, per_segment, 24);
    AT(dr_saved_size, segment, 32);

    SIZE(dr_boundaries, 16);
    AT(dr_boundaries, at, 0);
    AT(dr_boundaries, dtype, 8);
    AT(dr_boundaries, device, 12);

    SIZE(dr_call, 136);
    AT(dr_call, size, 0);
    AT(dr_call, stream, 8);
    AT(dr_call, threads, 16);
    AT(dr_call, boundaries, 24);
    AT(dr_call, inputs, 40);
    AT(dr_call, initial, 48);
    AT(dr_call, o, 56);
    AT(dr_call, final, 64);
    AT(dr_call, saved, 72);
    AT(dr_call, workspace, 80);
    AT(dr_call, d_o, 88);
    AT(dr_call, d_final, 96);
    AT(dr_call, d_inputs, 104);
    AT(dr_call, d_initial, 112);
    AT(dr_call, states, 120);
    AT(dr_call, slots, 128);

    SIZE(dr_stage_path, 88);
    AT(dr_stage_path, instance, 0);
    AT(dr_stage_path, storage, 64);
    AT(dr_stage_path, chunk, 72);
    AT(dr_stage_path, parts, 80);
}

static void structs_of_recurrence(void **state) {
    (void)state;
    SIZE(dr_recurrence, 112);
    AT(dr_recurrence, rule, 0);
    AT(dr_recurrence, layout, 8);
    AT(dr_recurrence, key_heads, 32);
    AT(dr_recurrence, value_heads, 40);
    AT(dr_recurrence, key_size, 48);
    AT(dr_recurrence, value_size, 56);
    AT(dr_recurrence, scale, 64);
    AT(dr_recurrence, path, 72);
    AT(dr_recurrence, chunk, 80);
    AT(dr_recurrence, bf16_state, 88);
    AT(dr_recurrence, longest, 96);
    AT(dr_recurrence, forget, 104);

    SIZE(dr_inputs, 152);
    AT(dr_inputs, at, 0);

    SIZE(dr_input_gradients, 152);
    AT(dr_input_gradients, at, 0);

    SIZE(dr_states, 32);
    AT(dr_states, at, 0);

    SIZE(dr_mutable_states, 32);
    AT(dr_mutable_states, at, 0);

    SIZE(dr_recurrence_memory, 32);
    AT(dr_recurrence_memory, forward, 0);
    AT(dr_recurrence_memory, backward, 8);
    AT(dr_recurrence_memory, saved, 16);
    AT(dr_recurrence_memory, decode, 24);

    SIZE(dr_slots, 32);
    AT(dr_slots, slots, 0);
    AT(dr_slots, tokens, 8);
    AT(dr_slots, from, 16);
    AT(dr_slots, to, 24);
}

static void structs_of_rule(void **state) {
    (void)state;
    SIZE(dr_squash, 24);
    AT(dr_squash, x, 0);
    AT(dr_squash, eps, 8);
    AT(dr_squash, interval, 16);
    AT(dr_squash, function, 20);

    SIZE(dr_row, 20);
    AT(dr_row, read, 0);
    AT(dr_row, undecayed, 4);
    AT(dr_row, write, 8);
    AT(dr_row, gain, 12);
    AT(dr_row, value, 16);

    SIZE(dr_rule, 152);
    AT(dr_rule, name, 0);
    AT(dr_rule, title, 8);
    AT(dr_rule, source, 16);
    AT(dr_rule, decay, 24);
    AT(dr_rule, row, 28);
    AT(dr_rule, rows, 68);
    AT(dr_rule, repeat, 72);
    AT(dr_rule, scan, 76);
    AT(dr_rule, query, 80);
    AT(dr_rule, squash, 88);
    AT(dr_rule, normalizer, 112);
    AT(dr_rule, gain_eps, 120);
    AT(dr_rule, cg_iters, 128);
    AT(dr_rule, cg_start, 132);
    AT(dr_rule, cg_eps, 136);
    AT(dr_rule, tied_scan, 144);
    AT(dr_rule, family, 148);

    SIZE(dr_gates, 40);
    AT(dr_gates, negative_eigenvalues, 0);
    AT(dr_gates, gate, 4);
    AT(dr_gates, lower_bound, 8);
    AT(dr_gates, lambda, 16);
    AT(dr_gates, lambda_value, 24);
    AT(dr_gates, lambda_bias_learned, 32);
}

static void structs_of_tensor(void **state) {
    (void)state;
    SIZE(dr_tensor, 64);
    AT(dr_tensor, dtype, 0);
    AT(dr_tensor, rank, 4);
    AT(dr_tensor, shape, 8);
    AT(dr_tensor, data, 56);

    SIZE(dr_layout, 24);
    AT(dr_layout, sequences, 0);
    AT(dr_layout, rows, 8);
    AT(dr_layout, cu_seqlens, 16);
}

static void structs_of_theory(void **state) {
    (void)state;
    SIZE(dr_theory_result, 88);
    AT(dr_theory_result, name, 0);
    AT(dr_theory_result, statement, 8);
    AT(dr_theory_result, source, 16);
    AT(dr_theory_result, measure, 24);
    AT(dr_theory_result, figure, 32);
    AT(dr_theory_result, bound, 40);
    AT(dr_theory_result, at_least, 48);
    AT(dr_theory_result, holds, 49);
    AT(dr_theory_result, counter_case, 56);
    AT(dr_theory_result, counter_figure, 64);
    AT(dr_theory_result, counter_bound, 72);
    AT(dr_theory_result, counter_fails, 80);
}

static void structs_of_train(void **state) {
    (void)state;
    SIZE(dr_setting, 64);
    AT(dr_setting, name, 0);
    AT(dr_setting, type, 8);
    AT(dr_setting, fallback, 16);
    AT(dr_setting, least, 24);
    AT(dr_setting, most, 32);
    AT(dr_setting, choices, 40);
    AT(dr_setting, group, 48);
    AT(dr_setting, help, 56);

    SIZE(dr_progress, 104);
    AT(dr_progress, step, 0);
    AT(dr_progress, steps, 8);
    AT(dr_progress, loss, 16);
    AT(dr_progress, bits_per_byte, 24);
    AT(dr_progress, accuracy, 32);
    AT(dr_progress, held_out, 40);
    AT(dr_progress, learning_rate, 48);
    AT(dr_progress, gradient_norm, 56);
    AT(dr_progress, tokens_per_second, 64);
    AT(dr_progress, seconds, 72);
    AT(dr_progress, seconds_left, 80);
    AT(dr_progress, skipped, 88);
    AT(dr_progress, evaluated, 96);

    SIZE(dr_run_costs, 40);
    AT(dr_run_costs, parameters, 0);
    AT(dr_run_costs, steps, 8);
    AT(dr_run_costs, tokens, 16);
    AT(dr_run_costs, bytes, 24);
    AT(dr_run_costs, step_seconds, 32);
}

static void structs_of_verify(void **state) {
    (void)state;
    SIZE(dr_verify_options, 40);
    AT(dr_verify_options, backend, 0);
    AT(dr_verify_options, path, 8);
    AT(dr_verify_options, isa, 16);
    AT(dr_verify_options, threads, 24);
    AT(dr_verify_options, dtype, 28);
    AT(dr_verify_options, device, 32);
    AT(dr_verify_options, strict, 36);

    SIZE(dr_verify_counts, 24);
    AT(dr_verify_counts, passed, 0);
    AT(dr_verify_counts, failed, 8);
    AT(dr_verify_counts, skipped, 16);
}

static void versions_agree(void **state) {
    (void)state;
    assert_int_equal(DELTARULE_ABI, ABI);
    assert_int_equal(dr_abi(), DELTARULE_ABI);
    assert_string_equal(dr_version(), DELTARULE_VERSION);
    assert_string_equal(DELTARULE_VERSION, DR_CMAKE_VERSION); /* of CMakeLists.txt */
    int major, minor, patch;
    char end;
    assert_int_equal(sscanf(DELTARULE_VERSION, "%d.%d.%d%c", &major, &minor, &patch, &end), 3);
    assert_int_equal(major, DELTARULE_VERSION_MAJOR);
    assert_int_equal(minor, DELTARULE_VERSION_MINOR);
    assert_int_equal(patch, DELTARULE_VERSION_PATCH);
    assert_int_equal(DELTARULE_VERSION_NUMBER, DELTARULE_VERSION_OF(major, minor, patch));
    assert_int_equal(dr_version_number(), DELTARULE_VERSION_NUMBER);
    assert_true(DELTARULE_VERSION_OF(1, 2, 3) == 1002003);
}

/* Counts that are sizes of arrays in structs. */
static void counts_are_frozen(void **state) {
    (void)state;
    assert_int_equal(DR_MAX_RANK, 6);
    assert_int_equal(DR_MAX_ROWS, 2);
    assert_int_equal(DR_INPUTS, 19);
    assert_int_equal(DR_STATES, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_agree),
        cmocka_unit_test(counts_are_frozen),
#if defined(__LP64__) /* elsewhere sizes are others */
        cmocka_unit_test(structs_of_backend),
        cmocka_unit_test(structs_of_bench),
        cmocka_unit_test(structs_of_evaluate),
        cmocka_unit_test(structs_of_generate),
        cmocka_unit_test(structs_of_model),
        cmocka_unit_test(structs_of_plan),
        cmocka_unit_test(structs_of_recurrence),
        cmocka_unit_test(structs_of_rule),
        cmocka_unit_test(structs_of_tensor),
        cmocka_unit_test(structs_of_theory),
        cmocka_unit_test(structs_of_train),
        cmocka_unit_test(structs_of_verify),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
