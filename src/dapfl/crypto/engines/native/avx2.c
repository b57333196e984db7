/* AVX2 and FMA: four lanes, multiplied by the double-precision unit.
 *
 * A limb below 2^52 is exact as a double. With rounding toward zero, x*y + 2^104 keeps of x*y the multiple
 * of 2^52 below it, and its mantissa is the high limb; subtracting that multiple (C - h, exact) and
 * multiplying again leaves 2^52 + the low limb, whose mantissa is the low limb. The bits of 2^104 and
 * 2^52 are the offsets that kernels.h takes out again.
 */
#include "batch.h"

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#include <immintrin.h>

#define LANES 4
#define QUOTIENT_BY_BLOCK 1 /* a product takes three operations here, one waiting for another */
typedef uint64_t V __attribute__((vector_size(8 * LANES)));
#define AT(x, lane) (x)[lane]
typedef double F __attribute__((vector_size(8 * LANES)));

#define LO_OFFSET UINT64_C(0x4330000000000000) /* the bits of 2^52 */
#define HI_OFFSET UINT64_C(0x4670000000000000) /* the bits of 2^104 */

static const F TWO_52 = {0x1p52, 0x1p52, 0x1p52, 0x1p52}, TWO_104 = {0x1p104, 0x1p104, 0x1p104, 0x1p104};
static const F C = {0x1p104 + 0x1p52, 0x1p104 + 0x1p52, 0x1p104 + 0x1p52, 0x1p104 + 0x1p52};

#define FUSED(x, y, z) ((F)_mm256_fmadd_pd((__m256d)(x), (__m256d)(y), (__m256d)(z)))
/* The empty asm keeps the order of the sums: as trees, which compilers prefer, they spill registers. */
#define MULTIPLY(lo, hi, x, y)             \
    do {                                   \
        F high_ = FUSED(x, y, TWO_104);    \
        (lo) += (V)FUSED(x, y, C - high_); \
        (hi) += (V)high_;                  \
        __asm__("" : "+x"(lo), "+x"(hi));  \
    } while (0)
#define FACTOR(x) ((F)((x) | LO_OFFSET) - TWO_52)

static inline const F *FACTORS(F *room, const V *x, int count) {
    int j = 0;
    do room[j] = FACTOR(x[j]);
    while (++j < count); /* one at least, as gcc wants to be told */
    return room;
}

static inline void transpose(V *out, const V *in) {
    __m256i a = _mm256_unpacklo_epi64((__m256i)in[0], (__m256i)in[1]);
    __m256i b = _mm256_unpackhi_epi64((__m256i)in[0], (__m256i)in[1]);
    __m256i c = _mm256_unpacklo_epi64((__m256i)in[2], (__m256i)in[3]);
    __m256i d = _mm256_unpackhi_epi64((__m256i)in[2], (__m256i)in[3]);
    out[0] = (V)_mm256_permute2x128_si256(a, c, 0x20);
    out[1] = (V)_mm256_permute2x128_si256(b, d, 0x20);
    out[2] = (V)_mm256_permute2x128_si256(a, c, 0x31);
    out[3] = (V)_mm256_permute2x128_si256(b, d, 0x31);
}

#include "kernels.h"
#include "operations.h"
#include "multipowers.h"
#include "products.h"

#ifdef __clang__
#pragma clang attribute pop
#endif

static int usable(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

const backend dapfl_avx2 = {
    "avx2", LANES, usable, powers, residue_powers, quotients, lane_powers, lane_quotients, build_table, table_powers,
    power_product, product, combine,
};
#else
static int usable(void) { return 0; }
const backend dapfl_avx2 = {"avx2", 0, usable, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
#endif
