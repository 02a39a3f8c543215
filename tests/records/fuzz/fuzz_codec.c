/* Feeds any bytes to the codec, as a file and as messages. It must never read or write outside its
   memory, and never ask for memory that the input does not justify.

   With libFuzzer:  clang -fsanitize=fuzzer,address,undefined -DLIBFUZZER fuzz_codec.c NATIVE/...c
   With AFL++:      afl-cc -fsanitize=address,undefined fuzz_codec.c NATIVE/...c; give it @@
   Alone:           cc -fsanitize=address,undefined ...; run FILES, or --rounds N FILES to change them
                    at random N times. */
#include <stdio.h>

#include "crc32c.h"
#include "decode.h"
#include "encode.h"
#include "framing.h"

#define MOST_BYTES (1 << 16)

static void add_columns(decoder *d) {
    decoder_add(d, (const uint8_t *)"int", 3, KIND_INT64, false, 1);
    decoder_add(d, (const uint8_t *)"floats", 6, KIND_FLOAT, false, 3);
    decoder_add(d, (const uint8_t *)"text", 4, KIND_BYTES, false, 1);
    decoder_add(d, (const uint8_t *)"ragged", 6, KIND_INT64, false, RAGGED);
    decoder_add(d, (const uint8_t *)"a name longer than a word", 25, KIND_BYTES, false, RAGGED);
    decoder_add(d, (const uint8_t *)"steps", 5, KIND_FLOAT, true, RAGGED);
}

/* What was decoded, encoded again. Offsets of 32 bits become those of 64 that the encoder takes. */
static void encode_again(const decoder *d) {
    for (int32_t i = 0; i < d->count; i++) {
        const column *c = &d->columns[i];
        size_t count = c->row_offsets.size / 4, values = c->value_offsets.size / 4;
        if (c->kind == KIND_NONE || c->sequence || c->width != RAGGED)
            continue;
        int64_t *offsets = malloc(8 * (count + values));
        if (offsets == NULL)
            return;
        for (size_t k = 0; k < count + values; k++) {
            int32_t offset;
            memcpy(&offset, k < count ? c->row_offsets.data + 4 * k
                                      : c->value_offsets.data + 4 * (k - count), 4);
            offsets[k] = offset;
        }
        source_column source = {
            .name = c->name, .name_size = c->name_size, .kind = c->kind, .width = RAGGED,
            .row_offsets = offsets, .value_offsets = offsets + count, .values = c->values.data,
            .values_size = c->values.size,
            .value_count = c->kind == KIND_BYTES ? (int64_t)values - 1
                           : (int64_t)(c->values.size / (c->kind == KIND_FLOAT ? 4 : 8))};
        if (!encode_check(&source, d->rows))
            abort();
        buffer out = {0};
        for (int64_t row = 0; row < d->rows; row++)
            encode_row(&out, &source, 1, row, false, true);
        for (size_t at = 0; at < out.size;) {
            uint64_t length;
            if (frame_read(out.data + at, out.size - at, true, &length) != FRAME_GOOD)
                abort();
            at += FRAME_OVERHEAD + length;
        }
        buffer_free(&out);
        free(offsets);
    }
}

static void decode(const uint8_t *data, size_t size, bool sequence, bool discover) {
    decoder d;
    decoder_init(&d, sequence, discover, 2, size);
    if (!discover)
        add_columns(&d);
    /* Twice the whole, and its halves: rows must not disturb each other. */
    if (decoder_add_row(&d, data, size) == DECODE_DONE &&
        decoder_add_row(&d, data, size / 2) == DECODE_DONE &&
        decoder_add_row(&d, data, size) == DECODE_DONE)
        encode_again(&d);
    decoder_free(&d);
}

static void scan(const uint8_t *data, size_t size) {
    uint64_t length;
    size_t at = 0;
    while (at < size && frame_read(data + at, size - at, true, &length) == FRAME_GOOD)
        at += FRAME_OVERHEAD + length;
    for (at = 0; at < size; at++)
        at = frame_find(data, size, at);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    static bool is_ready;
    if (!is_ready)
        crc32c_init();
    is_ready = true;
    /* A copy of exactly this size, so that the sanitizers see the first byte too far. */
    uint8_t *data = malloc(size ? size : 1);
    if (data == NULL || size > MOST_BYTES) {
        free(data);
        return 0;
    }
    memcpy(data, input, size);
    scan(data, size);
    for (int mode = 0; mode < 4; mode++)
        decode(data, size, mode & 1, mode & 2);
    free(data);
    return 0;
}

#ifndef LIBFUZZER
static uint64_t state = 88172645463325252ull;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Some bytes changed, and perhaps a stretch removed or doubled. */
static size_t mutate(uint8_t *data, size_t size) {
    static const uint8_t likely[] = {0x00, 0x01, 0x08, 0x0a, 0x0b, 0x0c, 0x0d, 0x12, 0x1a, 0x7f, 0x80, 0xff};
    if (size == 0)
        return 0;
    for (uint64_t changes = 1 + next_random() % 4; changes > 0; changes--) {
        uint64_t where = next_random() % size;
        data[where] = next_random() % 2 ? (uint8_t)next_random() : likely[next_random() % sizeof likely];
    }
    size_t from = next_random() % size, length = next_random() % (size - from) / 4;
    if (next_random() % 4 == 0) {
        memmove(data + from, data + from + length, size - from - length);
        size -= length;
    } else if (next_random() % 4 == 0 && size + length <= MOST_BYTES) {
        memmove(data + from + length, data + from, size - from);
        size += length;
    }
    return size;
}

int main(int count, char **names) {
    static uint8_t seed[MOST_BYTES], data[MOST_BYTES];
    long rounds = 0;
    int first = 1;
    if (count > 2 && strcmp(names[1], "--rounds") == 0) {
        rounds = atol(names[2]);
        first = 3;
    }
    for (int i = first; i < count; i++) {
        FILE *file = fopen(names[i], "rb");
        if (file == NULL)
            return 2;
        size_t size = fread(seed, 1, sizeof seed, file);
        fclose(file);
        LLVMFuzzerTestOneInput(seed, size);
        for (long round = 0; round < rounds; round++) {
            memcpy(data, seed, size);
            LLVMFuzzerTestOneInput(data, mutate(data, size));
        }
    }
    return 0;
}
#endif
