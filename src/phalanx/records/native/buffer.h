/* A growable byte buffer. A failed allocation leaves its content unchanged. */
#ifndef PHALANX_BUFFER_H
#define PHALANX_BUFFER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t *data;
    size_t size, capacity;
} buffer;

/* Reserves `extra` more bytes. Returns false if there is no memory. */
static inline bool buffer_reserve(buffer *b, size_t extra) {
    if (extra <= b->capacity - b->size)
        return true;
    if (extra > SIZE_MAX / 4 || b->size > SIZE_MAX / 4)
        return false;
    size_t capacity = b->size + extra + b->size / 2 + 64;
    uint8_t *data = realloc(b->data, capacity);
    if (data == NULL)
        return false;
    b->data = data;
    b->capacity = capacity;
    return true;
}

static inline bool buffer_append(buffer *b, const void *data, size_t size) {
    if (!buffer_reserve(b, size))
        return false;
    if (size > 0)
        memcpy(b->data + b->size, data, size);
    b->size += size;
    return true;
}

static inline bool buffer_append_zeros(buffer *b, size_t size) {
    if (!buffer_reserve(b, size))
        return false;
    if (size > 0)
        memset(b->data + b->size, 0, size);
    b->size += size;
    return true;
}

static inline bool buffer_append_int32(buffer *b, int32_t value) {
    return buffer_append(b, &value, sizeof value);
}

static inline void buffer_free(buffer *b) {
    free(b->data);
    *b = (buffer){0};
}

#endif
