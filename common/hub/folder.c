/* SPDX-License-Identifier: Apache-2.0 */
/* Formats are recognised by file names; only for GGUF the first bytes of a file are read too,
 * because GGUF files are often renamed. These functions do not decide which files are loaded: they
 * formulate the error after a folder was rejected. */
#include "common/hub/folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/download.h"
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/mem.h"

#define NAMES_SHOWN 5u    /* names in a message */
#define NAMES_SEEN  8192u /* entries of a folder that are read */
#define READS                                                                       \
    "quire reads Hugging Face folders (config.json, a tokenizer, *.safetensors or " \
    "pytorch_model*.bin)"
#define GGUF_WAY                                                                              \
    "quire reads such files by their path, with a name that ends with .gguf, or a folder of " \
    "them (--load-format auto or gguf)"
#define GGML_WAY "an older format than GGUF: convert the original model to GGUF, or use its folder"
#define PICKLE_WAY                                                                                 \
    "of such files quire reads pytorch_model.bin and the shards of pytorch_model.bin.index.json, " \
    "in a folder with config.json, and consolidated.00.pth beside params.json"
#define OWN_WAY     "quire reads it in a folder with its params.json"
#define ADAPTER_WAY "serve its base model with --enable-lora --lora-modules NAME=FOLDER"
#define OTHER_WAY   READS ": use the folder or id of the original model"
#define HALF_WAY    "a download is incomplete: run it again"

enum kind_is { IS_WEIGHTS, IS_PART, IS_IGNORED };

/* File name patterns and formats; the first matching row counts. */
static const struct kind {
    const char *begin, *end; /* end of the name, compared without case */
    const char *is;          /* "X is …", "X holds …" */
    const char *way;         /* NULL: a supported file in the wrong place */
    enum kind_is means;      /* IS_PART: a part of a supported model */
} kinds[] = {
    // clang-format off
    {"",             ".gguf",        "a GGUF file", GGUF_WAY, IS_WEIGHTS},
    {"ggml",         ".bin",         "a GGML file", GGML_WAY, IS_WEIGHTS},
    {"training_args", ".bin",        "", NULL, IS_IGNORED},
    {"optimizer",    ".bin",         "", NULL, IS_IGNORED},
    {"optimizer",    ".pt",          "", NULL, IS_IGNORED},
    {"scheduler",    ".pt",          "", NULL, IS_IGNORED},
    {"rng_state",    ".pth",         "", NULL, IS_IGNORED},
    {"consolidated", ".safetensors", "a checkpoint in Mistral's own layout", OWN_WAY, IS_WEIGHTS},
    {"consolidated", ".pth",         "a checkpoint in Meta's own layout", OWN_WAY, IS_WEIGHTS},
    {"adapter_model", "",            "a LoRA adapter", ADAPTER_WAY, IS_WEIGHTS},
    {"openvino_",    "",             "an OpenVINO model", OTHER_WAY, IS_WEIGHTS},
    {"",             ".onnx",        "an ONNX model", OTHER_WAY, IS_WEIGHTS},
    {"",             ".onnx_data",   "an ONNX model", OTHER_WAY, IS_WEIGHTS},
    {"",             ".npz",         "MLX weights", OTHER_WAY, IS_WEIGHTS},
    {"",             ".h5",          "TensorFlow weights", OTHER_WAY, IS_WEIGHTS},
    {"",             ".msgpack",     "Flax weights", OTHER_WAY, IS_WEIGHTS},
    {"",             ".engine",      "a TensorRT engine", OTHER_WAY, IS_WEIGHTS},
    {"",             ".nemo",        "a NeMo archive", OTHER_WAY, IS_WEIGHTS},
    {"",             ".bin",         "a PyTorch pickle checkpoint", PICKLE_WAY, IS_WEIGHTS},
    {"",             ".bin.index.json", "a PyTorch pickle checkpoint", PICKLE_WAY, IS_WEIGHTS},
    {"",             ".pt",          "a PyTorch pickle checkpoint", PICKLE_WAY, IS_WEIGHTS},
    {"",             ".pth",         "a PyTorch pickle checkpoint", PICKLE_WAY, IS_WEIGHTS},
    {"",             ".ckpt",        "a PyTorch pickle checkpoint", PICKLE_WAY, IS_WEIGHTS},
    {"",             ".incomplete",  "part of an incomplete download", HALF_WAY, IS_WEIGHTS},
    {"",             ".part",        "part of an incomplete download", HALF_WAY, IS_WEIGHTS},
    {"",             ".aria2",       "part of an incomplete download", HALF_WAY, IS_WEIGHTS},
    {"",             ".crdownload",  "part of an incomplete download", HALF_WAY, IS_WEIGHTS},
    {"",             ".zip",         "an archive", "unpack the archive and use the folder", IS_WEIGHTS},
    {"",             ".tar",         "an archive", "unpack the archive and use the folder", IS_WEIGHTS},
    {"",             ".tar.gz",      "an archive", "unpack the archive and use the folder", IS_WEIGHTS},
    {"",             ".tgz",         "an archive", "unpack the archive and use the folder", IS_WEIGHTS},
    {"",             ".safetensors", "one file of a model", NULL, IS_PART},
    {"",             ".json",        "one file of a model", NULL, IS_PART},
    {"",             ".model",       "one file of a model", NULL, IS_PART},
    // clang-format on
};
#define N_KIND (sizeof kinds / sizeof *kinds)

static size_t kind_of(const char *name)
{
    size_t n = strlen(name), i = 0;
    for (; i < N_KIND; i++) {
        size_t n_end = strlen(kinds[i].end);
        if (strncasecmp(name, kinds[i].begin, strlen(kinds[i].begin)) == 0 && n >= n_end &&
            strcasecmp(name + n - n_end, kinds[i].end) == 0)
            break;
    }
    return i;
}

static bool begins_as_gguf(const char *path)
{
    char head[4];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool yes = fd >= 0 && read(fd, head, sizeof head) == sizeof head && !memcmp(head, "GGUF", 4);
    if (fd >= 0)
        close(fd);
    return yes;
}

enum q_code folder_refuse_file(const char *path, struct q_err *e)
{
    const char *slash = strrchr(path, '/');
    size_t i = begins_as_gguf(path) ? 0 : kind_of(slash ? slash + 1 : path);
    enum q_code rc;
    if (i == N_KIND || kinds[i].means == IS_IGNORED)
        return q_fail(e, Q_NOT_FOUND,
                      "%s is a file; expected a model folder with config.json, or an id like "
                      "org/name",
                      path);
    if (kinds[i].means == IS_WEIGHTS)
        return q_fail(e, Q_UNSUPPORTED, "%s is %s; %s", path, kinds[i].is, kinds[i].way);
    if ((rc = download_check_file(path, e)))
        return rc;
    const int n_dir = slash && slash > path ? (int)(slash - path) : 1;
    return q_fail(e, Q_NOT_FOUND, "%s is %s; use its folder: %.*s", path, kinds[i].is, n_dir,
                  !slash ? "." : path);
}

/* Content of a folder. */
struct content {
    char example[N_KIND][NAME_MAX + 1]; /* a file name of each kind; "" = none */
    struct buf names;                   /* the first few, of any kind */
    struct buf models;                  /* sub-folders with config.json: the first few */
    struct buf cached;                  /* ids of models--org--name: the first few */
    uint32_t n, n_model, n_cached;
};

static void add_name(struct buf *b, uint32_t *n, const char *name)
{
    if (++*n <= NAMES_SHOWN)
        buf_printf(b, "%s%s", *n > 1 ? ", " : "", name);
    else if (*n == NAMES_SHOWN + 1)
        buf_add_str(b, ", …");
}

/* The last component of a path, without trailing slashes. */
static void last_part(char out[NAME_MAX + 1], const char *path)
{
    size_t n = strlen(path), at;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (at = n; at && path[at - 1] != '/';)
        at--;
    snprintf(out, NAME_MAX + 1, "%.*s", (int)(n - at), path + at);
}

/* "models--org--name" -> "org/name"; false: not such a name. */
static bool cached_id(char out[NAME_MAX + 1], const char *name)
{
    static const char start[] = "models--";
    if (strncmp(name, start, sizeof start - 1) != 0)
        return false;
    const char *org = name + sizeof start - 1, *dashes = strstr(org, "--");
    if (dashes)
        snprintf(out, NAME_MAX + 1, "%.*s/%s", (int)(dashes - org), org, dashes + 2);
    else
        snprintf(out, NAME_MAX + 1, "%s", org);
    return true;
}

static void look_at(struct content *c, const char *dir, const char *name)
{
    char path[PATH_MAX], config[PATH_MAX], id[NAME_MAX + 1];
    if (path_join(path, sizeof path, dir, name, NULL))
        return;
    add_name(&c->names, &c->n, name);
    if (!dir_exists(path)) {
        size_t i = kind_of(name);
        if (i < N_KIND && !*c->example[i])
            snprintf(c->example[i], sizeof c->example[i], "%s", name);
        return;
    }
    if (cached_id(id, name))
        add_name(&c->cached, &c->n_cached, id);
    if (!path_join(config, sizeof config, path, "config.json", NULL) && file_exists(config))
        add_name(&c->models, &c->n_model, name);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void content_release(struct content *c)
{
    buf_release(&c->names);
    buf_release(&c->models);
    buf_release(&c->cached);
}

enum q_code folder_names(char (**names)[NAME_MAX + 1], size_t *n, const char *dir, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t cap = 0;
    DIR *d = access(dir, R_OK | X_OK) == 0 ? opendir(dir) : NULL;
    if (!d && (errno == ENOENT || errno == ENOTDIR))
        return q_fail(e, Q_NOT_FOUND, "%s: no such folder", dir);
    if (!d)
        return q_fail(e, Q_IO, "%s: cannot read the folder: %s", dir, strerror(errno));
    for (const struct dirent *x; !rc && *n < NAMES_SEEN && (x = readdir(d));) {
        if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, ".."))
            continue;
        if (!(rc = q_grow(names, &cap, *n + 1, sizeof **names, NAMES_SEEN, e)))
            snprintf((*names)[(*n)++], sizeof **names, "%s", x->d_name);
    }
    closedir(d);
    if (*n)
        qsort(*names, *n, sizeof **names, by_bytes);
    return rc;
}

/* Errors: Q_IO, Q_NO_MEMORY. */
static enum q_code content_read(struct content *c, const char *dir, struct q_err *e)
{
    char(*names)[NAME_MAX + 1] = NULL;
    size_t n = 0;
    enum q_code rc = folder_names(&names, &n, dir, e);
    for (size_t i = 0; i < n && !rc; i++)
        look_at(c, dir, names[i]);
    q_free(names);
    return rc;
}

static bool has(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return !path_join(path, sizeof path, dir, name, NULL) && file_exists(path);
}

static enum q_code check_link(const char *dir, const char *name, struct q_err *e)
{
    char path[PATH_MAX];
    enum q_code rc = path_join(path, sizeof path, dir, name, e);
    return rc ? rc : download_check_link(path, e);
}

static enum q_code refuse_adapter(const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    const char *base = NULL;
    json_t *root = NULL;
    enum q_code rc = path_join(path, sizeof path, dir, "adapter_config.json", e);
    if (rc || (rc = hub_json_load(&root, path, e)))
        return rc;
    base = json_string_value(json_object_get(root, "base_model_name_or_path"));
    rc = q_fail(e, Q_UNSUPPORTED, "%s is a LoRA adapter, not a model%s%s; " ADAPTER_WAY, dir,
                base ? ": its base model is " : "", base ? base : "");
    json_decref(root);
    return rc;
}

/* The first kind of weights in the folder; N_KIND = none. */
static size_t first_weights(const struct content *c)
{
    for (size_t i = 0; i < N_KIND; i++)
        if (*c->example[i] && kinds[i].means == IS_WEIGHTS)
            return i;
    return N_KIND;
}

/* A safetensors file that is no adapter and not Mistral's; NULL = none. */
static const char *safetensors_in(const struct content *c)
{
    for (size_t i = 0; i < N_KIND; i++)
        if (*c->example[i] && !strcmp(kinds[i].end, ".safetensors") && kinds[i].means == IS_PART)
            return c->example[i];
    return NULL;
}

static enum q_code refuse_content(const struct content *c, const char *dir, struct q_err *e)
{
    const char *weights = safetensors_in(c);
    char id[NAME_MAX + 1], base[NAME_MAX + 1];
    size_t i = first_weights(c);
    last_part(base, dir);
    if (c->n == 0)
        return q_fail(e, Q_NOT_FOUND,
                      "%s is an empty folder; expected a model folder with config.json", dir);
    if (cached_id(id, base))
        return q_fail(e, Q_NOT_FOUND,
                      "%s is a folder of the Hugging Face cache; use the model id %s, or a folder "
                      "in its snapshots/",
                      dir, id);
    if (c->n_cached)
        return q_fail(e, Q_NOT_FOUND,
                      "%s is a Hugging Face cache; use the id of one of its models: %s", dir,
                      buf_str(&c->cached));
    if (i < N_KIND && !weights)
        return q_fail(e, Q_UNSUPPORTED, "%s has no config.json; it contains %s (%s); %s", dir,
                      kinds[i].is, c->example[i], kinds[i].way);
    if (c->n_model)
        return q_fail(e, Q_NOT_FOUND, "%s has no config.json; use one of its model folders: %s",
                      dir, buf_str(&c->models));
    if (weights)
        return q_fail(e, Q_NOT_FOUND,
                      "%s has weights (%s) and no config.json: the model is incomplete, download "
                      "it with `hf download`",
                      dir, weights);
    return q_fail(e, Q_NOT_FOUND,
                  "%s is not a model folder: it has no config.json; its files are: %s", dir,
                  buf_str(&c->names));
}

enum q_code folder_refuse(const char *dir, struct q_err *e)
{
    struct content c = {.names = BUF_INIT, .models = BUF_INIT, .cached = BUF_INIT};
    enum q_code rc = content_read(&c, dir, e);
    if (!rc)
        rc = check_link(dir, "config.json", e);
    if (!rc && has(dir, "adapter_config.json"))
        rc = refuse_adapter(dir, e);
    else if (!rc && has(dir, "model_index.json"))
        rc = q_fail(e, Q_UNSUPPORTED,
                    "%s is a diffusers pipeline for images (model_index.json); quire serves "
                    "language models",
                    dir);
    else if (!rc)
        rc = refuse_content(&c, dir, e);
    content_release(&c);
    return rc;
}

enum q_code folder_refuse_weights(const char *dir, struct q_err *e)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    struct content c = {.names = BUF_INIT, .models = BUF_INIT, .cached = BUF_INIT};
    enum q_code rc = content_read(&c, dir, e);
    for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++)
        rc = check_link(dir, names[i], e);
    size_t i = first_weights(&c);
    if (!rc && has(dir, "adapter_config.json"))
        rc = refuse_adapter(dir, e);
    else if (!rc && i < N_KIND)
        rc = q_fail(e, Q_UNSUPPORTED, "%s: no model.safetensors; the weights are %s (%s); %s", dir,
                    kinds[i].is, c.example[i], kinds[i].way);
    else if (!rc)
        rc =
            q_fail(e, Q_NOT_FOUND,
                   "%s: neither model.safetensors nor another *.safetensors exists: the folder has "
                   "no weights; its files are: %s",
                   dir, buf_str(&c.names));
    content_release(&c);
    return rc;
}

enum q_code folder_check_text(const char *dir, bool with_template, struct q_err *e)
{
    enum { N_TEMPLATE = 3 };
    static const char *const names[] = {
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates/tool_use.jinja",
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
    };
    char path[PATH_MAX];
    enum q_code rc = Q_OK;
    for (size_t i = with_template ? 0 : N_TEMPLATE; !rc && i < sizeof names / sizeof *names; i++)
        if (!(rc = path_join(path, sizeof path, dir, names[i], e)))
            rc = file_exists(path) ? download_check_file(path, e) : download_check_link(path, e);
    return rc;
}
