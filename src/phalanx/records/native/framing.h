/* TFRecord frames: length (8 bytes), its masked CRC (4), data, the masked CRC of the data (4). */
#ifndef PHALANX_FRAMING_H
#define PHALANX_FRAMING_H

#include "buffer.h"

#define FRAME_HEADER 12
#define FRAME_OVERHEAD 16

typedef enum {
    FRAME_GOOD = 0,
    FRAME_PARTIAL = 1,    /* the bytes end before the record does */
    FRAME_BAD_LENGTH = 2, /* the length does not fit its checksum */
    FRAME_BAD_DATA = 3,   /* the data does not fit its checksum */
} frame_status;

/* Reads the frame at `data`. `length` is set if its checksum is correct, else to 0. */
frame_status frame_read(const uint8_t *data, size_t size, bool check_data, uint64_t *length);

/* Finds the first header at or after `start` whose length fits its checksum, or else the first that
   is cut off by `size`. The data is not checked, so that the search takes linear time. */
size_t frame_find(const uint8_t *data, size_t size, size_t start);

/* Writes the header and footer around the `length` bytes of data at `frame + FRAME_HEADER`. */
void frame_seal(uint8_t *frame, uint64_t length);

#endif
