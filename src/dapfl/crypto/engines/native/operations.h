/* The operations of one backend, on rows of bytes: see batch.h. Included after kernels.h. */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows of bytes are read as little-endian words"
#endif

/* ---- rows of bytes <-> limbs ------------------------------------------------------------------- */

/* 64-bit words of the widest row, one to spare for the word after a limb, a multiple of LANES. */
#define MAX_WORDS (((MAX_CHUNKS * MAX_LIMBS * BITS + 63) / 64 + LANES) / LANES * LANES)

INLINE size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* The limbs of the rows first .. first+LANES, which they must hold; rows from `count` on read as zero. */
static void load(rows in, size_t first, size_t count, int limbs, V *out) {
    uint64_t buffer[LANES][MAX_WORDS];
    V words[MAX_WORDS];
    int used = (limbs * BITS + 63) / 64 + 1;
    size_t size = 8 * (size_t)((used + LANES - 1) / LANES * LANES);
    for (size_t lane = 0; lane < LANES; lane++) {
        size_t width = first + lane < count ? in.width : 0;
        if (width) memcpy(buffer[lane], in.data + (first + lane) * in.width, width);
        memset((uint8_t *)buffer[lane] + width, 0, size - width);
    }
    for (int i = 0; i < used; i += LANES) {
        V block[LANES];
        for (int lane = 0; lane < LANES; lane++) memcpy(&block[lane], &buffer[lane][i], sizeof(V));
        transpose(&words[i], block);
    }
    for (int j = 0; j < limbs; j++) {
        int word = j * BITS / 64, shift = j * BITS % 64;
        V x = words[word] >> shift;
        if (shift + BITS > 64) x |= words[word + 1] << (64 - shift);
        out[j] = x & MASK;
    }
}

/* The rows first .. first+LANES below `count`, each `width` bytes, from limbs that fit them. */
static void store(const V *limbs, int limb_count, size_t first, size_t count, uint8_t *out,
                  size_t width) {
    uint64_t buffer[LANES][MAX_WORDS];
    V words[MAX_WORDS];
    size_t active = smaller(LANES, count - first);
    int used = (limb_count * BITS + 63) / 64 + 1;
    clear((used + LANES - 1) / LANES * LANES, words);
    for (int j = 0; j < limb_count; j++) {
        int word = j * BITS / 64, shift = j * BITS % 64;
        words[word] |= limbs[j] << shift;
        if (shift + BITS > 64) words[word + 1] |= limbs[j] >> (64 - shift);
    }
    for (int i = 0; i < used; i += LANES) {
        V block[LANES];
        transpose(block, &words[i]);
        for (int lane = 0; lane < LANES; lane++) memcpy(&buffer[lane][i], &block[lane], sizeof(V));
    }
    for (size_t lane = 0; lane < active; lane++) memcpy(out + (first + lane) * width, buffer[lane], width);
}

static int chunks_of(const field *f, size_t width) {
    size_t limbs = (8 * width + BITS - 1) / BITS;
    return (int)((limbs + (size_t)f->K - 1) / (size_t)f->K);
}

/* The Montgomery pairs of a row of any admitted width: with row = sum of x_i*R^i, the sum of
 * (x_i * R^(i+2))/R. The result is below 2*MAX_CHUNKS*root, which pair_multiply takes. */
static void load_pairs(const field *f, rows in, size_t first, size_t count, V *out) {
    const int K = f->K;
    V chunks[MAX_CHUNKS * MAX_LIMBS], x[2 * MAX_LIMBS];
    int parts = chunks_of(f, in.width);
    load(in, first, count, parts * K, chunks);
    clear(2 * K, out);
    for (int i = 0; i < parts; i++) {
        memcpy(x, chunks + i * K, sizeof(V) * (size_t)K);
        clear(K, x + K);
        pair_multiply(f, x, x, f->lift[i]);
        for (int j = 0; j < 2 * K; j++) out[j] += x[j];
    }
    carry(K, out, out);
    carry(K, out + K, out + K);
}

/* scale*m modulo root, below 4*root, not in Montgomery form; zero without messages. */
static void load_messages(const field *f, messages m, size_t first, size_t count, V *out) {
    const int K = f->K;
    V chunks[MAX_CHUNKS * MAX_LIMBS], factor[MAX_LIMBS], x[MAX_LIMBS];
    clear(K, out);
    if (!m.rows.data) return;
    int parts = chunks_of(f, m.rows.width);
    load(m.rows, first, count, parts * K, chunks);
    for (int i = 0; i < parts; i++) {
        spread(K, factor, m.scales + i * K);
        residue_multiply(f, x, chunks + i * K, factor);
        for (int j = 0; j < K; j++) out[j] += x[j];
    }
    carry(K, out, out);
}

/* Leave Montgomery form, times 1 + m*root for an m below 72*root, to the one pair with both parts below the root:
 * x0*m is below 144*root^2, and R above 256*root, so that the upper part is below 2*root before it is reduced. */
static void leave(const field *f, V *x, const V *message) {
    const int K = f->K;
    V factor[2 * MAX_LIMBS];
    clear(K, factor);
    factor[0] = all(1);
    memcpy(factor + K, message, sizeof(V) * (size_t)K);
    pair_multiply(f, x, x, factor);
    V below = reduce_once(K, x, f->root);
    x[K] += ~below & 1;
    carry(K, x + K, x + K);
    reduce_once(K, x + K, f->root);
}

/* Write x0 + x1*root. */
static void store_pairs(const field *f, const ring *r, const V *x, size_t first, size_t count, uint8_t *out) {
    const int K = f->K;
    V t[2 * MAX_LIMBS];
    memcpy(t, x, sizeof(V) * (size_t)K);
    clear(K, t + K);
    F room[MAX_LIMBS];
    multiply(K, t, FACTORS(room, x + K, K), f->factors);
    carry(2 * K, t, t);
    store(t, 2 * K, first, count, out, (size_t)r->modulus_bytes);
}

static V *allocate(size_t vectors) { return aligned_alloc(64, (vectors * sizeof(V) + 63) / 64 * 64); }

/* Scratch memory held secrets. */
static void discard(V *memory, size_t vectors) {
    memset(memory, 0, vectors * sizeof(V));
    __asm__ volatile("" : : "r"(memory) : "memory"); /* keep the memset */
    free(memory);
}

/* ---- powers with one exponent ------------------------------------------------------------------ */

/* out = table[digit] in every lane, reading every entry so that no digit leaves a trace in the cache. */
static void choose(int count, V *restrict out, const V *restrict table, V digits) {
    V chosen[16]; /* all ones where the digit is the entry's */
    for (uint64_t entry = 0; entry < 16; entry++) chosen[entry] = ZERO - (((digits ^ all(entry)) - 1) >> 63);
    for (int j = 0; j < count; j++) {
        V x = table[j] & chosen[0];
#pragma GCC unroll 15
        for (int entry = 1; entry < 16; entry++) x |= table[entry * count + j] & chosen[entry];
        out[j] = x;
    }
}

/* table[entry] = x^entry, 16 numbers: the even ones by squaring, which is cheaper. */
static void fill_table(const arithmetic *a, const field *f, const V *x, V *table) {
    const int count = a->halves * f->K;
    memcpy(table, f->one, sizeof(V) * (size_t)count);
    for (int entry = 1; entry < 16; entry++) {
        V *out = table + entry * count;
        if (entry % 2) {
            a->multiply(f, out, out - count, x);
        } else {
            memcpy(out, table + entry / 2 * count, sizeof(V) * (size_t)count);
            a->square(f, out);
        }
    }
}

/* x = x^exponent, four bits at a time, with an exponent for each lane; table has room for 16 numbers. What is
 * computed and which memory is touched depends on the length of the exponents, not on their values. */
static void power(const arithmetic *a, const field *f, V *x, const uint8_t *const *exponents, size_t bits, V *table) {
    const int count = a->halves * f->K;
    V factor[2 * MAX_LIMBS];
    fill_table(a, f, x, table);
    for (size_t i = (bits + 3) / 4; i-- > 0;) {
        V digits;
        for (int lane = 0; lane < LANES; lane++) AT(digits, lane) = exponents[lane][i / 2] >> (i % 2 * 4) & 15;
        choose(count, factor, table, digits);
        if (i == (bits + 3) / 4 - 1) {
            memcpy(x, factor, sizeof(V) * (size_t)count);
            continue;
        }
        for (int k = 0; k < 4; k++) a->square(f, x);
        a->multiply(f, x, x, factor);
    }
}

#define MAX_WINDOW 6

/* The width of the windows of `public_power`: of the exponents that are long enough for it, the best one. */
static int window_of(size_t bits) { return bits > 1024 ? MAX_WINDOW : bits > 256 ? 5 : bits > 64 ? 4 : bits > 16 ? 3 : 1; }

static unsigned bit_of(const uint8_t *exponent, size_t i) { return exponent[i / 8] >> (i % 8) & 1; }

/* x = x^exponent by sliding windows, for one exponent that anyone may know: it decides which memory is touched.
 * table has room for 2^(MAX_WINDOW-1) numbers, the odd powers of x. */
static void public_power(const arithmetic *a, const field *f, V *x, const uint8_t *exponent, size_t bits, V *table) {
    const int count = a->halves * f->K, window = window_of(bits);
    const size_t size = sizeof(V) * (size_t)count;
    V twice[2 * MAX_LIMBS];
    a->multiply(f, table, x, f->one); /* below 2*root */
    if (window > 1) a->multiply(f, twice, table, table);
    for (int odd = 1; odd < 1 << (window - 1); odd++) a->multiply(f, table + odd * count, table + (odd - 1) * count, twice);
    int begun = 0;
    for (size_t i = bits; i > 0;) {
        if (!bit_of(exponent, i - 1)) {
            if (begun) a->square(f, x);
            i--;
            continue;
        }
        size_t low = i > (size_t)window ? i - (size_t)window : 0; /* the window is the bits low .. i-1 */
        while (!bit_of(exponent, low)) low++;
        unsigned digit = 0;
        for (size_t k = i; k-- > low;) {
            digit = 2 * digit + bit_of(exponent, k);
            if (begun) a->square(f, x);
        }
        if (begun)
            a->multiply(f, x, x, table + digit / 2 * (unsigned)count);
        else
            memcpy(x, table + digit / 2 * (unsigned)count, size);
        begun = 1;
        i = low;
    }
}

/* Write the number that a Montgomery residue stands for. */
static void store_residues(const field *f, const ring *r, V *x, size_t first, size_t count, uint8_t *out) {
    V one[MAX_LIMBS];
    clear(f->K, one);
    one[0] = all(1);
    residue_multiply(f, x, x, one);
    reduce_once(f->K, x, f->root);
    store(x, f->K, first, count, out, (size_t)r->root_bytes);
}

static int residue_powers(const ring *r, size_t count, rows bases, const uint8_t *exponent, size_t bits, uint8_t *out) {
    field f;
    prepare(&f, r);
    const uint8_t *same[LANES];
    for (int lane = 0; lane < LANES; lane++) same[lane] = exponent;
    size_t room = 16 * (size_t)f.K;
    V x[2 * MAX_LIMBS], *table = allocate(room);
    if (!table) return -1;
    for (size_t first = 0; first < count; first += LANES) {
        load_pairs(&f, bases, first, count, x);
        power(&RESIDUES, &f, x, same, bits, table);
        store_residues(&f, r, x, first, count, out);
    }
    discard(table, room);
    return 0;
}

static int powers(const ring *r, size_t count, rows bases, const uint8_t *exponent, size_t bits, int known, messages m,
                  uint8_t *out) {
    field f;
    prepare(&f, r);
    const uint8_t *same[LANES];
    for (int lane = 0; lane < LANES; lane++) same[lane] = exponent;
    size_t room = (known ? (size_t)1 << (window_of(bits) - 1) : 16) * 2 * (size_t)f.K;
    V x[2 * MAX_LIMBS], message[MAX_LIMBS], *table = allocate(room);
    if (!table) return -1;
    for (size_t first = 0; first < count; first += LANES) {
        load_pairs(&f, bases, first, count, x);
        if (known)
            public_power(&PAIRS, &f, x, exponent, bits, table);
        else
            power(&PAIRS, &f, x, same, bits, table);
        load_messages(&f, m, first, count, message);
        leave(&f, x, message);
        store_pairs(&f, r, x, first, count, out);
    }
    discard(table, room);
    return 0;
}

static int quotients(const ring *r, size_t count, rows bases, const uint8_t *exponent, size_t bits,
                     const uint64_t *scale, uint8_t *out, size_t *bad) {
    field f;
    prepare(&f, r);
    const uint8_t *same[LANES];
    for (int lane = 0; lane < LANES; lane++) same[lane] = exponent;
    size_t room = 16 * 2 * (size_t)f.K;
    V x[2 * MAX_LIMBS], factor[MAX_LIMBS], zero[MAX_LIMBS], *table = allocate(room);
    if (!table) return -1;
    spread(f.K, factor, scale);
    clear(f.K, zero);
    *bad = count;
    for (size_t first = 0; first < count && *bad == count; first += LANES) {
        load_pairs(&f, bases, first, count, x);
        power(&PAIRS, &f, x, same, bits, table);
        leave(&f, x, zero);
        /* x0 must be 1, and then L(x) = x1. */
        V wrong = x[0] ^ all(1);
        for (int j = 1; j < f.K; j++) wrong |= x[j];
        for (size_t lane = smaller(LANES, count - first); lane-- > 0;)
            if (AT(wrong, lane)) *bad = first + lane;
        residue_multiply(&f, x, x + f.K, factor);
        reduce_once(f.K, x, f.root);
        store(x, f.K, first, count, out, (size_t)r->root_bytes);
    }
    discard(table, room);
    return 0;
}

/* ---- a ring for every row ----------------------------------------------------------------------- */

/* What the lanes of the rows first .. first+LANES have: idle lanes repeat the last row. */
static void assign_lanes(field *f, const ring *rings, rows exponents, size_t first, size_t count,
                         const uint8_t **lane_exponents) {
    const ring *lane_rings[LANES];
    for (size_t lane = 0; lane < LANES; lane++) {
        size_t row = smaller(first + lane, count - 1);
        lane_rings[lane] = rings + row;
        lane_exponents[lane] = exponents.data + row * exponents.width;
    }
    prepare_lanes(f, lane_rings);
}

/* base^exponent * (1 + message*root), everything row by row. */
static int lane_powers(const ring *rings, size_t count, rows bases, rows exponents, rows texts, uint8_t *out) {
    field f;
    size_t room = 16 * 2 * (size_t)rings->limbs;
    V x[2 * MAX_LIMBS], chunks[MAX_CHUNKS * MAX_LIMBS], part[MAX_LIMBS], message[MAX_LIMBS], *table = allocate(room);
    if (!table) return -1;
    for (size_t first = 0; first < count; first += LANES) {
        const uint8_t *lane_exponents[LANES];
        assign_lanes(&f, rings, exponents, first, count, lane_exponents);
        load_pairs(&f, bases, first, count, x);
        power(&PAIRS, &f, x, lane_exponents, 8 * exponents.width, table);
        int parts = chunks_of(&f, texts.width);
        load(texts, first, count, parts * f.K, chunks);
        clear(f.K, message);
        for (int i = 0; i < parts; i++) { /* R and R^2 modulo the root are the lower halves of these pairs */
            residue_multiply(&f, part, chunks + i * f.K, i ? f.lift[i - 1] : f.one);
            for (int j = 0; j < f.K; j++) message[j] += part[j];
        }
        carry(f.K, message, message);
        leave(&f, x, message);
        store_pairs(&f, rings, x, first, count, out);
    }
    discard(table, room);
    return 0;
}

/* L(base^exponent)*scale, everything row by row, and base^exponent modulo the root: without 1 there is no L. */
static int lane_quotients(const ring *rings, size_t count, rows bases, rows exponents, const uint64_t *scales,
                          uint8_t *out, uint8_t *residues) {
    field f;
    const size_t K = (size_t)rings->limbs, room = 16 * 2 * K;
    V x[2 * MAX_LIMBS], factor[MAX_LIMBS], zero[MAX_LIMBS], *table = allocate(room);
    if (!table) return -1;
    clear((int)K, zero);
    for (size_t first = 0; first < count; first += LANES) {
        const uint8_t *lane_exponents[LANES];
        assign_lanes(&f, rings, exponents, first, count, lane_exponents);
        for (size_t lane = 0; lane < LANES; lane++)
            for (size_t j = 0; j < K; j++) AT(factor[j], lane) = scales[smaller(first + lane, count - 1) * K + j];
        load_pairs(&f, bases, first, count, x);
        power(&PAIRS, &f, x, lane_exponents, 8 * exponents.width, table);
        leave(&f, x, zero);
        store(x, f.K, first, count, residues, (size_t)rings->root_bytes);
        residue_multiply(&f, x, x + K, factor);
        reduce_once(f.K, x, f.root);
        store(x, f.K, first, count, out, (size_t)rings->root_bytes);
    }
    discard(table, room);
    return 0;
}

/* ---- powers of one base -------------------------------------------------------------------------- */

static int build_table(const ring *r, rows base, const uint64_t *inverse, table_shape shape, uint64_t *table) {
    field f;
    prepare(&f, r);
    const size_t K = (size_t)f.K, count = 2 * K, digits = (size_t)1 << shape.window;
    V x[2 * MAX_LIMBS], step[3 * MAX_LIMBS]; /* step: a row's base as a pair, and R/base modulo root */
    V *back = step + count, over[MAX_LIMBS], log[MAX_LIMBS];
    uint64_t *steps = malloc(shape.rows * 3 * K * sizeof(uint64_t));
    if (!steps) return -1;
    load_pairs(&f, base, 0, 1, x);
    spread(f.K, back, inverse);
    for (size_t row = 0; row < shape.rows; row++) {
        if (row)
            for (size_t i = 0; i < (size_t)shape.window * shape.spacing; i++) {
                pair_square(&f, x);
                residue_multiply(&f, back, back, back);
            }
        /* Entries must be below 2*root in both parts; the first ones come from load_pairs. */
        V one[2 * MAX_LIMBS];
        spread((int)count, one, r->one);
        pair_multiply(&f, step, x, one);
        for (size_t j = 0; j < 3 * K; j++) steps[row * 3 * K + j] = AT(step[j], 0);
    }
    for (size_t row = 0; row < shape.rows; row += LANES) {
        size_t active = smaller(LANES, shape.rows - row);
        clear(3 * f.K, step);
        for (size_t j = 0; j < 3 * K; j++)
            for (size_t lane = 0; lane < active; lane++) AT(step[j], lane) = steps[(row + lane) * 3 * K + j];
        spread((int)count, x, r->one);
        clear(f.K, over); /* 1/entry modulo root */
        over[0] = all(1);
        for (size_t digit = 0; digit < digits; digit++) {
            if (digit) {
                pair_multiply(&f, x, x, step);
                residue_multiply(&f, over, over, back);
            }
            residue_multiply(&f, log, x + K, over); /* x = x0*(1 + x1/x0*root), and x0 is R*entry modulo root */
            reduce_once(f.K, log, f.root);
            for (size_t lane = 0; lane < active; lane++) {
                uint64_t *entry = table + ((row + lane) * digits + digit) * count;
                for (size_t j = 0; j < K; j++) entry[j] = AT(x[j], lane), entry[K + j] = AT(log[j], lane);
            }
        }
    }
    free(steps);
    return 0;
}

/* The entries of one row that the lanes want, and the digits they are found by. */
static void locate(const uint64_t *table, table_shape shape, size_t count, size_t row, size_t digit_index,
                   const uint8_t *const *exponents, const uint64_t **entries) {
    for (int lane = 0; lane < LANES; lane++) {
        const uint8_t *e = exponents[lane];
        size_t digit = shape.window == 8 ? e[digit_index] : e[digit_index / 2] >> (digit_index % 2 * 4) & 15;
        entries[lane] = table + ((row << shape.window) + digit) * count;
        for (size_t byte = 0; byte < count * sizeof(uint64_t); byte += 64)
            __builtin_prefetch((const char *)entries[lane] + byte);
    }
}

static void gather(size_t count, V *out, const uint64_t *const *entries) {
    for (size_t j = 0; j < count; j += LANES) {
        V block[LANES];
        for (int lane = 0; lane < LANES; lane++) memcpy(&block[lane], entries[lane] + j, sizeof(V));
        transpose(out + j, block);
    }
}

/* log = log * 2^bits modulo root, below 2*root, from limbs not yet carried. */
static void shift_log(const field *f, const ring *r, V *log, int bits) {
    V factor[MAX_LIMBS];
    spread(f->K, factor, r->one); /* R modulo root */
    for (; bits > 0; bits--) {
        for (int j = 0; j < f->K; j++) factor[j] += factor[j];
        carry(f->K, factor, factor);
        reduce_once(f->K, factor, f->root);
    }
    carry(f->K, log, log);
    residue_multiply(f, log, log, factor);
}

#define MOST_LOGS 64 /* a sum of these and one remainder, below 66*root, may still be multiplied */

/* x = a product of units; x*(1 + log*root) is the power. The limbs of log are not yet carried. */
static void table_power(const field *f, const ring *r, const uint64_t *table, table_shape shape,
                        const uint8_t *const *exponents, V *x, V *log) {
    const size_t count = 2 * (size_t)f->K, digits = 8 * shape.exponent_bytes / (size_t)shape.window;
    const uint64_t *entries[LANES];
    V entry[2 * MAX_LIMBS];
    int first = 1, logs = 0;
    clear(f->K, log);
    for (size_t start = shape.spacing; start-- > 0;) {
        if (!first) {
            for (int i = 0; i < shape.window; i++) pair_square(f, x);
            shift_log(f, r, log, shape.window);
            logs = 0;
        }
        size_t rows_here = (digits - start + shape.spacing - 1) / shape.spacing; /* start < digits */
        locate(table, shape, count, 0, start, exponents, entries);
        for (size_t row = 0; row < rows_here; row++) {
            gather(count, entry, entries);
            if (row + 1 < rows_here) /* fetch the next ones while this product is computed */
                locate(table, shape, count, row + 1, (row + 1) * shape.spacing + start, exponents, entries);
            if (first) {
                memcpy(x, entry, sizeof(V) * (size_t)f->K);
                clear(f->K, x + f->K);
                first = 0;
            } else {
                pair_scale(f, x, entry);
            }
            if (logs++ == MOST_LOGS) {
                shift_log(f, r, log, 0);
                logs = 1;
            }
            for (int j = 0; j < f->K; j++) log[j] += entry[f->K + j];
        }
    }
}

static int table_powers(const ring *r, size_t count, const uint64_t *table, table_shape shape,
                        const uint8_t *exponents, messages m, uint8_t *out) {
    field f;
    prepare(&f, r);
    V x[2 * MAX_LIMBS], log[MAX_LIMBS], message[MAX_LIMBS];
    for (size_t first = 0; first < count; first += LANES) {
        const uint8_t *lane_exponents[LANES];
        for (size_t lane = 0; lane < LANES; lane++) /* idle lanes repeat the first */
            lane_exponents[lane] = exponents + (first + lane < count ? first + lane : first) * shape.exponent_bytes;
        table_power(&f, r, table, shape, lane_exponents, x, log);
        load_messages(&f, m, first, count, message);
        for (int j = 0; j < f.K; j++) message[j] += log[j];
        carry(f.K, message, message);
        leave(&f, x, message);
        store_pairs(&f, r, x, first, count, out);
    }
    return 0;
}

/* ---- Chinese remainders ------------------------------------------------------------------------- */

/* low + p*((high - low)/p mod root), for low < p <= 8*root and high < root. inverse is R/p mod root, [K]. */
static int combine(const ring *r, size_t count, rows low, rows high, const uint64_t *p, const uint64_t *inverse,
                   uint8_t *out, size_t width) {
    field f;
    prepare(&f, r);
    const int K = f.K;
    V a[MAX_LIMBS], b[MAX_LIMBS], factor[MAX_LIMBS], t[2 * MAX_LIMBS];
    F p_factors[MAX_LIMBS], room[MAX_LIMBS];
    spread(K, factor, inverse);
    for (int j = 0; j < K; j++) p_factors[j] = FACTOR(all(p[j]));
    for (size_t first = 0; first < count; first += LANES) {
        load(low, first, count, K, a);
        load(high, first, count, K, b);
        for (int j = 0; j < K; j++) b[j] += f.root[j] << 3;
        carry(K, b, b);
        subtract(K, b, b, a);
        residue_multiply(&f, b, b, factor);
        reduce_once(K, b, f.root);
        memcpy(t, a, sizeof(V) * (size_t)K);
        clear(K, t + K);
        multiply(K, t, p_factors, FACTORS(room, b, K));
        carry(2 * K, t, t);
        store(t, 2 * K, first, count, out, width);
    }
    return 0;
}
