/* Columns to Example and SequenceExample messages. Knows nothing of Python. */
#ifndef PHALANX_ENCODE_H
#define PHALANX_ENCODE_H

#include "buffer.h"
#include "decode.h"

/* A column to write. The caller has checked that every offset lies within what it points into and
   that offsets never fall (see `encode_check`). */
typedef struct {
    const uint8_t *name;
    size_t name_size;
    kind kind;
    bool sequence;
    int64_t width;                /* values in every row; RAGGED if row_offsets tells */
    const uint8_t *present;       /* a byte for each row, 0 if it lacks the feature; NULL: all have */
    const int64_t *row_offsets;   /* rows + 1: into the values, or into the steps of a sequence */
    const int64_t *step_offsets;  /* sequences only: into the values */
    int64_t step_count;
    const int64_t *value_offsets; /* bytes only: into `values` */
    int64_t value_count;
    const uint8_t *values;
    size_t values_size;
} source_column;

/* Is every offset of the column sound, so that `encode_row` reads nothing outside it? */
bool encode_check(const source_column *c, int64_t rows);

/* Appends row number `row` as a message, in a TFRecord frame if `framed`. False: no memory. */
bool encode_row(buffer *out, const source_column *columns, size_t count, int64_t row,
                bool sequence, bool framed);

#endif
