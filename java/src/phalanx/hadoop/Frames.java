package phalanx.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;
import org.apache.hadoop.io.BytesWritable;

/**
 * The frames of a TFRecord file: the length of the data, its checksum, the data, and the checksum
 * of the data. Checksums are masked CRC-32C; numbers are little-endian.
 */
final class Frames {
  static final int HEADER = 12;
  static final int OVERHEAD = 16;
  private static final int LARGEST = Integer.MAX_VALUE - 64;
  private static final int STEP = 1 << 20;

  private Frames() {}

  static int maskedCrc(byte[] data, int offset, int length) {
    CRC32C crc = new CRC32C();
    crc.update(data, offset, length);
    int value = (int) crc.getValue();
    return ((value >>> 15) | (value << 17)) + 0xa282ead8;
  }

  /** Whether the header of a frame has a correct checksum. */
  static boolean isHeader(byte[] header) {
    return numbers(header).getInt(8) == maskedCrc(header, 0, 8);
  }

  static void write(OutputStream out, byte[] data, int length) throws IOException {
    ByteBuffer header = ByteBuffer.allocate(HEADER).order(ByteOrder.LITTLE_ENDIAN);
    header.putLong(length);
    header.putInt(maskedCrc(header.array(), 0, 8));
    out.write(header.array());
    out.write(data, 0, length);
    ByteBuffer footer = ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN);
    out.write(footer.putInt(maskedCrc(data, 0, length)).array());
  }

  /**
   * Reads the next record into {@code record}.
   *
   * @param where the file and offset, for error messages
   * @return the size of the frame in bytes, or 0 at the end of the file
   */
  static long read(InputStream in, BytesWritable record, String where) throws IOException {
    byte[] header = new byte[HEADER];
    int found = in.readNBytes(header, 0, HEADER);
    if (found == 0) {
      return 0;
    }
    if (found < HEADER) {
      throw new EOFException(where + ": the file ends in the header of a record");
    }
    if (!isHeader(header)) {
      throw new IOException(where + ": the length does not fit its checksum");
    }
    long length = numbers(header).getLong(0);
    if (length < 0 || length > LARGEST) {
      throw new IOException(where + ": a record of " + length + " bytes is too large for Java");
    }
    fill(in, record, (int) length, where);
    byte[] footer = new byte[4];
    if (in.readNBytes(footer, 0, 4) < 4) {
      throw new EOFException(where + ": the file ends in a record of " + length + " bytes");
    }
    if (numbers(footer).getInt(0) != maskedCrc(record.getBytes(), 0, (int) length)) {
      throw new IOException(where + ": the data does not fit its checksum");
    }
    return OVERHEAD + length;
  }

  /** Grows the buffer with the bytes read: a forged length must not exhaust the memory. */
  private static void fill(InputStream in, BytesWritable record, int length, String where)
      throws IOException {
    record.setSize(0);
    for (int size = 0; size < length; ) {
      int next = (int) Math.min(length, (long) size + Math.max(size, STEP));
      record.setSize(next);
      int count = in.readNBytes(record.getBytes(), size, next - size);
      if (count < next - size) {
        throw new EOFException(where + ": the file ends in a record of " + length + " bytes");
      }
      size = next;
    }
  }

  static ByteBuffer numbers(byte[] data) {
    return ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
  }
}
