package phalanx.hadoop;

import java.io.IOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.compress.CompressionCodec;
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
  /** The extension of the files, {@code .tfrecord} by default; {@code none} for none. */
  public static final String EXTENSION = "phalanx.tfrecord.extension";

  @Override
  public RecordWriter<BytesWritable, NullWritable> getRecordWriter(TaskAttemptContext context)
      throws IOException {
    Class<? extends CompressionCodec> codec =
        getCompressOutput(context) ? getOutputCompressorClass(context, GzipCodec.class) : null;
    Path path =
        getDefaultWorkFile(context, OutputFiles.extension(context.getConfiguration(), codec));
    TFRecordWriter writer = OutputFiles.create(context.getConfiguration(), path, codec);
    return new RecordWriter<>() {
      @Override
      public void write(BytesWritable record, NullWritable nothing) throws IOException {
        writer.write(record.getBytes(), 0, record.getLength());
      }

      @Override
      public void close(TaskAttemptContext ending) throws IOException {
        writer.close();
      }
    };
  }
}
