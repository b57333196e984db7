/* One product of powers with many exponents, by Straus's method. Included after operations.h.
 *
 * Lane l takes the bases l, l + LANES, l + 2*LANES, ...: a group is LANES bases, and all groups share the squarings.
 * Which memory is read depends on the exponents: they must be public. */

#define GROUPS 64 /* that have their tables in memory at the same time: 3 to 5 MB for a 2048-bit root */

/* out[lane] = the entry of a group's table that the lane's digit asks for. */
static void pick(int count, V *restrict out, const V *restrict table, const unsigned *digits) {
    const V *entries[LANES];
    V own[LANES]; /* all ones in one lane */
    for (int lane = 0; lane < LANES; lane++) {
        entries[lane] = table + digits[lane] * (unsigned)count;
        own[lane] = ZERO;
        AT(own[lane], lane) = ~UINT64_C(0);
    }
    for (int j = 0; j < count; j++) {
        V x = ZERO;
#pragma GCC unroll 8
        for (int lane = 0; lane < LANES; lane++) x |= entries[lane][j] & own[lane];
        out[j] = x;
    }
}

/* x = x times the powers of up to GROUPS*LANES bases from `first` on; table has room for 16 numbers a group. */
static void multiply_powers(const arithmetic *a, const field *f, V *x, size_t first, size_t count,
                            rows bases, rows exponents, V *table) {
    const int limbs = a->halves * f->K;
    const size_t groups = (smaller(count - first, GROUPS * LANES) + LANES - 1) / LANES, size = 16 * (size_t)limbs;
    V y[2 * MAX_LIMBS], factor[2 * MAX_LIMBS];
    for (size_t group = 0; group < groups; group++) {
        load_pairs(f, bases, first + group * LANES, count, y);
        fill_table(a, f, y, table + group * size);
    }
    memcpy(y, f->one, sizeof(V) * (size_t)limbs);
    for (size_t i = 2 * exponents.width; i-- > 0;) {
        for (int k = 0; k < 4; k++) a->square(f, y);
        for (size_t group = 0; group < groups; group++) {
            unsigned digits[LANES];
            for (size_t lane = 0; lane < LANES; lane++) {
                size_t row = first + group * LANES + lane;
                digits[lane] = row < count ? exponents.data[row * exponents.width + i / 2] >> (i % 2 * 4) & 15 : 0;
            }
            pick(limbs, factor, table + group * size, digits);
            a->multiply(f, y, y, factor);
        }
    }
    a->multiply(f, x, x, y);
}

/* Modulo root^2, or modulo the root. */
static int power_product(const ring *r, int modulo_root, size_t count, rows bases, rows exponents, uint8_t *out) {
    const arithmetic *a = modulo_root ? &RESIDUES : &PAIRS;
    field f;
    prepare(&f, r);
    const int limbs = a->halves * f.K;
    size_t groups = smaller(count / LANES + 1, GROUPS), room = groups * 16 * (size_t)limbs;
    V x[2 * MAX_LIMBS], total[2 * MAX_LIMBS], factor[2 * MAX_LIMBS], *table = allocate(room);
    if (!table) return -1;
    memcpy(x, f.one, sizeof(V) * (size_t)limbs);
    for (size_t first = 0; first < count; first += GROUPS * LANES)
        multiply_powers(a, &f, x, first, count, bases, exponents, table);
    memcpy(total, f.one, sizeof(V) * (size_t)limbs);
    for (int lane = 0; lane < LANES; lane++) {
        for (int j = 0; j < limbs; j++) factor[j] = all(AT(x[j], lane));
        a->multiply(&f, total, total, factor);
    }
    if (modulo_root) {
        store_residues(&f, r, total, 0, 1, out);
    } else {
        clear(f.K, factor);
        leave(&f, total, factor);
        store_pairs(&f, r, total, 0, 1, out);
    }
    discard(table, room);
    return 0;
}
