# Labels each test of this folder short or long: `ctest -L short` takes some two minutes on two cores. Long are the random
# compositions, all engines over all recorded shapes, the recorded steps of all layers, that no output depends on later tokens, the
# papers' statements, thousands of spoiled model folders, what measures times, what loads PyTorch or lm-evaluation-harness, and what
# takes ten seconds and more otherwise. All have fixed seeds.
set(long compositions recurrence_cpu recorded_steps causality theory cli_theory bench cli_bench templates_differ tokenizers_differ
  models_differ hostile_folders convert_opens evaluate_agrees serve_harness long_prompt forms described draft log_decay run_checks
  process_static process_shared plant_faults cli_interrupt cli_stack chunk_rounding layer_list serve_limits)
get_property(tests DIRECTORY PROPERTY TESTS)
# What computes on several threads at once, or is called by several: the thread sanitizer takes these first.
set(threads accumulate attention cli_chat cli_interrupt conversation draft experts generate host late_numbers operations_cpu plan pool
  pools prefix progress serve serve_load serve_openai texts_at_once threads train training)
foreach(test IN LISTS threads)
  if(test IN_LIST tests)
    set_property(TEST ${test} APPEND PROPERTY LABELS threads)
  endif()
endforeach()
foreach(test IN LISTS tests)
  if(test IN_LIST long)
    set_property(TEST ${test} APPEND PROPERTY LABELS long)
    set_property(TEST ${test} PROPERTY COST 1000) # they begin first, so that none of them is left alone at the end
  else()
    set_property(TEST ${test} APPEND PROPERTY LABELS short)
  endif()
endforeach()
foreach(test cuda_emulated_scan cuda_emulated_network cuda_emulated_reverse) # a minute and more each: they begin first
  if(test IN_LIST tests)
    set_property(TEST ${test} PROPERTY COST 900)
  endif()
endforeach()
