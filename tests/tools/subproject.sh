#!/bin/sh
# The project as part of another one's build: by add_subdirectory and by FetchContent its targets are there under the names that
# find_package gives, its tests are not, and its flags do not reach the other project. With BUILD the program is built and run.
# Usage: subproject.sh ROOT [BUILD]
set -eu
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/CMakeLists.txt" <<'end'
cmake_minimum_required(VERSION 3.25)
project(other LANGUAGES C)
if(FETCHED)
  include(FetchContent)
  FetchContent_Declare(deltarule SOURCE_DIR ${DELTARULE})
  FetchContent_MakeAvailable(deltarule)
else()
  add_subdirectory(${DELTARULE} deltarule EXCLUDE_FROM_ALL)
endif()
foreach(kind deltarule static check check_static)
  if(NOT TARGET deltarule::${kind})
    message(FATAL_ERROR "there is no target deltarule::${kind}")
  endif()
endforeach()
if(TARGET test_base OR TARGET uninstall OR TARGET package)
  message(FATAL_ERROR "a target of the project's own development is there")
endif()
get_directory_property(flags COMPILE_OPTIONS)
if(flags OR CMAKE_BUILD_TYPE)
  message(FATAL_ERROR "flags reach the project around: ${flags} ${CMAKE_BUILD_TYPE}")
endif()
add_executable(program ${DELTARULE}/examples/recurrence.c)
target_link_libraries(program PRIVATE deltarule::deltarule m)
end
for fetched in OFF ON; do
    cmake -S "$work" -B "$work/build-$fetched" -G Ninja -DDELTARULE="$root" -DFETCHED=$fetched >"$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
done
[ $# -gt 1 ] || exit 0
cmake --build "$work/build-OFF" --target program
"$work/build-OFF/program"
