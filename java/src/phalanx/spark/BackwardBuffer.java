package phalanx.spark;

import java.io.IOException;
import java.io.OutputStream;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import phalanx.hadoop.Frames;

/** A record that is written from its end to its beginning. */
final class BackwardBuffer {
  private static final VarHandle LONGS =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final VarHandle INTS =
      MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
  private static final int LARGEST = Integer.MAX_VALUE - 64;
  private static final int VARINT_MOST = 10;

  private final CRC32C crc = new CRC32C();
  private byte[] data = new byte[1 << 16];
  private int at = data.length - Frames.FOOTER;

  void clear() {
    at = data.length - Frames.FOOTER;
  }

  /** The number of bytes written. */
  int size() {
    return data.length - Frames.FOOTER - at;
  }

  void putVarint(long value) {
    reserve(VARINT_MOST);
    if (value >= 0 && value < 0x80) {
      data[--at] = (byte) value;
      return;
    }
    int size = (70 - Long.numberOfLeadingZeros(value)) / 7;
    at -= size;
    int i = at;
    long rest = value;
    for (; (rest & ~0x7fL) != 0; rest >>>= 7) {
      data[i++] = (byte) (rest | 0x80);
    }
    data[i] = (byte) rest;
  }

  /** Writes the tag and the size of a delimited field. */
  void putHeader(int number, int size) {
    putVarint(size);
    reserve(1);
    data[--at] = (byte) Wire.delimited(number);
  }

  void putFloat(float value) {
    reserve(4);
    at -= 4;
    INTS.set(data, at, Float.floatToRawIntBits(value));
  }

  void put(byte[] bytes) {
    reserve(bytes.length);
    at -= bytes.length;
    System.arraycopy(bytes, 0, data, at, bytes.length);
  }

  void put(UTF8String text) {
    reserve(text.numBytes());
    at -= text.numBytes();
    text.writeToMemory(data, Platform.BYTE_ARRAY_OFFSET + at);
  }

  private void reserve(int count) {
    // Room for the header of the frame stays free.
    if (at - Frames.HEADER < count) {
      grow(count);
    }
  }

  private void grow(int count) {
    long needed = (long) data.length - at + count + Frames.HEADER;
    if (needed > LARGEST) {
      throw new IllegalArgumentException(
          "a row is larger than 2 GiB, which is the limit of a record");
    }
    byte[] larger = new byte[(int) Math.min(LARGEST, 2 * needed)];
    int size = data.length - at;
    System.arraycopy(data, at, larger, larger.length - size, size);
    at = larger.length - size;
    data = larger;
  }

  /** Writes the record in its frame. */
  void writeFrame(OutputStream out) throws IOException {
    int length = size();
    int header = at - Frames.HEADER;
    LONGS.set(data, header, (long) length);
    INTS.set(data, header + 8, checksum(header, 8));
    INTS.set(data, data.length - Frames.FOOTER, checksum(at, length));
    out.write(data, header, Frames.HEADER + length + Frames.FOOTER);
  }

  private int checksum(int start, int length) {
    crc.reset();
    crc.update(data, start, length);
    return Frames.mask((int) crc.getValue());
  }
}
