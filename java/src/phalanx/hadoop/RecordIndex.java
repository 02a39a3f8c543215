package phalanx.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** The offsets of a file's records, as {@code phalanx.records.RecordIndex.save} writes them. */
public final class RecordIndex {
  public static final String SUFFIX = ".index";
  private static final byte[] MAGIC = "phxindex".getBytes(StandardCharsets.US_ASCII);
  private static final int HEADER = 32;

  /** The offset of every stride-th record, and the end of the file. */
  public final long[] offsets;

  public final long stride;

  private RecordIndex(long[] offsets, long stride) {
    this.offsets = offsets;
    this.stride = stride;
  }

  /** The data file of an index, by its name; null if it is not an index. */
  public static Path dataOf(Path path) {
    String name = path.getName();
    return name.endsWith(SUFFIX) && name.length() > SUFFIX.length()
        ? new Path(path.getParent(), name.substring(0, name.length() - SUFFIX.length()))
        : null;
  }

  /** The index beside a file; null if there is none, or the file has changed. */
  public static RecordIndex load(FileSystem fileSystem, FileStatus file) throws IOException {
    Path path = file.getPath().suffix(SUFFIX);
    if (!fileSystem.exists(path)) {
      return null;
    }
    byte[] data;
    try (FSDataInputStream in = fileSystem.open(path)) {
      data = in.readAllBytes();
    }
    ByteBuffer numbers = Frames.numbers(data);
    byte[] magic = new byte[MAGIC.length];
    if (data.length < HEADER || (data.length - HEADER) % 8 != 0) {
      return null;
    }
    numbers.get(magic);
    long size = numbers.getLong();
    long count = numbers.getLong();
    long stride = numbers.getLong();
    long[] offsets = new long[(data.length - HEADER) / 8];
    numbers.asLongBuffer().get(offsets);
    boolean isValid =
        Arrays.equals(magic, MAGIC)
            && size == file.getLen()
            && stride > 0
            && offsets.length == (count + stride - 1) / stride + 1
            && offsets[offsets.length - 1] == size;
    return isValid ? new RecordIndex(offsets, stride) : null;
  }
}
