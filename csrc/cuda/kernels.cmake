# The CUDA kernels and how nvcc compiles them; see device.cuh for --fmad. A warning or a spilled register is an error.
file(GLOB LPS_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cu)
set_property(SOURCE ${LPS_CUDA_SOURCES} APPEND PROPERTY COMPILE_OPTIONS
  --fmad=false -Werror=all-warnings -Xptxas=-warn-spills,-Werror -Xfatbin=-compress-all)
