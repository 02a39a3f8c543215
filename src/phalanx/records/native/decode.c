#include "decode.h"

#define NAME_PADDING 8           /* allows a name to be loaded as a word */
#define MOST_EXPECTED_ROWS 65536 /* the most rows to reserve memory for in advance */
#define MOST_COLUMNS 16384       /* the most columns to discover */
#define MOST_RESERVED 256        /* the most columns to reserve memory for in advance */

/* A value in several parts, which protobuf concatenates. Normal writers never split a value. */
struct joined {
    struct joined *next;
    size_t size;
    uint8_t bytes[];
};

static uint32_t hash_name(uint64_t seed, const uint8_t *name, size_t size, bool sequence) {
    uint64_t hash = seed ^ (sequence ? 0x9e3779b97f4a7c15u : 0xcbf29ce484222325u);
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ name[i]) * 0x9fb21c651e98df25u;
        hash ^= hash >> 32;
    }
    return (uint32_t)hash;
}

static uint64_t load64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Is this the name of the column? Short names are compared as one word, which may be read past the
   end of the name but never past `readable`. */
static bool has_name(const column *c, span name, const uint8_t *readable, bool sequence) {
    size_t size = (size_t)(name.end - name.at);
    if (c->name_size != size || c->sequence != sequence)
        return false;
    if (size <= 8 && readable - name.at >= 8)
        return ((load64(name.at) ^ c->name_word) & c->name_mask) == 0;
    return size == 0 || memcmp(c->name, name.at, size) == 0;
}

static uint32_t find_slot(const decoder *d, span name, const uint8_t *readable, bool sequence) {
    size_t size = (size_t)(name.end - name.at);
    uint32_t slot = hash_name(d->hash_seed, name.at, size, sequence) & d->slot_mask;
    while (d->slots[slot] >= 0 && !has_name(&d->columns[d->slots[slot]], name, readable, sequence))
        slot = (slot + 1) & d->slot_mask;
    return slot;
}

static uint32_t find_column_slot(const decoder *d, const column *c) {
    span name = {c->name, c->name + c->name_size};
    return find_slot(d, name, name.end + NAME_PADDING, c->sequence);
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
    for (int32_t i = 0; i < d->count; i++)
        slots[find_column_slot(d, &d->columns[i])] = i;
    return true;
}

/* Extends the validity bits to `rows`; new bits are 1. */
static bool extend_validity(column *c, int64_t rows) {
    size_t old = c->validity.size, size = (size_t)(rows + 7) / 8;
    if (size <= old)
        return true;
    if (!buffer_append_zeros(&c->validity, size - old))
        return false;
    memset(c->validity.data + old, 0xff, size - old);
    return true;
}

/* The bytes that a row without the feature takes. */
static int64_t padding_of(const column *c) {
    if (c->width == RAGGED)
        return 4;
    return 4 + c->width * (c->kind == KIND_INT64 ? 8 : 4);
}

/* Adds rows that lack the feature. */
static decode_status add_missing_rows(decoder *d, column *c, int64_t row, int64_t count) {
    if (count > (MOST_PADDING - d->padding) / padding_of(c))
        return DECODE_OVER_BUDGET;
    d->padding += count * padding_of(c);
    if (!extend_validity(c, row + count))
        return DECODE_NO_MEMORY;
    for (int64_t i = row; i < row + count; i++)
        c->validity.data[i / 8] &= (uint8_t)~(1u << i % 8);
    c->missing += count;
    if (c->width == RAGGED) {
        int32_t end = 0;
        if (c->row_offsets.size > 0)
            memcpy(&end, c->row_offsets.data + c->row_offsets.size - 4, 4);
        for (int64_t i = 0; i < count; i++)
            if (!buffer_append_int32(&c->row_offsets, end))
                return DECODE_NO_MEMORY;
        return DECODE_DONE;
    }
    size_t values = (size_t)(c->width * count);
    c->count += (int64_t)values;
    if (c->kind == KIND_BYTES) {
        for (size_t i = 0; i < values; i++)
            if (!buffer_append_int32(&c->value_offsets, (int32_t)c->values.size))
                return DECODE_NO_MEMORY;
        return DECODE_DONE;
    }
    return buffer_append_zeros(&c->values, values * (c->kind == KIND_FLOAT ? 4 : 8))
               ? DECODE_DONE
               : DECODE_NO_MEMORY;
}

/* Reserves the memory that a column of single values will need. */
static bool reserve_rows(column *c, size_t rows) {
    rows = rows < MOST_EXPECTED_ROWS ? rows : MOST_EXPECTED_ROWS;
    if (c->width != 1)
        return buffer_reserve(&c->row_offsets, 4 * rows + 4);
    return c->kind == KIND_BYTES ? buffer_reserve(&c->value_offsets, 4 * rows + 4)
                                 : buffer_reserve(&c->values, 8 * rows);
}

decode_status decoder_add(decoder *d, const uint8_t *name, size_t name_size, kind kind,
                          bool sequence, int64_t width) {
    if (d->count == d->capacity && !grow_columns(d))
        return DECODE_NO_MEMORY;
    column *c = &d->columns[d->count];
    *c = (column){.name_size = name_size, .kind = kind, .sequence = sequence, .width = width,
                  .shortest = INT64_MAX, .narrowest = INT64_MAX, .follower = d->count + 1,
                  .int64s = &d->int64s};
    c->name = calloc(1, name_size + NAME_PADDING);
    if (c->name == NULL)
        return DECODE_NO_MEMORY;
    if (name_size > 0)
        memcpy(c->name, name, name_size);
    memcpy(&c->name_word, c->name, name_size < 8 ? name_size : 8);
    c->name_mask = name_size < 8 ? (1ull << 8 * name_size) - 1 : UINT64_MAX;
    d->slots[find_column_slot(d, c)] = d->count;
    d->count++;
    if (width != RAGGED)
        c->shortest = c->longest = width;
    if ((d->count <= MOST_RESERVED && !reserve_rows(c, d->expected_rows)) ||
        !buffer_append_int32(&c->row_offsets, 0) || !buffer_append_int32(&c->step_offsets, 0) ||
        !buffer_append_int32(&c->value_offsets, 0))
        return DECODE_NO_MEMORY;
    return d->rows == 0 ? DECODE_DONE : add_missing_rows(d, c, 0, d->rows);
}

void decoder_init(decoder *d, bool sequence, bool discover, size_t expected_rows,
                  uint64_t hash_seed) {
    *d = (decoder){.sequence = sequence, .discover = discover, .expected_rows = expected_rows,
                   .hash_seed = hash_seed, .failed = -1, .last = -1};
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
    *d = (decoder){0};
}

/* Converts int64 values to float32 in place, rounded as Python rounds them. */
static void convert_to_floats(uint8_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int64_t value;
        memcpy(&value, values + 8 * i, 8);
        float converted = (float)(double)value;
        memcpy(values + 4 * i, &converted, 4);
    }
}

/* Counts the last bytes of varints. */
__attribute__((noinline)) static size_t count_varints(span packed) {
    size_t count = 0;
    for (; packed.at < packed.end; packed.at++)
        count += *packed.at < 0x80;
    return count;
}

static inline decode_status append_int64s(column *c, span packed) {
    if (span_is_empty(packed))
        return DECODE_DONE;
    /* Every value takes at least one byte, which becomes eight. */
    size_t most = (size_t)(packed.end - packed.at), left = (size_t)(MOST_INT64S - *c->int64s) / 8;
    if (most > left && (most = count_varints(packed)) > left)
        return DECODE_OVER_INT64S;
    if (!buffer_reserve(&c->values, 8 * most))
        return DECODE_NO_MEMORY;
    uint8_t *start = c->values.data + c->values.size, *out = start;
    while (!span_is_empty(packed)) {
        uint64_t value;
        if (!wire_read_varint(&packed, &value))
            return DECODE_BAD_FEATURE;
        memcpy(out, &value, 8);
        out += 8;
    }
    size_t count = (size_t)(out - start) / 8;
    *c->int64s += 8 * (int64_t)count;
    if (c->kind == KIND_FLOAT)
        convert_to_floats(start, count);
    c->values.size += count * (c->kind == KIND_FLOAT ? 4 : 8);
    c->count += (int64_t)count;
    return DECODE_DONE;
}

static inline decode_status append_floats(column *c, span packed) {
    if ((packed.end - packed.at) % 4 != 0)
        return DECODE_BAD_FEATURE;
    if (!buffer_append(&c->values, packed.at, (size_t)(packed.end - packed.at)))
        return DECODE_NO_MEMORY;
    c->count += (packed.end - packed.at) / 4;
    return DECODE_DONE;
}

static inline decode_status append_bytes(column *c, span value) {
    if (!buffer_append(&c->values, value.at, (size_t)(value.end - value.at)) ||
        !buffer_append_int32(&c->value_offsets, (int32_t)c->values.size))
        return DECODE_NO_MEMORY;
    c->count++;
    return DECODE_DONE;
}

/* Appends field 1 of a list of `kind`: packed numbers, or one byte string. */
static inline decode_status append_field(column *c, kind kind, span field) {
    if (kind == KIND_INT64)
        return append_int64s(c, field);
    return kind == KIND_FLOAT ? append_floats(c, field) : append_bytes(c, field);
}

/* Numbers may also be unpacked, each in a field of its own. */
static decode_status append_unpacked(column *c, kind kind, uint32_t tag, span *list) {
    if (kind == KIND_INT64 && tag == TAG_VARINT(1)) {
        span value = *list;
        uint64_t ignored;
        if (!wire_read_varint(list, &ignored))
            return DECODE_BAD_FEATURE;
        return append_int64s(c, (span){value.at, list->at});
    }
    if (kind == KIND_FLOAT && tag == TAG_FIXED32(1)) {
        if (list->end - list->at < 4)
            return DECODE_BAD_FEATURE;
        list->at += 4;
        return append_floats(c, (span){list->at - 4, list->at});
    }
    return wire_skip(list, tag) ? DECODE_DONE : DECODE_BAD_FEATURE;
}

static decode_status read_list(column *c, kind kind, span list) {
    decode_status status = DECODE_DONE;
    while (status == DECODE_DONE && !span_is_empty(list)) {
        uint32_t tag;
        span field;
        if (!wire_read_tag(&list, &tag))
            return DECODE_BAD_FEATURE;
        if (tag != TAG_DELIMITED(1))
            status = append_unpacked(c, kind, tag, &list);
        else if (wire_read_delimited(&list, &field))
            status = append_field(c, kind, field);
        else
            status = DECODE_BAD_FEATURE;
    }
    return status;
}

static bool is_list(uint32_t tag) {
    return tag == TAG_DELIMITED(KIND_BYTES) || tag == TAG_DELIMITED(KIND_FLOAT) ||
           tag == TAG_DELIMITED(KIND_INT64);
}

/* Finds the list that a Feature holds. Of several, the last one counts, together with those of its
   kind directly before it: `feature` is cut to begin there. */
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

/* Reads a Feature in its usual form: one list with one field, and nothing else. `field` is set to
   the content of that field: packed numbers, or one byte string. */
static inline bool read_plain_feature(span feature, kind *found, span *field) {
    size_t size = (size_t)(feature.end - feature.at);
    const uint8_t *at = feature.at;
    if (size < 4 || !is_list(at[0]))
        return false;
    *found = (kind)(at[0] >> 3);
    if (size - 2 < 0x80) { /* both lengths then take one byte */
        *field = (span){at + 4, feature.end};
        return at[1] == size - 2 && at[2] == TAG_DELIMITED(1) && at[3] == size - 4;
    }
    span list, rest = {at + 1, feature.end};
    if (!wire_read_delimited(&rest, &list) || !span_is_empty(rest) || span_is_empty(list) ||
        *list.at++ != TAG_DELIMITED(1))
        return false;
    return wire_read_delimited(&list, field) && span_is_empty(list);
}

/* Whether a column can hold values of a kind. A discovered one holds floats if some are int64. */
static inline bool take_kind(decoder *d, column *c, kind found) {
    if (c->kind == found)
        return true;
    d->found_kind = found;
    bool is_mixed = c->kind + found == KIND_INT64 + KIND_FLOAT;
    if (d->discover && is_mixed && c->kind == KIND_INT64) {
        convert_to_floats(c->values.data, (size_t)c->count);
        c->values.size /= 2;
        c->kind = KIND_FLOAT;
    } else if (c->kind == KIND_NONE) {
        c->kind = found;
    }
    return c->kind == found || (d->discover && is_mixed);
}

/* Appends the values of all lists in a part of a Feature. */
static decode_status read_lists(column *c, span feature) {
    while (!span_is_empty(feature)) {
        uint32_t tag;
        span list;
        if (!wire_read_tag(&feature, &tag))
            return DECODE_BAD_FEATURE;
        if (!is_list(tag)) {
            if (!wire_skip(&feature, tag))
                return DECODE_BAD_FEATURE;
            continue;
        }
        if (!wire_read_delimited(&feature, &list))
            return DECODE_BAD_FEATURE;
        decode_status status = read_list(c, (kind)(tag >> 3), list);
        if (status != DECODE_DONE)
            return status;
    }
    return DECODE_DONE;
}

/* Checks lists whose values do not count. */
static decode_status check_lists(const decoder *d, span feature) {
    int64_t int64s = d->int64s;
    column ignored = {.int64s = &int64s};
    decode_status status = read_lists(&ignored, feature);
    buffer_free(&ignored.values);
    buffer_free(&ignored.value_offsets);
    return status;
}

/* Reads a Feature of any form. `present` is set to false if it holds no list. Features of the usual
   form are decoded 4 % faster if this is not compiled into their code. */
__attribute__((noinline)) static decode_status read_any_feature(decoder *d, column *c, span feature, bool *present) {
    kind found;
    span chosen = feature;
    if (!choose_list(&chosen, &found))
        return DECODE_BAD_FEATURE;
    decode_status status = check_lists(d, (span){feature.at, chosen.at});
    *present = found != KIND_NONE;
    if (status != DECODE_DONE || !*present)
        return status;
    return take_kind(d, c, found) ? read_lists(c, chosen) : DECODE_OTHER_KIND;
}

/* Appends the values of a Feature to its column. */
static inline decode_status read_feature(decoder *d, column *c, span feature, bool *present) {
    kind found;
    span field;
    *present = true;
    if (read_plain_feature(feature, &found, &field))
        return take_kind(d, c, found) ? append_field(c, found, field) : DECODE_OTHER_KIND;
    return read_any_feature(d, c, feature, present);
}

static decode_status read_steps(decoder *d, column *c, span feature_list) {
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
        int64_t before = c->count;
        decode_status status = read_feature(d, c, feature, &present);
        if (status != DECODE_DONE)
            return status;
        if (!buffer_append_int32(&c->step_offsets, (int32_t)c->count))
            return DECODE_NO_MEMORY;
        c->steps++;
        c->narrowest = c->count - before < c->narrowest ? c->count - before : c->narrowest;
        c->widest = c->count - before > c->widest ? c->count - before : c->widest;
    }
    return DECODE_DONE;
}

static inline decode_status end_row(decoder *d, column *c) {
    bool present = c->found.at != NULL;
    int64_t before = c->sequence ? c->steps : c->count;
    decode_status status = DECODE_DONE;
    if (present)
        status = c->sequence ? read_steps(d, c, c->found) : read_feature(d, c, c->found, &present);
    if (status != DECODE_DONE)
        return status;
    if (!present)
        return add_missing_rows(d, c, d->rows, 1);
    int64_t end = c->sequence ? c->steps : c->count, length = end - before;
    if (c->width == RAGGED) {
        if (!buffer_append_int32(&c->row_offsets, (int32_t)end))
            return DECODE_NO_MEMORY;
        c->shortest = length < c->shortest ? length : c->shortest;
        c->longest = length > c->longest ? length : c->longest;
    } else if (length != c->width) {
        d->found_width = length;
        return DECODE_OTHER_WIDTH;
    }
    if (c->missing > 0 && !extend_validity(c, d->rows + 1))
        return DECODE_NO_MEMORY;
    return DECODE_DONE;
}

/* Finds the column of a name; -1 if it is not wanted. Most records have their features in the same
   order, so the column that followed in the last record is tried first. */
static decode_status find_column(decoder *d, span name, bool sequence, int32_t *found) {
    int32_t guess = d->last < 0 ? 0 : d->columns[d->last].follower;
    if (guess < d->count && has_name(&d->columns[guess], name, d->message_end, sequence)) {
        *found = d->last = guess;
        return DECODE_DONE;
    }
    int32_t number = d->count > 0 ? d->slots[find_slot(d, name, d->message_end, sequence)] : -1;
    if (number < 0 && d->discover) {
        if (d->count == MOST_COLUMNS)
            return DECODE_TOO_MANY;
        size_t size = (size_t)(name.end - name.at);
        decode_status status = decoder_add(d, name.at, size, KIND_NONE, sequence, RAGGED);
        number = d->count - 1;
        if (status != DECODE_DONE) {
            d->failed = number;
            return status;
        }
    }
    if (number >= 0) {
        if (d->last >= 0)
            d->columns[d->last].follower = number;
        d->last = number;
    }
    *found = number;
    return DECODE_DONE;
}

/* Appends `part` to a value whose parts so far are in `*joined`, or in `value` if that is NULL. The
   size of the whole entry is enough memory for all parts, so that each is copied once. */
static bool join(decoder *d, struct joined **joined, size_t entry_size, span part, span *value) {
    size_t size = (size_t)(part.end - part.at);
    if (*joined == NULL) {
        *joined = malloc(sizeof **joined + entry_size);
        if (*joined == NULL)
            return false;
        (*joined)->next = d->joined;
        d->joined = *joined;
        (*joined)->size = (size_t)(value->end - value->at);
        memcpy((*joined)->bytes, value->at, (*joined)->size);
    }
    memcpy((*joined)->bytes + (*joined)->size, part.at, size);
    (*joined)->size += size;
    *value = (span){(*joined)->bytes, (*joined)->bytes + (*joined)->size};
    return true;
}

/* Reads a map entry in its usual form: a short name, its value, and nothing else. */
static inline bool read_plain_entry(span entry, span *name, span *value) {
    size_t size = (size_t)(entry.end - entry.at);
    const uint8_t *at = entry.at;
    if (size < 4 || at[0] != TAG_DELIMITED(1) || at[1] >= 0x80 || at[1] > size - 4)
        return false;
    *name = (span){at + 2, at + 2 + at[1]};
    if (*name->end != TAG_DELIMITED(2))
        return false;
    span rest = {name->end + 1, entry.end};
    return wire_read_delimited(&rest, value) && span_is_empty(rest);
}

static decode_status read_any_entry(decoder *d, span entry, span *name, span *value) {
    size_t entry_size = (size_t)(entry.end - entry.at);
    struct joined *joined = NULL;
    bool has_value = false;
    *name = *value = (span){entry.end, entry.end};
    while (!span_is_empty(entry)) {
        uint32_t tag;
        if (!wire_read_tag(&entry, &tag))
            return DECODE_BAD_MESSAGE;
        if (tag == TAG_DELIMITED(1)) {
            if (!wire_read_delimited(&entry, name))
                return DECODE_BAD_MESSAGE;
        } else if (tag == TAG_DELIMITED(2)) {
            span part;
            if (!wire_read_delimited(&entry, &part))
                return DECODE_BAD_MESSAGE;
            if (!has_value)
                *value = part;
            else if (!join(d, &joined, entry_size, part, value))
                return DECODE_NO_MEMORY;
            has_value = true;
        } else if (!wire_skip(&entry, tag)) {
            return DECODE_BAD_MESSAGE;
        }
    }
    return DECODE_DONE;
}

/* Reads an entry of the map from names to features. The last entry of a name counts. */
static decode_status read_entry(decoder *d, span entry, bool sequence) {
    span name, value;
    int32_t number;
    decode_status status = DECODE_DONE;
    if (!read_plain_entry(entry, &name, &value))
        status = read_any_entry(d, entry, &name, &value);
    if (status == DECODE_DONE)
        status = find_column(d, name, sequence, &number);
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
    d->message_end = rest.end;
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
