/* Example and SequenceExample messages to columns in Arrow's layout. Knows nothing of Python. */
#ifndef PHALANX_DECODE_H
#define PHALANX_DECODE_H

#include "buffer.h"
#include "wire.h"

/* What a feature holds: the field numbers of its three lists in the message Feature. */
typedef enum { KIND_NONE = 0, KIND_BYTES = 1, KIND_FLOAT = 2, KIND_INT64 = 3 } kind;

#define RAGGED (-1)

typedef struct {
    uint8_t *name;
    size_t name_size;
    uint64_t name_word, name_mask; /* its first 8 bytes, and which of them count */
    kind kind;     /* KIND_NONE until a record says what it is */
    bool sequence; /* a feature list: rows of steps of values, not rows of values */
    int64_t width; /* how many values every row has, or RAGGED */

    buffer values;        /* int64, float32 or the bytes of all values, one after the other */
    buffer value_offsets; /* int32, bytes only: where each value begins, and the end */
    buffer step_offsets;  /* int32, sequences only: the first value of each step, and the end */
    buffer row_offsets;   /* int32, not for fixed width: each row's first value (or step), the end */
    buffer validity;      /* a bit for each row: was the feature there? Empty if it always was */

    int64_t missing;                /* rows without it */
    int64_t shortest, longest;      /* how many values (or steps) a row has that has it */
    int64_t narrowest, widest;      /* sequences only: how many values a step has */

    span found;      /* this row's Feature or FeatureList; `at` is NULL if it is missing */
    int32_t follower; /* the column that came next in the last record: a guess for this one */
} column;

typedef enum {
    DECODE_DONE,
    DECODE_NO_MEMORY,
    DECODE_BAD_MESSAGE,   /* not a sound protobuf message */
    DECODE_BAD_FEATURE,   /* `failed` is not a sound Feature */
    DECODE_OTHER_KIND,    /* `failed` holds `found_kind`, before it held or should hold another */
    DECODE_OTHER_WIDTH,   /* `failed` has `found_width` values, and its width is fixed */
    DECODE_TOO_MANY,      /* more different features than anyone has: give a schema */
} decode_status;

typedef struct {
    column *columns;
    int32_t count, capacity;
    int32_t *slots; /* hash table of column numbers; -1 is free */
    uint32_t slot_mask;
    bool discover; /* features not known yet become columns; otherwise they are passed over */
    bool sequence; /* the messages are SequenceExamples */
    int64_t rows;
    size_t expected_rows;
    const uint8_t *message_end;
    int32_t last; /* the column met last: its follower is the guess for the next */

    struct joined *joined; /* features pieced together from several parts, freed after each row */

    int32_t failed; /* a column */
    kind found_kind;
    int64_t found_width;
} decoder;

void decoder_init(decoder *d, bool sequence, bool discover, size_t expected_rows);
void decoder_free(decoder *d);

/* Adds a column. False if there is no memory. */
bool decoder_add(decoder *d, const uint8_t *name, size_t name_size, kind kind, bool sequence,
                 int64_t width);

/* Adds a row. After a failure the decoder can only be freed. The total size of all messages of one
   decoder must stay below INT32_MAX: it bounds every offset. */
decode_status decoder_add_row(decoder *d, const uint8_t *message, size_t size);

#endif
