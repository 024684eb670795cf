/* SPDX-License-Identifier: Apache-2.0 */
/* Items from files: those that another process cuts while they are read end with an error, not with
 * the process; and a tensor of a file is found and read alone. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include "common/items/items.h"
#include "common/mem.h"
#include "folder.h"

#define N_NUMBER (1u << 20)

static struct folder folder;

static int open_folder(void **state)
{
    (void)state;
    folder_init(&folder);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    folder_release(&folder);
    return 0;
}

static const char *path_of(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    return path;
}

static void write_npy(const char *name, const void *numbers, size_t n_byte, const char *descr)
{
    char header[200], text[160];
    struct buf b = BUF_INIT;
    const size_t n = n_byte / (size_t)(descr[2] - '0');
    snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%zu,), }", descr,
             n);
    snprintf(header, sizeof header, "%-117s\n", text);
    buf_add(&b, "\x93NUMPY\x01\0v\0", 10);
    buf_add(&b, header, 118);
    buf_add(&b, numbers, n_byte);
    folder_write(&folder, name, b.data, b.len);
    buf_release(&b);
}

static void write_safetensors(const char *name, const void *numbers, size_t n_byte)
{
    char header[256];
    struct buf b = BUF_INIT;
    snprintf(header, sizeof header,
             "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
             "\"b\":{\"dtype\":\"I32\",\"shape\":[%zu],\"data_offsets\":[4,%zu]}}",
             n_byte / 4, n_byte + 4);
    const uint64_t n = strlen(header);
    buf_add(&b, &n, sizeof n);
    buf_add_str(&b, header);
    buf_add(&b, "wxyz", 4);
    buf_add(&b, numbers, n_byte);
    folder_write(&folder, name, b.data, b.len);
    buf_release(&b);
}

static int32_t *numbers_new(void)
{
    int32_t *x = q_calloc(N_NUMBER, sizeof *x);
    for (uint32_t i = 0; i < N_NUMBER; i++)
        x[i] = (int32_t)(i * 7);
    return x;
}

static void test_tensors_are_read(void **state)
{
    (void)state;
    int32_t *numbers = numbers_new();
    static const int16_t shorts[] = {3, -4, 5};
    struct item_list l;
    struct q_err e = Q_ERR_INIT;
    write_npy("one.npy", numbers, N_NUMBER * sizeof *numbers, "<i4");
    write_npy("short.npy", shorts, sizeof shorts, "<i2");
    write_safetensors("two.safetensors", numbers, N_NUMBER * sizeof *numbers);
    assert_ok(item_list_file(&l, path_of("one.npy"), NULL, &e), &e);
    assert_true(l.n == 1 && l.items->dtype == ITEM_I32);
    assert_memory_equal(l.items->data, numbers, l.items->n_byte);
    item_list_release(&l);
    assert_ok(item_list_file(&l, path_of("short.npy"), NULL, &e), &e);
    assert_true(l.items->dtype == ITEM_NUMBERS && ((const double *)l.items->data)[1] == -4);
    item_list_release(&l);
    assert_ok(item_list_file(&l, path_of("two.safetensors"), "b", &e), &e);
    assert_int_equal(l.items->n_byte, N_NUMBER * sizeof *numbers);
    assert_memory_equal(l.items->data, numbers, l.items->n_byte);
    item_list_release(&l);
    assert_ok(item_list_file(&l, path_of("two.safetensors"), "a", &e), &e);
    assert_memory_equal(l.items->data, "wxyz", 4);
    item_list_release(&l);
    assert_fails(item_list_file(&l, path_of("two.safetensors"), "c", &e), Q_INVALID,
                 "no tensor \"c\"", &e);
    item_list_release(&l);
    assert_fails(item_list_file(&l, path_of("two.safetensors"), NULL, &e), Q_INVALID,
                 "has 2 tensors", &e);
    item_list_release(&l);
    assert_fails(item_list_file(&l, path_of("none.npy"), NULL, &e), Q_INVALID, "none.npy", &e);
    item_list_release(&l);
    q_free(numbers);
}

/* Any prefix of a file is an error that says so. */
static void test_cut_files(void **state)
{
    (void)state;
    static const char *const names[] = {"cut.npy", "cut.safetensors"};
    static const unsigned char few[40];
    struct q_err e = Q_ERR_INIT;
    struct item_list l;
    write_npy(names[0], few, sizeof few, "<i4");
    write_safetensors(names[1], few, sizeof few);
    for (int i = 0; i < 2; i++) {
        const int fd = open(path_of(names[i]), O_RDWR);
        for (off_t n = lseek(fd, 0, SEEK_END) - 1; n >= 0; n--) {
            assert_int_equal(ftruncate(fd, n), 0);
            assert_int_equal(item_list_file(&l, path_of(names[i]), i ? "b" : NULL, &e), Q_INVALID);
            assert_true(*e.message);
            item_list_release(&l);
            q_err_reset(&e);
        }
        close(fd);
    }
}

static _Atomic bool is_over;

/* Cuts a file and makes it whole, until the test ends. */
static void *cut_again(void *arg)
{
    const int fd = *(const int *)arg;
    const off_t whole = lseek(fd, 0, SEEK_END);
    while (!atomic_load(&is_over)) {
        if (ftruncate(fd, 4096) || ftruncate(fd, whole))
            break;
    }
    return NULL;
}

/* In the middle of a read: the file is whole, or it is an error; a mapping would be SIGBUS. */
static void cut_while_read(const char *name, const char *tensor)
{
    struct q_err e = Q_ERR_INIT;
    struct item_list l;
    pthread_t thread;
    int fd = open(path_of(name), O_RDWR), n_cut = 0;
    assert_true(fd >= 0);
    atomic_store(&is_over, false);
    assert_int_equal(pthread_create(&thread, NULL, cut_again, &fd), 0);
    for (int i = 0; i < 2000 && n_cut < 5; i++) {
        const enum q_code rc = item_list_file(&l, path_of(name), tensor, &e);
        assert_true(rc == Q_OK || rc == Q_INVALID);
        n_cut += rc == Q_INVALID && strstr(e.message, "the file ends at byte") != NULL;
        item_list_release(&l);
        q_err_reset(&e);
    }
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    close(fd);
    assert_true(n_cut > 0);
}

static void test_files_that_are_cut_while_they_are_read(void **state)
{
    (void)state;
    int32_t *numbers = numbers_new();
    write_npy("live.npy", numbers, N_NUMBER * sizeof *numbers, "<i4");
    write_safetensors("live.safetensors", numbers, N_NUMBER * sizeof *numbers);
    q_free(numbers);
    cut_while_read("live.npy", NULL);
    cut_while_read("live.safetensors", "b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_are_read),
        cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_files_that_are_cut_while_they_are_read),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
