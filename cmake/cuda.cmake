# The CUDA language and toolkit for the backend cuda, compiled ahead of time: for sm_90a, and for sm_80 whose code runs on every
# 8.x device. No PTX is kept, so that nothing is compiled at run time.
set(cuda_least 12.8)
set(cuda_hint "install the CUDA toolkit ${cuda_least} or later (Debian's and NVIDIA's packages: cuda-nvcc, cuda-cudart-dev, \
libcu++ headers; or the whole cuda-toolkit) and put nvcc on the PATH or set CUDACXX to it, or configure without -DDELTARULE_CUDA=ON")

include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDACXX ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda /opt/cuda)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "The CUDA backend needs nvcc, and there is none: ${cuda_hint}")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF) # the flags below say it
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS ${cuda_least})
  message(FATAL_ERROR "The CUDA backend needs CUDA ${cuda_least}, and ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}: \
${cuda_hint}")
endif()
find_package(CUDAToolkit ${cuda_least} REQUIRED)

set(DELTARULE_CUDA_ARCHITECTURES 90a 80 CACHE STRING "What the kernels are compiled for: 90a, 80 or both")
foreach(architecture IN LISTS DELTARULE_CUDA_ARCHITECTURES)
  if(NOT architecture MATCHES "^(90a|80)$")
    message(FATAL_ERROR "DELTARULE_CUDA_ARCHITECTURES is a list of 90a and 80, not ${architecture}: there are kernels for no other")
  endif()
  list(APPEND cuda_flags -gencode=arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(APPEND cuda_flags -Xfatbin=-compress-all -Xptxas=-v -diag-suppress=177 -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-rtti)

# dr_cuda_component(NAME FOLDER [dependencies...]): the C and CUDA files of a folder and of those in it. What ptxas says of each
# CUDA file is kept beside its object as .log; spills are told, and matrix products that ptxas had to serialise end the build.
function(dr_cuda_component name folder)
  dr_component(${name} ${folder} ${ARGN})
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cu ${PROJECT_SOURCE_DIR}/src/${folder}/*/*.cu
       ${PROJECT_SOURCE_DIR}/src/${folder}/*/*.c)
  target_sources(dr_${name} PRIVATE ${files})
  target_compile_options(dr_${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
  target_link_libraries(dr_${name} PUBLIC CUDA::cudart_static)
  set_target_properties(dr_${name} PROPERTIES CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/compile-cuda LINKER_LANGUAGE C)
endfunction()
