# Finds OpenBLAS in the build that fits the OpenMP runtime, as the imported target OpenBLAS::OpenBLAS.
#
# Debian installs several builds side by side, each in a folder of its own (openblas-openmp, openblas-serial, ...), and links one
# of them into the common folder. DELTARULE_OPENBLAS names the wanted one; elsewhere the plain library is taken.
set(DELTARULE_OPENBLAS openmp CACHE STRING "Build of OpenBLAS: openmp, or serial for the thread sanitizer")
set_property(CACHE DELTARULE_OPENBLAS PROPERTY STRINGS openmp serial)

find_library(OpenBLAS_LIBRARY openblas PATH_SUFFIXES openblas-${DELTARULE_OPENBLAS})
if(DELTARULE_OPENBLAS STREQUAL serial AND NOT OpenBLAS_LIBRARY MATCHES serial)
  # The plain library has threads of its own, which the thread sanitizer cannot follow.
  set(OpenBLAS_LIBRARY OpenBLAS_LIBRARY-NOTFOUND CACHE FILEPATH "OpenBLAS" FORCE)
endif()
find_path(OpenBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-${DELTARULE_OPENBLAS} openblas)
mark_as_advanced(OpenBLAS_LIBRARY OpenBLAS_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenBLAS REQUIRED_VARS OpenBLAS_LIBRARY OpenBLAS_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian's package is libopenblas-${DELTARULE_OPENBLAS}-dev (see tools/packages.txt)")

if(OpenBLAS_FOUND AND NOT TARGET OpenBLAS::OpenBLAS)
  add_library(OpenBLAS::OpenBLAS UNKNOWN IMPORTED)
  set_target_properties(OpenBLAS::OpenBLAS PROPERTIES
    IMPORTED_LOCATION "${OpenBLAS_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${OpenBLAS_INCLUDE_DIR}")
endif()
