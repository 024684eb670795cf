/* SPDX-License-Identifier: Apache-2.0 */
/* quire-keygen: creates the keys for tcp:// between frontends and engines. */
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/log.h"
#include "common/options.h"
#include "proto/curve.h"

#define KEY_BYTES 32 /* random bytes of an API key */

/* Print the line of a new API key for --api-key-file on standard output, so that ">> FILE" keeps no
 * key in it, and the key on standard error. */
static int make_api_key(const struct options *o)
{
    unsigned char random[KEY_BYTES], digest[32];
    char key[2 * KEY_BYTES + 4] = "sk-", hash[65];
    unsigned int n = sizeof digest;
    const size_t n_name = strlen(o->api_key_name);
    bool good = n_name <= 64;
    for (size_t i = 0; i < n_name; i++)
        good = good && o->api_key_name[i] > 0x20 && o->api_key_name[i] < 0x7f;
    if (!good) {
        log_error("--api-key-name needs 1 to 64 printable ASCII characters without blanks");
        return 2;
    }
    if (RAND_bytes(random, sizeof random) != 1) {
        log_error("there are no random numbers for an API key");
        return 1;
    }
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(key + 3 + 2 * i, 3, "%02x", random[i]);
    if (!EVP_Digest(key, strlen(key), digest, &n, EVP_sha256(), NULL)) {
        log_error("SHA-256 is not available");
        return 1;
    }
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(hash + 2 * i, 3, "%02x", digest[i]);
    if (o->json) {
        struct buf name = BUF_INIT;
        buf_add_json_str(&name, o->api_key_name, n_name);
        printf("{\"name\":%s,\"key\":\"%s\",\"hash\":\"sha256:%s\"}\n", buf_str(&name), key, hash);
        buf_release(&name);
        return 0;
    }
    fprintf(stderr, "API key of %s, shown only now: %s\n", o->api_key_name, key);
    printf("sha256:%s name=%s\n", hash, o->api_key_name);
    return 0;
}

int main(int argc, char **argv)
{
    static struct options o;
    static const struct program_info info = {
        .program = FOR_KEYGEN,
        .name = "quire keygen",
        .usage = "DIR | --api-key-name NAME",
        .about = "Creates the CURVE keys for tcp:// in the folder DIR. The engine's machine needs "
                 "engine.key and frontend.pub, the frontends' machines need frontend.key and "
                 "engine.pub. Existing files are not overwritten. With "
                 "--api-key-name it makes an API key instead. The line of a key of your own is: "
                 "sha256: and the output of printf %s KEY | sha256sum.",
        .positional_min = 0,
        .positional_max = 1,
    };
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (*o.api_key_name && !o.n_positional)
        return make_api_key(&o);
    if (o.n_positional != 1 || *o.api_key_name) {
        fprintf(stderr, "quire keygen: %s; usage: quire keygen %s\n",
                o.n_positional ? "a folder and --api-key-name exclude each other"
                               : "an argument is missing",
                info.usage);
        return 2;
    }
    if (curve_generate(o.positional[0], &e) != Q_OK) {
        log_error("%s", e.message);
        return 1;
    }
    if (o.json) {
        struct buf dir = BUF_INIT;
        buf_add_json_str(&dir, o.positional[0], strlen(o.positional[0]));
        printf("{\"dir\":%s,\"files\":[\"engine.key\",\"engine.pub\",\"frontend.key\","
               "\"frontend.pub\"]}\n",
               buf_str(&dir));
        buf_release(&dir);
    } else {
        printf("keys created in %s: start engine and frontends with --keys %s\n", o.positional[0],
               o.positional[0]);
    }
    return 0;
}
