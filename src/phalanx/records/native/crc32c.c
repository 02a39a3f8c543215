#include "crc32c.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_SSE42 1
#include <nmmintrin.h>
#endif
#if defined(__ARM_FEATURE_CRC32)
#define HAVE_ARM_CRC 1
#include <arm_acle.h>
#endif

#define POLYNOMIAL 0x82f63b78u /* Castagnoli, bits reversed */

typedef uint32_t (*advance_function)(uint32_t, const uint8_t *, size_t);

/* byte_table[k][b]: the CRC register after byte b and k zero bytes. */
static uint32_t byte_table[8][256];

static uint64_t load64(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

/* Eight bytes at a time with tables, for CPUs without a CRC instruction. */
static uint32_t advance_tables(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word = load64(data) ^ crc;
        crc = byte_table[7][word & 0xff] ^ byte_table[6][(word >> 8) & 0xff] ^
              byte_table[5][(word >> 16) & 0xff] ^ byte_table[4][(word >> 24) & 0xff] ^
              byte_table[3][(word >> 32) & 0xff] ^ byte_table[2][(word >> 40) & 0xff] ^
              byte_table[1][(word >> 48) & 0xff] ^ byte_table[0][word >> 56];
    }
    for (; size > 0; data++, size--)
        crc = byte_table[0][(crc ^ *data) & 0xff] ^ (crc >> 8);
    return crc;
}

#if defined(HAVE_SSE42) || defined(HAVE_ARM_CRC)

/* The instruction has a latency of three cycles and a throughput of one per cycle. Three stretches
   of data are therefore processed in parallel, and combined by shifting a register by a stretch. */
#define LONG_STRETCH 2048
#define SHORT_STRETCH 256

typedef uint32_t shift_table[4][256];
static shift_table long_shift, short_shift;

static uint32_t shift(shift_table table, uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^
           table[3][crc >> 24];
}

static void fill_shift_table(shift_table table, size_t zeros) {
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (size_t i = 0; i < zeros; i++)
            crc = byte_table[0][crc & 0xff] ^ (crc >> 8);
        of_bit[bit] = crc;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1)
                    crc ^= of_bit[8 * byte + bit];
            table[byte][value] = crc;
        }
}

#if defined(HAVE_SSE42)
#define HARDWARE __attribute__((target("sse4.2")))
#define STEP8(crc, byte) ((uint32_t)_mm_crc32_u8((crc), (byte)))
#define STEP64(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#else
#define HARDWARE
#define STEP8(crc, byte) __crc32cb((crc), (byte))
#define STEP64(crc, word) __crc32cd((crc), (word))
#endif

HARDWARE static inline uint32_t advance_three(uint32_t crc, const uint8_t *data, size_t stretch,
                                              shift_table table) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < stretch; i += 8) {
        crc = STEP64(crc, load64(data + i));
        second = STEP64(second, load64(data + stretch + i));
        third = STEP64(third, load64(data + 2 * stretch + i));
    }
    return shift(table, shift(table, crc) ^ second) ^ third;
}

HARDWARE static uint32_t advance_hardware(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 3 * LONG_STRETCH; data += 3 * LONG_STRETCH, size -= 3 * LONG_STRETCH)
        crc = advance_three(crc, data, LONG_STRETCH, long_shift);
    for (; size >= 3 * SHORT_STRETCH; data += 3 * SHORT_STRETCH, size -= 3 * SHORT_STRETCH)
        crc = advance_three(crc, data, SHORT_STRETCH, short_shift);
    for (; size >= 8; data += 8, size -= 8)
        crc = STEP64(crc, load64(data));
    for (; size > 0; data++, size--)
        crc = STEP8(crc, *data);
    return crc;
}

#endif

static advance_function advance = advance_tables;

static bool has_hardware(void) {
#if defined(HAVE_SSE42)
    return __builtin_cpu_supports("sse4.2");
#elif defined(HAVE_ARM_CRC)
    return true;
#else
    return false;
#endif
}

void crc32c_init(void) {
    for (int value = 0; value < 256; value++) {
        uint32_t crc = (uint32_t)value;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        byte_table[0][value] = crc;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = byte_table[zeros - 1][value];
            byte_table[zeros][value] = byte_table[0][crc & 0xff] ^ (crc >> 8);
        }
#if defined(HAVE_SSE42) || defined(HAVE_ARM_CRC)
    fill_shift_table(long_shift, LONG_STRETCH);
    fill_shift_table(short_shift, SHORT_STRETCH);
    if (has_hardware())
        advance = advance_hardware;
#endif
}

uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size) {
    return ~advance(~crc, data, size);
}

const char *crc32c_implementation(void) {
    if (!has_hardware())
        return "tables";
#if defined(HAVE_ARM_CRC)
    return "arm";
#else
    return "sse4.2";
#endif
}
