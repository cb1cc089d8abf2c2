# What `cmake --install` puts where: headers, both libraries, the command, its manual page, and what lets other projects find
# them (pkg-config's deltarule.pc, find_package(deltarule)).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/deltarule)
install(TARGETS deltarule RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS deltarule_shared EXPORT deltarule-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS deltarule_static EXPORT deltarule-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT deltarule-shared NAMESPACE deltarule:: DESTINATION ${package_folder})
install(EXPORT deltarule-static NAMESPACE deltarule:: DESTINATION ${package_folder})
install(DIRECTORY include/deltarule DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(FILES docs/deltarule.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

configure_package_config_file(cmake/deltaruleConfig.cmake.in ${PROJECT_BINARY_DIR}/deltaruleConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/deltaruleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH prefix_from_pkgconfig /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/deltarule.pc.in ${PROJECT_BINARY_DIR}/deltarule.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/deltaruleConfig.cmake ${PROJECT_BINARY_DIR}/deltaruleConfigVersion.cmake
  cmake/FindOpenBLAS.cmake DESTINATION ${package_folder})
install(FILES ${PROJECT_BINARY_DIR}/deltarule.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
