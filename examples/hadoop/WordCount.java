import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.conf.Configured;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;
import phalanx.hadoop.TFRecordFileInputFormat;
import phalanx.hadoop.TFRecordFileOutputFormat;

/**
 * Counts the words in text records: {@code WordCount INPUT OUTPUT}.
 *
 * <p>Input and output are TFRecord files. An output record is a word, a tab and its count.
 */
public class WordCount extends Configured implements Tool {

  public static class Split extends Mapper<BytesWritable, NullWritable, Text, LongWritable> {
    private static final LongWritable ONE = new LongWritable(1);

    @Override
    protected void map(BytesWritable record, NullWritable nothing, Context context)
        throws IOException, InterruptedException {
      String text = new String(record.getBytes(), 0, record.getLength(), StandardCharsets.UTF_8);
      for (String word : text.split("\\W+")) {
        if (!word.isEmpty()) {
          context.write(new Text(word), ONE);
        }
      }
    }
  }

  public static class Sum extends Reducer<Text, LongWritable, Text, LongWritable> {
    @Override
    protected void reduce(Text word, Iterable<LongWritable> counts, Context context)
        throws IOException, InterruptedException {
      context.write(word, new LongWritable(add(counts)));
    }
  }

  public static class Record extends Reducer<Text, LongWritable, BytesWritable, NullWritable> {
    @Override
    protected void reduce(Text word, Iterable<LongWritable> counts, Context context)
        throws IOException, InterruptedException {
      byte[] line = (word + "\t" + add(counts)).getBytes(StandardCharsets.UTF_8);
      context.write(new BytesWritable(line), NullWritable.get());
    }
  }

  private static long add(Iterable<LongWritable> counts) {
    long sum = 0;
    for (LongWritable count : counts) {
      sum += count.get();
    }
    return sum;
  }

  @Override
  public int run(String[] arguments) throws Exception {
    if (arguments.length != 2) {
      System.err.println("usage: WordCount INPUT OUTPUT");
      return 2;
    }
    Job job = Job.getInstance(getConf(), "word count");
    job.setJarByClass(WordCount.class);
    job.setInputFormatClass(TFRecordFileInputFormat.class);
    FileInputFormat.addInputPath(job, new Path(arguments[0]));
    job.setMapperClass(Split.class);
    job.setMapOutputKeyClass(Text.class);
    job.setMapOutputValueClass(LongWritable.class);
    job.setCombinerClass(Sum.class);
    job.setReducerClass(Record.class);
    job.setOutputFormatClass(TFRecordFileOutputFormat.class);
    FileOutputFormat.setOutputPath(job, new Path(arguments[1]));
    return job.waitForCompletion(true) ? 0 : 1;
  }

  public static void main(String[] arguments) throws Exception {
    System.exit(ToolRunner.run(new Configuration(), new WordCount(), arguments));
  }
}
