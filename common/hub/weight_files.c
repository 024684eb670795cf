/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/weight_files.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/download.h"
#include "common/file.h"
#include "common/gguf/gguf_file.h"
#include "common/hub/folder.h"
#include "common/hub/gguf_tensors.h"
#include "common/hub/hub_json.h"
#include "common/hub/loose_files.h"

static const struct {
    enum weight_format format;
    const char *name;
    bool is_index, is_torch;
} files[] = {
#define WEIGHT_FILE(format, name, index, torch) {WEIGHTS_##format, name, index, torch},
#include "common/hub/weight_files.def"
};
#define N_FILE     (sizeof files / sizeof *files)
#define LOOSE_NAME "*.safetensors"

static bool has(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return !path_join(path, sizeof path, dir, name, NULL) && file_exists(path);
}

bool weight_files_has_params(const char *dir)
{
    return !has(dir, "config.json") && has(dir, "params.json");
}

bool weight_files_is_gguf(const char *dir)
{
    return gguf_file_is_named(dir) && !dir_exists(dir);
}

const char *weight_format_name(enum weight_format f)
{
    static const char *const names[] = {
        [WEIGHTS_AUTO] = "auto", [WEIGHTS_SAFETENSORS] = "safetensors",
        [WEIGHTS_PT] = "pt",     [WEIGHTS_MISTRAL] = "mistral",
        [WEIGHTS_GGUF] = "gguf",
    };
    return names[f];
}

/* The first row of the format, of any for WEIGHTS_AUTO, whose file is there; N_FILE: none. */
static size_t find_row(const char *dir, enum weight_format wanted)
{
    size_t i = 0;
    while (i < N_FILE &&
           ((wanted != WEIGHTS_AUTO && files[i].format != wanted) || !has(dir, files[i].name)))
        i++;
    return i;
}

bool weight_files_any(const char *dir)
{
    return find_row(dir, WEIGHTS_AUTO) < N_FILE;
}

/* A model that was divided among devices has parts of each matrix in each file. */
static enum q_code refuse_parts(const char *dir, struct q_err *e)
{
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: consolidated.00.pth and consolidated.01.pth hold a part of each matrix "
                  "(tensor parallel); quire reads one file: use the model in the layout of Hugging "
                  "Face, or join the parts",
                  dir);
}

/* There are no files of the wanted format: which names it has, and what is there instead. */
static enum q_code refuse_format(const char *dir, enum weight_format wanted, struct q_err *e)
{
    struct buf names = BUF_INIT;
    const size_t other = find_row(dir, WEIGHTS_AUTO);
    const bool is_loose = other == N_FILE && loose_files_any(dir);
    if (wanted == WEIGHTS_AUTO || (other == N_FILE && !is_loose)) {
        const enum q_code rc = folder_refuse_weights(dir, e);
        return wanted == WEIGHTS_AUTO ? rc
                                      : q_wrap(e, "--load-format %s", weight_format_name(wanted));
    }
    for (size_t i = 0; i < N_FILE; i++)
        if (files[i].format == wanted)
            buf_printf(&names, "%s%s", names.len ? ", " : "", files[i].name);
    const enum q_code rc = q_fail(
        e, Q_NOT_FOUND,
        "%s: --load-format %s reads one of %s, and none of them exists; the folder has %s "
        "(--load-format %s)",
        dir, weight_format_name(wanted), buf_str(&names), is_loose ? LOOSE_NAME : files[other].name,
        weight_format_name(is_loose ? WEIGHTS_SAFETENSORS : files[other].format));
    buf_release(&names);
    return rc;
}

/* The model is a GGUF file: at `path`. */
static enum q_code find_gguf(struct weight_files *out, const char *path, enum weight_format wanted,
                             struct q_err *e)
{
    if (wanted != WEIGHTS_AUTO && wanted != WEIGHTS_GGUF)
        return q_fail(e, Q_INVALID,
                      "--load-format %s: %s is a GGUF file, expected auto, gguf or dummy",
                      weight_format_name(wanted), path);
    *out = (struct weight_files){.format = WEIGHTS_GGUF, .name = ""};
    return snprintf(out->path, sizeof out->path, "%s", path) < (int)sizeof out->path
               ? Q_OK
               : q_fail(e, Q_TOO_LARGE, "%s: the path is too long", path);
}

/* All *.safetensors of the folder: which those are, loose_files.h says to the reader. */
static enum q_code take_loose(struct weight_files *out, const char *dir, struct q_err *e)
{
    *out = (struct weight_files){
        .format = WEIGHTS_SAFETENSORS,
        .is_loose = true,
        .name = LOOSE_NAME,
    };
    return path_join(out->path, sizeof out->path, dir, "", e);
}

enum q_code weight_files_find(struct weight_files *out, const char *dir, enum weight_format wanted,
                              struct q_err *e)
{
    size_t i = N_FILE;
    if (weight_files_is_gguf(dir))
        return find_gguf(out, dir, wanted, e);
    if (wanted == WEIGHTS_GGUF)
        return q_fail(e, Q_NOT_FOUND,
                      "--load-format gguf: %s is a folder with weights of another kind; use the "
                      "path of the GGUF file",
                      dir);
    if (wanted == WEIGHTS_AUTO && weight_files_has_params(dir))
        i = find_row(dir, WEIGHTS_MISTRAL);
    if (i == N_FILE)
        i = find_row(dir, wanted);
    if (i == N_FILE && (wanted == WEIGHTS_AUTO || wanted == WEIGHTS_SAFETENSORS) &&
        loose_files_any(dir))
        return take_loose(out, dir, e);
    if (i == N_FILE)
        return refuse_format(dir, wanted, e);
    *out = (struct weight_files){
        .format = files[i].format,
        .is_index = files[i].is_index,
        .is_torch = files[i].is_torch,
        .name = files[i].name,
    };
    if (files[i].format == WEIGHTS_MISTRAL && files[i].is_torch && has(dir, "consolidated.01.pth"))
        return refuse_parts(dir, e);
    return path_join(out->path, sizeof out->path, dir, files[i].name, e);
}

/* ---- are they there? ---- */

static enum q_code check_shard(const char *dir, const char *name, const char *index,
                               struct q_err *e)
{
    char path[PATH_MAX];
    enum q_code rc = path_join(path, sizeof path, dir, name, e);
    if (rc || (rc = download_check_link(path, e)))
        return rc;
    rc = download_check_file(path, e);
    if (rc == Q_NOT_FOUND)
        rc = q_fail(
            e, Q_NOT_FOUND,
            "%s: the shard %s is missing: the model is incomplete, download it with `hf download`",
            index, name);
    return rc;
}

/* Each shard is checked once; the index names it for every tensor in it. */
static enum q_code check_shards(const char *dir, const char *index, struct q_err *e)
{
    json_t *root = NULL, *seen = json_object();
    enum q_code rc = seen ? hub_json_load(&root, index, e)
                          : q_fail(e, Q_NO_MEMORY, "out of memory reading %s", index);
    json_t *map = json_object_get(root, "weight_map");
    for (void *it = json_object_iter(map); it && !rc; it = json_object_iter_next(map, it)) {
        const char *name = json_string_value(json_object_iter_value(it));
        if (!name || !*name || strchr(name, '/') || json_object_get(seen, name))
            continue; /* tensor_set_open reports invalid names */
        if (json_object_set_new(seen, name, json_true()))
            rc = q_fail(e, Q_NO_MEMORY, "out of memory reading %s", index);
        else
            rc = check_shard(dir, name, index, e);
    }
    json_decref(seen);
    json_decref(root);
    return rc;
}

/* All files that the model is split into. */
static enum q_code check_splits(const char *path, struct q_err *e)
{
    char each[PATH_MAX];
    uint32_t number = 0, count = 0;
    enum q_code rc = Q_OK;
    if (!gguf_file_split(&number, &count, path))
        return download_check_file(path, e);
    for (uint32_t i = 1; i <= count && !rc; i++)
        if (!(rc = gguf_file_split_path(each, path, i, e)) && !(rc = download_check_link(each, e)))
            rc = download_check_file(each, e) == Q_NOT_FOUND
                     ? gguf_tensors_fail_split(each, count, e)
                     : e->code;
    return rc;
}

static enum q_code check_loose(const char *dir, struct q_err *e)
{
    struct loose_files l = LOOSE_FILES_INIT;
    char path[PATH_MAX];
    enum q_code rc = loose_files_list(&l, dir, e);
    for (size_t i = 0; i < l.n && !rc; i++)
        if (!(rc = path_join(path, sizeof path, dir, l.names[i], e)) &&
            !(rc = download_check_link(path, e)))
            rc = download_check_file(path, e);
    loose_files_release(&l);
    return rc;
}

enum q_code weight_files_check(const char *dir, enum weight_format wanted, struct q_err *e)
{
    struct weight_files found = {0};
    const enum q_code rc = weight_files_find(&found, dir, wanted, e);
    if (rc)
        return rc;
    if (found.format == WEIGHTS_GGUF)
        return check_splits(found.path, e);
    if (found.is_loose)
        return check_loose(dir, e);
    return found.is_index ? check_shards(dir, found.path, e) : download_check_file(found.path, e);
}
