/* Reads and writes protobuf's wire format. No function reads at or past `end`. */
#ifndef PHALANX_WIRE_H
#define PHALANX_WIRE_H

#include "buffer.h"

/* Tags of the fields that Example and SequenceExample use: number << 3 | wire type. */
#define TAG_VARINT(number) ((number) << 3 | 0u)
#define TAG_DELIMITED(number) ((number) << 3 | 2u)
#define TAG_FIXED32(number) ((number) << 3 | 5u)

typedef struct {
    const uint8_t *at, *end;
} span;

static inline bool span_is_empty(span s) { return s.at == s.end; }

/* Reads a varint of any length. Returns its end, or NULL if it is invalid. */
const uint8_t *wire_read_long_varint(const uint8_t *at, const uint8_t *end, uint64_t *value);

static inline bool wire_read_varint(span *in, uint64_t *value) {
    if (in->at < in->end && *in->at < 0x80) {
        *value = *in->at++;
        return true;
    }
    const uint8_t *after = wire_read_long_varint(in->at, in->end, value);
    if (after == NULL)
        return false;
    in->at = after;
    return true;
}

/* Reads a tag or a length, for which protobuf takes at most 5 bytes. */
static inline bool wire_read_short(span *in, uint64_t *value) {
    const uint8_t *start = in->at;
    return wire_read_varint(in, value) && in->at - start <= 5;
}

/* Reads the tag of a field in an unknown group, where protobuf allows the field number 0. */
static inline bool wire_read_any_tag(span *in, uint32_t *tag) {
    uint64_t value;
    if (!wire_read_short(in, &value) || value > UINT32_MAX)
        return false;
    *tag = (uint32_t)value;
    return true;
}

/* Reads the tag of a field: 32 bits, with a field number other than 0. */
static inline bool wire_read_tag(span *in, uint32_t *tag) {
    return wire_read_any_tag(in, tag) && *tag >= 8;
}

/* Reads a length and as many bytes: `inside` is set to these bytes, `in` continues after them. */
static inline bool wire_read_delimited(span *in, span *inside) {
    uint64_t length;
    if (!wire_read_short(in, &length) || length > (uint64_t)(in->end - in->at))
        return false;
    *inside = (span){in->at, in->at + length};
    in->at += length;
    return true;
}

/* Skips an unknown field after its tag. */
bool wire_skip(span *in, uint32_t tag);

/* Seven bits per byte, rounded up; computed without a division. */
static inline size_t varint_size(uint64_t value) {
    unsigned bits = 64 - (unsigned)__builtin_clzll(value | 1);
    return (bits * 9 + 64) / 64;
}

static inline uint8_t *varint_write(uint8_t *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

#endif
