/* TFRecord framing: length (8 bytes), its masked CRC (4), the data, the data's masked CRC (4). */
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

/* Reads the frame that begins at `data`. `length` is set when it is known to be right. */
frame_status frame_read(const uint8_t *data, size_t size, bool check_data, uint64_t *length);

/* The first place at or after `start` where a whole, sound record begins, or where one may begin
   that these bytes are too few to tell (*status is then FRAME_PARTIAL). `size` if there is none. */
size_t frame_find(const uint8_t *data, size_t size, size_t start, frame_status *status);

/* Writes the frame around data of `length` bytes that already stand at `frame + FRAME_HEADER`. */
void frame_seal(uint8_t *frame, uint64_t length);

#endif
