/* SPDX-License-Identifier: Apache-2.0 */
/* step_note - why a worker could not compute a sequence of a step, in its result (step.h). Threads:
 * values. */
#ifndef QUIRE_PROTO_STEP_NOTE_H
#define QUIRE_PROTO_STEP_NOTE_H
#include <stdint.h>

/* The sequence ends with this error, and its rows of the result say nothing. One for each slot at
 * most. */
#define STEP_NOTE_MAX 500u /* bytes of the text, with its NUL; one sentence of printable UTF-8 */
struct step_note {
    uint32_t slot;
    uint32_t position; /* keys and values from here on are wrong */
    char text[STEP_NOTE_MAX];
};
/* From any text: cut, one line, printable. */
void step_note_set(struct step_note *note, uint32_t slot, uint32_t position, const char *text);

#endif
