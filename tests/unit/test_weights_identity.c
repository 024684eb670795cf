/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that change on disk while an engine runs: their identity, and what becomes of requests
 * when the worker loads them again. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/file.h"
#include "core_run.h"
#include "engine/core/weights_identity.h"

static const char *const files[] = {"config.json", "model.safetensors"};

static void path_of(char out[PATH_MAX], const char *dir, const char *name)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(path_join(out, PATH_MAX, dir, name, &e), &e);
}

/* Write a file of `like` into dir, with one byte of its second half changed by `flip`. */
static void write_file(const char *dir, const char *like, const char *name, unsigned char flip)
{
    char path[PATH_MAX];
    struct buf b = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    path_of(path, like, name);
    assert_ok(file_read(&b, path, (size_t)1 << 26, &e), &e);
    b.data[b.len - b.len / 4] = (char)(b.data[b.len - b.len / 4] ^ flip);
    path_of(path, dir, name);
    assert_ok(file_write(path, b.data, b.len, 0600, &e), &e);
    buf_release(&b);
}

static void copy_model(char dir[PATH_MAX], const char *like)
{
    snprintf(dir, PATH_MAX, "/tmp/quire-identity-%d", (int)getpid());
    mkdir(dir, 0700);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        write_file(dir, like, files[i], 0);
}

static void remove_model(const char *dir)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        path_of(path, dir, files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

static void what_changes_an_identity(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    char dir[PATH_MAX], path[PATH_MAX];
    unsigned char first[WEIGHTS_IDENTITY_BYTES], now[WEIGHTS_IDENTITY_BYTES];
    golden_get(&g, "llama");
    copy_model(dir, g.dir);
    assert_ok(weights_identity(first, dir, &e), &e);
    write_file(dir, g.dir, "config.json", 0); /* no weights */
    assert_ok(weights_identity(now, dir, &e), &e);
    assert_memory_equal(first, now, sizeof now);
    path_of(path, dir, "model.safetensors");
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[2]){{1, 0}, {1, 0}}, 0), 0);
    assert_ok(weights_identity(now, dir, &e), &e);
    assert_true(memcmp(first, now, sizeof now) != 0);
    assert_ok(weights_identity(first, path, &e), &e); /* a file alone */
    assert_true(memcmp(first, now, sizeof now) != 0);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_ok(weights_identity(now, dir, &e), &e); /* no hang, no weights */
    assert_fails(weights_identity(now, "/nowhere/x", &e), Q_IO, "/nowhere/x", &e);
    remove_model(dir);
}

static void wait_restarts(uint64_t n)
{
    struct q_err e = Q_ERR_INIT;
    while (core_n_restart(engine.core) < n || core_state(engine.core, NULL) != CORE_READY) {
        run_once(&e);
        assert_int_equal(e.code, Q_OK);
    }
}

/* A worker that is restarted beside the same weights continues; beside others it does not. */
static void changed_weights_continue_no_request(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    char dir[PATH_MAX], before[CORE_FINGERPRINT_MAX];
    golden_get(&g, "llama");
    copy_model(dir, g.dir);
    struct core_config c = config_of(dir);
    c.in_process = false;
    c.worker_program = program_beside("/bin/quire-worker");
    open_core(&c);
    snprintf(before, sizeof before, "%s", core_info(engine.core)->fingerprint);
    submit_prompt(0, &g.prompts[0], 0);
    assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
    finish_all(1);
    check_answer(0, &g.prompts[0], "after a restart beside the same weights");
    assert_string_equal(core_info(engine.core)->fingerprint, before);

    assert_int_equal(kill(core_worker_pid(engine.core), SIGSTOP), 0);
    submit_prompt(1, &g.prompts[1], 0);
    assert_ok(core_step(engine.core, &e), &e);
    write_file(dir, g.dir, "model.safetensors", 1);
    assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
    wait_restarts(2);
    assert_int_equal(answers[1].finish, FINISH_ERROR);
    assert_int_equal(engine.notes[1].why.code, Q_MISMATCH);
    assert_non_null(strstr(engine.notes[1].why.message, "changed on disk"));
    assert_true(strcmp(core_info(engine.core)->fingerprint, before) != 0);
    submit_prompt(2, &g.prompts[0], 0); /* new requests are served */
    finish_all(3);
    assert_int_equal(answers[2].finish, FINISH_LENGTH);
    core_free(engine.core);

    /* An engine that follows another one knows what that one had. */
    c.has_weights_before = true;
    open_core(&c);
    snprintf(before, sizeof before, "%s", core_info(engine.core)->fingerprint);
    memcpy(c.weights_before, core_weights_identity(engine.core), sizeof c.weights_before);
    core_free(engine.core);
    open_core(&c);
    assert_true(strcmp(core_info(engine.core)->fingerprint, before) != 0);
    core_free(engine.core);
    remove_model(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_changes_an_identity),
        cmocka_unit_test(changed_weights_continue_no_request),
    };
    log_setup("test", getenv("QUIRE_TEST_LOG") ? LOG_DEBUG : LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
