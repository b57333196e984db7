/* Products modulo root^2 of numbers that stay plain: Karatsuba, then Barrett. Included after operations.h. */

#define KARATSUBA_FROM 40

/* out[0 .. 2*count) = a * b, as columns, some of which may be negative. A column is below 2^57.4 for 20 limbs, and each of up
 * to three levels makes the range of the columns four times as wide, half of it below zero: they stay within +-2^62.4.
 * room: 4*count vectors: 2*count here and no more in all the halves. */
static void multiply_columns(int count, V *out, const V *a, const V *b, V *room) {
    if (count < KARATSUBA_FROM || count % 8) {
        F a_room[2 * MAX_LIMBS], b_room[2 * MAX_LIMBS];
        clear(2 * count, out);
        multiply(count, out, FACTORS(a_room, a, count), FACTORS(b_room, b, count));
        return;
    }
    /* (a0 + a1 B)(b0 + b1 B) with the middle term (a0+a1)(b0+b1) - a0 b0 - a1 b1. */
    const int half = count / 2;
    V *sum_a = room, *sum_b = room + half, *middle = room + count, *rest = room + 2 * count;
    multiply_columns(half, out, a, b, rest);
    multiply_columns(half, out + count, a + half, b + half, rest);
    V carry_a = ZERO, carry_b = ZERO;
    for (int j = 0; j < half; j++) {
        V x = a[j] + a[half + j] + carry_a, y = b[j] + b[half + j] + carry_b;
        sum_a[j] = x & MASK, carry_a = x >> BITS;
        sum_b[j] = y & MASK, carry_b = y >> BITS;
    }
    multiply_columns(half, middle, sum_a, sum_b, rest);
    /* Then what the sums carried out of their top limb. */
    V mask_a = ZERO - carry_a, mask_b = ZERO - carry_b;
    for (int j = 0; j < half; j++) {
        middle[j] -= out[j] + out[count + j];
        middle[half + j] += (sum_b[j] & mask_a) + (sum_a[j] & mask_b) - out[half + j] - out[count + half + j];
    }
    for (int j = 0; j < count; j++) out[half + j] += middle[j];
    out[half + count] += carry_a & carry_b;
}

/* root^2 and mu of a ring, as limbs and as factors. */
typedef struct {
    V limbs[2 * MAX_LIMBS];
    F factors[2 * MAX_LIMBS], mu[2 * MAX_LIMBS];
} square_modulus;

static void prepare_square(square_modulus *m, const ring *r) {
    spread(2 * r->limbs, m->limbs, r->square);
    for (int j = 0; j < 2 * r->limbs; j++) {
        m->factors[j] = FACTOR(m->limbs[j]);
        m->mu[j] = FACTOR(all(r->mu[j]));
    }
}

/* x = x*y modulo root^2. mu gives the quotient from the upper limbs of x*y, or one less: what the estimate
 * ignores is below 2^-6 of a unit (native.py chooses `cut` so). room: 12K vectors. */
static void barrett(const ring *r, const square_modulus *m, V *x, const V *y, V *room) {
    const int count = 2 * r->limbs;
    V *whole = room, *t = room + 2 * count, *low = room + 4 * count;
    F factors[2 * MAX_LIMBS];
    multiply_columns(count, whole, x, y, t);
    carry_signed(2 * count, whole, whole);
    /* The columns from count-8 on of upper * mu; those below cannot reach the quotient. */
    const F *upper = FACTORS(factors, whole + r->cut, count);
    clear(2 * count, t);
    for (int i = 0; i < count; i += 4) {
        int skip = count - 8 - i > 0 ? count - 8 - i : 0;
        accumulate(t + i + skip, upper + skip, count - skip, m->mu + i);
    }
    carry(count + 8, t + count - 8, t + count - 8);
    /* The low half of quotient * modulus is enough, since the difference is below 2*modulus. */
    const F *quotient = FACTORS(factors, t + count, count);
    clear(count + 4, low);
    for (int i = 0; i < count; i += 4) accumulate(low + i, m->factors, count - i, quotient + i);
    for (int j = 0; j < count; j++) low[j] = whole[j] - low[j];
    carry_signed(count, x, low);
    reduce_once(count, x, m->limbs);
}

static int product(const ring *r, size_t count, size_t batch_count, const uint8_t *const *batches, uint8_t *out) {
    const int limbs = 2 * r->limbs;
    const size_t width = (size_t)r->modulus_bytes, room = 6 * (size_t)limbs;
    square_modulus m;
    V x[2 * MAX_LIMBS], y[2 * MAX_LIMBS], *memory = allocate(room);
    if (!memory) return -1;
    prepare_square(&m, r);
    for (size_t first = 0; first < count; first += LANES) {
        load((rows){batches[0], width}, first, count, limbs, x);
        for (size_t batch = 1; batch < batch_count; batch++) {
            load((rows){batches[batch], width}, first, count, limbs, y);
            barrett(r, &m, x, y, memory);
        }
        store(x, limbs, first, count, out, width);
    }
    free(memory);
    return 0;
}
