/* Decodes Example and SequenceExample messages to columns in Arrow's layout, without Python. */
#ifndef PHALANX_DECODE_H
#define PHALANX_DECODE_H

#include "buffer.h"
#include "wire.h"

/* The kind of a feature's values: the field number of their list in the message Feature. */
typedef enum { KIND_NONE = 0, KIND_BYTES = 1, KIND_FLOAT = 2, KIND_INT64 = 3 } kind;

#define RAGGED (-1)
#define MOST_PADDING (128 << 20)
#define MOST_INT64S (512 << 20) /* bytes; one byte of a message can become eight */

typedef struct {
    uint8_t *name;
    size_t name_size;
    uint64_t name_word, name_mask; /* the first 8 bytes, and a mask of those in use */
    kind kind;     /* KIND_NONE until the first record with the feature */
    bool sequence; /* a feature list: each row is a list of steps */
    int64_t width; /* the number of values in every row, or RAGGED */

    buffer values;        /* all values: int64, float32 or bytes */
    buffer value_offsets; /* int32, bytes only: the start of each value, and the end */
    buffer step_offsets;  /* int32, sequences only: the first value of each step, and the end */
    buffer row_offsets;   /* int32, RAGGED only: the first value (or step) of each row, the end */
    buffer validity;      /* a bit for each row: has it the feature? Empty if all have */

    int64_t *int64s;           /* the bytes of int64 values in all columns */
    int64_t count, steps;      /* the number of values, and of steps, so far */
    int64_t missing;           /* the number of rows without the feature */
    int64_t shortest, longest; /* the number of values (or steps) in a row */
    int64_t narrowest, widest; /* sequences only: the number of values in a step */

    span found;      /* this row's Feature or FeatureList; `at` is NULL if it is missing */
    int32_t follower; /* the column that followed in the last record */
} column;

typedef enum {
    DECODE_DONE,
    DECODE_NO_MEMORY,
    DECODE_BAD_MESSAGE,   /* the message is not valid protobuf */
    DECODE_BAD_FEATURE,   /* column `failed` is not a valid Feature */
    DECODE_OTHER_KIND,    /* column `failed` holds `found_kind`, another was expected */
    DECODE_OTHER_WIDTH,   /* column `failed` has `found_width` values, another fixed width */
    DECODE_TOO_MANY,      /* too many different features: a schema is needed */
    DECODE_OVER_BUDGET,   /* column `failed` needs too much memory for rows that lack it */
    DECODE_OVER_INT64S,   /* column `failed` has more int64 values than MOST_INT64S allows */
} decode_status;

typedef struct {
    column *columns;
    int32_t count, capacity;
    int32_t *slots; /* hash table of column numbers; -1 is free */
    uint32_t slot_mask;
    bool discover; /* add a column for each new feature; otherwise skip it */
    bool sequence; /* the messages are SequenceExamples */
    int64_t rows;
    int64_t padding; /* the bytes of all columns for rows that lack their feature */
    int64_t int64s;  /* the bytes of all int64 values */
    uint64_t hash_seed;
    size_t expected_rows;
    const uint8_t *message_end;
    int32_t last; /* the last column found: its follower is tried next */

    struct joined *joined; /* features in several parts, freed after each row */

    int32_t failed; /* a column */
    kind found_kind;
    int64_t found_width;
} decoder;

/* `hash_seed` should be secret, so that nobody can choose names that collide. */
void decoder_init(decoder *d, bool sequence, bool discover, size_t expected_rows,
                  uint64_t hash_seed);
void decoder_free(decoder *d);

/* Adds a column before the first row. */
decode_status decoder_add(decoder *d, const uint8_t *name, size_t name_size, kind kind,
                          bool sequence, int64_t width);

/* Adds a row. After a failure the decoder can only be freed. The total size of all messages must be
   below INT32_MAX, which bounds every offset. Memory is bounded by their size, MOST_PADDING and
   MOST_INT64S. */
decode_status decoder_add_row(decoder *d, const uint8_t *message, size_t size);

#endif
