#include "decode.h"

#define MOST_COLUMNS 16384 /* discovered ones: their count times the rows is memory */

/* Protobuf joins a message that comes in several parts; here that costs a copy, and never happens
   in files that a sane writer made. */
struct joined {
    struct joined *next;
    size_t size;
    uint8_t bytes[];
};

/* ---- columns by name ---- */

static uint32_t hash_name(const uint8_t *name, size_t size, bool sequence) {
    uint32_t hash = sequence ? 0x9e3779b9u : 0x811c9dc5u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ name[i]) * 0x01000193u;
    return hash ^ hash >> 15;
}

static bool has_name(const column *c, span name, bool sequence) {
    size_t size = (size_t)(name.end - name.at);
    return c->name_size == size && c->sequence == sequence &&
           (size == 0 || memcmp(c->name, name.at, size) == 0);
}

static uint32_t find_slot(const decoder *d, span name, bool sequence) {
    uint32_t slot = hash_name(name.at, (size_t)(name.end - name.at), sequence) & d->slot_mask;
    while (d->slots[slot] >= 0 && !has_name(&d->columns[d->slots[slot]], name, sequence))
        slot = (slot + 1) & d->slot_mask;
    return slot;
}

static bool grow_columns(decoder *d) {
    int32_t capacity = d->capacity ? 2 * d->capacity : 16;
    column *columns = realloc(d->columns, (size_t)capacity * sizeof *columns);
    if (columns == NULL)
        return false;
    d->columns = columns;
    int32_t *slots = malloc(4 * (size_t)capacity * sizeof *slots);
    if (slots == NULL)
        return false;
    free(d->slots);
    d->slots = slots;
    d->slot_mask = 4 * (uint32_t)capacity - 1;
    d->capacity = capacity;
    memset(slots, 0xff, 4 * (size_t)capacity * sizeof *slots);
    for (int32_t i = 0; i < d->count; i++) {
        column *c = &d->columns[i];
        slots[find_slot(d, (span){c->name, c->name + c->name_size}, c->sequence)] = i;
    }
    return true;
}

/* What a row without the feature leaves in its column. */
static bool add_missing_rows(column *c, int64_t row, int64_t count) {
    int64_t bytes = (row + count + 7) / 8;
    if (!buffer_append_zeros(&c->validity, (size_t)bytes - c->validity.size))
        return false;
    c->missing += count;
    if (c->width == RAGGED) {
        int32_t end = 0;
        if (c->row_offsets.size > 0)
            memcpy(&end, c->row_offsets.data + c->row_offsets.size - 4, 4);
        for (int64_t i = 0; i < count; i++)
            if (!buffer_append_int32(&c->row_offsets, end))
                return false;
        return true;
    }
    size_t values = (size_t)(c->width * count);
    if (c->kind == KIND_BYTES) {
        for (size_t i = 0; i < values; i++)
            if (!buffer_append_int32(&c->value_offsets, (int32_t)c->values.size))
                return false;
        return true;
    }
    return buffer_append_zeros(&c->values, values * (c->kind == KIND_FLOAT ? 4 : 8));
}

bool decoder_add(decoder *d, const uint8_t *name, size_t name_size, kind kind, bool sequence,
                 int64_t width) {
    if (d->count == d->capacity && !grow_columns(d))
        return false;
    column *c = &d->columns[d->count];
    *c = (column){.name_size = name_size, .kind = kind, .sequence = sequence, .width = width,
                  .shortest = INT64_MAX, .narrowest = INT64_MAX, .follower = d->count + 1};
    c->name = malloc(name_size + 1);
    if (c->name == NULL)
        return false;
    if (name_size > 0)
        memcpy(c->name, name, name_size);
    d->slots[find_slot(d, (span){c->name, c->name + name_size}, sequence)] = d->count;
    d->count++;
    return buffer_append_int32(&c->row_offsets, 0) && buffer_append_int32(&c->step_offsets, 0) &&
           buffer_append_int32(&c->value_offsets, 0) && add_missing_rows(c, 0, d->rows);
}

void decoder_init(decoder *d, bool sequence, bool discover) {
    *d = (decoder){.sequence = sequence, .discover = discover, .failed = -1, .last = -1};
}

static void free_joined(decoder *d) {
    while (d->joined != NULL) {
        struct joined *next = d->joined->next;
        free(d->joined);
        d->joined = next;
    }
}

void decoder_free(decoder *d) {
    for (int32_t i = 0; i < d->count; i++) {
        column *c = &d->columns[i];
        free(c->name);
        buffer_free(&c->values);
        buffer_free(&c->value_offsets);
        buffer_free(&c->step_offsets);
        buffer_free(&c->row_offsets);
        buffer_free(&c->validity);
    }
    free(d->columns);
    free(d->slots);
    free_joined(d);
    decoder_init(d, d->sequence, d->discover);
}

int64_t column_value_count(const column *c) {
    switch (c->kind) {
    case KIND_BYTES:
        return (int64_t)(c->value_offsets.size / 4) - 1;
    case KIND_FLOAT:
        return (int64_t)(c->values.size / 4);
    default:
        return (int64_t)(c->values.size / 8);
    }
}

/* ---- the lists of values ---- */

static bool append_int64(buffer *values, uint64_t value) {
    return buffer_append(values, &value, sizeof value);
}

static decode_status read_int64_list(column *c, span list) {
    while (!span_is_empty(list)) {
        uint32_t tag;
        uint64_t value;
        if (!wire_read_tag(&list, &tag))
            return DECODE_BAD_FEATURE;
        if (tag == TAG_DELIMITED(1)) {
            span packed;
            if (!wire_read_delimited(&list, &packed))
                return DECODE_BAD_FEATURE;
            /* Every value takes a byte or more: this is room enough, and no more than 8 times it. */
            if (!buffer_reserve(&c->values, 8 * (size_t)(packed.end - packed.at)))
                return DECODE_NO_MEMORY;
            while (!span_is_empty(packed)) {
                if (!wire_read_varint(&packed, &value))
                    return DECODE_BAD_FEATURE;
                memcpy(c->values.data + c->values.size, &value, 8);
                c->values.size += 8;
            }
        } else if (tag == TAG_VARINT(1)) {
            if (!wire_read_varint(&list, &value))
                return DECODE_BAD_FEATURE;
            if (!append_int64(&c->values, value))
                return DECODE_NO_MEMORY;
        } else if (!wire_skip(&list, tag)) {
            return DECODE_BAD_FEATURE;
        }
    }
    return DECODE_DONE;
}

static decode_status read_float_list(column *c, span list) {
    while (!span_is_empty(list)) {
        uint32_t tag;
        if (!wire_read_tag(&list, &tag))
            return DECODE_BAD_FEATURE;
        if (tag == TAG_DELIMITED(1)) {
            span packed;
            if (!wire_read_delimited(&list, &packed) || (packed.end - packed.at) % 4 != 0)
                return DECODE_BAD_FEATURE;
            if (!buffer_append(&c->values, packed.at, (size_t)(packed.end - packed.at)))
                return DECODE_NO_MEMORY;
        } else if (tag == TAG_FIXED32(1)) {
            if (list.end - list.at < 4)
                return DECODE_BAD_FEATURE;
            if (!buffer_append(&c->values, list.at, 4))
                return DECODE_NO_MEMORY;
            list.at += 4;
        } else if (!wire_skip(&list, tag)) {
            return DECODE_BAD_FEATURE;
        }
    }
    return DECODE_DONE;
}

static decode_status read_bytes_list(column *c, span list) {
    while (!span_is_empty(list)) {
        uint32_t tag;
        if (!wire_read_tag(&list, &tag))
            return DECODE_BAD_FEATURE;
        if (tag == TAG_DELIMITED(1)) {
            span value;
            if (!wire_read_delimited(&list, &value))
                return DECODE_BAD_FEATURE;
            if (!buffer_append(&c->values, value.at, (size_t)(value.end - value.at)) ||
                !buffer_append_int32(&c->value_offsets, (int32_t)c->values.size))
                return DECODE_NO_MEMORY;
        } else if (!wire_skip(&list, tag)) {
            return DECODE_BAD_FEATURE;
        }
    }
    return DECODE_DONE;
}

static bool is_list(uint32_t tag) {
    return tag == TAG_DELIMITED(KIND_BYTES) || tag == TAG_DELIMITED(KIND_FLOAT) ||
           tag == TAG_DELIMITED(KIND_INT64);
}

/* Which list a Feature holds. Of several the last counts, with those of its kind right before it:
   `feature` is cut to begin there. */
static bool choose_list(span *feature, kind *chosen) {
    span rest = *feature;
    *chosen = KIND_NONE;
    while (!span_is_empty(rest)) {
        uint32_t tag;
        const uint8_t *field = rest.at;
        if (!wire_read_tag(&rest, &tag) || !wire_skip(&rest, tag))
            return false;
        if (is_list(tag) && (kind)(tag >> 3) != *chosen) {
            *chosen = (kind)(tag >> 3);
            feature->at = field;
        }
    }
    return true;
}

/* Appends a Feature's values to its column. `present` is false if it holds no list at all. */
static decode_status read_feature(decoder *d, column *c, span feature, bool *present) {
    kind found;
    if (!choose_list(&feature, &found))
        return DECODE_BAD_FEATURE;
    *present = found != KIND_NONE;
    if (!*present)
        return DECODE_DONE;
    if (c->kind == KIND_NONE)
        c->kind = found;
    if (c->kind != found) {
        d->found_kind = found;
        return DECODE_OTHER_KIND;
    }
    while (!span_is_empty(feature)) {
        uint32_t tag;
        span list;
        decode_status status = DECODE_DONE;
        if (!wire_read_tag(&feature, &tag))
            return DECODE_BAD_FEATURE;
        if (!is_list(tag)) {
            if (!wire_skip(&feature, tag))
                return DECODE_BAD_FEATURE;
            continue;
        }
        if (!wire_read_delimited(&feature, &list))
            return DECODE_BAD_FEATURE;
        if (found == KIND_INT64)
            status = read_int64_list(c, list);
        else if (found == KIND_FLOAT)
            status = read_float_list(c, list);
        else
            status = read_bytes_list(c, list);
        if (status != DECODE_DONE)
            return status;
    }
    return DECODE_DONE;
}

static decode_status read_steps(decoder *d, column *c, span feature_list, int64_t *steps) {
    while (!span_is_empty(feature_list)) {
        uint32_t tag;
        span feature;
        bool present;
        if (!wire_read_tag(&feature_list, &tag))
            return DECODE_BAD_FEATURE;
        if (tag != TAG_DELIMITED(1)) {
            if (!wire_skip(&feature_list, tag))
                return DECODE_BAD_FEATURE;
            continue;
        }
        if (!wire_read_delimited(&feature_list, &feature))
            return DECODE_BAD_FEATURE;
        int64_t before = column_value_count(c);
        decode_status status = read_feature(d, c, feature, &present);
        if (status != DECODE_DONE)
            return status;
        int64_t after = column_value_count(c);
        if (!buffer_append_int32(&c->step_offsets, (int32_t)after))
            return DECODE_NO_MEMORY;
        if (after - before < c->narrowest)
            c->narrowest = after - before;
        if (after - before > c->widest)
            c->widest = after - before;
        ++*steps;
    }
    return DECODE_DONE;
}

/* ---- one row ---- */

static decode_status end_row(decoder *d, column *c) {
    bool present = true;
    int64_t length = 0;
    decode_status status;
    if (c->found.at == NULL)
        return add_missing_rows(c, d->rows, 1) ? DECODE_DONE : DECODE_NO_MEMORY;
    if (c->sequence) {
        status = read_steps(d, c, c->found, &length);
    } else {
        int64_t before = column_value_count(c);
        status = read_feature(d, c, c->found, &present);
        length = column_value_count(c) - before;
    }
    if (status != DECODE_DONE)
        return status;
    if (!present)
        return add_missing_rows(c, d->rows, 1) ? DECODE_DONE : DECODE_NO_MEMORY;
    if (c->width == RAGGED) {
        int64_t end = c->sequence ? (int64_t)(c->step_offsets.size / 4) - 1 : column_value_count(c);
        if (!buffer_append_int32(&c->row_offsets, (int32_t)end))
            return DECODE_NO_MEMORY;
    } else if (length != c->width) {
        d->found_width = length;
        return DECODE_OTHER_WIDTH;
    }
    if (length < c->shortest)
        c->shortest = length;
    if (length > c->longest)
        c->longest = length;
    if (d->rows % 8 == 0 && !buffer_append_zeros(&c->validity, 1))
        return DECODE_NO_MEMORY;
    c->validity.data[d->rows / 8] |= (uint8_t)(1u << d->rows % 8);
    return DECODE_DONE;
}

/* The column of this name, -1 if nobody asked for it. Records mostly have their features in the
   same order, so the one that followed last time is tried first. */
static decode_status find_column(decoder *d, span name, bool sequence, int32_t *found) {
    int32_t guess = d->last < 0 ? 0 : d->columns[d->last].follower;
    if (guess < d->count && has_name(&d->columns[guess], name, sequence)) {
        *found = d->last = guess;
        return DECODE_DONE;
    }
    int32_t number = d->count > 0 ? d->slots[find_slot(d, name, sequence)] : -1;
    if (number < 0 && d->discover) {
        if (d->count == MOST_COLUMNS)
            return DECODE_TOO_MANY;
        if (!decoder_add(d, name.at, (size_t)(name.end - name.at), KIND_NONE, sequence, RAGGED))
            return DECODE_NO_MEMORY;
        number = d->count - 1;
    }
    if (number >= 0) {
        if (d->last >= 0)
            d->columns[d->last].follower = number;
        d->last = number;
    }
    *found = number;
    return DECODE_DONE;
}

static bool join(decoder *d, span first, span second, span *both) {
    size_t first_size = (size_t)(first.end - first.at), second_size = (size_t)(second.end - second.at);
    struct joined *joined = malloc(sizeof *joined + first_size + second_size + 1);
    if (joined == NULL)
        return false;
    memcpy(joined->bytes, first.at, first_size);
    memcpy(joined->bytes + first_size, second.at, second_size);
    joined->next = d->joined;
    d->joined = joined;
    *both = (span){joined->bytes, joined->bytes + first_size + second_size};
    return true;
}

/* An entry of the map from names to features. The last entry of a name counts. */
static decode_status read_entry(decoder *d, span entry, bool sequence) {
    static const uint8_t nothing[1];
    span name = {nothing, nothing}, value = {nothing, nothing};
    bool has_value = false;
    while (!span_is_empty(entry)) {
        uint32_t tag;
        if (!wire_read_tag(&entry, &tag))
            return DECODE_BAD_MESSAGE;
        if (tag == TAG_DELIMITED(1)) {
            if (!wire_read_delimited(&entry, &name))
                return DECODE_BAD_MESSAGE;
        } else if (tag == TAG_DELIMITED(2)) {
            span part;
            if (!wire_read_delimited(&entry, &part))
                return DECODE_BAD_MESSAGE;
            if (!has_value)
                value = part;
            else if (!join(d, value, part, &value))
                return DECODE_NO_MEMORY;
            has_value = true;
        } else if (!wire_skip(&entry, tag)) {
            return DECODE_BAD_MESSAGE;
        }
    }
    int32_t number;
    decode_status status = find_column(d, name, sequence, &number);
    if (status == DECODE_DONE && number >= 0)
        d->columns[number].found = value;
    return status;
}

static decode_status read_entries(decoder *d, span entries, bool sequence) {
    while (!span_is_empty(entries)) {
        uint32_t tag;
        if (!wire_read_tag(&entries, &tag))
            return DECODE_BAD_MESSAGE;
        if (tag == TAG_DELIMITED(1)) {
            span entry;
            if (!wire_read_delimited(&entries, &entry))
                return DECODE_BAD_MESSAGE;
            decode_status status = read_entry(d, entry, sequence);
            if (status != DECODE_DONE)
                return status;
        } else if (!wire_skip(&entries, tag)) {
            return DECODE_BAD_MESSAGE;
        }
    }
    return DECODE_DONE;
}

decode_status decoder_add_row(decoder *d, const uint8_t *message, size_t size) {
    span rest = {message, message + size};
    decode_status status = DECODE_DONE;
    d->failed = d->last = -1;
    while (!span_is_empty(rest)) {
        uint32_t tag;
        if (!wire_read_tag(&rest, &tag))
            return DECODE_BAD_MESSAGE;
        if (tag == TAG_DELIMITED(1) || (tag == TAG_DELIMITED(2) && d->sequence)) {
            span entries;
            if (!wire_read_delimited(&rest, &entries))
                return DECODE_BAD_MESSAGE;
            status = read_entries(d, entries, tag == TAG_DELIMITED(2));
            if (status != DECODE_DONE)
                return status;
        } else if (!wire_skip(&rest, tag)) {
            return DECODE_BAD_MESSAGE;
        }
    }
    for (int32_t i = 0; i < d->count; i++) {
        status = end_row(d, &d->columns[i]);
        if (status != DECODE_DONE) {
            d->failed = i;
            return status;
        }
        d->columns[i].found = (span){NULL, NULL};
    }
    if (d->joined != NULL)
        free_joined(d);
    d->rows++;
    return DECODE_DONE;
}
