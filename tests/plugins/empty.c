/* SPDX-License-Identifier: Apache-2.0 */
/* empty - a shared object that is no plugin. */
int empty_object(void);

int empty_object(void)
{
    return 0;
}
