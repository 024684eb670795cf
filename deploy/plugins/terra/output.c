/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART ".part"

static bool refuse(char why[OUTPUT_WHY_MAX], int error)
{
    snprintf(why, OUTPUT_WHY_MAX, "it cannot be written: %s", strerror(error));
    return false;
}

/* PATH.part, or "" for what is no regular file. A link is followed: its target is replaced. */
static bool place(char part[PATH_MAX], const char *path, char why[OUTPUT_WHY_MAX])
{
    struct stat st;
    char target[PATH_MAX];
    part[0] = '\0';
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return refuse(why, EISDIR);
        if (access(path, W_OK) != 0)
            return refuse(why, errno);
        if (!S_ISREG(st.st_mode))
            return true;
    }
    const char *real = realpath(path, target) ? target : path; /* not there yet */
    if (snprintf(part, PATH_MAX, "%s" PART, real) >= PATH_MAX)
        return refuse(why, ENAMETOOLONG);
    return true;
}

bool output_open(struct output *o, const char *path, char why[OUTPUT_WHY_MAX])
{
    *o = (struct output){.path = path};
    if (!place(o->part, path, why))
        return false;
    o->f = fopen(*o->part ? o->part : path, "wb");
    return o->f || refuse(why, errno);
}

bool output_check(const char *path, char why[OUTPUT_WHY_MAX])
{
    struct output o;
    if (!place(o.part, path, why) || !*o.part)
        return place(o.part, path, why);
    if (!output_open(&o, path, why))
        return false;
    fclose(o.f);
    unlink(o.part);
    return true;
}

bool output_close(struct output *o, char why[OUTPUT_WHY_MAX])
{
    const size_t n = strlen(o->part);
    char real[PATH_MAX];
    bool is_good = fflush(o->f) == 0 && !ferror(o->f);
    int error = errno; /* of the first write that failed: later ones succeed or fail alike */
    if (fclose(o->f) != 0 && is_good) {
        error = errno;
        is_good = false;
    }
    if (n == 0)
        return is_good || refuse(why, error);
    memcpy(real, o->part, n + 1);
    real[n - strlen(PART)] = '\0';
    if (is_good && rename(o->part, real) != 0) {
        error = errno;
        is_good = false;
    }
    if (!is_good)
        unlink(o->part);
    return is_good || refuse(why, error);
}
