package phalanx.hadoop;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;

/**
 * The frames of a TFRecord file: the length of the data, its checksum, the data, and the checksum
 * of the data. Checksums are masked CRC-32C; numbers are little-endian.
 */
public final class Frames {
  public static final int HEADER = 12;
  public static final int FOOTER = 4;

  private Frames() {}

  static int maskedCrc(byte[] data, int offset, int length) {
    CRC32C crc = new CRC32C();
    crc.update(data, offset, length);
    return mask((int) crc.getValue());
  }

  public static int mask(int crc) {
    return ((crc >>> 15) | (crc << 17)) + 0xa282ead8;
  }

  /** Whether the header of a frame has a correct checksum. */
  public static boolean isHeader(byte[] header) {
    return numbers(header).getInt(8) == maskedCrc(header, 0, 8);
  }

  static ByteBuffer numbers(byte[] data) {
    return ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
  }
}
