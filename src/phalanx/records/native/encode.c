#include "encode.h"

#include "framing.h"
#include "wire.h"

/* Messages hold their size before their content, so each is measured first and then written. */

static size_t delimited_size(size_t size) { return 1 + varint_size(size) + size; }

static uint8_t *write_header(uint8_t *out, uint32_t number, size_t size) {
    *out++ = (uint8_t)TAG_DELIMITED(number);
    return varint_write(out, size);
}

static uint64_t int64_at(const source_column *c, int64_t i) {
    uint64_t value;
    memcpy(&value, c->values + 8 * i, 8);
    return value;
}

/* The bytes of the values alone: without the tag and length of the packed field around numbers. */
static size_t payload_size(const source_column *c, int64_t first, int64_t end) {
    size_t size = 0;
    switch (c->kind) {
    case KIND_INT64:
        for (int64_t i = first; i < end; i++)
            size += varint_size(int64_at(c, i));
        return size;
    case KIND_FLOAT:
        return 4 * (size_t)(end - first);
    default:
        for (int64_t i = first; i < end; i++)
            size += delimited_size((size_t)(c->value_offsets[i + 1] - c->value_offsets[i]));
        return size;
    }
}

static size_t list_size(const source_column *c, size_t payload) {
    return c->kind == KIND_BYTES || payload == 0 ? payload : delimited_size(payload);
}

static size_t feature_size(const source_column *c, int64_t first, int64_t end) {
    return delimited_size(list_size(c, payload_size(c, first, end)));
}

static uint8_t *write_feature(uint8_t *out, const source_column *c, int64_t first, int64_t end) {
    size_t payload = payload_size(c, first, end);
    out = write_header(out, c->kind, list_size(c, payload));
    if (c->kind == KIND_BYTES) {
        for (int64_t i = first; i < end; i++) {
            size_t size = (size_t)(c->value_offsets[i + 1] - c->value_offsets[i]);
            out = write_header(out, 1, size);
            if (size > 0)
                memcpy(out, c->values + c->value_offsets[i], size);
            out += size;
        }
        return out;
    }
    if (payload == 0)
        return out;
    out = write_header(out, 1, payload);
    if (c->kind == KIND_FLOAT) {
        memcpy(out, c->values + 4 * first, payload);
        return out + payload;
    }
    for (int64_t i = first; i < end; i++)
        out = varint_write(out, int64_at(c, i));
    return out;
}

static int64_t row_start(const source_column *c, int64_t row) {
    return c->width == RAGGED ? c->row_offsets[row] : c->width * row;
}

/* The size of the Feature, or of the FeatureList of a sequence. */
static size_t value_size(const source_column *c, int64_t row) {
    int64_t first = row_start(c, row), end = row_start(c, row + 1);
    if (!c->sequence)
        return feature_size(c, first, end);
    size_t size = 0;
    for (int64_t step = first; step < end; step++)
        size += delimited_size(feature_size(c, c->step_offsets[step], c->step_offsets[step + 1]));
    return size;
}

static uint8_t *write_value(uint8_t *out, const source_column *c, int64_t row) {
    int64_t first = row_start(c, row), end = row_start(c, row + 1);
    if (!c->sequence)
        return write_feature(out, c, first, end);
    for (int64_t step = first; step < end; step++) {
        int64_t from = c->step_offsets[step], to = c->step_offsets[step + 1];
        out = write_header(out, 1, feature_size(c, from, to));
        out = write_feature(out, c, from, to);
    }
    return out;
}

static bool has_row(const source_column *c, int64_t row) {
    return c->present == NULL || c->present[row] != 0;
}

static size_t entry_size(const source_column *c, int64_t row) {
    return delimited_size(c->name_size) + delimited_size(value_size(c, row));
}

/* The map of the row's features, or of its feature lists. */
static size_t map_size(const source_column *columns, size_t count, int64_t row, bool sequence) {
    size_t size = 0;
    for (size_t i = 0; i < count; i++)
        if (columns[i].sequence == sequence && has_row(&columns[i], row))
            size += delimited_size(entry_size(&columns[i], row));
    return size;
}

static uint8_t *write_map(uint8_t *out, const source_column *columns, size_t count, int64_t row,
                          bool sequence) {
    for (size_t i = 0; i < count; i++) {
        const source_column *c = &columns[i];
        if (c->sequence != sequence || !has_row(c, row))
            continue;
        size_t size = value_size(c, row);
        out = write_header(out, 1, delimited_size(c->name_size) + delimited_size(size));
        out = write_header(out, 1, c->name_size);
        memcpy(out, c->name, c->name_size);
        out = write_header(out + c->name_size, 2, size);
        out = write_value(out, c, row);
    }
    return out;
}

bool encode_row(buffer *out, const source_column *columns, size_t count, int64_t row,
                bool sequence, bool framed) {
    size_t features = map_size(columns, count, row, false);
    size_t lists = sequence ? map_size(columns, count, row, true) : 0;
    size_t size = (features > 0 ? delimited_size(features) : 0) +
                  (lists > 0 ? delimited_size(lists) : 0);
    if (!buffer_reserve(out, size + FRAME_OVERHEAD))
        return false;
    uint8_t *start = out->data + out->size, *at = start + (framed ? FRAME_HEADER : 0);
    if (features > 0)
        at = write_map(write_header(at, 1, features), columns, count, row, false);
    if (lists > 0)
        at = write_map(write_header(at, 2, lists), columns, count, row, true);
    if (framed)
        frame_seal(start, size);
    out->size += size + (framed ? FRAME_OVERHEAD : 0);
    return true;
}

/* `count` + 1 offsets that never fall, from 0 or more up to `limit` or less. */
static bool are_sound(const int64_t *offsets, int64_t count, int64_t limit) {
    if (offsets[0] < 0 || offsets[count] > limit)
        return false;
    for (int64_t i = 0; i < count; i++)
        if (offsets[i] > offsets[i + 1])
            return false;
    return true;
}

bool encode_check(const source_column *c, int64_t rows) {
    int64_t limit = c->sequence ? c->step_count : c->value_count;
    if (c->width == RAGGED ? !are_sound(c->row_offsets, rows, limit)
                           : c->sequence || (rows > 0 && c->width > limit / rows))
        return false;
    if (c->sequence && !are_sound(c->step_offsets, c->step_count, c->value_count))
        return false;
    if (c->kind == KIND_BYTES)
        return are_sound(c->value_offsets, c->value_count, (int64_t)c->values_size);
    return c->value_count >= 0 &&
           (size_t)c->value_count <= c->values_size / (c->kind == KIND_FLOAT ? 4 : 8);
}
