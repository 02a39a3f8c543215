#include "wire.h"

#define MOST_GROUPS 100 /* the nesting limit of protobuf itself */

const uint8_t *wire_read_long_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    uint64_t result = 0;
    for (unsigned bits = 0; bits < 70 && at < end; bits += 7) {
        uint8_t byte = *at++;
        result |= (uint64_t)(byte & 0x7f) << bits;
        if (byte < 0x80) {
            *value = result;
            return at;
        }
    }
    return NULL;
}

static bool skip_bytes(span *in, size_t count) {
    if ((size_t)(in->end - in->at) < count)
        return false;
    in->at += count;
    return true;
}

bool wire_skip(span *in, uint32_t tag) {
    uint32_t open[MOST_GROUPS];
    int depth = 0;
    do {
        uint64_t ignored;
        span inside;
        switch (tag & 7) {
        case 0:
            if (!wire_read_varint(in, &ignored))
                return false;
            break;
        case 1:
            if (!skip_bytes(in, 8))
                return false;
            break;
        case 2:
            if (!wire_read_delimited(in, &inside))
                return false;
            break;
        case 3:
            if (depth == MOST_GROUPS)
                return false;
            open[depth++] = tag >> 3;
            break;
        case 4:
            if (depth == 0 || open[--depth] != tag >> 3)
                return false;
            break;
        case 5:
            if (!skip_bytes(in, 4))
                return false;
            break;
        default:
            return false;
        }
    } while (depth > 0 && wire_read_any_tag(in, &tag));
    return depth == 0;
}
