/* The arithmetic of one backend, which defines before including this file:
 *   LANES, V (a vector of LANES uint64_t), MAX_LIMBS, WORD (the type of a limb in a table)
 *   LO(c, x, y)   c + the low limb of x*y          (for limbs that fill 52 bits)
 *   HI(c, x, y)   c + the high limb of x*y         or c + x*y and c, where a product fits 64 bits
 *   LOW(x, y, f)  the low limb of x*y in the field f
 *   transpose(out, in)   out[i][lane] = in[lane][i], for LANES vectors
 *   widen(words)         LANES table words as a vector
 *
 * Limbs of numbers at rest are below 2^bits. Columns of a product under way hold sums of up to 3K
 * limb products and stay below 2^64: module.c refuses rings for which they would not.
 */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

static const V ZERO = {0};

INLINE V all(uint64_t x) { return ZERO + x; }

/* ---- limbs ------------------------------------------------------------------------------------ */

typedef struct {
    int K, bits;
    V mask, minus_inverse;
    V root[MAX_LIMBS], cover[MAX_LIMBS];
} field;

static void spread(int count, V *out, const uint64_t *limbs) {
    for (int j = 0; j < count; j++) out[j] = all(limbs[j]);
}

static void prepare(field *f, const ring *r) {
    f->K = r->limbs;
    f->bits = r->bits;
    f->mask = all((UINT64_C(1) << r->bits) - 1);
    f->minus_inverse = all(r->minus_inverse);
    spread(f->K, f->root, r->root);
    spread(f->K, f->cover, r->cover);
}

static void clear(int count, V *x) {
    for (int j = 0; j < count; j++) x[j] = ZERO;
}

/* Carries from unsigned columns; what leaves the top is dropped. */
static void carry(const field *f, int count, V *out, const V *columns) {
    V c = ZERO;
    for (int j = 0; j < count; j++) {
        V x = columns[j] + c;
        out[j] = x & f->mask;
        c = x >> f->bits;
    }
}

/* x - y, dropping the borrow: all ones in the lanes where x < y. */
static V subtract(const field *f, int count, V *out, const V *x, const V *y) {
    V borrow = ZERO;
    for (int j = 0; j < count; j++) {
        V d = x[j] - y[j] - borrow;
        borrow = d >> 63;
        out[j] = d & f->mask;
    }
    return ZERO - borrow;
}

/* Subtract the modulus once where x is not below it, without branching. */
static void reduce_once(const field *f, int count, V *x, const V *modulus) {
    V d[2 * MAX_LIMBS];
    V below = subtract(f, count, d, x, modulus);
    for (int j = 0; j < count; j++) x[j] = (x[j] & below) | (d[j] & ~below);
}

/* ---- products --------------------------------------------------------------------------------- */

/* Columns 4 .. count+3 of t += a[0..count) * (b0 + b1*2^bits + b2*.. + b3*..); count is a multiple of 4. */
INLINE void body(V *t, const V *a, int count, V b0, V b1, V b2, V b3) {
    V w1 = a[3], w2 = a[2], w3 = a[1], w4 = a[0];
    (void)w4; /* used by HI, if there is one */
#pragma GCC unroll 4
    for (int j = 4; j < count; j++) {
        V w0 = a[j], x = t[j], y = ZERO;
        x = LO(x, w0, b0), y = HI(y, w1, b0);
        x = LO(x, w1, b1), y = HI(y, w2, b1);
        x = LO(x, w2, b2), y = HI(y, w3, b2);
        x = LO(x, w3, b3), y = HI(y, w4, b3);
        t[j] = x + y;
        w4 = w3, w3 = w2, w2 = w1, w1 = w0;
    }
    t += count;
    t[0] = LO(LO(LO(t[0], w1, b1), w2, b2), w3, b3) + HI(HI(HI(HI(ZERO, w1, b0), w2, b1), w3, b2), w4, b3);
    t[1] = LO(LO(t[1], w1, b2), w2, b3) + HI(HI(HI(ZERO, w1, b1), w2, b2), w3, b3);
    t[2] = LO(t[2], w1, b3) + HI(HI(ZERO, w1, b2), w2, b3);
    t[3] = HI(t[3], w1, b3);
}

/* t[0 .. count+4) += a[0..count) * b[0..4) */
static void accumulate(V *t, const V *a, int count, const V *b) {
    V b0 = b[0], b1 = b[1], b2 = b[2], b3 = b[3];
    t[0] = LO(t[0], a[0], b0);
    t[1] = HI(LO(LO(t[1], a[1], b0), a[0], b1), a[0], b0);
    t[2] = LO(LO(LO(t[2], a[2], b0), a[1], b1), a[0], b2) + HI(HI(ZERO, a[1], b0), a[0], b1);
    t[3] = LO(LO(LO(LO(t[3], a[3], b0), a[2], b1), a[1], b2), a[0], b3) +
           HI(HI(HI(ZERO, a[2], b0), a[1], b1), a[0], b2);
    body(t, a, count, b0, b1, b2, b3);
}

/* t[0 .. 2*count) += a * b */
static void multiply(int count, V *t, const V *a, const V *b) {
    for (int i = 0; i < count; i += 4) accumulate(t + i, a, count, b + i);
}

/* t[0 .. 2*count) = a * a: every product of two different limbs once, doubled, then the squares. */
static void square(int count, V *t, const V *a) {
    clear(2 * count, t);
    for (int i = 0; i < count; i += 4) {
        V a0 = a[i], a1 = a[i + 1], a2 = a[i + 2], a3 = a[i + 3];
        V *s = t + 2 * i;
        s[1] = LO(s[1], a0, a1);
        s[2] = HI(LO(s[2], a0, a2), a0, a1);
        s[3] = HI(LO(LO(s[3], a0, a3), a1, a2), a0, a2);
        s[4] = HI(HI(LO(s[4], a1, a3), a0, a3), a1, a2);
        s[5] = HI(LO(s[5], a2, a3), a1, a3);
        s[6] = HI(s[6], a2, a3);
        if (i + 4 < count) accumulate(t + 2 * i + 4, a + i + 4, count - i - 4, a + i);
    }
    for (int i = 0; i < count; i++) {
        t[2 * i] = LO(t[2 * i] + t[2 * i], a[i], a[i]);
        t[2 * i + 1] = HI(t[2 * i + 1] + t[2 * i + 1], a[i], a[i]);
    }
}

/* out = t / R modulo root, below 2*root for t < R*root; q[] receives the limbs of the multiple of
 * the root that was added: t + q*root = R*out. */
static void montgomery(const field *f, V *out, V *t, V *q) {
    const int K = f->K, bits = f->bits;
    const V *n = f->root, inverse = f->minus_inverse;
    V n0 = n[0], n1 = n[1], n2 = n[2], n3 = n[3];
    for (int i = 0; i < K; i += 4, t += 4) {
        V x = t[0];
        V m0 = LOW(x, inverse, f);
        x = HI(LO(t[1] + (LO(x, n0, m0) >> bits), n1, m0), n0, m0);
        V m1 = LOW(x, inverse, f);
        x = HI(HI(LO(LO(t[2] + (LO(x, n0, m1) >> bits), n2, m0), n1, m1), n1, m0), n0, m1);
        V m2 = LOW(x, inverse, f);
        x = LO(LO(LO(t[3] + (LO(x, n0, m2) >> bits), n3, m0), n2, m1), n1, m2);
        x = HI(HI(HI(x, n2, m0), n1, m1), n0, m2);
        V m3 = LOW(x, inverse, f);
        t[4] += LO(x, n0, m3) >> bits;
        body(t, n, K, m0, m1, m2, m3);
        if (q) q[i] = m0, q[i + 1] = m1, q[i + 2] = m2, q[i + 3] = m3;
    }
    carry(f, K, out, t);
}

/* out = a*b/R modulo root. */
static void residue_multiply(const field *f, V *out, const V *a, const V *b) {
    V t[2 * MAX_LIMBS];
    clear(2 * f->K, t);
    multiply(f->K, t, a, b);
    montgomery(f, out, t, NULL);
}

/* t = cover - q, ready to take the products of the upper half. */
static void open_upper(const field *f, V *t, const V *q) {
    for (int j = 0; j < f->K; j++) t[j] = f->cover[j] - q[j];
    clear(f->K, t + f->K);
}

/* Pairs: (a0 + a1 n)(b0 + b1 n)/R = (a0 b0 + q n)/R + n (a0 b1 + a1 b0 - q)/R modulo n^2.
 * Inputs may be up to 8n, outputs are below 2n. out may be a or b. */
static void pair_multiply(const field *f, V *out, const V *a, const V *b) {
    const int K = f->K;
    V t[2 * MAX_LIMBS], q[MAX_LIMBS], low[MAX_LIMBS];
    clear(2 * K, t);
    multiply(K, t, a, b);
    montgomery(f, low, t, q);
    open_upper(f, t, q);
    multiply(K, t, a, b + K);
    multiply(K, t, a + K, b);
    montgomery(f, out + K, t, NULL);
    memcpy(out, low, sizeof(V) * (size_t)K);
}

static void pair_square(const field *f, V *x) {
    const int K = f->K;
    V t[2 * MAX_LIMBS], q[MAX_LIMBS], low[MAX_LIMBS], twice[MAX_LIMBS];
    square(K, t, x);
    montgomery(f, low, t, q);
    for (int j = 0; j < K; j++) twice[j] = x[K + j] + x[K + j];
    carry(f, K, twice, twice);
    open_upper(f, t, q);
    multiply(K, t, x, twice);
    montgomery(f, x + K, t, NULL);
    memcpy(x, low, sizeof(V) * (size_t)K);
}
