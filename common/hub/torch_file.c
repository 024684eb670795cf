/* SPDX-License-Identifier: Apache-2.0 */
/* Both formats have the same pickle and differ in where a storage's bytes are: `struct reader`
 * knows either an archive or a list of keys. */
#include "common/hub/torch_file.h"
#include <stdlib.h>
#include <string.h>
#include "common/hub/pickle.h"
#include "common/hub/torch_copy.h"
#include "common/hub/zip.h"
#include "common/utf8.h"

#define NAME_MAX_BYTES  512u /* of a tensor; longer than any that a family has */
#define KEYS_SHOWN      5u
#define LEGACY_PROTOCOL 1001

/* The number 0x1950a86a20f9469cfc6c in a pickle, and what is before it: the protocol, and, from 4
 * on, the length of a frame. */
static const unsigned char legacy_magic[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9,
                                             0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};
#define PICKLE_PROTO 0x80
#define PICKLE_FRAME 0x95

struct legacy_storage {
    struct pickle_text key;
    enum dtype dtype;
    uint64_t n; /* elements */
    struct zip_bytes bytes;
};

struct reader {
    const struct torch_file *f;
    struct zip zip;
    const char *folder; /* of the archive's entries, with its slash; borrowed from the mapping */
    size_t n_folder;
    bool is_legacy;
    struct legacy_storage *storages; /* [n_storage], sorted by key */
    size_t n_storage, storage_cap;
    struct arena values;
    struct arena *names;
    struct torch_copies *copies;
    struct q_err *e;
};

static enum q_code bad(const struct reader *r, const char *reason)
{
    return q_fail(r->e, Q_CORRUPT, "%s: %s", r->f->path, reason);
}

static enum q_code read_pickle(const struct pickle_value **out, size_t *n_used, struct reader *r,
                               const struct zip_bytes *at)
{
    const struct pickle_source s = {at->data, at->n, r->f->path};
    if (at->n > PICKLE_BYTES_MAX && !r->is_legacy)
        return q_fail(r->e, Q_TOO_LARGE, "%s: its pickle has %llu bytes, expected at most %zu",
                      r->f->path, (unsigned long long)at->n, PICKLE_BYTES_MAX);
    return pickle_read(out, n_used, &r->values, &s, r->e);
}

/* ---- the archive ---- */

static bool ends_with(const struct zip_entry *entry, const char *end)
{
    const size_t n = strlen(end);
    return entry->n_name >= n && memcmp(entry->name + entry->n_name - n, end, n) == 0;
}

/* The folder with data.pkl, of which there is one. */
static enum q_code find_folder(struct reader *r)
{
    static const char file[] = "/data.pkl";
    const struct zip_entry *found = NULL;
    for (size_t i = 0; i < r->zip.n; i++) {
        const struct zip_entry *entry = &r->zip.items[i];
        if (!ends_with(entry, file) ||
            memchr(entry->name, '/', entry->n_name - sizeof file + 1) != NULL)
            continue;
        if (found)
            return bad(r, "an archive with two data.pkl");
        found = entry;
    }
    if (!found)
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: a zip archive without NAME/data.pkl: not a file that torch.save wrote",
                      r->f->path);
    r->folder = found->name;
    r->n_folder = found->n_name - sizeof file + 2;
    return Q_OK;
}

/* The entry `name` in the archive's folder; NULL: there is none. */
static const struct zip_entry *find_entry(const struct reader *r, const char *name,
                                          const struct pickle_text *more)
{
    char full[NAME_MAX_BYTES];
    const size_t n = strlen(name);
    if (r->n_folder + n + more->n >= sizeof full)
        return NULL;
    memcpy(full, r->folder, r->n_folder);
    memcpy(full + r->n_folder, name, n + 1);
    if (more->n)
        memcpy(full + r->n_folder + n, more->data, more->n);
    return zip_find(&r->zip, full, r->n_folder + n + more->n);
}

static enum q_code check_byte_order(const struct reader *r)
{
    struct zip_bytes text;
    const struct zip_entry *entry = find_entry(r, "byteorder", &(struct pickle_text){NULL, 0});
    const enum q_code rc = entry ? zip_bytes(&text, &r->zip, entry, r->e) : Q_OK;
    if (rc || !entry)
        return rc;
    if (text.n == 6 && memcmp(text.data, "little", 6) == 0)
        return Q_OK;
    return q_fail(r->e, Q_UNSUPPORTED,
                  "%s: its byteorder is not \"little\": load it and save it again on a "
                  "little-endian machine",
                  r->f->path);
}

static enum q_code open_archive(const struct pickle_value **dict, struct reader *r)
{
    const struct pickle_text none = {NULL, 0};
    struct zip_bytes text;
    enum q_code rc;
    if ((rc = zip_open(&r->zip, r->f->data, r->f->size, r->f->path, r->e)) ||
        (rc = find_folder(r)) || (rc = check_byte_order(r)))
        return rc;
    if (find_entry(r, "constants.pkl", &none))
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: a TorchScript archive, which is a program; save the model's state_dict "
                      "instead",
                      r->f->path);
    rc = zip_bytes(&text, &r->zip, find_entry(r, "data.pkl", &none), r->e);
    return rc ? rc : read_pickle(dict, NULL, r, &text);
}

static enum q_code archive_bytes(struct zip_bytes *out, const struct reader *r,
                                 const struct pickle_storage *s)
{
    const struct zip_entry *entry = find_entry(r, "data/", &s->key);
    if (!entry)
        return q_fail(r->e, Q_CORRUPT, "%s: the storage data/%.*s is missing", r->f->path,
                      s->key.n < 40 ? (int)s->key.n : 40, s->key.data);
    return zip_bytes(out, &r->zip, entry, r->e);
}

/* ---- the format before it ---- */

static int compare_texts(const struct pickle_text *a, const struct pickle_text *b)
{
    const size_t n = a->n < b->n ? a->n : b->n;
    const int order = n ? memcmp(a->data, b->data, n) : 0;
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

static int by_key(const void *a, const void *b)
{
    return compare_texts(&((const struct legacy_storage *)a)->key,
                         &((const struct legacy_storage *)b)->key);
}

static struct legacy_storage *find_storage(const struct reader *r, const struct pickle_text *key)
{
    const struct legacy_storage like = {.key = *key};
    return r->n_storage ? bsearch(&like, r->storages, r->n_storage, sizeof like, by_key) : NULL;
}

/* The storages that the tensors name: each once. */
static enum q_code list_storages(struct reader *r, const struct pickle_value *dict)
{
    const struct pickle_items *items = &dict->is.items;
    enum q_code rc = q_grow(&r->storages, &r->storage_cap, items->n / 2 + 1, sizeof *r->storages,
                            TENSOR_LIST_MAX, r->e);
    size_t n = 0;
    for (size_t i = 1; i < items->n && !rc; i += 2)
        if (items->at[i]->kind == PICKLE_TENSOR) {
            const struct pickle_storage *s = items->at[i]->is.tensor->storage;
            r->storages[r->n_storage++] = (struct legacy_storage){s->key, s->dtype, s->n, {0}};
        }
    if (rc || !r->n_storage)
        return rc;
    qsort(r->storages, r->n_storage, sizeof *r->storages, by_key);
    for (size_t i = 0; i < r->n_storage; i++)
        if (!n || by_key(&r->storages[n - 1], &r->storages[i]) != 0)
            r->storages[n++] = r->storages[i];
        else if (r->storages[n - 1].dtype != r->storages[i].dtype ||
                 r->storages[n - 1].n != r->storages[i].n)
            return bad(r, "a storage has two types or two sizes");
    r->n_storage = n;
    return Q_OK;
}

/* The storages' bytes, in the order of the keys. A storage that no tensor names has a size that is
 * not known: behind it nothing could be found. */
static enum q_code place_storages(struct reader *r, const struct pickle_value *keys, size_t at)
{
    if (keys->kind != PICKLE_LIST)
        return bad(r, "the keys of its storages are no list");
    for (size_t i = 0; i < keys->is.items.n; i++) {
        const struct pickle_value *key = keys->is.items.at[i];
        struct legacy_storage *s = key->kind == PICKLE_TEXT ? find_storage(r, &key->is.text) : NULL;
        uint64_t n = 0;
        if (!s || s->bytes.data)
            return bad(r, "a key of its storages is none of a tensor, or is there twice");
        if (r->f->size - at < sizeof n)
            return bad(r, "the file ends before its storages: it is truncated");
        memcpy(&n, r->f->data + at, sizeof n);
        at += sizeof n;
        const uint64_t element = dtype_bits(s->dtype) / 8;
        if (n != s->n || n > (r->f->size - at) / element)
            return bad(r, "a storage ends outside of the file, or has another size than its "
                          "tensors say: the file is truncated");
        s->bytes = (struct zip_bytes){r->f->data + at, n * element};
        at += n * element;
    }
    return Q_OK;
}

static bool is_little(const struct pickle_value *system)
{
    for (size_t i = 0; system->kind == PICKLE_DICT && i + 1 < system->is.items.n; i += 2)
        if (pickle_text_is(system->is.items.at[i], "little_endian"))
            return system->is.items.at[i + 1]->kind != PICKLE_BOOL ||
                   system->is.items.at[i + 1]->is.number == 1;
    return true;
}

/* Bytes of the pickle that such a file begins with; 0: it is none. */
static size_t legacy_begin(const unsigned char *data, size_t n)
{
    const bool framed = n > 2 && data[1] >= 4 && data[2] == PICKLE_FRAME;
    const size_t before = framed ? 2 + 1 + sizeof(uint64_t) : 2, all = before + sizeof legacy_magic;
    return n >= all && data[0] == PICKLE_PROTO && data[1] >= 2 &&
                   memcmp(data + before, legacy_magic, sizeof legacy_magic) == 0
               ? all
               : 0;
}

static enum q_code open_legacy(const struct pickle_value **dict, struct reader *r)
{
    enum { VERSION, SYSTEM, TENSORS, KEYS, N_PICKLE };
    const struct pickle_value *values[N_PICKLE] = {NULL};
    size_t at = legacy_begin(r->f->data, r->f->size);
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < N_PICKLE && !rc; i++) {
        const size_t left = r->f->size - at;
        const struct zip_bytes text = {r->f->data + at,
                                       left < PICKLE_BYTES_MAX ? left : PICKLE_BYTES_MAX};
        size_t n = 0;
        rc = read_pickle(&values[i], &n, r, &text);
        at += n;
    }
    if (rc)
        return rc;
    if (values[VERSION]->kind != PICKLE_INT || values[VERSION]->is.number != LEGACY_PROTOCOL)
        return bad(r, "the version of its format is not 1001");
    if (!is_little(values[SYSTEM]))
        return q_fail(r->e, Q_UNSUPPORTED, "%s: written by a big-endian machine", r->f->path);
    if (values[TENSORS]->kind == PICKLE_DICT &&
        ((rc = list_storages(r, values[TENSORS])) || (rc = place_storages(r, values[KEYS], at))))
        return rc;
    *dict = values[TENSORS];
    return Q_OK;
}

static enum q_code legacy_bytes(struct zip_bytes *out, const struct reader *r,
                                const struct pickle_storage *s)
{
    const struct legacy_storage *found = find_storage(r, &s->key);
    if (!found || !found->bytes.data)
        return bad(r, "the list of its storages has not those of all tensors");
    *out = found->bytes;
    return Q_OK;
}

/* ---- tensors ---- */

static enum q_code storage_bytes(struct zip_bytes *out, const struct reader *r, const char *name,
                                 const struct pickle_storage *s)
{
    uint64_t wanted;
    const enum q_code rc = r->is_legacy ? legacy_bytes(out, r, s) : archive_bytes(out, r, s);
    if (rc)
        return rc;
    if (!__builtin_mul_overflow(s->n, dtype_bits(s->dtype) / 8, &wanted) && wanted == out->n)
        return Q_OK;
    return q_fail(r->e, Q_CORRUPT,
                  "%s: tensor %s: its storage is to have %llu elements of %s, and has %llu bytes",
                  r->f->path, name, (unsigned long long)s->n, dtype_name(s->dtype),
                  (unsigned long long)out->n);
}

/* A name is text without control characters. */
static enum q_code read_name(const char **out, const struct reader *r, const struct pickle_text *t)
{
    bool is_plain = t->n > 0 && t->n <= NAME_MAX_BYTES && utf8_valid(t->data, t->n);
    for (size_t i = 0; is_plain && i < t->n; i++)
        is_plain = (unsigned char)t->data[i] >= ' ' && t->data[i] != 0x7f;
    if (!is_plain)
        return bad(r, "the name of a tensor is empty, too long, or no text");
    *out = arena_strndup(r->names, t->data, t->n);
    return *out ? Q_OK
                : q_fail(r->e, Q_NO_MEMORY, "%s: out of memory for tensor names", r->f->path);
}

static enum q_code read_tensor(struct tensor *out, const struct reader *r, const char *name,
                               const struct pickle_tensor *t)
{
    struct zip_bytes bytes;
    struct torch_view view = {.element = dtype_bits(t->dtype) / 8};
    enum q_code rc = storage_bytes(&bytes, r, name, t->storage);
    if (rc)
        return rc;
    *out = (struct tensor){
        .name = name,
        .file = r->f->path,
        .dtype = t->dtype,
        .n_dim = t->n_dim,
    };
    memcpy(out->shape, t->shape, sizeof out->shape);
    if (!torch_view_fits(&view, t, bytes.n))
        return q_fail(r->e, Q_CORRUPT,
                      "%s: tensor %s: offset, shape and strides lead outside of its storage of "
                      "%llu bytes",
                      r->f->path, name, (unsigned long long)bytes.n);
    out->n_bytes = view.n_bytes;
    out->data = bytes.data + view.first;
    if (view.is_contiguous)
        return Q_OK;
    if (view.n_bytes > bytes.n || view.n_bytes > r->f->size - r->copies->n_bytes)
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: tensor %s repeats elements of its storage (an expanded view); save it "
                      "with .contiguous()",
                      r->f->path, name);
    return torch_copy(&out->data, r->copies, t, &view, r->e);
}

/* Errors: no tensor in it; with the keys that are there. */
static enum q_code fail_no_tensor(const struct reader *r, const struct pickle_value *dict)
{
    struct buf keys = BUF_INIT;
    uint32_t n = 0;
    for (size_t i = 0; dict->kind == PICKLE_DICT && i < dict->is.items.n && n < KEYS_SHOWN;
         i += 2) {
        const char *name = NULL;
        const struct pickle_value *key = dict->is.items.at[i];
        if (key->kind == PICKLE_TEXT && !read_name(&name, r, &key->is.text))
            buf_printf(&keys, "%s%.60s", n++ ? ", " : ": ", name);
    }
    const enum q_code rc =
        q_fail(r->e, Q_UNSUPPORTED,
               "%s: its pickle is %s without tensors%s; expected a dict of names and tensors, as "
               "torch.save(model.state_dict(), FILE) writes it",
               r->f->path, pickle_kind_name(dict->kind), buf_str(&keys));
    buf_release(&keys);
    return rc;
}

static enum q_code read_dict(struct tensor_list *out, const struct reader *r,
                             const struct pickle_value *dict)
{
    const size_t n_before = out->n;
    const struct pickle_items *items = &dict->is.items;
    if (dict->kind != PICKLE_DICT)
        return fail_no_tensor(r, dict);
    enum q_code rc = q_grow(&out->items, &out->cap, out->n + items->n / 2, sizeof *out->items,
                            TENSOR_LIST_MAX, r->e);
    for (size_t i = 0; i + 1 < items->n && !rc; i += 2) {
        const char *name = NULL;
        if (items->at[i + 1]->kind != PICKLE_TENSOR)
            continue;
        if (items->at[i]->kind != PICKLE_TEXT)
            rc = bad(r, "the name of a tensor is no text");
        else if (!(rc = read_name(&name, r, &items->at[i]->is.text)))
            rc = read_tensor(&out->items[out->n], r, name, items->at[i + 1]->is.tensor);
        out->n += !rc;
    }
    return rc || out->n > n_before ? rc : fail_no_tensor(r, dict);
}

bool torch_file_is(const void *data, size_t n)
{
    return zip_is(data, n) || legacy_begin(data, n) > 0;
}

enum q_code torch_file_read(struct tensor_list *out, struct torch_copies *copies,
                            struct arena *names, const struct torch_file *f, struct q_err *e)
{
    const size_t n_before = out->n;
    const struct pickle_value *dict = NULL;
    struct reader r = {
        .f = f,
        .is_legacy = !zip_is(f->data, f->size),
        .values = ARENA_INIT(PICKLE_VALUES_MAX),
        .names = names,
        .copies = copies,
        .e = e,
    };
    enum q_code rc = Q_OK;
    copies->n_bytes = 0;
    if (!torch_file_is(f->data, f->size))
        rc = q_fail(e, Q_UNSUPPORTED,
                    "%s: not a file that torch.save wrote: neither a zip archive nor its older "
                    "format",
                    f->path);
    if (!rc)
        rc = r.is_legacy ? open_legacy(&dict, &r) : open_archive(&dict, &r);
    if (!rc)
        rc = read_dict(out, &r, dict);
    if (rc)
        out->n = n_before;
    zip_release(&r.zip);
    q_free(r.storages);
    arena_release(&r.values);
    return rc;
}
