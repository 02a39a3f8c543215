package phalanx.spark;

import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.zip.CRC32C;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import phalanx.hadoop.Frames;

/**
 * Reads the records of a file without copying them: each is a part of {@link #data} until the next
 * one is read. The memory grows only with bytes that were read.
 */
final class RecordFile implements Closeable {
  private static final int WINDOW = 1 << 20;
  private static final long LARGEST = Integer.MAX_VALUE - 64;
  private static final long LARGEST_COMPRESSED = 1 << 28;
  private static final VarHandle LONGS =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final VarHandle INTS =
      MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
  private static final String[][] FOREIGN = {
    {"BZh", "bzip2"}, {"\u0028\u00b5\u002f\u00fd", "zstd"}, {"\u00fd7zXZ\0", "xz"}
  };

  private final String name;
  private final InputStream in;
  private final boolean isCompressed;
  private final CRC32C crc = new CRC32C();
  private long left;
  private long index;
  private long offset;
  private int window;
  private int stop;

  byte[] data = new byte[WINDOW];

  /** Where the data of the record begins, and where it ends. */
  int start;

  int end;

  /** Opens a whole file, and detects its compression by its first bytes. */
  RecordFile(Path path, Configuration conf) throws IOException {
    this(path, conf, 0, Long.MAX_VALUE, 0);
  }

  /** Opens a part of a file; the first record in it is number {@code index} of the file. */
  RecordFile(Path path, Configuration conf, long from, long length, long index)
      throws IOException {
    name = describe(path);
    FSDataInputStream file = path.getFileSystem(conf).open(path);
    try {
      String compression = "none";
      if (length == Long.MAX_VALUE) {
        compression = detect(file);
      }
      file.seek(from);
      isCompressed = !compression.equals("none");
      in = isCompressed ? new Decompressor(file, compression.equals("gzip")) : file;
    } catch (IOException | RuntimeException error) {
      file.close();
      throw error;
    }
    left = length;
    offset = from;
    this.index = index;
  }

  static String describe(Path path) {
    return "file".equals(path.toUri().getScheme()) ? path.toUri().getPath() : path.toString();
  }

  private String detect(FSDataInputStream file) throws IOException {
    byte[] header = new byte[Frames.HEADER];
    int found = file.readNBytes(header, 0, header.length);
    if (found == header.length && Frames.isHeader(header)) {
      return "none";
    }
    int first = header[0] & 0xff;
    int second = header[1] & 0xff;
    if (found > 2 && first == 0x1f && second == 0x8b) {
      return "gzip";
    }
    String text = new String(header, 0, found, StandardCharsets.ISO_8859_1);
    for (String[] each : FOREIGN) {
      if (text.startsWith(each[0])) {
        throw new IOException(
            name + " is compressed with " + each[1] + ", which TensorFlow does not read: "
                + "decompress it, or compress it with gzip");
      }
    }
    boolean isZlib = found > 2 && (first & 0x8f) == 8 && (first << 8 | second) % 31 == 0;
    return isZlib ? "zlib" : "none";
  }

  /** Reads the next record; false at the end. */
  boolean next() throws IOException {
    if (end > 0) { // the last record ends with its checksum
      int size = end + Frames.FOOTER - window;
      window += size;
      offset += size;
      index++;
    }
    if (stop - window < Frames.HEADER && !fill(Frames.HEADER)) {
      if (stop == window) {
        return false;
      }
      throw error("the file ends after " + (stop - window) + " bytes of the record's header");
    }
    if (!fits(window, 8, window + 8)) {
      throw error(
          "the length does not fit its checksum"
              + (index == 0 ? "; this may be no TFRecord file at all" : ""));
    }
    long length = (long) LONGS.get(data, window);
    if (length < 0 || length > LARGEST) {
      throw error(
          "the record has " + Long.toUnsignedString(length)
              + " bytes of data, and 2 GiB is the limit of a message");
    }
    if (isCompressed && length > LARGEST_COMPRESSED) {
      throw error(
          "the record has " + length + " bytes of data, and the limit in a compressed file is "
              + (LARGEST_COMPRESSED >> 20) + " MiB: decompress the file first");
    }
    long size = Frames.HEADER + length + Frames.FOOTER;
    if (stop - window < size && !fill(size)) {
      throw error(
          "the record has " + length + " bytes of data, and the file ends after "
              + (stop - window - Frames.HEADER));
    }
    start = window + Frames.HEADER;
    end = start + (int) length;
    if (!fits(start, (int) length, end)) {
      throw error("the data (" + length + " bytes) does not fit its checksum");
    }
    return true;
  }

  private boolean fits(int from, int length, int checksum) {
    crc.reset();
    crc.update(data, from, length);
    return (int) INTS.get(data, checksum) == Frames.mask((int) crc.getValue());
  }

  /** Reads until the window has {@code size} bytes; false if the file ends before. */
  private boolean fill(long size) throws IOException {
    if (size > LARGEST) {
      throw error("a record of " + (size - Frames.HEADER - Frames.FOOTER)
          + " bytes of data is too large for Java");
    }
    while (stop - window < size) {
      if (stop == data.length) {
        makeRoom();
      }
      int most = (int) Math.min(data.length - stop, left);
      int count = most == 0 ? -1 : read(most);
      if (count < 0) {
        return false;
      }
      stop += count;
      left -= count;
    }
    return true;
  }

  private int read(int most) throws IOException {
    try {
      return in.read(data, stop, most);
    } catch (IOException error) {
      if (isCompressed) {
        throw error(error.getMessage());
      }
      throw error;
    }
  }

  /** Moves the data to the beginning, or to more memory if that would free less than half. */
  private void makeRoom() {
    int size = stop - window;
    byte[] target =
        window >= data.length / 2
            ? data
            : new byte[(int) Math.min(2L * data.length, LARGEST + 32)];
    System.arraycopy(data, window, target, 0, size);
    data = target;
    window = 0;
    stop = size;
  }

  /** An error in the current record. */
  IOException error(String reason) {
    return new IOException(name + ": record " + index + " at offset " + offset + ": " + reason);
  }

  /** An error in the current record that decoding it has found. */
  IOException error(DecodeException error) {
    return error(error.getMessage());
  }

  long recordsRead() {
    return index;
  }

  @Override
  public void close() throws IOException {
    data = null;
    in.close();
  }
}
