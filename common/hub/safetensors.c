/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of all files are in one list sorted by name. In a sharded model the index decides: a
 * tensor counts only if the index lists it for the shard that contains it, so an outdated copy in
 * another shard cannot replace it. */
#include "common/hub/safetensors.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/download.h"
#include "common/file.h"
#include "common/hub/gguf_tensors.h"
#include "common/hub/hub_json.h"
#include "common/hub/loose_files.h"
#include "common/hub/safetensors_internal.h"
#include "common/hub/torch_file.h"
#include "common/mem.h"

#define SHARDS_MAX      4096u
#define NAMES_BYTES_MAX ((size_t)1 << 30)

struct shard {
    struct mapping map;
    struct file_stamp stamp;
    const char *path; /* in the set's arena */
    const char *name; /* path's last component */
};

struct tensor_set {
    struct tensor_list list; /* sorted by name once open */
    struct shard *shards;    /* [n_shard] */
    size_t n_shard, shard_cap;
    struct torch_copies copies;
    struct arena names;
    enum weight_format format;
    bool is_torch;     /* its files */
    const char *found; /* name of the file that was found; static, or in the arena */
};

static int by_name(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->file, y->file);
}

static enum q_code set_new(struct tensor_set **out, struct q_err *e)
{
    struct tensor_set *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "out of memory opening weights");
    s->names = (struct arena)ARENA_INIT(NAMES_BYTES_MAX);
    s->format = WEIGHTS_SAFETENSORS;
    s->found = "";
    *out = s;
    return Q_OK;
}

void tensor_set_free(struct tensor_set *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_shard; i++)
        mapping_release(&s->shards[i].map);
    torch_copies_release(&s->copies);
    q_free(s->shards);
    q_free(s->list.items);
    arena_release(&s->names);
    q_free(s);
}

void tensor_set_drop_pages(const struct tensor_set *s)
{
    for (size_t i = 0; i < s->n_shard; i++)
        if (s->shards[i].map.data)
            (void)madvise((void *)(uintptr_t)s->shards[i].map.data, s->shards[i].map.size,
                          MADV_DONTNEED);
}

/* The complete pages within the n bytes at data. */
static void advise(const void *data, size_t n, int advice)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)data + n) / page * page;
    if (start < end)
        (void)madvise((void *)start, end - start, advice); /* a wish */
}

void tensor_drop(const void *data, size_t n)
{
    advise(data, n, MADV_DONTNEED);
}

void tensor_want(const void *data, size_t n)
{
#ifdef MADV_POPULATE_READ /* since Linux 5.14; without it the pages are read one fault at a time */
    advise(data, n, MADV_POPULATE_READ);
#else
    advise(data, n, MADV_WILLNEED);
#endif
}

uint32_t tensor_set_n_file(const struct tensor_set *s)
{
    return (uint32_t)s->n_shard;
}

const struct file_stamp *tensor_set_stamp(const struct tensor_set *s, uint32_t i)
{
    return &s->shards[i].stamp;
}

bool tensor_set_unchanged(const struct tensor_set *s)
{
    struct file_stamp now;
    for (size_t i = 0; i < s->n_shard; i++)
        if (!file_stamp(&now, s->shards[i].path) ||
            memcmp(&now, &s->shards[i].stamp, sizeof now) != 0)
            return false;
    return true;
}

/* Maps one file and appends its tensors. */
static enum q_code add_file(struct tensor_set *s, const char *path, struct q_err *e)
{
    enum q_code rc =
        q_grow(&s->shards, &s->shard_cap, s->n_shard + 1, sizeof *s->shards, SHARDS_MAX, e);
    if (rc)
        return rc;
    struct shard *shard = &s->shards[s->n_shard];
    *shard = (struct shard){.path = arena_strndup(&s->names, path, strlen(path))};
    if (!shard->path)
        return q_fail(e, Q_NO_MEMORY, "out of memory opening %s", path);
    const char *slash = strrchr(shard->path, '/');
    shard->name = slash ? slash + 1 : shard->path;
    if ((rc = mapping_open_stamped(&shard->map, &shard->stamp, path, e)))
        return rc;
    s->n_shard++;
    if ((rc = download_check(shard->map.data, shard->map.size, path, e)))
        return rc;
    if (s->format == WEIGHTS_GGUF)
        return gguf_tensors_read(
            &s->list, &s->names,
            &(struct gguf_bytes){shard->map.data, shard->map.size, shard->path}, e);
    if (s->is_torch) {
        const struct torch_file t = {shard->map.data, shard->map.size, shard->path};
        return torch_file_read(&s->list, &s->copies, &s->names, &t, e);
    }
    struct safetensors_file f = {shard->map.data, shard->map.size, shard->path};
    return safetensors_header_read(&s->list, &s->names, &f, e);
}

/* Shard names come from a file: a shard must be inside the model folder. */
static bool is_plain_name(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/');
}

static const struct shard *find_shard(const struct tensor_set *s, const char *name)
{
    for (size_t i = 0; i < s->n_shard; i++)
        if (strcmp(s->shards[i].name, name) == 0)
            return &s->shards[i];
    return NULL;
}

static enum q_code add_shards(struct tensor_set *s, const char *dir, json_t *map,
                              const char *index_path, struct q_err *e)
{
    char path[PATH_MAX];
    enum q_code rc = Q_OK;
    for (void *it = json_object_iter(map); it && !rc; it = json_object_iter_next(map, it)) {
        const char *name = json_string_value(json_object_iter_value(it));
        if (!name || !is_plain_name(name))
            return q_fail(e, Q_CORRUPT,
                          "%s: weight_map of %s is not the name of a file in the folder",
                          index_path, json_object_iter_key(it));
        if (find_shard(s, name))
            continue;
        if ((rc = path_join(path, sizeof path, dir, name, e)))
            break;
        rc = add_file(s, path, e);
        if (rc == Q_NOT_FOUND)
            rc = q_fail(e, Q_NOT_FOUND, "%s: the shard %s is missing", index_path, name);
    }
    return rc;
}

/* Keep the tensors that the index lists for their shard. Errors: a listed tensor is missing. */
static enum q_code keep_indexed(struct tensor_set *s, json_t *map, const char *index_path,
                                struct q_err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < s->list.n; i++) {
        const struct tensor *t = &s->list.items[i];
        const char *file = json_string_value(json_object_get(map, t->name));
        const char *slash = strrchr(t->file, '/');
        if (file && strcmp(file, slash ? slash + 1 : t->file) == 0)
            s->list.items[n++] = *t;
    }
    s->list.n = n;
    if (n)
        qsort(s->list.items, n, sizeof *s->list.items, by_name);
    for (void *it = json_object_iter(map); it; it = json_object_iter_next(map, it))
        if (!tensor_find(s, json_object_iter_key(it)))
            return q_fail(e, Q_CORRUPT, "%s: maps %s to %.40s, but this file does not contain it",
                          index_path, json_object_iter_key(it),
                          json_string_value(json_object_iter_value(it)));
    return Q_OK;
}

/* The format of safetensors forbids two of one name within a file, that of torch does not; and
 * files without an index may be copies of one model. */
static enum q_code check_names(const struct tensor_set *s, struct q_err *e)
{
    for (size_t i = 0; i + 1 < s->list.n; i++) {
        const struct tensor *a = &s->list.items[i], *b = a + 1;
        if (strcmp(a->name, b->name) != 0)
            continue;
        if (!strcmp(a->file, b->file))
            return q_fail(e, Q_CORRUPT, "%s: two tensors have the name %s", a->file, a->name);
        const char *slash = strrchr(b->file, '/');
        return q_fail(e, Q_CORRUPT,
                      "%s and %s: both have the tensor %s; keep the files of one model in the "
                      "folder, or write an index of its shards",
                      a->file, slash ? slash + 1 : b->file, a->name);
    }
    return Q_OK;
}

static enum q_code open_index(struct tensor_set *s, const char *dir, const char *index_path,
                              struct q_err *e)
{
    json_t *root = NULL;
    enum q_code rc = hub_json_load(&root, index_path, e);
    if (rc)
        return rc;
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        rc = q_fail(e, Q_CORRUPT,
                    "%s: weight_map is %s, expected an object of tensor names and file names",
                    index_path, json_is_object(map) ? "empty" : hub_json_kind(map));
    if (!rc)
        rc = add_shards(s, dir, map, index_path, e);
    if (!rc && !(rc = keep_indexed(s, map, index_path, e)))
        rc = check_names(s, e);
    json_decref(root);
    return rc;
}

static enum q_code open_single(struct tensor_set *s, const char *path, struct q_err *e)
{
    enum q_code rc = add_file(s, path, e);
    if (!rc && s->list.n)
        qsort(s->list.items, s->list.n, sizeof *s->list.items, by_name);
    return rc ? rc : check_names(s, e);
}

/* All *.safetensors of the folder. */
static enum q_code open_loose(struct tensor_set *s, const char *dir, struct q_err *e)
{
    struct loose_files l = LOOSE_FILES_INIT;
    char path[PATH_MAX];
    enum q_code rc = loose_files_list(&l, dir, e);
    for (size_t i = 0; i < l.n && !rc; i++)
        if (!(rc = path_join(path, sizeof path, dir, l.names[i], e)))
            rc = add_file(s, path, e);
    if (!rc && l.n == 1 && !(s->found = arena_strndup(&s->names, l.names[0], strlen(l.names[0]))))
        rc = q_fail(e, Q_NO_MEMORY, "out of memory opening %s", dir);
    if (!rc && s->list.n)
        qsort(s->list.items, s->list.n, sizeof *s->list.items, by_name);
    loose_files_release(&l);
    return rc ? rc : check_names(s, e);
}

/* A GGUF file, or all that it is split into. */
static enum q_code open_gguf(struct tensor_set *s, const char *path, struct q_err *e)
{
    char each[PATH_MAX];
    uint32_t number = 1, count = 1;
    const bool is_split = gguf_file_split(&number, &count, path);
    enum q_code rc = number == 1 ? Q_OK : gguf_file_split_path(each, path, 1, e);
    if (!rc && number != 1)
        rc = q_fail(e, Q_INVALID, "%s is file %u of %u of a model; use the first: %s", path, number,
                    count, each);
    if (!rc && !is_split)
        return open_single(s, path, e);
    for (uint32_t i = 1; i <= count && !rc; i++) {
        if ((rc = gguf_file_split_path(each, path, i, e)) || (rc = add_file(s, each, e)))
            rc = rc == Q_NOT_FOUND ? gguf_tensors_fail_split(each, count, e) : rc;
    }
    if (!rc && s->list.n)
        qsort(s->list.items, s->list.n, sizeof *s->list.items, by_name);
    return rc ? rc : check_names(s, e);
}

enum q_code tensor_set_open_as(struct tensor_set **out, const char *dir, enum weight_format format,
                               struct q_err *e)
{
    struct weight_files files;
    struct tensor_set *s = NULL;
    enum q_code rc;
    if ((rc = weight_files_find(&files, dir, format, e)) || (rc = set_new(&s, e)))
        return rc;
    s->format = files.format;
    s->is_torch = files.is_torch;
    s->found = files.name;
    if (files.format == WEIGHTS_GGUF) {
        const char *slash = strrchr(files.path, '/'), *name = slash ? slash + 1 : files.path;
        s->found = arena_strndup(&s->names, name, strlen(name));
        rc = s->found ? open_gguf(s, files.path, e)
                      : q_fail(e, Q_NO_MEMORY, "out of memory opening %s", files.path);
    } else if (files.is_loose)
        rc = open_loose(s, dir, e);
    else
        rc = files.is_index ? open_index(s, dir, files.path, e) : open_single(s, files.path, e);
    if (rc)
        tensor_set_free(s);
    else
        *out = s;
    return rc;
}

enum q_code tensor_set_open(struct tensor_set **out, const char *dir, struct q_err *e)
{
    return tensor_set_open_as(out, dir, WEIGHTS_AUTO, e);
}

enum weight_format tensor_set_format(const struct tensor_set *s)
{
    return s->format;
}

const char *tensor_set_found(const struct tensor_set *s)
{
    return s->found;
}

enum q_code tensor_set_open_file(struct tensor_set **out, const char *path, struct q_err *e)
{
    struct tensor_set *s = NULL;
    enum q_code rc = set_new(&s, e);
    const size_t n = strlen(path);
    if (rc)
        return rc;
    s->is_torch = n > 4 && !strcmp(path + n - 4, ".bin");
    rc = open_single(s, path, e);
    if (rc)
        tensor_set_free(s);
    else
        *out = s;
    return rc;
}

enum q_code tensor_set_replace(struct tensor_set *s, const struct tensor *items, size_t n,
                               struct q_err *e)
{
    struct tensor *more = q_calloc(n + 1, sizeof *more);
    if (!more)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        more[i] = items[i];
        more[i].name = arena_strndup(&s->names, items[i].name, strlen(items[i].name));
        if (!more[i].name) {
            q_free(more);
            return q_fail(e, Q_NO_MEMORY, "out of memory for names of tensors");
        }
    }
    if (n)
        qsort(more, n, sizeof *more, by_name);
    for (size_t i = 0; i + 1 < n; i++)
        if (strcmp(more[i].name, more[i + 1].name) == 0) {
            const enum q_code rc = q_fail(e, Q_CORRUPT, "%s: two tensors have the name %s",
                                          more[i].file, more[i].name);
            q_free(more);
            return rc;
        }
    q_free(s->list.items);
    s->list.items = more;
    s->list.n = s->list.cap = n;
    return Q_OK;
}

const struct tensor *tensor_find(const struct tensor_set *s, const char *name)
{
    size_t low = 0, high = s->list.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(s->list.items[mid].name, name);
        if (order == 0)
            return &s->list.items[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

uint32_t tensor_count(const struct tensor_set *s)
{
    return (uint32_t)s->list.n;
}

const struct tensor *tensor_at(const struct tensor_set *s, uint32_t i)
{
    return &s->list.items[i];
}
