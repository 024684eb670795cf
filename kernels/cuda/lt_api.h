/* SPDX-License-Identifier: Apache-2.0 */
/* lt_api - the part of cuBLASLt's C interface that lt.c uses, as a table of functions: those of
 * libcublasLt, loaded with dlopen so that libquire-cuda.so works without it, or those of a test.
 *
 * Numbers are those of cublasLt.h, library_types.h and cublas_api.h (12 and 13 agree); lt_api.c
 * compares them with the headers if they are installed. Handles and descriptors are opaque: void *.
 * Every function but version returns a status, LT_OK or the library's number. Threads: the
 * library's functions from any. */
#ifndef QUIRE_KERNELS_CUDA_LT_API_H
#define QUIRE_KERNELS_CUDA_LT_API_H
#include <stddef.h>
#include <stdint.h>

enum lt_status { LT_OK = 0 };
enum lt_type { LT_F32 = 0, LT_F16 = 2, LT_I8 = 3, LT_I32 = 10, LT_BF16 = 14, LT_E4M3 = 28 };
enum lt_compute { LT_COMPUTE_F32 = 68, LT_COMPUTE_I32 = 72 };
enum lt_transposed { LT_PLAIN = 0, LT_TRANSPOSED = 1 };
enum lt_scales {
    LT_SCALES_OUTER = 3 /* of e4m3: f32, one for each column of A and of B; from 12.9 on */
};
enum lt_epilogue { LT_EPILOGUE_NONE = 1, LT_EPILOGUE_BIAS = 4 };
enum lt_desc_attribute {
    LT_DESC_TRANSPOSE_A = 3,  /* int32 */
    LT_DESC_TRANSPOSE_B = 4,  /* int32 */
    LT_DESC_EPILOGUE = 7,     /* uint32 */
    LT_DESC_BIAS = 8,         /* const void * */
    LT_DESC_SCALES_A = 17,    /* const void * */
    LT_DESC_SCALES_B = 18,    /* const void * */
    LT_DESC_BIAS_TYPE = 26,   /* int32 */
    LT_DESC_SCALES_A_IS = 31, /* int32: enum lt_scales */
    LT_DESC_SCALES_B_IS = 32  /* int32: enum lt_scales */
};
enum lt_layout_attribute { LT_LAYOUT_COLS = 3 /* uint64 */, LT_LAYOUT_STEP = 4 /* int64 */ };
enum lt_pref_attribute {
    LT_PREF_WORKSPACE = 1, /* uint64, most bytes */
    LT_PREF_ALIGN_A = 5,   /* uint32, least bytes; of B, C and D: the next three */
    LT_PREF_ALIGN_D = 8
};

struct lt_algo { /* may be saved for the same version of the library */
    uint64_t data[8];
};
struct lt_found { /* cublasLtMatmulHeuristicResult_t */
    struct lt_algo algo;
    size_t workspace_bytes;
    int status; /* LT_OK: the other members are valid */
    float waves;
    int reserved[4];
};

struct lt_api {
    size_t (*version)(void); /* 130100: 13.1.0 */
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale_type);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t n);
    int (*desc_destroy)(void *desc);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t step);
    int (*layout_set)(void *layout, int attribute, const void *value, size_t n);
    int (*layout_destroy)(void *layout);
    int (*pref_create)(void **pref);
    int (*pref_set)(void *pref, int attribute, const void *value, size_t n);
    int (*pref_destroy)(void *pref);
    /* Up to n algorithms for D = alpha op(A) op(B) + beta C, the best guess first. */
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref,
                     int n, struct lt_found *out, int *n_out);
    /* Column-major throughout. A status other than LT_OK: nothing was launched. */
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                  const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                  void *d, void *d_layout, const struct lt_algo *algo, void *workspace,
                  size_t workspace_bytes, void *stream);
};

#define LT_WHY_MAX 160u
/* The library's functions; NULL if the library or one of its functions is missing, with the reason
 * in `why`. It is never unloaded. */
const struct lt_api *lt_api_open(char why[LT_WHY_MAX]);

#endif
