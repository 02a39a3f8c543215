#include "framing.h"

#include "crc32c.h"

static uint32_t load32(const uint8_t *data) {
    uint32_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

frame_status frame_read(const uint8_t *data, size_t size, bool check_data, uint64_t *length) {
    *length = 0;
    if (size < FRAME_HEADER)
        return FRAME_PARTIAL;
    if (load32(data + 8) != crc32c_masked(data, 8))
        return FRAME_BAD_LENGTH;
    memcpy(length, data, 8);
    if (size < FRAME_OVERHEAD || *length > size - FRAME_OVERHEAD)
        return FRAME_PARTIAL;
    const uint8_t *payload = data + FRAME_HEADER;
    if (check_data && load32(payload + *length) != crc32c_masked(payload, *length))
        return FRAME_BAD_DATA;
    return FRAME_GOOD;
}

size_t frame_find(const uint8_t *data, size_t size, size_t start) {
    for (size_t at = start; at < size; at++)
        if (size - at < FRAME_HEADER || load32(data + at + 8) == crc32c_masked(data + at, 8))
            return at;
    return size;
}

void frame_seal(uint8_t *frame, uint64_t length) {
    uint32_t of_length, of_data;
    memcpy(frame, &length, 8);
    of_length = crc32c_masked(frame, 8);
    memcpy(frame + 8, &of_length, 4);
    of_data = crc32c_masked(frame + FRAME_HEADER, length);
    memcpy(frame + FRAME_HEADER + length, &of_data, 4);
}
