package phalanx.hadoop;

import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.zip.GZIPInputStream;
import java.util.zip.InflaterInputStream;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.mapreduce.InputSplit;
import org.apache.hadoop.mapreduce.RecordReader;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.input.FileSplit;

/**
 * Reads the records of a file, or of a split that begins and ends between records.
 *
 * <p>Every key is an object of its own whose {@code getBytes()} is exactly the record: programs
 * parse that array as it is, and collect keys.
 */
class TFRecordFileRecordReader extends RecordReader<BytesWritable, NullWritable> {
  private static final int BUFFER = 1 << 17;

  private BytesWritable record;
  private FSDataInputStream file;
  private TFRecordReader reader;
  private long length;
  private boolean compressed;

  @Override
  public void initialize(InputSplit given, TaskAttemptContext context) throws IOException {
    FileSplit split = (FileSplit) given;
    Path path = split.getPath();
    length = split.getLength();
    file = path.getFileSystem(context.getConfiguration()).open(path);
    file.seek(split.getStart());
    InputStream in =
        split.getStart() == 0 ? decompress() : new BufferedInputStream(file, BUFFER);
    String source =
        split.getStart() == 0 ? path.toString() : path + " from byte " + split.getStart();
    boolean checks =
        context.getConfiguration().getBoolean(TFRecordFileInputFormat.CHECKS_CRC, true);
    reader = new TFRecordReader(in, checks, source);
  }

  /** Detects compression by the first bytes, as the readers in Python do. */
  private InputStream decompress() throws IOException {
    byte[] header = new byte[Frames.HEADER];
    int found = file.readNBytes(header, 0, header.length);
    file.seek(0);
    if (found < 2 || (found == header.length && Frames.isHeader(header))) {
      return new BufferedInputStream(file, BUFFER);
    }
    int first = header[0] & 0xff;
    int second = header[1] & 0xff;
    if (first == 0x1f && second == 0x8b) {
      compressed = true;
      return new BufferedInputStream(new GZIPInputStream(file, BUFFER), BUFFER);
    }
    if ((first & 0x8f) == 8 && (first << 8 | second) % 31 == 0) {
      compressed = true;
      return new BufferedInputStream(new InflaterInputStream(file), BUFFER);
    }
    return new BufferedInputStream(file, BUFFER);
  }

  @Override
  public boolean nextKeyValue() throws IOException {
    if (!compressed && reader.offset() >= length) {
      return false;
    }
    byte[] data = reader.read();
    record = data == null ? null : new BytesWritable(data);
    return data != null;
  }

  @Override
  public BytesWritable getCurrentKey() {
    return record;
  }

  @Override
  public NullWritable getCurrentValue() {
    return NullWritable.get();
  }

  @Override
  public float getProgress() throws IOException {
    long done = compressed ? file.getPos() : reader.offset();
    return length == 0 ? 1 : Math.min(1, (float) done / length);
  }

  @Override
  public void close() throws IOException {
    if (reader != null) {
      reader.close();
    }
  }
}
