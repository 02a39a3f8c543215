#include "encode.h"

#include "framing.h"
#include "wire.h"

/* In a message, the size of each part precedes the part. A message is therefore written backwards,
   so that each part is written before its size. `at` is the first byte written so far, and each
   function writes before it. */

#define HEADER_MOST 11 /* a tag and a size */
#define VARINT_MOST 10

static uint8_t *put_varint(uint8_t *at, uint64_t value) {
    if (value < 0x80) {
        *--at = (uint8_t)value;
        return at;
    }
    at -= varint_size(value);
    varint_write(at, value);
    return at;
}

static uint8_t *put_header(uint8_t *at, uint32_t number, size_t size) {
    at = put_varint(at, size);
    *--at = (uint8_t)TAG_DELIMITED(number);
    return at;
}

static uint8_t *put_bytes(uint8_t *at, const uint8_t *data, size_t size) {
    at -= size;
    if (size > 0)
        memcpy(at, data, size);
    return at;
}

static uint64_t int64_at(const source_column *c, int64_t i) {
    uint64_t value;
    memcpy(&value, c->values + 8 * i, 8);
    return value;
}

static uint8_t *put_feature(uint8_t *at, const source_column *c, int64_t first, int64_t end) {
    uint8_t *stop = at;
    if (c->kind == KIND_BYTES) {
        for (int64_t i = end; i-- > first;) {
            size_t size = (size_t)(c->value_offsets[i + 1] - c->value_offsets[i]);
            at = put_header(put_bytes(at, c->values + c->value_offsets[i], size), 1, size);
        }
    } else if (first < end) {
        if (c->kind == KIND_FLOAT)
            at = put_bytes(at, c->values + 4 * first, 4 * (size_t)(end - first));
        else
            for (int64_t i = end; i-- > first;)
                at = put_varint(at, int64_at(c, i));
        at = put_header(at, 1, (size_t)(stop - at));
    }
    return put_header(at, c->kind, (size_t)(stop - at));
}

/* An upper bound of the size of a Feature of these values. */
static size_t feature_most(const source_column *c, int64_t first, int64_t end) {
    size_t count = (size_t)(end - first), headers = 2 * HEADER_MOST;
    switch (c->kind) {
    case KIND_INT64:
        return headers + VARINT_MOST * count;
    case KIND_FLOAT:
        return headers + 4 * count;
    default:
        return headers + HEADER_MOST * count +
               (size_t)(c->value_offsets[end] - c->value_offsets[first]);
    }
}

static int64_t row_start(const source_column *c, int64_t row) {
    return c->width == RAGGED ? c->row_offsets[row] : c->width * row;
}

/* Writes the Feature, or the FeatureList of a sequence. */
static uint8_t *put_value(uint8_t *at, const source_column *c, int64_t row) {
    int64_t first = row_start(c, row), end = row_start(c, row + 1);
    if (!c->sequence)
        return put_feature(at, c, first, end);
    for (int64_t step = end; step-- > first;) {
        uint8_t *stop = at;
        at = put_feature(at, c, c->step_offsets[step], c->step_offsets[step + 1]);
        at = put_header(at, 1, (size_t)(stop - at));
    }
    return at;
}

static size_t value_most(const source_column *c, int64_t row) {
    int64_t first = row_start(c, row), end = row_start(c, row + 1);
    if (!c->sequence)
        return feature_most(c, first, end);
    return 3 * HEADER_MOST * (size_t)(end - first) +
           feature_most(c, c->step_offsets[first], c->step_offsets[end]);
}

static bool has_row(const source_column *c, int64_t row) {
    return c->present == NULL || c->present[row] != 0;
}

/* Writes the map of a row's features, or of its feature lists, unless it is empty. */
static uint8_t *put_map(uint8_t *at, const source_column *columns, size_t count, int64_t row,
                        bool sequence) {
    uint8_t *end = at;
    for (size_t i = count; i-- > 0;) {
        const source_column *c = &columns[i];
        if (c->sequence != sequence || !has_row(c, row))
            continue;
        uint8_t *stop = at;
        at = put_value(at, c, row);
        at = put_header(at, 2, (size_t)(stop - at));
        at = put_header(put_bytes(at, c->name, c->name_size), 1, c->name_size);
        at = put_header(at, 1, (size_t)(stop - at));
    }
    return at == end ? at : put_header(at, sequence ? 2 : 1, (size_t)(end - at));
}

bool encode_row(buffer *out, const source_column *columns, size_t count, int64_t row,
                bool sequence, bool framed) {
    size_t most = FRAME_OVERHEAD + 2 * HEADER_MOST;
    for (size_t i = 0; i < count; i++)
        if (has_row(&columns[i], row))
            most += 3 * HEADER_MOST + columns[i].name_size + value_most(&columns[i], row);
    if (!buffer_reserve(out, most))
        return false;
    uint8_t *start = out->data + out->size, *end = start + most, *at = end;
    if (sequence)
        at = put_map(at, columns, count, row, true);
    at = put_map(at, columns, count, row, false);
    size_t size = (size_t)(end - at);
    memmove(start + (framed ? FRAME_HEADER : 0), at, size);
    if (framed)
        frame_seal(start, size);
    out->size += size + (framed ? FRAME_OVERHEAD : 0);
    return true;
}

/* Are `count` + 1 offsets ascending, and between 0 and `limit`? */
static bool are_valid(const int64_t *offsets, int64_t count, int64_t limit) {
    if (offsets[0] < 0 || offsets[count] > limit)
        return false;
    for (int64_t i = 0; i < count; i++)
        if (offsets[i] > offsets[i + 1])
            return false;
    return true;
}

bool encode_check(const source_column *c, int64_t rows) {
    int64_t limit = c->sequence ? c->step_count : c->value_count;
    if (c->width == RAGGED ? !are_valid(c->row_offsets, rows, limit)
                           : c->sequence || (rows > 0 && c->width > limit / rows))
        return false;
    if (c->sequence && !are_valid(c->step_offsets, c->step_count, c->value_count))
        return false;
    if (c->kind == KIND_BYTES)
        return are_valid(c->value_offsets, c->value_count, (int64_t)c->values_size);
    return c->value_count >= 0 &&
           (size_t)c->value_count <= c->values_size / (c->kind == KIND_FLOAT ? 4 : 8);
}
