package phalanx.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.spark.sql.execution.datasources.OutputWriter;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.types.StructType;

/** Opens the files that the tasks of a query write. */
final class RecordWriterFactory extends OutputWriterFactory {
  private static final long serialVersionUID = 1;
  private static final Pattern ATTEMPT = Pattern.compile(".*/attempt_[^/]*/(.*)");

  private final Column[] columns;
  private final Options options;

  RecordWriterFactory(Column[] columns, Options options) {
    this.columns = columns;
    this.options = options;
  }

  @Override
  public String getFileExtension(TaskAttemptContext context) {
    return ".tfrecord" + options.codec.extension;
  }

  @Override
  public OutputWriter newInstance(String path, StructType schema, TaskAttemptContext context) {
    Configuration conf = context.getConfiguration();
    try {
      Path target = options.writesLocally ? localTarget(path, conf) : null;
      return new RecordWriter(path, target, columns, options, conf);
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    }
  }

  /** Where a file belongs that Spark would write below the directory of a task's attempt. */
  private static Path localTarget(String path, Configuration conf) throws IOException {
    Matcher found = ATTEMPT.matcher(path);
    String output = conf.get(FileOutputFormat.OUTDIR);
    if (output == null || !found.matches()) {
      throw new IOException("writeLocality is local, which this committer of Spark does not allow");
    }
    return new Path(output, found.group(1));
  }
}
