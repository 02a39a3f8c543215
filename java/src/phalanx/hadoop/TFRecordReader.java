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

/** Reads the records of a file, or of a split that begins and ends between records. */
class TFRecordReader extends RecordReader<BytesWritable, NullWritable> {
  private static final int BUFFER = 1 << 17;

  private final BytesWritable record = new BytesWritable();
  private Path path;
  private FSDataInputStream file;
  private InputStream in;
  private long start;
  private long length;
  private long index;
  private long consumed;
  private boolean compressed;

  @Override
  public void initialize(InputSplit given, TaskAttemptContext context) throws IOException {
    FileSplit split = (FileSplit) given;
    path = split.getPath();
    start = split.getStart();
    length = split.getLength();
    file = path.getFileSystem(context.getConfiguration()).open(path);
    if (start == 0) {
      in = decompress();
    } else {
      file.seek(start);
      in = new BufferedInputStream(file, BUFFER);
    }
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
    if (!compressed && consumed >= length) {
      return false;
    }
    String where = path + ": record " + index + (start == 0 ? "" : " of the split")
        + " at offset " + (start + consumed);
    long size = Frames.read(in, record, where);
    consumed += size;
    index++;
    return size > 0;
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
    long done = compressed ? file.getPos() : consumed;
    return length == 0 ? 1 : Math.min(1, (float) done / length);
  }

  @Override
  public void close() throws IOException {
    if (in != null) {
      in.close();
    }
  }
}
