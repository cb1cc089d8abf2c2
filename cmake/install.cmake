# What `cmake --install` puts where: headers, both libraries of each kind, the command, its manual page, and what lets other
# projects find them (pkg-config's deltarule.pc and deltarule_check.pc, find_package(deltarule)).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/deltarule)
install(TARGETS deltarule RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS deltarule_shared deltarule_check_shared EXPORT deltarule-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS deltarule_static deltarule_check_static EXPORT deltarule-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT deltarule-shared NAMESPACE deltarule:: DESTINATION ${package_folder})
install(EXPORT deltarule-static NAMESPACE deltarule:: DESTINATION ${package_folder})
install(DIRECTORY include/deltarule DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(FILES docs/deltarule.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN *.md PATTERN *.png PATTERN lab EXCLUDE)
install(DIRECTORY experiments/ DESTINATION ${CMAKE_INSTALL_DATADIR}/deltarule/experiments FILES_MATCHING PATTERN *.json)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)

configure_package_config_file(cmake/deltaruleConfig.cmake.in ${PROJECT_BINARY_DIR}/deltaruleConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/deltaruleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH prefix_from_pkgconfig /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
foreach(name deltarule deltarule_check)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/deltaruleConfig.cmake ${PROJECT_BINARY_DIR}/deltaruleConfigVersion.cmake DESTINATION ${package_folder})

# cmake --build BUILD --target uninstall: removes what the last installation from this build folder put down.
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -D MANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
    -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)
endif()

# cpack -G DEB: one package with all of it. OpenBLAS is opened at run time only.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "sequence models with a matrix memory: a library and a command")
set(CPACK_PACKAGE_DESCRIPTION "Linear attention, the delta rule and their kin as rows of one table: recurrences forward and
backward, layers and language models, training, scoring and generation, from C and from the command line.")
set(CPACK_PACKAGE_CONTACT "deltarule maintainers <deltarule@localhost>" CACHE STRING "Whom a package names as its maintainer")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libopenblas0-openmp)
include(CPack)
