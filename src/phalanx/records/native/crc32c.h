/* CRC-32C (Castagnoli), as TFRecord uses it, and the mask TFRecord puts over it. */
#ifndef PHALANX_CRC32C_H
#define PHALANX_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Fills the tables and chooses the fastest way this processor has. Call once, before the rest. */
void crc32c_init(void);

/* The checksum of `size` bytes that follow the ones whose checksum is `crc` (0 at the start). */
uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size);

/* The name of the way chosen: "sse4.2", "arm" or "tables". */
const char *crc32c_way(void);

/* A checksum as it is stored: rotated and shifted, so that data may hold checksums itself. */
static inline uint32_t crc32c_masked(const uint8_t *data, size_t size) {
    uint32_t crc = crc32c_extend(0, data, size);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

#endif
