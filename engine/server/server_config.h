/* SPDX-License-Identifier: Apache-2.0 */
/* server_config - the configuration of a server, and its limits. Threads: read-only once it
 * runs. */
#ifndef QUIRE_ENGINE_SERVER_SERVER_CONFIG_H
#define QUIRE_ENGINE_SERVER_SERVER_CONFIG_H
#include "engine/core/core.h"

#define SERVER_LISTEN_MAX    16
#define SERVER_FRONTENDS_MAX 256
#define SERVER_SILENT_BEATS  5 /* a frontend times out after this many missed heartbeats */
#define SERVER_SILENT_MIN_MS \
    3000 /* and not before so many ms of silence, because the machine may be busy */

struct server_config {
    struct core_config core;
    const char *model_name;    /* as the user gave it */
    const char *const *listen; /* [n_listen] addresses */
    uint32_t n_listen;
    const char *keys_dir;
    bool insecure_tcp;
    const char *adapters_file; /* file that stores the adapters for the next engine; NULL: none */
    const char *weights_file;  /* file that stores the folder of a reload for the next engine;
                               * NULL = not stored */
    const char *identity_file; /* likewise for the identity of the first weights */
    const char *trial_file;    /* likewise for the frontend whose request is on trial */
    const char *const *weight_roots; /* [n_weight_root] folders of reloads; none: the model's */
    uint32_t n_weight_root;
    const char *death; /* of the engine before, for hello; NULL = unknown */
    uint32_t n_start;  /* of this engine by its supervisor; 0 = unknown */
    bool supervised;   /* its parent replaces an engine that hangs */
    uint32_t heartbeat_ms, max_frontend_reqs;
    uint32_t shutdown_timeout_ms;
    size_t stream_bytes_max; /* of kept streams; 0: none are kept */
};

#endif
