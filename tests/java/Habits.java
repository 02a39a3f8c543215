import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapred.FileInputFormat;
import org.apache.hadoop.mapred.FileOutputFormat;
import org.apache.hadoop.mapred.JobClient;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.MapReduceBase;
import org.apache.hadoop.mapred.Mapper;
import org.apache.hadoop.mapred.OutputCollector;
import org.apache.hadoop.mapred.Reporter;
import org.apache.hadoop.mapreduce.InputSplit;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.RecordReader;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;
import org.apache.hadoop.util.GenericOptionsParser;
import phalanx.hadoop.TFRecordFileInputFormat;
import phalanx.hadoop.TFRecordFileOutputFormatV1;
import phalanx.hadoop.TFRecordReader;
import phalanx.hadoop.TFRecordWriter;

/** What programs for other TFRecord formats do: {@code Habits [-D name=value] ACTION ...}. */
public class Habits {
  /** Writes each line of a text file as a record, with the older API. */
  public static class Lines extends MapReduceBase
      implements Mapper<LongWritable, Text, BytesWritable, NullWritable> {
    @Override
    public void map(
        LongWritable offset, Text line, OutputCollector<BytesWritable, NullWritable> out,
        Reporter reporter) throws IOException {
      out.collect(new BytesWritable(line.copyBytes()), NullWritable.get());
    }
  }

  public static void main(String[] given) throws Exception {
    Configuration conf = new Configuration();
    String[] arguments = new GenericOptionsParser(conf, given).getRemainingArgs();
    switch (arguments[0]) {
      case "collect":
        collect(conf, arguments[1]);
        break;
      case "write":
        write(new JobConf(conf, Habits.class), arguments[1], arguments[2]);
        break;
      default:
        copy();
    }
  }

  /** Collects the keys of a directory, then takes their arrays as they are. */
  private static void collect(Configuration conf, String input) throws Exception {
    Job job = Job.getInstance(conf);
    TFRecordFileInputFormat.addInputPath(job, new Path(input));
    TFRecordFileInputFormat format = new TFRecordFileInputFormat();
    List<BytesWritable> keys = new ArrayList<>();
    for (InputSplit split : format.getSplits(job)) {
      var context = new TaskAttemptContextImpl(job.getConfiguration(), new TaskAttemptID());
      try (RecordReader<BytesWritable, NullWritable> reader =
          format.createRecordReader(split, context)) {
        reader.initialize(split, context);
        while (reader.nextKeyValue()) {
          keys.add(reader.getCurrentKey());
        }
      }
    }
    keys.forEach(key -> System.out.println(new String(key.getBytes(), StandardCharsets.UTF_8)));
  }

  private static void write(JobConf job, String input, String output) throws IOException {
    FileInputFormat.addInputPath(job, new Path(input));
    FileOutputFormat.setOutputPath(job, new Path(output));
    job.setMapperClass(Lines.class);
    job.setNumReduceTasks(0);
    job.setOutputFormat(TFRecordFileOutputFormatV1.class);
    JobClient.runJob(job);
  }

  private static void copy() throws IOException {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (TFRecordWriter writer = new TFRecordWriter(out)) {
      writer.write("one".getBytes(StandardCharsets.UTF_8));
      writer.write("the two".getBytes(StandardCharsets.UTF_8), 4, 3);
    }
    var in = new ByteArrayInputStream(out.toByteArray());
    try (TFRecordReader reader = new TFRecordReader(in, true)) {
      for (byte[] record = reader.read(); record != null; record = reader.read()) {
        System.out.println(new String(record, StandardCharsets.UTF_8));
      }
    }
  }
}
