/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl, looked for when it is first called: in ../lib of a portable program, where the system
 * looks, or at QUIRE_CURL_LIBRARY. Its archive would want a dozen others that Debian does not have.
 *
 * Each function here is libcurl's of that name: it calls the real one. Without the library
 * curl_global_init fails, handles are NULL and the texts of errors are the loader's words.
 * Threads: those of the caller; the first call comes before there are several. */
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#undef curl_easy_getinfo
#undef curl_easy_setopt
#undef curl_multi_setopt

#define LIBRARY "libcurl.so.4"

/* A variable argument of theirs (long, curl_off_t, a pointer) is one word here. */
_Static_assert(sizeof(long) == sizeof(void *) && sizeof(curl_off_t) == sizeof(void *),
               "arguments of curl_easy_setopt differ in size");

static const char *why_not; /* NULL: it is there, or was not looked for yet */

static void *find(const char *name)
{
    static void *library;
    const char *path = getenv("QUIRE_CURL_LIBRARY");
    if (!library && !why_not) {
        library = dlopen(path && *path ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            why_not = dlerror();
    }
    return library ? dlsym(library, name) : NULL;
}

#define CALL(type, name, params, args, otherwise)  \
    type name params                               \
    {                                              \
        static type(*real) params;                 \
        if (!real)                                 \
            *(void **)(void *)&real = find(#name); \
        return real ? real args : otherwise;       \
    }
#define CALL_VOID(name, params, args)              \
    void name params                               \
    {                                              \
        static void(*real) params;                 \
        if (!real)                                 \
            *(void **)(void *)&real = find(#name); \
        if (real)                                  \
            real args;                             \
    }
#define CALL_VARIADIC(type, name, handle_type, option_type, otherwise) \
    type name(handle_type *handle, option_type option, ...)            \
    {                                                                  \
        static type (*real)(handle_type *, option_type, ...);          \
        va_list ap;                                                    \
        va_start(ap, option);                                          \
        void *value = va_arg(ap, void *);                              \
        va_end(ap);                                                    \
        if (!real)                                                     \
            *(void **)(void *)&real = find(#name);                     \
        return real ? real(handle, option, value) : otherwise;         \
    }

CALL(CURLcode, curl_global_init, (long flags), (flags), CURLE_FAILED_INIT)
CALL(CURL *, curl_easy_init, (void), (), NULL)
CALL_VARIADIC(CURLcode, curl_easy_setopt, CURL, CURLoption, CURLE_FAILED_INIT)
CALL_VARIADIC(CURLcode, curl_easy_getinfo, CURL, CURLINFO, CURLE_FAILED_INIT)
CALL(CURLcode, curl_easy_perform, (CURL * easy), (easy), CURLE_FAILED_INIT)
CALL_VOID(curl_easy_cleanup, (CURL * easy), (easy))
CALL(const char *, curl_easy_strerror, (CURLcode code), (code), why_not ? why_not : "no libcurl")
CALL(CURLM *, curl_multi_init, (void), (), NULL)
CALL_VARIADIC(CURLMcode, curl_multi_setopt, CURLM, CURLMoption, CURLM_BAD_HANDLE)
CALL(CURLMcode, curl_multi_add_handle, (CURLM * multi, CURL *easy), (multi, easy), CURLM_BAD_HANDLE)
CALL(CURLMcode, curl_multi_remove_handle, (CURLM * multi, CURL *easy), (multi, easy),
     CURLM_BAD_HANDLE)
CALL(CURLMcode, curl_multi_assign, (CURLM * multi, curl_socket_t s, void *p), (multi, s, p),
     CURLM_BAD_HANDLE)
CALL(CURLMcode, curl_multi_socket_action, (CURLM * multi, curl_socket_t s, int mask, int *n),
     (multi, s, mask, n), CURLM_BAD_HANDLE)
CALL(CURLMsg *, curl_multi_info_read, (CURLM * multi, int *left), (multi, left), NULL)
CALL(CURLMcode, curl_multi_poll,
     (CURLM * multi, struct curl_waitfd *more, unsigned n, int wait_ms, int *n_ready),
     (multi, more, n, wait_ms, n_ready), CURLM_BAD_HANDLE)
CALL(CURLMcode, curl_multi_perform, (CURLM * multi, int *n), (multi, n), CURLM_BAD_HANDLE)
CALL(CURLMcode, curl_multi_cleanup, (CURLM * multi), (multi), CURLM_BAD_HANDLE)
CALL(const char *, curl_multi_strerror, (CURLMcode code), (code), why_not ? why_not : "no libcurl")
CALL(struct curl_slist *, curl_slist_append, (struct curl_slist * list, const char *line),
     (list, line), NULL)
CALL_VOID(curl_slist_free_all, (struct curl_slist * list), (list))
