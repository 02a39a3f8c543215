package phalanx.hadoop;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;

/** Reads the records of a stream that is not compressed. */
public final class TFRecordReader implements Closeable {
  private static final int LARGEST = Integer.MAX_VALUE - 64;
  private static final int STEP = 1 << 20;

  private final InputStream in;
  private final boolean checks;
  private final String source;
  private final byte[] header = new byte[Frames.HEADER];
  private final byte[] footer = new byte[Frames.FOOTER];
  private long index;
  private long offset;

  /**
   * @param in the stream, which should be buffered
   * @param checks whether to verify the checksums
   */
  public TFRecordReader(InputStream in, boolean checks) {
    this(in, checks, "the stream");
  }

  TFRecordReader(InputStream in, boolean checks, String source) {
    this.in = in;
    this.checks = checks;
    this.source = source;
  }

  /**
   * Reads the next record.
   *
   * @return the data of the record, in an array of its own; null at the end of the stream
   * @throws IOException if the stream is damaged: the message names the record and its offset
   */
  public byte[] read() throws IOException {
    int found = in.readNBytes(header, 0, header.length);
    if (found == 0) {
      return null;
    }
    if (found < header.length) {
      throw new EOFException(where() + "the file ends in the header of a record");
    }
    if (checks && !Frames.isHeader(header)) {
      throw new IOException(where() + "the length does not fit its checksum");
    }
    long length = Frames.numbers(header).getLong(0);
    if (length < 0 || length > LARGEST) {
      throw new IOException(where() + "a record of " + length + " bytes is too large for Java");
    }
    byte[] data = readData((int) length);
    if (in.readNBytes(footer, 0, footer.length) < footer.length) {
      throw endsIn(length);
    }
    if (checks && Frames.numbers(footer).getInt(0) != Frames.maskedCrc(data, 0, data.length)) {
      throw new IOException(where() + "the data does not fit its checksum");
    }
    index++;
    offset += header.length + length + footer.length;
    return data;
  }

  /** The number of bytes that were read. */
  long offset() {
    return offset;
  }

  /** Grows the array with the bytes read: a forged length must not exhaust the memory. */
  private byte[] readData(int length) throws IOException {
    byte[] data = new byte[Math.min(length, STEP)];
    for (int size = 0; size < length; ) {
      if (size == data.length) {
        data = Arrays.copyOf(data, (int) Math.min(length, 2L * size));
      }
      int count = in.readNBytes(data, size, data.length - size);
      if (count < data.length - size) {
        throw endsIn(length);
      }
      size += count;
    }
    return data;
  }

  private EOFException endsIn(long length) {
    return new EOFException(where() + "the file ends in a record of " + length + " bytes");
  }

  private String where() {
    return source + ": record " + index + " at offset " + offset + ": ";
  }

  @Override
  public void close() throws IOException {
    in.close();
  }
}
