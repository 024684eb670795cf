# SPDX-License-Identifier: Apache-2.0
# The target `portable`: programs linked once more, from the same objects, against static archives (README.md beside this).
#
# A target whose property QUIRE_LINKED is set gets archives where PkgConfig::X would give it a shared library:
#   alone   needs the C library and nothing else
#   beside  the same but for what h2o hands it and shares with it (libuv, OpenSSL), which comes along in ../lib
# archive(X FILES…): what those targets link for PkgConfig::X. Without one of the archives there is no `portable`.
add_library(q_portable_absent STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/absent.c)
add_library(q_portable_curl STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/curl_late.c)
target_link_libraries(q_portable_curl PUBLIC ${CMAKE_DL_LIBS})
set(QUIRE_PORTABLE ON)
set(portable_any "$<BOOL:$<TARGET_PROPERTY:QUIRE_LINKED>>")
set(portable_alone "$<STREQUAL:$<TARGET_PROPERTY:QUIRE_LINKED>,alone>")

# An archive as a target whose users link `after` behind it.
function(portable_archive file after)
  if(TARGET portable_${file})
    return()
  endif()
  find_library(found NAMES ${file} PATHS ${portable_gcc} NO_CACHE)
  if(NOT found)
    message(STATUS "no ${file}: the target portable is left out")
    set(QUIRE_PORTABLE OFF PARENT_SCOPE)
    return()
  endif()
  if(file STREQUAL libjansson.a) # exports a function of its own under a name of ours (common/utf8.h)
    set(renamed ${CMAKE_BINARY_DIR}/archives/${file})
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/archives)
    execute_process(COMMAND ${CMAKE_OBJCOPY} --redefine-sym utf8_encode=jansson_utf8_encode ${found} ${renamed}
                    COMMAND_ERROR_IS_FATAL ANY)
    set(found ${renamed})
  endif()
  add_library(portable_${file} STATIC IMPORTED GLOBAL)
  set_target_properties(portable_${file} PROPERTIES IMPORTED_LOCATION ${found} INTERFACE_LINK_LIBRARIES "${after}")
endfunction()

function(archive name when)
  set(after)
  set(files ${ARGN})
  list(REVERSE files)
  foreach(file ${files})
    if(NOT TARGET ${file})
      portable_archive(${file} "${after}")
      set(file portable_${file})
    endif()
    set(after ${file})
  endforeach()
  set(QUIRE_PORTABLE ${QUIRE_PORTABLE} PARENT_SCOPE)
  if(NOT QUIRE_PORTABLE)
    return()
  endif()
  get_target_property(shared PkgConfig::${name} INTERFACE_LINK_LIBRARIES)
  list(TRANSFORM shared REPLACE "(.+)" "$<$<NOT:${when}>:\\1>")
  set_target_properties(PkgConfig::${name} PROPERTIES INTERFACE_LINK_LIBRARIES "$<${when}:${after}>;${shared}")
endfunction()

execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libstdc++.a OUTPUT_VARIABLE portable_gcc
                OUTPUT_STRIP_TRAILING_WHITESPACE)
cmake_path(GET portable_gcc PARENT_PATH portable_gcc)
set(portable_archives) # what portable_library takes along
foreach(file crypto jansson yaml pcre2-8 utf8proc msgpackc xxhash hwloc czmq zmq sodium bsd md uuid stdc++)
  list(APPEND portable_archives portable_lib${file}.a)
endforeach()
archive(CRYPTO ${portable_alone} libcrypto.a)
archive(SSL ${portable_alone} libssl.a libcrypto.a)
archive(JANSSON ${portable_any} libjansson.a)
archive(YAML ${portable_any} libyaml.a)
archive(PCRE2 ${portable_any} libpcre2-8.a)
archive(UTF8PROC ${portable_any} libutf8proc.a)
archive(MSGPACK ${portable_any} libmsgpackc.a)
archive(ZSTD ${portable_any} libzstd.a)
archive(XXHASH ${portable_any} libxxhash.a)
archive(HWLOC ${portable_any} libhwloc.a q_portable_absent)
archive(CZMQ ${portable_any} libczmq.a libzmq.a libsodium.a libbsd.a libmd.a libuuid.a libstdc++.a q_portable_absent)
archive(EDIT ${portable_any} libedit.a libtinfo.a libbsd.a) # behind CZMQ, which says what libbsd.a needs
archive(CURL ${portable_any} q_portable_curl)
if(QUIRE_SANITIZE OR QUIRE_FUZZ)
  set(QUIRE_PORTABLE OFF) # a sanitizer's run time is of this machine alone
endif()
if(QUIRE_PORTABLE)
  add_custom_target(portable COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/gather.sh ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER} VERBATIM)
endif()

# portable(quire-bench alone LIBS): the target `quire-bench-portable`, of the objects of quire-bench; LIBS as it links.
function(portable name how)
  if(NOT QUIRE_PORTABLE)
    return()
  endif()
  add_executable(${name}-portable EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${name}>)
  target_link_libraries(${name}-portable PRIVATE ${ARGN})
  target_link_options(${name}-portable PRIVATE -static-libgcc -Wl,--as-needed -Wl,--strip-debug -Wl,--disable-new-dtags)
  set_target_properties(${name}-portable PROPERTIES OUTPUT_NAME ${name} QUIRE_LINKED ${how} LINKER_LANGUAGE C
    BUILD_RPATH "\$ORIGIN/../lib" RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable/bin)
  add_dependencies(portable ${name}-portable)
endfunction()

# layers_used(OUT q_engine_library): that layer and all that it uses, directly or through others, when all folders are read.
function(layers_used out layer)
  set(found)
  set(open ${layer})
  while(open)
    list(POP_FRONT open next)
    if(NOT next IN_LIST found)
      list(APPEND found ${next})
      get_target_property(uses ${next} QUIRE_USES)
      if(uses)
        list(APPEND open ${uses})
      endif()
    endif()
  endwhile()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# portable_library(quire q_engine_library): portable/lib/libquire.a, the layer, the layers that it uses and all archives they may need
# in one: cc x.c libquire.a -lm links. (Debian's archives are not position independent enough for a shared library.)
function(portable_library name layer)
  if(NOT QUIRE_PORTABLE)
    return()
  endif()
  layers_used(layers ${layer})
  set(to ${CMAKE_BINARY_DIR}/portable/lib/lib${name}.a)
  set(script "create ${to}\n")
  foreach(part ${layers} q_portable_absent ${portable_archives})
    string(APPEND script "addlib $<TARGET_FILE:${part}>\n")
  endforeach()
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/archives/lib${name}.mri CONTENT "${script}save\nend\n")
  add_custom_command(OUTPUT ${to} DEPENDS ${layers} q_portable_absent ${CMAKE_BINARY_DIR}/archives/lib${name}.mri
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/portable/lib
                     COMMAND ${CMAKE_AR} -M <${CMAKE_BINARY_DIR}/archives/lib${name}.mri
                     COMMAND ${CMAKE_STRIP} --strip-debug ${to})
  add_custom_target(lib${name}-archive DEPENDS ${to})
  add_dependencies(portable lib${name}-archive)
endfunction()
