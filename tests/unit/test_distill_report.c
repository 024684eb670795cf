/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's parts that end-to-end tests do not reach: the teacher's rows between tensor ranks
 * of different numbers, the metrics file after interruptions, numbers that JSON does not have,
 * costs and cuts. */
#include <math.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/file.h"
#include "engine/distill/metrics_port.h"
#include "engine/distill/report_file.h"
#include "engine/distill/report_text.h"
#include "engine/distill/teacher_link.h"
#include "engine/distill/trainer_internal.h"
#include "ranks_run.h"

/* ---- teacher_link ---- */

enum { N_ROW = 5, N_COL = 3, STRIDE = 7, N_HIDDEN = 4 };
static const uint32_t asked_rows[] = {1, 4, 6, 7, 9};

struct division {
    uint32_t n_student, n_teacher;
    bool with_ids;
};

struct fake { /* a teacher's part: rank 0 has its rows */
    uint32_t n_call, rows[N_ROW];
    float z[N_ROW * STRIDE];
    uint32_t ids[N_ROW * STRIDE];
    float hidden[N_ROW * N_HIDDEN];
    bool with_ids;
};

static enum q_code fake_rows(void *ctx, const struct micro_batch *b, const uint32_t *rows,
                             uint32_t n, struct teacher_rows *out, struct q_err *e)
{
    struct fake *f = ctx;
    (void)b;
    (void)e;
    f->n_call++;
    memcpy(f->rows, rows, n * sizeof *rows);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < N_COL; c++) {
            f->z[i * STRIDE + c] = (float)(10 * rows[i] + c);
            f->ids[i * STRIDE + c] = 100 * rows[i] + c;
        }
    *out = (struct teacher_rows){f->z, f->with_ids ? f->ids : NULL, STRIDE, N_COL};
    return Q_OK;
}

static enum q_code fake_hidden(void *ctx, const struct micro_batch *b, const uint32_t *rows,
                               uint32_t n, const float **out, struct q_err *e)
{
    struct fake *f = ctx;
    (void)b;
    (void)e;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < N_HIDDEN; c++)
            f->hidden[i * N_HIDDEN + c] = (float)(1000 * rows[i] + c);
    *out = f->hidden;
    return Q_OK;
}

static void read_hidden(const struct teacher_source *s, uint32_t n)
{
    struct q_err e = Q_ERR_INIT;
    const float *got = NULL;
    rank_ok(s->hidden(s->ctx, NULL, asked_rows, n, &got, &e), &e);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < N_HIDDEN; c++)
            rank_check(got[i * N_HIDDEN + c] == (float)(1000 * asked_rows[i] + c));
}

static void read_rows(const struct teacher_source *s, uint32_t n, bool with_ids)
{
    struct q_err e = Q_ERR_INIT;
    struct teacher_rows got;
    rank_ok(s->rows(s->ctx, NULL, asked_rows, n, &got, &e), &e);
    rank_check(got.n_col == N_COL && (got.ids != NULL) == with_ids);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < N_COL; c++) {
            rank_check(got.z[i * got.stride + c] == (float)(10 * asked_rows[i] + c));
            if (with_ids)
                rank_check(got.ids[i * got.stride + c] == 100 * asked_rows[i] + c);
        }
}

static void run_link(struct transport *t, void *arg)
{
    const struct division *d = arg;
    const struct topology_sizes sizes = {1, 1, d->n_student, 1, d->n_teacher, 1, 1};
    struct q_err e = Q_ERR_INIT;
    struct topology top;
    struct fake fake = {.with_ids = d->with_ids};
    struct teacher_link *link;
    rank_ok(topology_make(&top, &sizes, transport_rank(t), transport_size(t), &e), &e);
    const struct teacher_source own = {
        .rows = top.has_teacher ? fake_rows : NULL,
        .hidden = top.has_teacher ? fake_hidden : NULL,
        .ctx = &fake,
        .n_vocab = 17,
    };
    const struct teacher_link_args args = {own, N_HIDDEN, &top, t};
    rank_ok(teacher_link_new(&link, &args, &e), &e);
    const struct teacher_source source = teacher_link_source(link);
    rank_check(source.n_vocab == 17);
    for (uint32_t batch = 0; batch < 3; batch++) { /* of two chunks, of none, of two */
        if (!top.has_student) {
            rank_ok(teacher_link_serve(link, NULL, &e), &e);
            continue;
        }
        if (batch != 1) {
            read_rows(&source, N_ROW, d->with_ids);
            read_hidden(&source, N_ROW);
            read_rows(&source, 2, d->with_ids);
            read_hidden(&source, 2);
        }
        rank_ok(teacher_link_end(link, &e), &e);
    }
    rank_check(fake.n_call == (top.has_teacher ? 4u : 0u));
    rank_check(!top.has_teacher || !memcmp(fake.rows, asked_rows, 2 * sizeof *asked_rows));
    teacher_link_free(link);
    topology_release(&top);
    transport_close(t);
}

static void test_link(void **state)
{
    static struct division divisions[] = {
        {1, 2, false}, {2, 1, false}, {1, 4, false}, {4, 2, true}, {2, 3, false}, {3, 1, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof divisions / sizeof *divisions; i++) {
        const struct division *d = &divisions[i];
        ranks_run_well(d->n_student > d->n_teacher ? d->n_student : d->n_teacher, run_link,
                       &divisions[i]);
    }
}

/* ---- report_file ---- */

static char path[] = "/tmp/test_distill_report.XXXXXX";

static void write_text(const char *text)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(file_write(path, text, strlen(text), 0600, &e), &e);
}

static void assert_text(const char *want)
{
    struct q_err e = Q_ERR_INIT;
    struct buf got = BUF_INIT;
    assert_ok(file_read(&got, path, 1 << 20, &e), &e);
    assert_string_equal(buf_str(&got), want);
    buf_release(&got);
}

/* What is left of the file, and a line more. */
static void assert_cut(const char *text, uint64_t first_step, const char *want)
{
    struct q_err e = Q_ERR_INIT;
    struct report_file f = REPORT_FILE_INIT;
    struct buf line = BUF_INIT;
    write_text(text);
    assert_ok(report_file_open(&f, path, first_step, &e), &e);
    buf_add_str(&line, "more\n");
    assert_ok(report_file_add(&f, &line, &e), &e);
    report_file_close(&f);
    assert_text(want);
    buf_release(&line);
}

static void test_file(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct report_file f = REPORT_FILE_INIT;
    close(mkstemp(path));
    assert_cut("", 3, "more\n");
    assert_cut("{\"step\": 1}\n{\"step\": 2}\n{\"step\": 2, \"eval_loss\": 1}\n{\"step\": 3}\n", 2,
               "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 2, \"eval_loss\": 1}\nmore\n");
    assert_cut("{\"step\": 1}\n{\"step\": 2}\n", 2, "{\"step\": 1}\n{\"step\": 2}\nmore\n");
    assert_cut("{\"step\": 1}\n{\"st", 5, "{\"step\": 1}\nmore\n");
    assert_cut("{\"step\": 1}\n", 0, "more\n");
    static const char *const others[] = {
        "a list\n", "{\"stop\": 1}\n", "{\"step\": -1}\n", "no line", "{\"step\": 1}\n[]\n",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_text(others[i]);
        assert_fails(report_file_open(&f, path, 5, &e), Q_CORRUPT, "is none of a run", &e);
        assert_text(others[i]);
    }
    assert_int_equal(unlink(path), 0);
    assert_fails(report_file_open(&f, "/nowhere/file", 0, &e), Q_IO, "/nowhere/file", &e);
}

/* ---- texts ---- */

static void test_numbers_that_json_lacks(void **state)
{
    (void)state;
    const double rss[] = {12.34, 56.78};
    const struct report_step step = {
        .step = 7,
        .loss = (double)NAN,
        .kd_loss = (double)INFINITY,
        .ce_loss = 0.1,
        .agreement = -1,
        .grad_norm = 1,
        .n_token = 9,
        .rss_mb = rss,
        .n_rank = 2,
        .skipped = "the \"loss\"",
    };
    struct buf b = BUF_INIT;
    report_json_step(&b, &step, false);
    assert_string_equal(
        buf_str(&b),
        "{\"step\": 7, \"loss\": null, \"kd_loss\": null, \"ce_loss\": 0.10000000000000001, "
        "\"grad_norm\": 1, \"lr\": 0, \"n_tokens\": 9, \"tok_s\": 0, \"peak_rss_mb\": [12.3, "
        "56.8], \"skipped\": \"the \\\"loss\\\"\"}\n");
    buf_reset(&b);
    report_text_step(&b, &step, 10);
    assert_null(strstr(buf_str(&b), "agreement"));
    assert_non_null(strstr(buf_str(&b), "57 MB, 0 s left; skipped: the \"loss\""));
    buf_release(&b);
}

static void test_time_left(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {
        {0.2, "0 s left"},
        {59.6, "1 min 00 s left"},
        {3725, "1 h 02 min left"},
        {90061, "1 d 01 h left"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double rss = 1;
        const struct report_step step = {.left_s = cases[i].seconds, .rss_mb = &rss, .n_rank = 1};
        struct buf b = BUF_INIT;
        report_text_step(&b, &step, 10);
        assert_non_null(strstr(buf_str(&b), cases[i].text));
        buf_release(&b);
    }
}

/* ---- metrics ---- */

static int open_socket(struct sockaddr_in *at, bool listens)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t n = sizeof *at;
    assert_true(fd >= 0);
    if (listens) {
        assert_int_equal(bind(fd, (struct sockaddr *)at, n), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *)at, &n), 0);
    } else {
        assert_int_equal(connect(fd, (struct sockaddr *)at, n), 0);
    }
    return fd;
}

static void scrape(struct sockaddr_in *at, char *text, size_t size)
{
    static const char head[] = "GET /metrics HTTP/1.1\r\n\r\n";
    const int fd = open_socket(at, false);
    size_t n = 0;
    assert_int_equal(send(fd, head, sizeof head - 1, 0), sizeof head - 1);
    for (ssize_t got; (got = recv(fd, text + n, size - 1 - n, 0)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    close(fd);
}

/* A gauge has no sample until it is set; what is no number is spelled as Prometheus reads it. */
static void test_metrics(void **state)
{
    static char text[1 << 14];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct q_err e = Q_ERR_INIT;
    struct metrics_port *p = NULL;
    (void)state;
    close(open_socket(&at, true)); /* a port that is free */
    assert_ok(metrics_port_open(&p, ntohs(at.sin_port), 1, &e), &e);
    metrics_port_set(p, RUN_LOSS, -(double)NAN);
    metrics_port_set(p, RUN_KD_LOSS, (double)INFINITY);
    metrics_port_set(p, RUN_CE_LOSS, -(double)INFINITY);
    metrics_port_set(p, RUN_LR, 0.5);
    scrape(&at, text, sizeof text);
    metrics_port_close(p);
    assert_non_null(strstr(text, "\nquire:distill_loss NaN\n"));
    assert_non_null(strstr(text, "\nquire:distill_kd_loss +Inf\n"));
    assert_non_null(strstr(text, "\nquire:distill_ce_loss -Inf\n"));
    assert_non_null(strstr(text, "\nquire:distill_learning_rate 0.5\n"));
    assert_non_null(strstr(text, "\nquire:distill_tokens_total 0\n"));
    assert_null(strstr(text, "\nquire:distill_agreement "));
    assert_null(strstr(text, "\nquire:distill_eval_loss "));
    assert_non_null(strstr(text, "# TYPE quire:distill_eval_loss gauge\n"));
}

/* ---- costs ---- */

/* tests/data/distill/pairA/student: h32, 4 layers, 4 query and 2 KV heads of 8, 256 tokens. */
static void test_costs(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct model_costs c;
    assert_ok(model_costs_of(&c, "tests/data/distill/pairA/student", 10, &e), &e);
    assert_int_equal(c.n_layer, 4);
    const double products = c.layers[0] - 4 * 4 * 8 * 10; /* scores and values of 10 rows */
    const double attention = 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32);
    const double mlp = products - attention;
    assert_true(mlp > 0 && fmod(mlp, 2 * 3 * 32) == 0);
    assert_true(c.layers[3] == c.layers[0] && c.head == 2.0 * 32 * 256);
    assert_true(model_costs_row(&c) == 4 * c.layers[0] + c.head);
    model_costs_release(&c);
    assert_fails(model_costs_of(&c, "/nowhere", 10, &e), Q_NOT_FOUND, "/nowhere", &e);
}

/* Work of the first tensor rank: a model over 2 of them has half of it. */
static void test_cut_of_tensor_ranks(void **state)
{
    static const struct topology_sizes all[] = {
        {2, 1, 1, 2, 1, 1, 1},
        {2, 1, 1, 2, 2, 1, 1},
        {2, 1, 2, 2, 1, 1, 1},
        {2, 1, 2, 2, 2, 1, 1},
    };
    const struct distill_options o = {
        .teacher = "tests/data/distill/pairA/teacher",
        .student = "tests/data/distill/pairA/student",
        .data = {.global_batch = 8, .micro_batch = 1, .seq_len = 48},
    };
    struct q_err e = Q_ERR_INIT;
    double bubble[4];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const double student_part = 1.0 / all[i].n_student_tensor;
        const double teacher_part = 1.0 / all[i].n_teacher_tensor;
        double student = 0, teacher = 0, want_student = 0, want_teacher;
        struct topology top;
        struct trainer_cut c = {.n_student = 0};
        assert_ok(topology_make(&top, &all[i], 0, topology_n_rank(&all[i]), &e), &e);
        assert_ok(trainer_cut_make(&c, &o, &top, &e), &e);
        for (uint32_t k = 0; k < 2; k++) {
            student += c.costs[k].forward + c.costs[k].backward;
            teacher += c.costs[k].teacher;
        }
        want_student = 3 * model_costs_row(&c.student_costs) * student_part;
        want_teacher = model_costs_row(&c.teacher_costs) * teacher_part;
        assert_true(fabs(student / want_student - 1) < 1e-9);
        assert_true(fabs(teacher / want_teacher - 1) < 1e-9);
        bubble[i] = c.bubble;
        trainer_cut_release(&c);
        topology_release(&top);
    }
    assert_true(fabs(bubble[3] - bubble[0]) < 1e-9); /* both halved: the same shares */
    assert_true(bubble[1] != bubble[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_numbers_that_json_lacks),
        cmocka_unit_test(test_time_left),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_cut_of_tensor_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
