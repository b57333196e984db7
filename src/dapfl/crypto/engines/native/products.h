/* Products modulo root^2 of numbers that stay plain: Karatsuba, then Barrett. Included after operations.h. */

#define KARATSUBA_FROM 40

/* out[0 .. 2*count) = a * b, as limbs. room: 4*count vectors. */
static void multiply_whole(const field *f, int count, V *out, const V *a, const V *b, V *room) {
    if (count < KARATSUBA_FROM || count % 8) {
        clear(2 * count, out);
        multiply(count, out, a, b);
        carry(f, 2 * count, out, out);
        return;
    }
    /* (a0 + a1 B)(b0 + b1 B) with the middle term (a0+a1)(b0+b1) - a0 b0 - a1 b1. */
    const int half = count / 2;
    V *sum_a = room, *sum_b = room + half, *middle = room + count, *rest = room + 2 * count;
    multiply_whole(f, half, out, a, b, rest);
    multiply_whole(f, half, out + count, a + half, b + half, rest);
    V carry_a = ZERO, carry_b = ZERO;
    for (int j = 0; j < half; j++) {
        V x = a[j] + a[half + j] + carry_a, y = b[j] + b[half + j] + carry_b;
        sum_a[j] = x & f->mask, carry_a = x >> f->bits;
        sum_b[j] = y & f->mask, carry_b = y >> f->bits;
    }
    multiply_whole(f, half, middle, sum_a, sum_b, rest);
    /* What the sums carried out of their top limb, then the subtraction; columns may go below zero. */
    V mask_a = ZERO - carry_a, mask_b = ZERO - carry_b;
    for (int j = 0; j < half; j++) middle[half + j] += (sum_b[j] & mask_a) + (sum_a[j] & mask_b);
    for (int j = 0; j < count; j++) middle[j] -= out[j] + out[count + j];
    /* Add at B. A bias of 8 limbs keeps every column positive while its carry is taken. */
    const V bias = all(UINT64_C(8) << f->bits), eight = all(8);
    V c = ZERO;
    for (int j = 0; j < count + half; j++) {
        V x = out[half + j] + c;
        if (j < count) x += middle[j];
        if (j == count) x += carry_a & carry_b;
        out[half + j] = x & f->mask;
        c = ((x + bias) >> f->bits) - eight;
    }
}

/* x = a*b modulo the square of the root. mu estimates the quotient from the upper limbs, at most one too small:
 * what the estimate ignores is below 2^-6 of a unit (native.py chooses `cut` so). */
static void barrett(const field *f, const ring *r, const V *modulus, const V *mu, V *x, const V *b, V *room) {
    const int count = 2 * f->K;
    V *whole = room, *t = room + 2 * count, *rest = room + 4 * count + 4;
    multiply_whole(f, count, whole, x, b, rest);
    /* The columns from count-8 on of upper * mu; those below cannot reach the quotient. */
    clear(2 * count, t);
    for (int i = 0; i < count; i += 4) {
        int skip = count - 8 - i > 0 ? count - 8 - i : 0;
        accumulate(t + i + skip, whole + r->cut + skip, count - skip, mu + i);
    }
    carry(f, 2 * count, t, t);
    V *quotient = rest;
    memcpy(quotient, t + count, sizeof(V) * (size_t)count);
    /* The low half of quotient * modulus is enough, since the difference is below 2*modulus. */
    clear(count + 4, t);
    for (int i = 0; i < count; i += 4) accumulate(t + i, modulus, count - i, quotient + i);
    carry(f, count, t, t);
    subtract(f, count, x, whole, t);
    reduce_once(f, count, x, modulus);
}

static int product(const ring *r, size_t count, size_t batch_count, const uint8_t *const *batches, uint8_t *out) {
    field f;
    prepare(&f, r);
    const int limbs = 2 * f.K;
    const size_t width = (size_t)r->modulus_bytes;
    size_t room = (4 + 8 + 8) * (size_t)limbs + 4;
    V x[2 * MAX_LIMBS], y[2 * MAX_LIMBS], *memory = allocate(room);
    if (!memory) return -1;
    V *modulus = memory, *mu = memory + limbs, *rest = memory + 2 * limbs;
    spread(limbs, modulus, r->square);
    spread(limbs, mu, r->mu);
    for (size_t first = 0; first < count; first += LANES) {
        load(&f, (rows){batches[0], width}, first, count, limbs, x);
        for (size_t batch = 1; batch < batch_count; batch++) {
            load(&f, (rows){batches[batch], width}, first, count, limbs, y);
            barrett(&f, r, modulus, mu, x, y, rest);
        }
        store(&f, x, limbs, first, count, out, width);
    }
    free(memory);
    return 0;
}
