/* Batches of big-number arithmetic modulo root^2, several numbers in lockstep.
 *
 * Three backends compute the same things on 52-bit limbs: `ifma` with the multiplier of AVX-512 IFMA,
 * 8 lanes; `avx2` with the double-precision multiplier, 4 lanes; `portable` in plain C, one lane, on any
 * 64-bit machine. Each is kernels.h, operations.h, multipowers.h and products.h compiled once,
 * behind the function table below.
 *
 * Every size is checked in module.c before a backend runs; the backends only index what those
 * checks cover.
 */
#ifndef DAPFL_BATCH_H
#define DAPFL_BATCH_H

#include <stddef.h>
#include <stdint.h>

#define BITS 52      /* of a limb */
#define MAX_LIMBS 80 /* of a root */
#define MAX_CHUNKS 4 /* an input row may be this many times as wide as a root */
#define MESSAGE_CHUNKS 2

/* One root, prepared by native.py. A number has K limbs, least significant first;
 * R = 2^(52*K) is the Montgomery radix and exceeds the root by 2^8 at least. A pair (x0, x1)
 * stands for x0 + x1*root modulo root^2. */
typedef struct {
    int limbs;                     /* K, a multiple of 4 */
    int root_bytes;                /* width of a row that holds a number below the root */
    int modulus_bytes;             /* width of a row that holds a number below root^2 */
    int cut;                       /* Barrett: limbs cut off below the quotient estimate */
    const uint64_t *minus_inverse; /* [4] -1/root mod 2^(4*52) */
    const uint64_t *root;          /* [K] */
    const uint64_t *cover;         /* [K] a multiple of the root with every limb >= 2^52 - 1 */
    const uint64_t *one;           /* [2K] the pair R mod root^2 */
    const uint64_t *lift;          /* [MAX_CHUNKS][2K] the pairs R^(i+2) mod root^2 */
    const uint64_t *square;        /* [2K] root^2 */
    const uint64_t *mu;            /* [2K] floor(2^(52*(cut+2K)) / root^2) */
} ring;

#define RING_HEADER 4
#define RING_WORDS(K) (4 + (size_t)(K) * (2 + 2 + 2 * MAX_CHUNKS + 4))

/* Rows of bytes; count rows of `width` bytes each. */
typedef struct {
    const uint8_t *data;
    size_t width;
} rows;

/* Messages m multiply a result by 1 + scale*m*root; `scales` holds scale*R^(i+1) mod root. */
typedef struct {
    rows rows; /* data is NULL when there are none */
    const uint64_t *scales;
} messages;

/* Powers of one base: entry (row, digit) is y = base^(digit * 2^(window*spacing*row)), as K limbs of its unit u
 * and K of its log: R*y = u*(1 + log*root) modulo root^2, with u below 2*root and log below root. */
typedef struct {
    size_t rows;
    int window; /* 4 or 8 */
    size_t spacing;
    size_t exponent_bytes;
} table_shape;

/* All return 0, or -1 when memory runs out. They must be called with floating-point rounding toward zero. */
typedef struct {
    const char *name;
    int lanes;
    int (*usable)(void); /* on this CPU */
    /* What is computed depends on the length of the exponent only, unless anyone may know the exponent. */
    int (*powers)(const ring *, size_t count, rows bases, const uint8_t *exponent, size_t exponent_bits, int known,
                  messages, uint8_t *out);
    /* base^exponent modulo the root itself: rows of root_bytes. */
    int (*residue_powers)(const ring *, size_t count, rows bases, const uint8_t *exponent, size_t exponent_bits,
                          uint8_t *out);
    /* *bad is the index of the first base that is no unit, or count. scale is scale*R mod root, [K]. */
    int (*quotients)(const ring *, size_t count, rows bases, const uint8_t *exponent, size_t exponent_bits,
                     const uint64_t *scale, uint8_t *out, size_t *bad);
    /* The same with a ring, an exponent and a message or scale of its own for each row. The rings have the same limbs
     * and widths. Idle lanes cost as much as busy ones: for one ring, use the functions above. */
    int (*lane_powers)(const ring *rings, size_t count, rows bases, rows exponents, rows texts, uint8_t *out);
    /* Also base^exponent modulo the root, which is 1 where there is a quotient: rows of root_bytes. */
    int (*lane_quotients)(const ring *rings, size_t count, rows bases, rows exponents, const uint64_t *scales,
                          uint8_t *out, uint8_t *residues);
    /* inverse is R/base mod root, [K]. */
    int (*build_table)(const ring *, rows base, const uint64_t *inverse, table_shape, uint64_t *table);
    int (*table_powers)(const ring *, size_t count, const uint64_t *table, table_shape, const uint8_t *exponents,
                        messages, uint8_t *out);
    /* One product of base^exponent over all rows, modulo root^2 or the root; the exponents must be public. */
    int (*power_product)(const ring *, int modulo_root, size_t count, rows bases, rows exponents, uint8_t *out);
    int (*product)(const ring *, size_t count, size_t batch_count, const uint8_t *const *batches, uint8_t *out);
    int (*combine)(const ring *, size_t count, rows low, rows high, const uint64_t *p, const uint64_t *inverse,
                   uint8_t *out, size_t width);
} backend;

extern const backend dapfl_ifma, dapfl_avx2, dapfl_portable;

#endif
