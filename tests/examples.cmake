# The programs of examples/, built against the library in this build folder and run: generation takes the model that training made.
foreach(name recurrence state kept_state training generation)
  add_executable(example_${name} ${PROJECT_SOURCE_DIR}/examples/${name}.c)
  target_link_libraries(example_${name} PRIVATE deltarule::deltarule m)
endforeach()
add_test(NAME examples COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/tools/examples.sh ${PROJECT_SOURCE_DIR}/include/deltarule
  $<TARGET_FILE:example_recurrence> $<TARGET_FILE:example_state> $<TARGET_FILE:example_training>
  $<TARGET_FILE:example_generation> $<TARGET_FILE:example_kept_state>)
set_tests_properties(examples PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
