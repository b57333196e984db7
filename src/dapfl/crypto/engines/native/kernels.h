/* The arithmetic of one backend, on LANES numbers in lockstep. A backend defines, before including this file:
 *   LANES, V               a vector of LANES uint64_t, or one
 *   AT(v, lane)            the number in that lane
 *   F, FACTORS(f, x, k)    a limb as a factor; the k limbs x as factors, stored in f unless V and F are one
 *   MULTIPLY(lo, hi, x, y) lo += the low limb of x*y + LO_OFFSET, hi += the high limb + HI_OFFSET
 *   MULTIPLY_TWO, _THREE, _FOUR  as many times MULTIPLY into the same lo and hi, if it can do better
 *   QUOTIENT_BY_BLOCK      1, or 0 and LOW(x, y): the low limb of x*y, without an offset, for any 64-bit x
 *   FACTOR(x)              one limb as a factor
 *   transpose(out, in)     out[i][lane] = in[lane][i], for LANES vectors
 *
 * Limbs at rest are below 2^52. Columns of a product under way are sums of limbs of products, up to 6K of them,
 * and stay far below 2^64.
 */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

static const V ZERO = {0};

INLINE V all(uint64_t x) { return ZERO + x; }

/* ---- limbs ------------------------------------------------------------------------------------ */

/* The constants of a ring as the lanes need them. Every lane may have a ring of its own, of the same size. */
typedef struct {
    int K;
    F minus_inverse[4];   /* -1/root mod 2^(4*52) */
    F factors[MAX_LIMBS]; /* of the root */
    V root[MAX_LIMBS], cover[MAX_LIMBS];
    V one[2 * MAX_LIMBS], lift[MAX_CHUNKS][2 * MAX_LIMBS];
} field;

static const uint64_t MASK = (UINT64_C(1) << BITS) - 1;

static void spread(int count, V *out, const uint64_t *limbs) {
    for (int j = 0; j < count; j++) out[j] = all(limbs[j]);
}

static void prepare(field *f, const ring *r) {
    f->K = r->limbs;
    for (int j = 0; j < 4; j++) f->minus_inverse[j] = FACTOR(all(r->minus_inverse[j]));
    spread(f->K, f->root, r->root);
    spread(f->K, f->cover, r->cover);
    for (int j = 0; j < f->K; j++) f->factors[j] = FACTOR(f->root[j]);
    spread(2 * f->K, f->one, r->one);
    for (int i = 0; i < MAX_CHUNKS; i++) spread(2 * f->K, f->lift[i], r->lift + i * 2 * f->K);
}

/* Lane l has the ring rings[l]; all have the same limbs and widths. */
static void prepare_lanes(field *f, const ring *const *rings) {
    const int K = f->K = rings[0]->limbs;
    V inverse[4];
    for (int lane = 0; lane < LANES; lane++) {
        const ring *r = rings[lane];
        for (int j = 0; j < 4; j++) AT(inverse[j], lane) = r->minus_inverse[j];
        for (int j = 0; j < K; j++) AT(f->root[j], lane) = r->root[j], AT(f->cover[j], lane) = r->cover[j];
        for (int j = 0; j < 2 * K; j++) AT(f->one[j], lane) = r->one[j];
        for (int i = 0; i < MAX_CHUNKS; i++)
            for (int j = 0; j < 2 * K; j++) AT(f->lift[i][j], lane) = r->lift[i * 2 * K + j];
    }
    for (int j = 0; j < 4; j++) f->minus_inverse[j] = FACTOR(inverse[j]);
    for (int j = 0; j < K; j++) f->factors[j] = FACTOR(f->root[j]);
}

static void clear(int count, V *x) {
    for (int j = 0; j < count; j++) x[j] = ZERO;
}

/* Carries from unsigned columns; what leaves the top is dropped. */
INLINE void carry(int count, V *out, const V *columns) {
    V c = ZERO;
    for (int j = 0; j < count; j++) {
        V x = columns[j] + c;
        out[j] = x & MASK;
        c = x >> BITS;
    }
}

/* The same from columns that may be negative, down to -2^63: as much is lent to each, and taken from the next. */
INLINE void carry_signed(int count, V *out, const V *columns) {
    const V lent = all((UINT64_C(1) << 63) - (UINT64_C(1) << (63 - BITS)));
    V c = all(UINT64_C(1) << (63 - BITS));
    for (int j = 0; j < count; j++) {
        V x = columns[j] + lent + c;
        out[j] = x & MASK;
        c = x >> BITS;
    }
}

/* x - y, dropping the borrow: all ones in the lanes where x < y. One is lent to each limb, and taken from the next. */
static V subtract(int count, V *out, const V *x, const V *y) {
    V c = all(1);
    for (int j = 0; j < count; j++) {
        V d = x[j] - y[j] + MASK + c;
        out[j] = d & MASK;
        c = d >> BITS;
    }
    return c - 1;
}

/* Subtract the modulus once where x is not below it, without branching. All ones where it was below. */
static V reduce_once(int count, V *x, const V *modulus) {
    V d[2 * MAX_LIMBS];
    V below = subtract(count, d, x, modulus);
    for (int j = 0; j < count; j++) x[j] = (x[j] & below) | (d[j] & ~below);
    return below;
}

#ifndef MULTIPLY_TWO
#define MULTIPLY_TWO(lo, hi, x0, y0, x1, y1) \
    do {                                     \
        MULTIPLY(lo, hi, x0, y0);            \
        MULTIPLY(lo, hi, x1, y1);            \
    } while (0)
#define MULTIPLY_THREE(lo, hi, x0, y0, x1, y1, x2, y2) \
    do {                                               \
        MULTIPLY_TWO(lo, hi, x0, y0, x1, y1);          \
        MULTIPLY(lo, hi, x2, y2);                      \
    } while (0)
#define MULTIPLY_FOUR(lo, hi, x0, y0, x1, y1, x2, y2, x3, y3) \
    do {                                                      \
        MULTIPLY_TWO(lo, hi, x0, y0, x1, y1);                 \
        MULTIPLY_TWO(lo, hi, x2, y2, x3, y3);                 \
    } while (0)
#endif

/* ---- products --------------------------------------------------------------------------------- */

/* What `lo` low limbs and `hi` high limbs of products have too much. */
INLINE V offsets(uint64_t lo, uint64_t hi) { return all(lo * LO_OFFSET + hi * HI_OFFSET); }

/* One product less its offsets. */
INLINE void add_product(V *lo, V *hi, F x, F y) {
    MULTIPLY(*lo, *hi, x, y);
    *lo -= LO_OFFSET, *hi -= HI_OFFSET;
}

/* Columns of t += a * (b0 + b1*2^52 + b2*.. + b3*..). A column is read when the high limbs of the one before it are added,
 * and is at work until its own low limbs are: `up` is the one at work. */

/* The columns from .. to-1, both multiples of 4 and at least 4; column `to` is at work then. */
INLINE V columns(V *restrict t, const F *restrict a, int from, int to, F b0, F b1, F b2, F b3, V up) {
    F w1 = a[from - 1], w2 = a[from - 2], w3 = a[from - 3];
    for (int j = from; j < to; j += 4) {
#pragma GCC unroll 4
        for (int k = j; k < j + 4; k++) {
            F w0 = a[k];
            V x = up - offsets(4, 4);
            up = t[k + 1];
            MULTIPLY_FOUR(x, up, w0, b0, w1, b1, w2, b2, w3, b3);
            t[k] = x;
            w3 = w2, w2 = w1, w1 = w0;
        }
    }
    return up;
}

/* The columns from .. count+3, which are the last ones of a product with a[0..count). */
INLINE void body(V *restrict t, const F *restrict a, int from, int count, F b0, F b1, F b2, F b3, V up) {
    V t0 = columns(t, a, from, count, b0, b1, b2, b3, up) - offsets(3, 4);
    F w1 = a[count - 1], w2 = a[count - 2], w3 = a[count - 3];
    V t1 = t[count + 1] - offsets(2, 3), t2 = t[count + 2] - offsets(1, 2), t3 = t[count + 3] - offsets(0, 1);
    MULTIPLY_THREE(t0, t1, w1, b1, w2, b2, w3, b3);
    MULTIPLY_TWO(t1, t2, w1, b2, w2, b3);
    MULTIPLY(t2, t3, w1, b3);
    t[count] = t0, t[count + 1] = t1, t[count + 2] = t2, t[count + 3] = t3;
}

/* Columns 0 .. 3 of t[0..5) += a[0..4) * b; column 4 is at work then. */
INLINE V foot(V *t, const F *a, F b0, F b1, F b2, F b3) {
    V t0 = t[0] - offsets(1, 0), t1 = t[1] - offsets(2, 1), t2 = t[2] - offsets(3, 2), t3 = t[3] - offsets(4, 3);
    V up = t[4];
    MULTIPLY(t0, t1, a[0], b0);
    MULTIPLY_TWO(t1, t2, a[1], b0, a[0], b1);
    MULTIPLY_THREE(t2, t3, a[2], b0, a[1], b1, a[0], b2);
    MULTIPLY_FOUR(t3, up, a[3], b0, a[2], b1, a[1], b2, a[0], b3);
    t[0] = t0, t[1] = t1, t[2] = t2, t[3] = t3;
    return up;
}

/* t[0 .. count+4) += a[0..count) * b[0..4) */
static void accumulate(V *restrict t, const F *restrict a, int count, const F *b) {
    F b0 = b[0], b1 = b[1], b2 = b[2], b3 = b[3];
    V up = foot(t, a, b0, b1, b2, b3);
    body(t, a, 4, count, b0, b1, b2, b3, up);
}

/* t[0 .. 2*count) += a * b */
static void multiply(int count, V *t, const F *a, const F *b) {
    for (int i = 0; i < count; i += 4) accumulate(t + i, a, count, b + i);
}

/* t[0 .. 2*count) = a * a: every product of two different limbs once, doubled, then the squares. */
static void square(int count, V *t, const F *a) {
    clear(2 * count, t);
    for (int i = 0; i < count; i += 4) {
        F a0 = a[i], a1 = a[i + 1], a2 = a[i + 2], a3 = a[i + 3];
        V *s = t + 2 * i;
        add_product(&s[1], &s[2], a0, a1), add_product(&s[2], &s[3], a0, a2);
        add_product(&s[3], &s[4], a0, a3), add_product(&s[3], &s[4], a1, a2);
        add_product(&s[4], &s[5], a1, a3), add_product(&s[5], &s[6], a2, a3);
        if (i + 4 < count) accumulate(t + 2 * i + 4, a + i + 4, count - i - 4, a + i);
    }
    for (int i = 0; i < count; i++) {
        V lo = t[2 * i] + t[2 * i], hi = t[2 * i + 1] + t[2 * i + 1];
        add_product(&lo, &hi, a[i], a[i]);
        t[2 * i] = lo, t[2 * i + 1] = hi;
    }
}

/* The four limbs m for which t + m*root is a multiple of 2^(4*52), also as factors. Returns what the four lowest
 * columns of that sum carry, with the offsets of four high limbs. */
#if QUOTIENT_BY_BLOCK
/* m = t * (-1/root) at once: twice the products, but hardly any that wait for another. */
INLINE V quotient_limbs(const field *f, const V *t, V *m, F *factors) {
    const F *i = f->minus_inverse;
    V c[5] = {t[0], t[1], t[2], t[3], ZERO}, s[5] = {ZERO, ZERO, ZERO, ZERO, ZERO};
    carry(4, m, c);
    for (int j = 0; j < 4; j++) factors[j] = FACTOR(m[j]);
    foot(s, factors, i[0], i[1], i[2], i[3]);
    carry(4, m, s);
    for (int j = 0; j < 4; j++) factors[j] = FACTOR(m[j]);
    V up = foot(c, f->factors, factors[0], factors[1], factors[2], factors[3]);
    for (int j = 0; j < 3; j++) c[j + 1] += c[j] >> BITS;
    return up + (c[3] >> BITS);
}
#else
/* Limb by limb: each m clears its column and leaves a carry. */
INLINE V quotient_limbs(const field *f, const V *t, V *m, F *factors) {
    V c[5] = {t[0], t[1], t[2], t[3], offsets(0, 4)};
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        m[j] = LOW(c[j], f->minus_inverse[0]);
        factors[j] = FACTOR(m[j]);
#pragma GCC unroll 4
        for (int k = j; k < 4; k++) add_product(&c[k], &c[k + 1], f->factors[k - j], factors[j]);
        c[j + 1] += c[j] >> BITS;
    }
    return c[4];
}
#endif

/* out = t / R modulo root, below 2*root for t < R*root; q[] receives the limbs of the multiple of
 * the root that was added: t + q*root = R*out. */
static void montgomery(const field *f, V *out, V *t, V *q) {
    F m[4], next[4];
    V up = quotient_limbs(f, t, q, m);
    for (int i = 4; i < f->K; i += 4, t += 4) {
        /* The next four limbs of q wait for one another: they are begun as soon as their columns are complete. */
        V at_work = columns(t, f->factors, 4, 8, m[0], m[1], m[2], m[3], t[4] + up);
        V next_up = quotient_limbs(f, t + 4, q + i, next);
        body(t, f->factors, 8, f->K, m[0], m[1], m[2], m[3], at_work);
        up = next_up;
        for (int j = 0; j < 4; j++) m[j] = next[j];
    }
    body(t, f->factors, 4, f->K, m[0], m[1], m[2], m[3], t[4] + up);
    t += 4;
    carry(f->K, out, t);
}

/* out = a*b/R modulo root. */
static void residue_multiply(const field *f, V *out, const V *a, const V *b) {
    V t[2 * MAX_LIMBS], q[MAX_LIMBS];
    F fa[MAX_LIMBS], fb[MAX_LIMBS];
    clear(2 * f->K, t);
    multiply(f->K, t, FACTORS(fa, a, f->K), FACTORS(fb, b, f->K));
    montgomery(f, out, t, q);
}

static void residue_square(const field *f, V *x) {
    V t[2 * MAX_LIMBS], q[MAX_LIMBS];
    F room[MAX_LIMBS];
    square(f->K, t, FACTORS(room, x, f->K));
    montgomery(f, x, t, q);
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
    F a_room[2 * MAX_LIMBS], b_room[2 * MAX_LIMBS];
    const F *fa = FACTORS(a_room, a, 2 * K), *fb = FACTORS(b_room, b, 2 * K);
    clear(2 * K, t);
    multiply(K, t, fa, fb);
    montgomery(f, low, t, q);
    open_upper(f, t, q);
    multiply(K, t, fa, fb + K);
    multiply(K, t, fa + K, fb);
    montgomery(f, out + K, t, q);
    memcpy(out, low, sizeof(V) * (size_t)K);
}

/* x = x*y/R modulo n^2 for a y of K limbs, below 2n: one product less than with a pair. */
static void pair_scale(const field *f, V *x, const V *y) {
    const int K = f->K;
    V t[2 * MAX_LIMBS], q[MAX_LIMBS], low[MAX_LIMBS];
    F x_room[2 * MAX_LIMBS], y_room[MAX_LIMBS];
    const F *fx = FACTORS(x_room, x, 2 * K), *fy = FACTORS(y_room, y, K);
    clear(2 * K, t);
    multiply(K, t, fx, fy);
    montgomery(f, low, t, q);
    open_upper(f, t, q);
    multiply(K, t, fx + K, fy);
    montgomery(f, x + K, t, q);
    memcpy(x, low, sizeof(V) * (size_t)K);
}

static void pair_square(const field *f, V *x) {
    const int K = f->K;
    V t[2 * MAX_LIMBS], q[MAX_LIMBS], low[MAX_LIMBS], twice[MAX_LIMBS];
    F room[MAX_LIMBS], twice_room[MAX_LIMBS];
    const F *fx = FACTORS(room, x, K);
    square(K, t, fx);
    montgomery(f, low, t, q);
    for (int j = 0; j < K; j++) twice[j] = x[K + j] + x[K + j];
    carry(K, twice, twice);
    open_upper(f, t, q);
    multiply(K, t, fx, FACTORS(twice_room, twice, K));
    montgomery(f, x + K, t, q);
    memcpy(x, low, sizeof(V) * (size_t)K);
}

/* Arithmetic modulo root^2 on pairs, or modulo the root on the lower half of pairs. Montgomery's one begins f->one
 * either way. */
typedef struct {
    int halves;
    void (*multiply)(const field *, V *out, const V *a, const V *b);
    void (*square)(const field *, V *x);
} arithmetic;

static const arithmetic PAIRS = {2, pair_multiply, pair_square}, RESIDUES = {1, residue_multiply, residue_square};
