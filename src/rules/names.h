/* The names of the options of each axis, in the order of the enumerators; a NULL ends each list. */
#ifndef DR_RULES_NAMES_H
#define DR_RULES_NAMES_H

extern const char *const dr_decay_names[], *const dr_read_names[], *const dr_write_names[], *const dr_gain_names[];
extern const char *const dr_value_names[], *const dr_scan_names[], *const dr_query_names[], *const dr_cg_start_names[];
extern const char *const dr_squash_interval_names[], *const dr_squash_function_names[], *const dr_normalizer_names[];
extern const char *const dr_family_names[], *const dr_gate_names[], *const dr_lambda_names[];

#endif
