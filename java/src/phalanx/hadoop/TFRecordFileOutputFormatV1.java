package phalanx.hadoop;

import java.io.IOException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.GzipCodec;
import org.apache.hadoop.mapred.FileOutputFormat;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.RecordWriter;
import org.apache.hadoop.mapred.Reporter;
import org.apache.hadoop.util.Progressable;

/** {@link TFRecordFileOutputFormat} for the older API of MapReduce, as Hadoop streaming uses it. */
public class TFRecordFileOutputFormatV1 extends FileOutputFormat<BytesWritable, NullWritable> {

  @Override
  public RecordWriter<BytesWritable, NullWritable> getRecordWriter(
      FileSystem ignored, JobConf job, String name, Progressable progress) throws IOException {
    Class<? extends CompressionCodec> codec =
        getCompressOutput(job) ? getOutputCompressorClass(job, GzipCodec.class) : null;
    Path path = getTaskOutputPath(job, name + OutputFiles.extension(job, codec));
    TFRecordWriter writer = OutputFiles.create(job, path, codec);
    return new RecordWriter<>() {
      @Override
      public void write(BytesWritable record, NullWritable nothing) throws IOException {
        writer.write(record.getBytes(), 0, record.getLength());
      }

      @Override
      public void close(Reporter reporter) throws IOException {
        writer.close();
      }
    };
  }
}
