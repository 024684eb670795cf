/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY "libquire-cuda.so"

static enum q_code take_table(const struct device_table **out, void *handle, const char *path,
                              struct q_err *e)
{
    union {
        void *data;
        const struct device_table *(*get)(void);
    } symbol = {dlsym(handle, DEVICE_SYMBOL)};
    const struct device_table *t = symbol.data ? symbol.get() : NULL;
    if (!t)
        return q_fail(e, Q_MISMATCH, "%s has no " DEVICE_SYMBOL ": its version differs", path);
    if (t->abi != DEVICE_ABI || t->kern_bytes != sizeof(struct kern_table))
        return q_fail(
            e, Q_MISMATCH,
            "%s: its list of operations differs from this program's; both must be of one build",
            path);
    *out = t;
    return Q_OK;
}

/* `tail` relative to the folder of the executable; "" if that folder is unknown. */
static void beside_executable(char out[PATH_MAX], const char *tail)
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    char *slash = n > 0 ? memrchr(out, '/', (size_t)n) : NULL;
    if (slash && (size_t)(slash - out) + strlen(tail) + 2 <= PATH_MAX)
        memcpy(slash + 1, tail, strlen(tail) + 1);
    else
        *out = '\0';
}

/* dlerror names the file that could not be opened: the library or one of its dependencies. path:
 * NULL = the library was not found in the search path. */
static enum q_code fail_open(const char *path, struct q_err *e)
{
    const char *why = dlerror();
    if (!path)
        return q_fail(e, Q_NOT_FOUND,
                      "cannot find " LIBRARY
                      " (in the program's folder, ../lib or the system's library path); build it "
                      "with `sh deploy/up.sh` on the machine with the GPU, or with `cmake --preset "
                      "cuda && cmake --build build/cuda` on a machine with the CUDA toolkit: %s",
                      why ? why : "not found");
    return q_fail(e, Q_NOT_FOUND, "cannot load the device library: %s%s", why ? why : path,
                  why && strstr(why, path) == why
                      ? ""
                      : " (a dependency: check that the CUDA runtime is installed)");
}

/* dlopen(3) would wait for the writer of a pipe. A name without a slash is searched for. */
static bool is_other_kind(const char *path)
{
    struct stat st;
    return strchr(path, '/') && stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

enum q_code device_library_open(const struct device_table **out, const char *path, struct q_err *e)
{
    static const char *const places[] = {LIBRARY, "../lib/" LIBRARY};
    char near[PATH_MAX];
    for (size_t i = 0; !path && i < sizeof places / sizeof *places; i++) {
        beside_executable(near, places[i]);
        if (*near && access(near, R_OK) == 0)
            path = near;
    }
    const char *asked = path ? path : LIBRARY;
    if (is_other_kind(asked))
        return q_fail(e, Q_NOT_FOUND,
                      "cannot load the device library: %s: not a regular file, expected a shared "
                      "object",
                      asked);
    void *handle = dlopen(asked, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return fail_open(path, e);
    return take_table(out, handle, asked, e);
}
