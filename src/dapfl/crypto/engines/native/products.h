/* Products modulo root^2 of numbers that stay plain: Karatsuba, then Barrett. Included after operations.h. */

#define KARATSUBA_FROM 40

/* out[0 .. 2*count) = a * b, as limbs. room: 4*count vectors: 2*count here and no more in all the halves. */
static void multiply_whole(int count, V *out, const V *a, const V *b, V *room) {
    if (count < KARATSUBA_FROM || count % 8) {
        F a_room[2 * MAX_LIMBS], b_room[2 * MAX_LIMBS];
        clear(2 * count, out);
        multiply(count, out, FACTORS(a_room, a, count), FACTORS(b_room, b, count));
        carry(2 * count, out, out);
        return;
    }
    /* (a0 + a1 B)(b0 + b1 B) with the middle term (a0+a1)(b0+b1) - a0 b0 - a1 b1. */
    const int half = count / 2;
    V *sum_a = room, *sum_b = room + half, *middle = room + count, *rest = room + 2 * count;
    multiply_whole(half, out, a, b, rest);
    multiply_whole(half, out + count, a + half, b + half, rest);
    V carry_a = ZERO, carry_b = ZERO;
    for (int j = 0; j < half; j++) {
        V x = a[j] + a[half + j] + carry_a, y = b[j] + b[half + j] + carry_b;
        sum_a[j] = x & MASK, carry_a = x >> BITS;
        sum_b[j] = y & MASK, carry_b = y >> BITS;
    }
    multiply_whole(half, middle, sum_a, sum_b, rest);
    /* What the sums carried out of their top limb, then the subtraction; columns may go below zero. */
    V mask_a = ZERO - carry_a, mask_b = ZERO - carry_b;
    for (int j = 0; j < half; j++) middle[half + j] += (sum_b[j] & mask_a) + (sum_a[j] & mask_b);
    for (int j = 0; j < count; j++) middle[j] -= out[j] + out[count + j];
    /* Add at B. A bias of 8 limbs keeps every column positive while its carry is taken. */
    const V bias = all(UINT64_C(8) << BITS), eight = all(8);
    V c = ZERO;
    for (int j = 0; j < count + half; j++) {
        V x = out[half + j] + c;
        if (j < count) x += middle[j];
        if (j == count) x += carry_a & carry_b;
        out[half + j] = x & MASK;
        c = ((x + bias) >> BITS) - eight;
    }
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
    V *whole = room, *t = room + 2 * count;
    F factors[2 * MAX_LIMBS];
    multiply_whole(count, whole, x, y, t);
    /* The columns from count-8 on of upper * mu; those below cannot reach the quotient. */
    const F *upper = FACTORS(factors, whole + r->cut, count);
    clear(2 * count, t);
    for (int i = 0; i < count; i += 4) {
        int skip = count - 8 - i > 0 ? count - 8 - i : 0;
        accumulate(t + i + skip, upper + skip, count - skip, m->mu + i);
    }
    carry(2 * count, t, t);
    /* The low half of quotient * modulus is enough, since the difference is below 2*modulus. */
    V quotient[2 * MAX_LIMBS];
    memcpy(quotient, t + count, sizeof(V) * (size_t)count);
    const F *q = FACTORS(factors, quotient, count);
    clear(count + 4, t);
    for (int i = 0; i < count; i += 4) accumulate(t + i, m->factors, count - i, q + i);
    carry(count, t, t);
    subtract(count, x, whole, t);
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
