/* CRC-32C (Castagnoli), and the masked form that TFRecord stores. */
#ifndef PHALANX_CRC32C_H
#define PHALANX_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Fills the tables and selects the fastest implementation for this CPU. Call it once, first. */
void crc32c_init(void);

/* The CRC of `size` bytes that follow bytes whose CRC is `crc` (0 at the start). */
uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size);

/* The selected implementation: "sse4.2", "arm" or "tables". */
const char *crc32c_implementation(void);

/* The stored form of a CRC: rotated and offset, because data may itself contain CRCs. */
static inline uint32_t crc32c_masked(const uint8_t *data, size_t size) {
    uint32_t crc = crc32c_extend(0, data, size);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

#endif
