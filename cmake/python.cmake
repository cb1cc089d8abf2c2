# What the Python package has beside its modules (component python, which scikit-build-core installs into the package): the shared
# libraries in lib/, the command in bin/, which uses those and so has no second copy of the kernels.
install(TARGETS deltarule_shared deltarule_check_shared LIBRARY DESTINATION lib COMPONENT python NAMELINK_SKIP)
install(TARGETS deltarule RUNTIME DESTINATION bin COMPONENT python)
set_target_properties(deltarule deltarule_check_shared PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
