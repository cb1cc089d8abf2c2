# What the Python package has beside its modules (component python, which scikit-build-core installs into the package): the shared
# library in lib/, the command in bin/.
install(TARGETS deltarule_shared LIBRARY DESTINATION lib COMPONENT python NAMELINK_SKIP)
install(TARGETS deltarule RUNTIME DESTINATION bin COMPONENT python)
