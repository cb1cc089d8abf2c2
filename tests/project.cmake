# Tests of the project itself, beside those of tests/CMakeLists.txt: what others who build with it, or run it where there is
# little, rely on.
add_test(NAME subproject COMMAND ${PROJECT_SOURCE_DIR}/tests/tools/subproject.sh ${PROJECT_SOURCE_DIR})
if(NOT CMAKE_C_FLAGS MATCHES fsanitize) # they take all the address space that there is
  add_test(NAME cli_address_space COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/address_space.sh $<TARGET_FILE:deltarule> ${PROJECT_SOURCE_DIR})
endif()
set_property(TEST subproject PROPERTY LABELS short)
if(TEST cli_address_space)
  set_tests_properties(cli_address_space PROPERTIES LABELS short SKIP_RETURN_CODE 77)
endif()

# The Python package, with the interpreter that python/tests/run finds; it says what it lacks where it is skipped. `make python-test`
# runs its slow tests too.
if(NOT CMAKE_C_FLAGS MATCHES fsanitize AND NOT CMAKE_CROSSCOMPILING)
  add_test(NAME python COMMAND ${PROJECT_SOURCE_DIR}/python/tests/run $<TARGET_FILE:deltarule_shared> $<TARGET_FILE:deltarule>
    -m "not slow" ${PROJECT_SOURCE_DIR}/python/tests)
  set_tests_properties(python PROPERTIES SKIP_RETURN_CODE 77 LABELS long ENVIRONMENT OMP_WAIT_POLICY=passive)
endif()
