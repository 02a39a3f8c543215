/* Encodes columns to Example and SequenceExample messages, without Python. */
#ifndef PHALANX_ENCODE_H
#define PHALANX_ENCODE_H

#include "buffer.h"
#include "decode.h"

/* A column to encode. The caller must check its offsets with `encode_check`. */
typedef struct {
    const uint8_t *name;
    size_t name_size;
    kind kind;
    bool sequence;
    int64_t width;                /* values in every row; RAGGED to use row_offsets */
    const uint8_t *present;       /* a byte for each row, 0 if it lacks the feature; or NULL */
    const int64_t *row_offsets;   /* rows + 1: into the values, or into the steps of a sequence */
    const int64_t *step_offsets;  /* sequences only: into the values */
    int64_t step_count;
    const int64_t *value_offsets; /* bytes only: into `values` */
    int64_t value_count;
    const uint8_t *values;
    size_t values_size;
} source_column;

/* Are all offsets of the column valid, so that `encode_row` does not read outside of it? */
bool encode_check(const source_column *c, int64_t rows);

/* Appends a row as a message, in a TFRecord frame if `framed`. Returns false without memory. */
bool encode_row(buffer *out, const source_column *columns, size_t count, int64_t row,
                bool sequence, bool framed);

#endif
