/* SPDX-License-Identifier: Apache-2.0 */
/* quire-download ORG/NAME: brings a model into the Hugging Face cache. Other programs start it for
 * an id that is not there (common/hub/hub_download.h). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/hub/hub_download.h"
#include "common/hub/remote/download.h"
#include "common/parse.h"

/* The pipe for the error if another program started this one, else -1. */
static int error_fd(void)
{
    int64_t fd = -1;
    struct q_err ignored = Q_ERR_INIT;
    const char *value = getenv(HUB_ERROR_FD);
    if (!value || parse_i64(&fd, value, 3, 1 << 20, HUB_ERROR_FD, &ignored))
        return -1;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* end with that program */
    return (int)fd;
}

static int exit_code(enum q_code rc)
{
    switch (rc) {
    case Q_OK:
        return 0;
    case Q_INVALID:
        return HUB_EXIT_USAGE;
    case Q_NOT_FOUND:
    case Q_UNAUTHORIZED:
    case Q_FORBIDDEN:
    case Q_UNSUPPORTED:
        return HUB_EXIT_MODEL;
    case Q_UNAVAILABLE:
        return HUB_EXIT_NETWORK;
    default:
        return HUB_EXIT_IO;
    }
}

static void report(int fd, const struct q_err *e)
{
    if (fd < 0)
        fprintf(stderr, "quire download: %s\n", e->message);
    else if (write(fd, e->message, strlen(e->message)) < 0)
        fprintf(stderr, "%s\n", e->message);
}

static enum q_code print(const struct download_result *r, const struct options *o, struct q_err *e)
{
    struct buf out = BUF_INIT;
    if (o->json) {
        buf_add_str(&out, "{\"model\":");
        buf_add_json_str(&out, o->positional[0], strlen(o->positional[0]));
        buf_add_str(&out, ",\"revision\":");
        buf_add_json_str(&out, o->revision, strlen(o->revision));
        buf_printf(&out,
                   ",\"commit\":\"%s\",\"downloaded_bytes\":%llu,\"files\":%u,\"path\":", r->commit,
                   (unsigned long long)r->n_bytes, r->n_file);
        buf_add_json_str(&out, r->dir, strlen(r->dir));
        buf_add_char(&out, '}');
    } else {
        buf_add_str(&out, r->dir);
    }
    enum q_code rc = buf_check(&out, "the result", e);
    if (!rc)
        puts(buf_str(&out));
    buf_release(&out);
    return rc;
}

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_DOWNLOAD,
        .name = "quire download",
        .usage = "ORG/NAME [options]",
        .about =
            "Downloads a model of the Hugging Face hub into its cache, where quire and "
            "huggingface_hub find it, and prints the folder. Only the files that a model needs "
            "are loaded: config, tokenizer, templates and weights in one format. A download that "
            "was interrupted goes on where it ended; checksums are verified. Code of a model is "
            "not loaded.\n"
            "Environment:\n"
            "HF_TOKEN\ttoken for private and gated models; else the file of `hf auth login`\n"
            "HF_ENDPOINT\tURL of the hub; default: https://huggingface.co\n"
            "HF_HOME\tfolder of cache and token; HF_HUB_CACHE: the cache alone\n"
            "HF_HUB_OFFLINE\t1: nothing is downloaded\n"
            "Exit codes: 1 disk or checksum, 2 usage, 3 no such model, revision or access, 4 "
            "network or hub.\n",
        .positional_min = 1,
        .positional_max = 1,
    };
    static struct options o;
    static struct download_result result;
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    const int fd = error_fd();
    signal(SIGPIPE, SIG_IGN);
    if (!*o.revision)
        o.revision = "main";
    const struct download d = {
        .id = o.positional[0],
        .revision = o.revision,
        .rules = {&o.include, &o.exclude, o.load_format, o.download_weights},
        .json = o.json,
    };
    enum q_code rc =
        cache_is_offline()
            ? q_fail(&e, Q_UNAVAILABLE, "%s: HF_HUB_OFFLINE is set, so nothing is downloaded", d.id)
            : download_model(&result, &d, &e);
    if (!rc)
        rc = print(&result, &o, &e);
    if (rc)
        report(fd, &e);
    options_release(&o);
    return exit_code(rc);
}
