package phalanx.hadoop;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.util.zip.DeflaterOutputStream;
import java.util.zip.GZIPOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.DefaultCodec;
import org.apache.hadoop.io.compress.DeflateCodec;
import org.apache.hadoop.io.compress.GzipCodec;
import org.apache.hadoop.mapreduce.RecordWriter;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;

/**
 * Writes TFRecord files: the key is the data of a record, and the value is ignored.
 *
 * <p>{@code FileOutputFormat.setCompressOutput} and {@code setOutputCompressorClass} select gzip or
 * deflate, which TensorFlow can read. Hadoop commits the files: failed or second attempts leave
 * nothing.
 */
public class TFRecordFileOutputFormat extends FileOutputFormat<BytesWritable, NullWritable> {
  private static final int BUFFER = 1 << 17;

  @Override
  public RecordWriter<BytesWritable, NullWritable> getRecordWriter(TaskAttemptContext context)
      throws IOException {
    Class<? extends CompressionCodec> codec =
        getCompressOutput(context) ? getOutputCompressorClass(context, GzipCodec.class) : null;
    Path path = getDefaultWorkFile(context, ".tfrecord" + extension(codec));
    OutputStream file = path.getFileSystem(context.getConfiguration()).create(path, false);
    return new Writer(compress(file, codec));
  }

  private static String extension(Class<? extends CompressionCodec> codec) throws IOException {
    if (codec == null) {
      return "";
    }
    if (codec == GzipCodec.class) {
      return ".gz";
    }
    if (codec == DefaultCodec.class || codec == DeflateCodec.class) {
      return ".deflate";
    }
    throw new IOException(
        codec.getName() + " is not a codec that TensorFlow reads: use GzipCodec or DefaultCodec");
  }

  private static OutputStream compress(OutputStream file, Class<? extends CompressionCodec> codec)
      throws IOException {
    if (codec == null) {
      return new BufferedOutputStream(file, BUFFER);
    }
    OutputStream compressed =
        codec == GzipCodec.class
            ? new GZIPOutputStream(file, BUFFER)
            : new DeflaterOutputStream(file);
    return new BufferedOutputStream(compressed, BUFFER);
  }

  private static final class Writer extends RecordWriter<BytesWritable, NullWritable> {
    private final OutputStream out;

    Writer(OutputStream out) {
      this.out = out;
    }

    @Override
    public void write(BytesWritable record, NullWritable nothing) throws IOException {
      Frames.write(out, record.getBytes(), record.getLength());
    }

    @Override
    public void close(TaskAttemptContext context) throws IOException {
      out.close();
    }
  }
}
