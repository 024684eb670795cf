/* SPDX-License-Identifier: Apache-2.0 */
/* Files of torch.save of arbitrary bytes: refused, or every tensor lies wholly inside the file, or
 * in a copy that is no larger. The input is tried as the whole file, and as the pickle of an
 * archive with the storages 0 to 3 and of a file of the older format, so that the fuzzer gets past
 * zip headers at once. */
#include <string.h>
#include "common/buf.h"
#include "common/hub/pickle.h"
#include "common/hub/torch_file.h"

#define N_STORAGE     4u
#define STORAGE_BYTES 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static bool is_within(const unsigned char *at, uint64_t n, const void *whole, size_t n_whole)
{
    const unsigned char *start = whole;
    return at >= start && n <= n_whole && (size_t)(at - start) <= n_whole - n;
}

/* Reads every byte of a tensor, so that a wrong place is noticed by the sanitizer too. */
static void read_all(const struct tensor *t)
{
    volatile unsigned char byte;
    for (uint64_t i = 0; i < t->n_bytes; i++) {
        byte = ((const unsigned char *)t->data)[i];
        (void)byte;
    }
}

static void check_file(const unsigned char *data, size_t n)
{
    struct tensor_list list = {0};
    struct torch_copies copies = {0};
    struct arena names = ARENA_INIT(1u << 20);
    struct q_err e = Q_ERR_INIT;
    const struct torch_file f = {data, n, "fuzz.bin"};
    const enum q_code rc = torch_file_read(&list, &copies, &names, &f, &e);
    Q_ASSERT(rc == e.code && (rc == Q_OK || list.n == 0));
    Q_ASSERT(copies.n_bytes <= n);
    for (size_t i = 0; i < list.n; i++) {
        const struct tensor *t = &list.items[i];
        bool found = is_within(t->data, t->n_bytes, data, n);
        for (size_t k = 0; k < copies.n; k++)
            found =
                found || is_within(t->data, t->n_bytes, copies.items[k].data, copies.items[k].size);
        Q_ASSERT(found && *t->name && t->n_dim <= TENSOR_DIMS_MAX);
        read_all(t);
    }
    torch_copies_release(&copies);
    q_free(list.items);
    arena_release(&names);
}

static void add_le(struct buf *b, uint64_t v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        buf_add_char(b, i < 8 ? (char)(v >> 8 * i) : 0);
}

/* A stored entry: its local header and bytes to `file`, its line of the directory behind. */
static void add_entry(struct buf *file, struct buf *directory, const char *name, const void *data,
                      size_t n)
{
    const size_t at = file->len, n_name = strlen(name);
    add_le(file, 0x04034b50, 4);
    add_le(file, 0, 14);
    add_le(file, n, 4);
    add_le(file, n, 4);
    add_le(file, n_name, 2);
    add_le(file, 0, 2);
    buf_add(file, name, n_name);
    buf_add(file, data, n);
    add_le(directory, 0x02014b50, 4);
    add_le(directory, 0, 16);
    add_le(directory, n, 4);
    add_le(directory, n, 4);
    add_le(directory, n_name, 2);
    add_le(directory, 0, 12);
    add_le(directory, at, 4);
    buf_add(directory, name, n_name);
}

static void check_in_archive(const uint8_t *data, size_t n)
{
    static const unsigned char zeros[STORAGE_BYTES];
    struct buf file = BUF_INIT, directory = BUF_INIT;
    add_entry(&file, &directory, "a/data.pkl", data, n);
    for (uint32_t i = 0; i < N_STORAGE; i++) {
        char name[] = "a/data/0";
        name[7] = (char)('0' + i);
        add_entry(&file, &directory, name, zeros, sizeof zeros);
    }
    const size_t start = file.len;
    buf_add(&file, directory.data, directory.len);
    add_le(&file, 0x06054b50, 4);
    add_le(&file, 0, 4);
    add_le(&file, N_STORAGE + 1, 2);
    add_le(&file, N_STORAGE + 1, 2);
    add_le(&file, directory.len, 4);
    add_le(&file, start, 4);
    add_le(&file, 0, 2);
    check_file((const unsigned char *)file.data, file.len);
    buf_release(&file);
    buf_release(&directory);
}

/* The keys and storages that belong to the pickle come with it. */
static void check_in_legacy(const uint8_t *data, size_t n)
{
    static const unsigned char head[] = {0x80, 2,    0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9,
                                         0x20, 0x6a, 0xa8, 0x50, 0x19, '.',  0x80, 2,    'M',
                                         0xe9, 3,    '.',  0x80, 2,    '}',  '.'};
    struct buf file = BUF_INIT;
    buf_add(&file, head, sizeof head);
    buf_add(&file, data, n);
    check_file((const unsigned char *)file.data, file.len);
    buf_release(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    check_file(data, n);
    check_in_archive(data, n);
    check_in_legacy(data, n);
    return 0;
}
