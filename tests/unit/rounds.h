/* SPDX-License-Identifier: Apache-2.0 */
/* rounds - how often a test goes through the same code. Under a sanitizer that takes many times as
 * long, and an access that is wrong shows in few rounds; numbers are compared in all of them by the
 * build without one. */
#ifndef QUIRE_TESTS_UNIT_ROUNDS_H
#define QUIRE_TESTS_UNIT_ROUNDS_H

#if defined __has_feature /* clang's */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ROUNDS_ARE_FEW
#endif
#elif defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define ROUNDS_ARE_FEW
#endif

/* `all` rounds, or `few` of them under a sanitizer. */
#ifdef ROUNDS_ARE_FEW
#define ROUNDS(all, few) (few)
#else
#define ROUNDS(all, few) (all)
#endif

#endif
