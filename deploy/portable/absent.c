/* SPDX-License-Identifier: Apache-2.0 */
/* What Debian's static archives mention, has no archive itself, and is never reached by a program
 * of ours: udev's names of devices (hwloc asks for a context first and does without), Kerberos and
 * two multicast transports of ZeroMQ (our sockets are ipc:// and tcp://, with CURVE or nothing;
 * proto/address.c refuses all else), systemd's sockets (czmq asks whether it was handed some).
 *
 * Each says "no", in its own convention, whatever its arguments. Linked only into
 * portable programs; a shared library has the real ones. */

/* Declared without the real headers, some of which are not installed where this is built. */
#define ABSENT(name, answer) \
    long name(void);         \
    long name(void)          \
    {                        \
        return answer;       \
    }
#define NOTHING 0
#define FAILED  (13L << 16) /* GSS_S_FAILURE */

/* udev: no context, so nothing else is asked */
ABSENT(udev_new, NOTHING)
ABSENT(udev_unref, NOTHING)
ABSENT(udev_device_new_from_subsystem_sysname, NOTHING)
ABSENT(udev_device_get_property_value, NOTHING)
ABSENT(udev_device_unref, NOTHING)

/* systemd: no socket was handed over */
ABSENT(sd_listen_fds, NOTHING)
ABSENT(sd_is_socket_inet, NOTHING)
ABSENT(sd_is_socket_unix, NOTHING)

/* GSSAPI */
ABSENT(gss_accept_sec_context, FAILED)
ABSENT(gss_acquire_cred, FAILED)
ABSENT(gss_delete_sec_context, FAILED)
ABSENT(gss_display_name, FAILED)
ABSENT(gss_import_name, FAILED)
ABSENT(gss_init_sec_context, FAILED)
ABSENT(gss_release_buffer, FAILED)
ABSENT(gss_release_cred, FAILED)
ABSENT(gss_release_name, FAILED)
ABSENT(gss_unwrap, FAILED)
ABSENT(gss_wrap, FAILED)
void *GSS_C_NT_HOSTBASED_SERVICE, *GSS_C_NT_USER_NAME;

/* OpenPGM: ZeroMQ starts it with every context and insists that it starts; sockets of it do not. */
ABSENT(pgm_init, 1)
ABSENT(pgm_shutdown, 1)
ABSENT(pgm_bind3, NOTHING)
ABSENT(pgm_close, NOTHING)
ABSENT(pgm_connect, NOTHING)
ABSENT(pgm_error_free, NOTHING)
ABSENT(pgm_free, NOTHING)
ABSENT(pgm_freeaddrinfo, NOTHING)
ABSENT(pgm_getaddrinfo, NOTHING)
ABSENT(pgm_getsockopt, NOTHING)
ABSENT(pgm_gsi_create_from_data, NOTHING)
ABSENT(pgm_recvmsgv, NOTHING)
ABSENT(pgm_send, NOTHING)
ABSENT(pgm_setsockopt, NOTHING)
ABSENT(pgm_socket, NOTHING)

/* NORM: no instance */
const void *NORM_INSTANCE_INVALID, *NORM_SESSION_INVALID, *NORM_OBJECT_INVALID;
unsigned NORM_NODE_ANY;
ABSENT(NormCreateInstance, NOTHING)
ABSENT(NormCreateSession, NOTHING)
ABSENT(NormDestroyInstance, NOTHING)
ABSENT(NormDestroySession, NOTHING)
ABSENT(NormGetDescriptor, NOTHING)
ABSENT(NormGetNextEvent, NOTHING)
ABSENT(NormGetRandomSessionId, NOTHING)
ABSENT(NormIsUnicastAddress, NOTHING)
ABSENT(NormNodeDelete, NOTHING)
ABSENT(NormObjectGetType, NOTHING)
ABSENT(NormObjectGetUserData, NOTHING)
ABSENT(NormObjectSetUserData, NOTHING)
ABSENT(NormSetCongestionControl, NOTHING)
ABSENT(NormSetDefaultSyncPolicy, NOTHING)
ABSENT(NormSetDefaultUnicastNack, NOTHING)
ABSENT(NormSetLoopback, NOTHING)
ABSENT(NormSetMulticastInterface, NOTHING)
ABSENT(NormSetRxPortReuse, NOTHING)
ABSENT(NormSetTTL, NOTHING)
ABSENT(NormStartReceiver, NOTHING)
ABSENT(NormStartSender, NOTHING)
ABSENT(NormStopInstance, NOTHING)
ABSENT(NormStopReceiver, NOTHING)
ABSENT(NormStopSender, NOTHING)
ABSENT(NormStreamFlush, NOTHING)
ABSENT(NormStreamOpen, NOTHING)
ABSENT(NormStreamRead, NOTHING)
ABSENT(NormStreamSeekMsgStart, NOTHING)
ABSENT(NormStreamWrite, NOTHING)
