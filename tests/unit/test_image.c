/* SPDX-License-Identifier: Apache-2.0 */
/* Images: every form of the four formats against what Pillow makes of it (tests/data/images); files
 * cut off, broken or too large; memory that is refused; resizing against Pillow's bytes. */
#include "check.h"
#include <inttypes.h>
#include <pthread.h>
#include <unistd.h>
#include "common/file.h"
#include "common/image/image.h"
#include "common/image/image_internal.h"
#include "common/image/resize.h"
#include "common/mem.h"

#define FOLDER    "tests/data/images/"
#define FILES_MAX 160

static struct case_file {
    char name[64];
    struct buf file;
    uint32_t width, height;
    const unsigned char *rgb; /* in `pixels` */
} cases[FILES_MAX];
static size_t n_case;
static struct buf pixels;

static int read_cases(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct buf list = BUF_INIT;
    assert_ok(file_read(&list, FOLDER "decoded.txt", 1 << 20, &e), &e);
    assert_ok(file_read(&pixels, FOLDER "decoded.rgb", 1 << 20, &e), &e);
    size_t at = 0;
    for (const char *p = buf_str(&list); *p; p = strchr(p, '\n') + 1) {
        struct case_file *c = cases + n_case++;
        char path[128];
        assert_true(n_case <= FILES_MAX);
        assert_int_equal(sscanf(p, "%63s %" SCNu32 " %" SCNu32, c->name, &c->width, &c->height), 3);
        snprintf(path, sizeof path, FOLDER "%s", c->name);
        assert_ok(file_read(&c->file, path, 1 << 20, &e), &e);
        c->rgb = (unsigned char *)pixels.data + at;
        at += (size_t)c->width * c->height * 3;
        assert_true(at <= pixels.len);
    }
    assert_true(at == pixels.len && n_case > 70);
    buf_release(&list);
    return 0;
}

static int release_cases(void **state)
{
    (void)state;
    while (n_case)
        buf_release(&cases[--n_case].file);
    buf_release(&pixels);
    return 0;
}

static const struct case_file *find_case(const char *name)
{
    for (size_t i = 0; i < n_case; i++) {
        if (strcmp(cases[i].name, name) == 0)
            return cases + i;
    }
    fail_msg("no %s", name);
    return NULL;
}

static bool is_golden(const struct image *i, const struct case_file *c)
{
    return i->width == c->width && i->height == c->height &&
           memcmp(i->rgb, c->rgb, (size_t)c->width * c->height * 3) == 0;
}

/* A copy in memory of exactly that size, so that a byte beyond is seen by the sanitizer. */
static unsigned char *copy_bytes(const void *data, size_t n)
{
    unsigned char *copy = q_alloc(n);
    assert_non_null(copy);
    memcpy(copy, data, n);
    return copy;
}

/* ---- decoding ---- */

static void test_goldens(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    int n_failed = 0;
    for (size_t i = 0; i < n_case; i++) {
        const struct case_file *c = cases + i;
        unsigned char *bytes = copy_bytes(c->file.data, c->file.len);
        struct image image;
        if (image_decode(&image, bytes, c->file.len, &e)) {
            print_error("%s: %s\n", c->name, e.message);
            n_failed++;
        } else if (image.width != c->width || image.height != c->height) {
            print_error("%s: %u x %u pixels\n", c->name, image.width, image.height);
            n_failed++;
        } else {
            const size_t n = (size_t)c->width * c->height * 3;
            size_t n_other = 0, first = 0;
            for (size_t at = n; at-- > 0;) {
                if (image.rgb[at] != c->rgb[at]) {
                    n_other++;
                    first = at;
                }
            }
            if (n_other)
                print_error("%s: %zu of %zu bytes, the first at %zu: %u, wanted %u\n", c->name,
                            n_other, n, first, image.rgb[first], c->rgb[first]);
            n_failed += n_other > 0;
        }
        image_release(&image);
        q_free(bytes);
        q_err_reset(&e);
    }
    assert_int_equal(n_failed, 0);
}

/* No prefix of a file gives a part of an image. */
static void test_prefixes(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < n_case; i++) {
        const struct case_file *c = cases + i;
        for (size_t n = 0; n < c->file.len; n++) {
            unsigned char *bytes = copy_bytes(c->file.data, n);
            struct image image;
            const enum q_code rc = image_decode(&image, bytes, n, &e);
            if (rc ? rc != Q_CORRUPT || image.rgb || strncmp(e.message, "image: ", 7) != 0
                   : !is_golden(&image, c))
                fail_msg("%s: %zu of %zu bytes: %s", c->name, n, c->file.len,
                         rc ? e.message : "another image");
            image_release(&image);
            q_free(bytes);
            q_err_reset(&e);
        }
    }
}

/* Any byte changed: an image or an error that has a message; nothing on stderr. */
static void test_changed_bytes(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    char path[] = "/tmp/quire-test-XXXXXX";
    const int kept = dup(STDERR_FILENO), said = mkstemp(path);
    assert_true(kept >= 0 && said >= 0);
    unlink(path);
    dup2(said, STDERR_FILENO);
    size_t n_bad = 0;
    for (size_t i = 0; i < n_case; i++) {
        const struct case_file *c = cases + i;
        for (size_t at = 0; at < c->file.len; at += 1 + c->file.len / 256) {
            unsigned char *bytes = copy_bytes(c->file.data, c->file.len);
            struct image image;
            bytes[at] ^= (unsigned char)(at % 255 + 1);
            const enum q_code rc = image_decode_within(&image, bytes, c->file.len, 1u << 16, &e);
            n_bad += rc ? image.rgb || !*e.message : !image.rgb;
            image_release(&image);
            q_free(bytes);
            q_err_reset(&e);
        }
    }
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    assert_int_equal(lseek(said, 0, SEEK_END), 0);
    close(said);
    assert_int_equal(n_bad, 0);
}

static void test_no_image(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct image image;
    static const char bmp[] = "BM\x46\0\0\0\0\0\0\0\x36\0\0\0", wave[] = "RIFF\x20\0\0\0WAVEfmt ";
    assert_fails(image_decode(&image, NULL, 0, &e), Q_CORRUPT, "image: no bytes", &e);
    assert_fails(image_decode(&image, bmp, sizeof bmp, &e), Q_UNSUPPORTED, "PNG, JPEG, WebP, GIF",
                 &e);
    assert_fails(image_decode(&image, wave, sizeof wave, &e), Q_UNSUPPORTED, "PNG", &e);
    assert_fails(image_decode(&image, "RIFF\x20", 5, &e), Q_CORRUPT, "WebP: cut off after 5", &e);
    assert_null(image.rgb);
    image_release(&image);
}

/* The named file with bytes replaced. */
static void expect_changed(const char *name, size_t at, const char *bytes, size_t n,
                           enum q_code want, const char *part)
{
    struct q_err e = Q_ERR_INIT;
    const struct case_file *c = find_case(name);
    unsigned char *copy = copy_bytes(c->file.data, c->file.len);
    struct image image;
    memcpy(copy + at, bytes, n);
    assert_fails(image_decode(&image, copy, c->file.len, &e), want, part, &e);
    assert_null(image.rgb);
    q_free(copy);
}

static size_t find_bytes(const struct case_file *c, const char *bytes, size_t n)
{
    const char *p = memmem(c->file.data, c->file.len, bytes, n);
    assert_non_null(p);
    return (size_t)(p - c->file.data);
}

static void test_sizes(void **state)
{
    (void)state;
    const uint64_t before = mem_alloc_count();
    expect_changed("rgb.png", 16, "\x7f\xff\xff\xff\x7f\xff\xff\xff", 8, Q_TOO_LARGE, "2147483647");
    expect_changed("rgb.png", 16, "\0\0\xff\xff\0\0\xff\xff", 8, Q_TOO_LARGE, "at most 67108864");
    expect_changed("rgb.png", 16, "\0\1\0\0\0\0\0\1", 8, Q_TOO_LARGE, "at most 65535");
    expect_changed("rgb.png", 16, "\0\0\0\0\0\0\0\1", 8, Q_CORRUPT, "0 x 1 pixels");
    /* The copies, and nothing else. */
    assert_int_equal(mem_alloc_count() - before, 4);
    size_t at = find_bytes(find_case("rgb-444.jpg"), "\xff\xc0", 2);
    expect_changed("rgb-444.jpg", at + 5, "\xff\xdc\xff\xdc", 4, Q_TOO_LARGE, "65500 x 65500");
    expect_changed("rgb-444.jpg", at + 4, "\x0c", 1, Q_UNSUPPORTED, "precision 12");
    expect_changed("rgb-444.jpg", at + 1, "\xc3", 1, Q_UNSUPPORTED, "SOF type 0xc3");
    at = find_bytes(find_case("progressive.jpg"), "\xff\xc2", 2);
    expect_changed("progressive.jpg", at + 5, "\xff\xdc\xff\xdc", 4, Q_TOO_LARGE, "65500 x 65500");
    expect_changed("plain.gif", 6, "\xff\xff\xff\xff", 4, Q_TOO_LARGE, "65535 x 65535");
    at = find_bytes(find_case("partial.webp"), "VP8X", 4);
    expect_changed("partial.webp", at + 12, "\x5f\xea\0\x5f\xea\0", 6, Q_TOO_LARGE,
                   "60000 x 60000");
    at = find_bytes(find_case("lossless.webp"), "VP8L", 4);
    expect_changed("lossless.webp", at + 9, "\xff\xff\xff\x0f", 4, Q_TOO_LARGE, "16384 x 16384");
}

/* A progressive image whose first scan is repeated: allowed up to a number of scans. */
static void test_scans(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    const struct case_file *c = find_case("progressive.jpg");
    const size_t first = find_bytes(c, "\xff\xda", 2);
    size_t end = first + 2;
    while (c->file.data[end] != '\xff' || c->file.data[end + 1] == 0)
        end++;
    for (unsigned n_scan = 50; n_scan <= 5000; n_scan *= 100) {
        struct buf b = BUF_INIT;
        struct image image;
        buf_add(&b, c->file.data, first);
        for (unsigned i = 0; i < n_scan; i++)
            buf_add(&b, c->file.data + first, end - first);
        buf_add(&b, c->file.data + end, c->file.len - end);
        if (n_scan == 50) {
            assert_ok(image_decode(&image, b.data, b.len, &e), &e);
            image_release(&image);
        } else {
            assert_fails(image_decode(&image, b.data, b.len, &e), Q_TOO_LARGE, "scans", &e);
        }
        buf_release(&b);
    }
}

/* Data that libjpeg only warns of: a scan that ends early, a code that is none, a restart marker
 * with the wrong number. */
static void test_missing_pixels(void **state)
{
    (void)state;
    static const char *const names[] = {"rgb-444.jpg", "progressive.jpg", "restart.jpg"};
    struct q_err e = Q_ERR_INIT;
    struct image image;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct case_file *c = find_case(names[i]);
        const size_t scan = find_bytes(c, "\xff\xda", 2);
        for (size_t n = scan + 20; n + 20 < c->file.len; n += 7) {
            struct buf b = BUF_INIT;
            if (c->file.data[n - 1] == '\xff')
                continue;
            buf_add(&b, c->file.data, n);
            buf_add(&b, "\xff\xd9", 2);
            const enum q_code rc = image_decode(&image, b.data, b.len, &e);
            /* Between two scans of a progressive image nothing is missing but detail. */
            if (rc != Q_CORRUPT && i != 1)
                fail_msg("%s, %zu bytes: %s", names[i], n, e.message);
            image_release(&image);
            buf_release(&b);
            q_err_reset(&e);
        }
    }
    const size_t at = find_bytes(find_case("restart.jpg"), "\xff\xd1", 2);
    expect_changed("restart.jpg", at + 1, "\xd4", 1, Q_CORRUPT, "instead of RST1");
    const size_t scan = find_bytes(find_case("rgb-444.jpg"), "\xff\xda", 2);
    expect_changed("rgb-444.jpg", scan + 14, "\xff\0\xff\0\xff\0", 6, Q_CORRUPT, "Huffman");
    const struct case_file *c = find_case("lossy.webp");
    assert_fails(image_decode(&image, c->file.data, c->file.len - 1, &e), Q_CORRUPT,
                 "WebP: cut off after", &e);
}

/* A directory without an end, offsets outside, numbers that are no orientation. */
static void test_exif(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        unsigned orientation;
    } blocks[] = {
        {"II*\0\x8\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0", 22, 6},
        {"Exif\0\0II*\0\x8\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0", 28, 6},
        {"MM\0*\0\0\0\x8\0\1\1\x12\0\3\0\0\0\1\0\5\0\0", 22, 5},
        {"MM\0*\0\0\0\x8\0\1\1\x12\0\3\0\0\0\1\0\5\0", 21, 1},
        {"II*\0\x8\0\0\0\xff\xff\x13\1\3\0\1\0\0\0\6\0\0\0", 22, 1},
        {"II*\0\xff\xff\xff\xff\1\0\x12\1\3\0\1\0\0\0\6\0\0\0", 22, 1},
        {"II*\0\x8\0\0\0\1\0\x12\1\3\0\1\0\0\0\x9\0\0\0", 22, 1},
        {"II*\0\x8\0\0\0\1\0\x12\1\3\0\1\0\0\0\0\0\0\0", 22, 1},
        {"II*\0\x8\0\0\0\1\0\x12\1\4\0\1\0\0\0\6\0\0\0", 22, 1},
        {"II*\0\x8\0\0\0\1\0\x12\1\3\0\2\0\0\0\6\0\0\0", 22, 1},
        {"II\0*\x8\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0", 22, 1},
        {"Exif\0\0", 6, 1},
        {"", 0, 1},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        unsigned char *bytes = copy_bytes(blocks[i].bytes, blocks[i].n);
        assert_int_equal(image_exif_orientation(bytes, blocks[i].n), blocks[i].orientation);
        q_free(bytes);
    }
}

static void test_memory(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < n_case; i++) {
        const struct case_file *c = cases + i;
        enum q_code rc = Q_NO_MEMORY;
        for (int64_t n = 0; rc; n++) {
            struct image image;
            assert_true(n < 100);
            mem_fail_once(n);
            rc = image_decode(&image, c->file.data, c->file.len, &e);
            mem_fail_once(-1);
            if (rc ? rc != Q_NO_MEMORY || image.rgb : !is_golden(&image, c))
                fail_msg("%s: allocation %d: %s", c->name, (int)n, e.message);
            image_release(&image);
            q_err_reset(&e);
        }
    }
}

static void *decode_all(void *arg)
{
    size_t *n_failed = arg;
    for (size_t i = 0; i < n_case; i++) {
        struct image image, small;
        *n_failed += image_decode(&image, cases[i].file.data, cases[i].file.len, NULL) ||
                     !is_golden(&image, cases + i) ||
                     image_resize(&small, &image, 4, 3, IMAGE_LANCZOS, NULL);
        image_release(&image);
        image_release(&small);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    size_t n_failed[4] = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(threads + i, NULL, decode_all, n_failed + i), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(n_failed[i], 0);
    }
}

/* ---- resizing ---- */

static uint64_t hash_of(const struct image *i)
{
    uint64_t x = 0xcbf29ce484222325u;
    for (size_t at = 0; at < (size_t)i->width * i->height * 3; at++)
        x = (x ^ i->rgb[at]) * 0x100000001b3u;
    return x;
}

/* As `noise` of tests/data/images/make.py draws it. */
static struct image draw_noise(uint32_t width, uint32_t height)
{
    struct image i = {width, height, q_alloc((size_t)width * height * 3)};
    uint32_t x = width * 65536 + height;
    assert_non_null(i.rgb);
    for (size_t at = 0; at < (size_t)width * height * 3; at++) {
        x = x * 1664525u + 1013904223u;
        i.rgb[at] = at / 192 % 2 ? (x >> 31 ? 255 : 0) : (unsigned char)(x >> 24);
    }
    return i;
}

static void test_resized(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct buf list = BUF_INIT;
    int n_line = 0, n_other = 0;
    assert_ok(file_read(&list, FOLDER "resized.txt", 1 << 20, &e), &e);
    for (const char *p = buf_str(&list); *p; p = strchr(p, '\n') + 1) {
        uint32_t width, height, to_width, to_height, filter;
        uint64_t hash;
        assert_int_equal(
            sscanf(p, "%" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNx64,
                   &width, &height, &to_width, &to_height, &filter, &hash),
            6);
        struct image in = draw_noise(width, height), out;
        assert_ok(image_resize(&out, &in, to_width, to_height, (enum image_filter)filter, &e), &e);
        assert_true(out.width == to_width && out.height == to_height);
        if (hash_of(&out) != hash) {
            print_error("%u x %u to %u x %u, filter %u\n", width, height, to_width, to_height,
                        filter);
            n_other++;
        }
        n_line++;
        image_release(&in);
        image_release(&out);
    }
    buf_release(&list);
    assert_true(n_line > 200);
    assert_int_equal(n_other, 0);
}

static void test_resize_errors(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct image in = draw_noise(3, 2), high = draw_noise(1, 65535), out, none = {0};
    assert_fails(image_resize(&out, &in, 0, 5, IMAGE_BICUBIC, &e), Q_INVALID, "0 x 5", &e);
    assert_fails(image_resize(&out, &in, 5, 0, IMAGE_NEAREST, &e), Q_INVALID, "5 x 0", &e);
    assert_fails(image_resize(&out, &none, 5, 5, IMAGE_BICUBIC, &e), Q_INVALID, "0 x 0", &e);
    assert_fails(image_resize(&out, &in, 5, 5, (enum image_filter)4, &e), Q_UNSUPPORTED,
                 "resample 4", &e);
    assert_fails(image_resize(&out, &in, 65536, 1, IMAGE_NEAREST, &e), Q_TOO_LARGE, "65535", &e);
    assert_fails(image_resize(&out, &in, 65535, 65535, IMAGE_NEAREST, &e), Q_TOO_LARGE, "67108864",
                 &e);
    assert_fails(image_resize(&out, &high, 65535, 1, IMAGE_BICUBIC, &e), Q_TOO_LARGE, "67108864",
                 &e);
    assert_null(out.rgb);
    for (int filter = IMAGE_NEAREST; filter <= IMAGE_BICUBIC; filter++) {
        enum q_code rc = Q_NO_MEMORY;
        for (int64_t n = 0; rc; n++) {
            mem_fail_once(n);
            rc = image_resize(&out, &in, 5, 7, (enum image_filter)filter, &e);
            mem_fail_once(-1);
            assert_true(n < 50 && (rc ? rc == Q_NO_MEMORY && !out.rgb : out.height == 7));
            q_err_reset(&e);
            image_release(&out);
        }
    }
    image_release(&in);
    image_release(&high);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_changed_bytes),  cmocka_unit_test(test_no_image),
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_scans),
        cmocka_unit_test(test_missing_pixels), cmocka_unit_test(test_exif),
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_threads),
        cmocka_unit_test(test_resized),        cmocka_unit_test(test_resize_errors),
    };
    return cmocka_run_group_tests(tests, read_cases, release_cases);
}
