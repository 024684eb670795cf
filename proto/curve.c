/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/curve.h"
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <czmq.h>
#include "common/buf.h"
#include "common/file.h"

#define FILE_MAX 4096 /* bytes of a key file; a longer file is rejected */

static const char *const secret_files[] = {
    [CURVE_ENGINE] = "engine.key",
    [CURVE_FRONTEND] = "frontend.key",
};
static const char *const public_files[] = {
    [CURVE_ENGINE] = "engine.pub",
    [CURVE_FRONTEND] = "frontend.pub",
};

static enum q_code write_key(const char *dir, const char *name, const char *key, struct q_err *e)
{
    char path[PATH_MAX], text[CURVE_TEXT + 1];
    enum q_code rc;
    int n = snprintf(text, sizeof text, "%s\n", key);
    if (!(rc = path_join(path, sizeof path, dir, name, e)))
        rc = file_write(path, text, (size_t)n, 0600, e);
    explicit_bzero(text, sizeof text);
    return rc;
}

static enum q_code check_absent(const char *dir, enum curve_side side, struct q_err *e)
{
    const char *names[] = {secret_files[side], public_files[side]};
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX];
        enum q_code rc = path_join(path, sizeof path, dir, names[i], e);
        if (rc)
            return rc;
        if (file_exists(path))
            return q_fail(e, Q_MISMATCH, "curve keys: %s exists already; choose another folder",
                          path);
    }
    return Q_OK;
}

static enum q_code generate_side(const char *dir, enum curve_side side, struct q_err *e)
{
    zcert_t *cert = zcert_new();
    if (!cert)
        return q_fail(e, Q_UNSUPPORTED, "curve keys: this libzmq was built without CURVE");
    enum q_code rc = write_key(dir, secret_files[side], zcert_secret_txt(cert), e);
    if (!rc)
        rc = write_key(dir, public_files[side], zcert_public_txt(cert), e);
    zcert_destroy(&cert);
    return rc;
}

enum q_code curve_generate(const char *dir, struct q_err *e)
{
    enum q_code rc;
    if (mkdir(dir, 0700) && errno != EEXIST)
        return q_fail(e, Q_IO, "curve keys: cannot create the folder %s: %s", dir, strerror(errno));
    if ((rc = check_absent(dir, CURVE_ENGINE, e)) || (rc = check_absent(dir, CURVE_FRONTEND, e)) ||
        (rc = generate_side(dir, CURVE_ENGINE, e)))
        return rc;
    return generate_side(dir, CURVE_FRONTEND, e);
}

/* One key, followed by white space only. */
static enum q_code read_key(char out[CURVE_TEXT], const char *path, struct q_err *e)
{
    struct buf text = BUF_INIT;
    uint8_t bytes[CURVE_BYTES];
    enum q_code rc = file_read(&text, path, FILE_MAX, e);
    if (rc)
        goto out;
    while (text.len && strchr(" \t\r\n", text.data[text.len - 1]))
        text.data[--text.len] = '\0';
    if (text.len != CURVE_TEXT - 1 || strlen(text.data) != text.len ||
        !zmq_z85_decode(bytes, text.data)) {
        rc =
            q_fail(e, Q_CORRUPT, "curve keys: %s: expected one Z85 key of %d characters, found %zu",
                   path, CURVE_TEXT - 1, text.len);
        goto out;
    }
    memcpy(out, text.data, CURVE_TEXT);
out:
    if (text.data)
        explicit_bzero(text.data, text.cap);
    explicit_bzero(bytes, sizeof bytes);
    buf_release(&text);
    return rc;
}

/* The group may read a secret key, because orchestrators mount secrets that way. Other users may
 * not. */
static enum q_code check_private(const char *path, struct q_err *e)
{
    struct stat st;
    if (stat(path, &st))
        return q_fail(e, errno == ENOENT ? Q_NOT_FOUND : Q_IO, "curve keys: %s: %s", path,
                      strerror(errno));
    if (st.st_mode & S_IRWXO)
        return q_fail(e, Q_FORBIDDEN,
                      "curve keys: %s is readable by all users (mode %04o): run chmod 0600", path,
                      (unsigned)(st.st_mode & 07777));
    return Q_OK;
}

enum q_code curve_load(struct curve_keys *out, const char *dir, enum curve_side side,
                       struct q_err *e)
{
    struct curve_keys k;
    char secret[PATH_MAX], peer[PATH_MAX];
    enum q_code rc;
    memset(&k, 0, sizeof k);
    enum curve_side other = side == CURVE_ENGINE ? CURVE_FRONTEND : CURVE_ENGINE;
    if ((rc = path_join(secret, sizeof secret, dir, secret_files[side], e)) ||
        (rc = path_join(peer, sizeof peer, dir, public_files[other], e)) ||
        (rc = check_private(secret, e)) || (rc = read_key(k.secret_key, secret, e)) ||
        (rc = read_key(k.peer_key, peer, e)))
        goto out;
    if (zmq_curve_public(k.public_key, k.secret_key)) {
        rc = q_fail(e, Q_CORRUPT, "curve keys: %s: not a valid secret key: %s", secret,
                    zmq_strerror(zmq_errno()));
        goto out;
    }
    *out = k;
out:
    curve_wipe(&k);
    return rc;
}

void curve_wipe(struct curve_keys *k)
{
    explicit_bzero(k, sizeof *k);
}
