# SPDX-License-Identifier: Apache-2.0
# The target `carry`: programs linked once more, from the same objects, against static archives (README.md beside this).
#
# A target whose property QUIRE_CARRIED is set gets archives where PkgConfig::X would give it a shared library:
#   alone   needs the C library and nothing else
#   beside  the same but for what h2o hands it and shares with it (libuv, OpenSSL), which comes along in ../lib
# archive(X FILES…): what those targets link for PkgConfig::X. Without one of the archives there is no `carry`.
add_library(q_carry_absent STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/absent.c)
add_library(q_carry_curl STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/curl_late.c)
target_link_libraries(q_carry_curl PUBLIC ${CMAKE_DL_LIBS})
set(QUIRE_CARRY ON)
set(carry_any "$<BOOL:$<TARGET_PROPERTY:QUIRE_CARRIED>>")
set(carry_alone "$<STREQUAL:$<TARGET_PROPERTY:QUIRE_CARRIED>,alone>")

# An archive as a target whose users link `after` behind it.
function(carry_archive file after)
  if(TARGET carry_${file})
    return()
  endif()
  find_library(found NAMES ${file} PATHS ${carry_gcc} NO_CACHE)
  if(NOT found)
    message(STATUS "no ${file}: programs cannot be linked to be carried (target carry)")
    set(QUIRE_CARRY OFF PARENT_SCOPE)
    return()
  endif()
  if(file STREQUAL libjansson.a) # exports a function of its own under a name of ours (common/utf8.h)
    set(renamed ${CMAKE_BINARY_DIR}/archives/${file})
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/archives)
    execute_process(COMMAND ${CMAKE_OBJCOPY} --redefine-sym utf8_encode=jansson_utf8_encode ${found} ${renamed}
                    COMMAND_ERROR_IS_FATAL ANY)
    set(found ${renamed})
  endif()
  add_library(carry_${file} STATIC IMPORTED GLOBAL)
  set_target_properties(carry_${file} PROPERTIES IMPORTED_LOCATION ${found} INTERFACE_LINK_LIBRARIES "${after}")
endfunction()

function(archive name when)
  set(after)
  set(files ${ARGN})
  list(REVERSE files)
  foreach(file ${files})
    if(NOT TARGET ${file})
      carry_archive(${file} "${after}")
      set(file carry_${file})
    endif()
    set(after ${file})
  endforeach()
  set(QUIRE_CARRY ${QUIRE_CARRY} PARENT_SCOPE)
  if(NOT QUIRE_CARRY)
    return()
  endif()
  get_target_property(shared PkgConfig::${name} INTERFACE_LINK_LIBRARIES)
  list(TRANSFORM shared REPLACE "(.+)" "$<$<NOT:${when}>:\\1>")
  set_target_properties(PkgConfig::${name} PROPERTIES INTERFACE_LINK_LIBRARIES "$<${when}:${after}>;${shared}")
endfunction()

execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libstdc++.a OUTPUT_VARIABLE carry_gcc
                OUTPUT_STRIP_TRAILING_WHITESPACE)
cmake_path(GET carry_gcc PARENT_PATH carry_gcc)
set(carry_archives) # what carried_library takes along
foreach(file crypto jansson pcre2-8 utf8proc msgpackc xxhash hwloc czmq zmq sodium bsd md uuid stdc++)
  list(APPEND carry_archives carry_lib${file}.a)
endforeach()
archive(CRYPTO ${carry_alone} libcrypto.a)
archive(SSL ${carry_alone} libssl.a libcrypto.a)
archive(JANSSON ${carry_any} libjansson.a)
archive(PCRE2 ${carry_any} libpcre2-8.a)
archive(UTF8PROC ${carry_any} libutf8proc.a)
archive(MSGPACK ${carry_any} libmsgpackc.a)
archive(ZSTD ${carry_any} libzstd.a)
archive(XXHASH ${carry_any} libxxhash.a)
archive(HWLOC ${carry_any} libhwloc.a q_carry_absent)
archive(CZMQ ${carry_any} libczmq.a libzmq.a libsodium.a libbsd.a libmd.a libuuid.a libstdc++.a q_carry_absent)
archive(CURL ${carry_any} q_carry_curl)
if(QUIRE_SANITIZE OR QUIRE_FUZZ)
  set(QUIRE_CARRY OFF) # a sanitizer's run time is not what is carried
endif()
if(QUIRE_CARRY)
  add_custom_target(carry COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/gather.sh ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER} VERBATIM)
endif()

# carried(quire-bench alone LIBS): the target `quire-bench-carried`, of the objects of quire-bench; LIBS as it links.
function(carried name how)
  if(NOT QUIRE_CARRY)
    return()
  endif()
  add_executable(${name}-carried EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${name}>)
  target_link_libraries(${name}-carried PRIVATE ${ARGN})
  target_link_options(${name}-carried PRIVATE -static-libgcc -Wl,--as-needed -Wl,--strip-debug -Wl,--disable-new-dtags)
  set_target_properties(${name}-carried PROPERTIES OUTPUT_NAME ${name} QUIRE_CARRIED ${how} LINKER_LANGUAGE C
    BUILD_RPATH "\$ORIGIN/../lib" RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/carry/bin)
  add_dependencies(carry ${name}-carried)
endfunction()

# carried_library(quire LAYERS…): carry/lib/libquire.a, those layers and all archives they may need in one: cc x.c libquire.a -lm
# links. (Debian's archives are not position independent enough for a shared library.)
function(carried_library name)
  if(NOT QUIRE_CARRY)
    return()
  endif()
  set(to ${CMAKE_BINARY_DIR}/carry/lib/lib${name}.a)
  set(script "create ${to}\n")
  foreach(part ${ARGN} q_carry_absent ${carry_archives})
    string(APPEND script "addlib $<TARGET_FILE:${part}>\n")
  endforeach()
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/archives/lib${name}.mri CONTENT "${script}save\nend\n")
  add_custom_command(OUTPUT ${to} DEPENDS ${ARGN} q_carry_absent ${CMAKE_BINARY_DIR}/archives/lib${name}.mri
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/carry/lib
                     COMMAND ${CMAKE_AR} -M <${CMAKE_BINARY_DIR}/archives/lib${name}.mri
                     COMMAND ${CMAKE_STRIP} --strip-debug ${to})
  add_custom_target(lib${name}-archive DEPENDS ${to})
  add_dependencies(carry lib${name}-archive)
endfunction()
