/* AVX-512 IFMA: eight lanes, multiplied by vpmadd52. */
#include "batch.h"

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512ifma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512ifma")
#endif
#include <immintrin.h>

#define LANES 8
#define QUOTIENT_BY_BLOCK 0
typedef uint64_t V __attribute__((vector_size(8 * LANES)));
#define AT(x, lane) (x)[lane]
typedef V F;

#define LO_OFFSET UINT64_C(0)
#define HI_OFFSET UINT64_C(0)
#define FACTOR(x) (x)
#define FACTORS(room, x, count) ((void)(room), (x))
#define LO(c, x, y) ((V)_mm512_madd52lo_epu64((__m512i)(c), (__m512i)(x), (__m512i)(y)))
#define HI(c, x, y) ((V)_mm512_madd52hi_epu64((__m512i)(c), (__m512i)(x), (__m512i)(y)))
#define MULTIPLY(lo, hi, x, y) ((lo) = LO(lo, x, y), (hi) = HI(hi, x, y))
#define LOW(x, y) LO((V){0}, x, y)

/* 8x8: words of two rows side by side, then of four rows, then of eight. */
static inline void transpose(V *out, const V *in) {
    __m512i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm512_unpacklo_epi64((__m512i)in[i], (__m512i)in[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi64((__m512i)in[i], (__m512i)in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + k] = _mm512_shuffle_i64x2(a[i + k], a[i + 2 + k], 0x88);
            b[i + 2 + k] = _mm512_shuffle_i64x2(a[i + k], a[i + 2 + k], 0xdd);
        }
    for (int k = 0; k < 4; k++) {
        out[k] = (V)_mm512_shuffle_i64x2(b[k], b[4 + k], 0x88);
        out[4 + k] = (V)_mm512_shuffle_i64x2(b[k], b[4 + k], 0xdd);
    }
}

#include "kernels.h"
#include "operations.h"
#include "multipowers.h"
#include "products.h"

#ifdef __clang__
#pragma clang attribute pop
#endif

static int usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512ifma");
}

const backend dapfl_ifma = {
    "ifma", LANES, usable, powers, residue_powers, quotients, lane_powers, lane_quotients, build_table, table_powers,
    power_product, product, combine,
};
#else
static int usable(void) { return 0; }
const backend dapfl_ifma = {"ifma", 0, usable, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
#endif
