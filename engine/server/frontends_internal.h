/* SPDX-License-Identifier: Apache-2.0 */
/* frontends_internal - what the files of frontends share. Threads: the server's loop. */
#ifndef QUIRE_ENGINE_SERVER_FRONTENDS_INTERNAL_H
#define QUIRE_ENGINE_SERVER_FRONTENDS_INTERNAL_H
#include "engine/server/frontends.h"

/* Send p->frame, encoded with result rc, or drop the frontend that cannot take it. */
void frontends_send(struct frontends *p, struct frontend *to, enum q_code rc, struct q_err *e);
/* An error to a sender that is perhaps not in the table. */
void frontends_send_error(struct frontends *p, const struct frontend_address *to, uint64_t req_id,
                          const struct q_err *why, uint32_t retry_ms);
/* The same as m, which has neither code nor message. */
void frontends_send_refusal(struct frontends *p, const struct frontend_address *to,
                            struct msg_error m, const struct q_err *why);

/* submits.c. frame: that of m. */
void frontends_on_submit(struct frontends *p, struct frontend *from, const struct msg_submit *m,
                         const struct proto_bytes *frame);
/* Errors: Q_CORRUPT; its request has ended. */
FALLIBLE frontends_on_item_piece(struct frontends *p, struct frontend *from,
                                 const struct msg_item_piece *m, struct q_err *e);
/* Requests whose items are not all there: all of them; those that no piece comes of. */
void frontends_end_uploads(struct frontends *p, const struct q_err *why);
void frontends_end_silent_uploads(struct frontends *p, int64_t now_ms);
/* The engine that comes after a crash knows whose request was on trial. */
void frontends_open_trials(struct frontends *p);
/* instance: of the frontend; 0: no request is on trial any more. */
void frontends_note_trial(struct frontends *p, uint64_t instance);
/* After an event: if the request on trial has ended, so has the trial, a while later. */
void frontends_end_trial(struct frontends *p);
/* How long until a submit of n_prompt tokens may have room. */
uint32_t frontends_retry_ms(const struct frontends *p, size_t n_prompt);
/* The frontend counts and shows the prompt as it is computed. */
void frontends_tell_expanded(struct frontends *p, struct frontend *to, uint64_t req_id);

/* kept_streams.c. Errors: Q_CORRUPT. */
FALLIBLE frontends_on_keep_stream(struct frontends *p, const struct msg_keep_stream *m,
                                  struct q_err *e);
void frontends_on_resume_stream(struct frontends *p, struct frontend *from,
                                const struct msg_resume_stream *m);
/* Add the outputs in the outbox, those of this frontend, to the streams that are kept of them. */
void frontends_keep_outputs(struct frontends *p, const struct frontend *of);

#endif
