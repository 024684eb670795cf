/* SPDX-License-Identifier: Apache-2.0 */
/* cache - the layout of the Hugging Face cache on disk, as huggingface_hub reads and writes it.
 *
 *     CACHE/models--ORG--NAME/refs/REVISION           the commit of a branch, a tag or a short hash
 *                            /snapshots/COMMIT/FILE   relative link to the blob
 *                            /blobs/ETAG              content; ETAG.incomplete: its beginning
 *                            /.no_exist/COMMIT/FILE   empty: the commit has no such file
 *     CACHE/.locks/models--ORG--NAME/ETAG.lock        flock(2) of the process that writes the blob
 *
 * Ids, revisions, hashes and names of files become paths, so each is checked character by character
 * before. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_CACHE_H
#define QUIRE_COMMON_HUB_CACHE_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

#define CACHE_DOWNLOAD_DIR "QUIRE_DOWNLOAD_DIR" /* --download-dir; options_main puts it there */
#define CACHE_HASH_MAX     128                  /* characters of a commit hash or an etag */
#define CACHE_FILE_MAX     1024                 /* bytes of a file's name in a repository */

bool cache_is_id(const char *model);          /* "name" or "org/name" */
bool cache_is_revision(const char *revision); /* "main", "v1.0", "refs/pr/3" */
bool cache_is_hash(const char *hash);         /* one path component: a commit, an etag */
/* A relative path without empty, "." and ".." components, backslashes and control characters. */
bool cache_is_file(const char *name);
/* HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE: 1, on, yes or true. */
bool cache_is_offline(void);

/* out: [PATH_MAX]. The value of an environment variable that is a path, as Python's expanduser and
 * expandvars have it: "~" at its beginning is HOME, "$NAME" and "${NAME}" are variables that are
 * set. Shells do not expand them in files of units and containers. variable: for the message.
 * Errors: Q_TOO_LARGE. */
FALLIBLE cache_expand(char *out, const char *variable, const char *value, struct q_err *e);
/* out: [PATH_MAX]. The cache's folder; it may not exist. Errors: Q_NOT_FOUND (no variable names
 * it), Q_TOO_LARGE. */
FALLIBLE cache_dir(char *out, struct q_err *e);
/* out: [PATH_MAX]. The folder of HF_HOME: token and cache. Errors: those of cache_dir. */
FALLIBLE cache_home(char *out, struct q_err *e);
/* out: [PATH_MAX]. CACHE/models--org--name of a valid id. Errors: those of cache_dir. */
FALLIBLE cache_repo_dir(char *out, const char *id, struct q_err *e);
/* out: [PATH_MAX]. dir/a/b. Errors: Q_TOO_LARGE. */
FALLIBLE cache_join(char *out, const char *dir, const char *a, const char *b, struct q_err *e);
/* The commit in refs/REVISION; the revision itself if there is no such file (it may be a commit),
 * or if it is empty. Errors: Q_CORRUPT, Q_IO. */
FALLIBLE cache_read_ref(char hash[CACHE_HASH_MAX + 1], const char *repo, const char *revision,
                        struct q_err *e);
/* "models--org--name" -> "org/name", out: [size]; false: not such a name. */
bool cache_id_of(char *out, size_t size, const char *name);

#endif
