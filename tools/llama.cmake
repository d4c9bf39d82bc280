# Included by CMake into the build of llama.cpp (-DCMAKE_PROJECT_INCLUDE=): no code for AMX unless amx_probe.cpp shows
# that this compiler passes tiles' configuration on whole (docs/upstream/ggml-amx-tile-config.md), and for
# llama-cpp-python nothing but the libraries that it loads. The decision is installed beside them.
include_guard(GLOBAL)

set(AMX "no AMX: the compiler has none")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(CMAKE_TRY_COMPILE_CONFIGURATION Release)
    try_run(AMX_FAULT AMX_COMPILED "${CMAKE_BINARY_DIR}" "${CMAKE_CURRENT_LIST_DIR}/amx_probe.cpp"
            COMPILE_DEFINITIONS -march=native -mamx-tile)
    unset(CMAKE_TRY_COMPILE_CONFIGURATION)
    if(AMX_COMPILED AND "${AMX_FAULT}" STREQUAL "0")
        set(AMX "AMX where the processor has it: the compiler configures its tiles rightly")
    elseif(AMX_COMPILED)
        set(AMX "no AMX: the compiler is not shown to configure its tiles rightly")
        add_compile_options(-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
    endif()
endif()
set(AMX "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${AMX}")
message(STATUS "edgespec: ${AMX}")

if(PROJECT_NAME STREQUAL "llama_cpp")
    # The package forces this one on in the cache; a variable of the same name hides that (CMake's policy CMP0126).
    set(LLAMA_BUILD_COMMON OFF)
    file(WRITE "${CMAKE_BINARY_DIR}/edgespec.txt" "${AMX}\n")
    install(FILES "${CMAKE_BINARY_DIR}/edgespec.txt" DESTINATION "${SKBUILD_PLATLIB_DIR}/llama_cpp/lib")
endif()
