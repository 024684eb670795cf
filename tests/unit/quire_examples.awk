# SPDX-License-Identifier: Apache-2.0
# The examples in the comments of quire.h as C functions: lines that begin with " *     " are code.
/^ \*     / { if (!open) printf "static void example_%d(void)\n{\n", ++n; open = 1; print substr($0, 8); next }
open { print "}"; open = 0 }
END {
    printf "static void (*const examples[])(void) = {"
    for (i = 1; i <= n; i++) printf "example_%d, ", i
    print "};"
}
