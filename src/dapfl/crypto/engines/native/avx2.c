/* AVX2: four lanes of 28-bit limbs (27 for large roots), whose products fit a column of 64 bits. */
#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#include <immintrin.h>
#include <stdint.h>

#define LANES 4
#define MAX_LIMBS 160
#define MAX_BITS 28
typedef uint64_t V __attribute__((vector_size(8 * LANES)));
typedef uint32_t WORD;

#define LO(c, x, y) ((c) + (V)_mm256_mul_epu32((__m256i)(x), (__m256i)(y)))
#define HI(c, x, y) (c)
#define LOW(x, y, f) ((V)_mm256_mul_epu32((__m256i)(x), (__m256i)(y)) & (f)->mask)

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

static inline V widen(const WORD *words) {
    return (V)_mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)words));
}

#include "kernels.h"
#include "operations.h"
#include "products.h"

#ifdef __clang__
#pragma clang attribute pop
#endif

static int usable(void) { return __builtin_cpu_supports("avx2"); }

const backend dapfl_avx2 = {
    "avx2",  LANES,  MAX_LIMBS, MAX_BITS,    1,            sizeof(WORD),
    usable, powers, quotients, build_table, table_powers, product,
};
#else
#include "batch.h"
static int usable(void) { return 0; }
const backend dapfl_avx2 = {"avx2", 4, 0, 28, 1, 4, usable, NULL, NULL, NULL, NULL, NULL};
#endif
