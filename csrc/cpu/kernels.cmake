# Sources of the CPU kernels and their flags. No contraction to FMA: both instruction sets give the same bits.
file(GLOB LPS_CPU_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
set(lps_cpu_flags -O3 -ffp-contract=off -fno-math-errno)
foreach(source IN LISTS LPS_CPU_SOURCES)
  set(flags ${lps_cpu_flags})
  if(source MATCHES "_avx2\\.cpp$" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND flags -mavx2 -mfma -mf16c -mpopcnt)
  elseif(source MATCHES "_avx512\\.cpp$" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND flags -mavx2 -mfma -mf16c -mpopcnt -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi2
         -mprefer-vector-width=512)
    # GCC 12 takes the don't-care operand inside its own intrinsics for an uninitialised variable.
    list(APPEND flags -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "${flags}")
endforeach()
