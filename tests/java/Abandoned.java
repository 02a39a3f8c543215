package phalanx.spark;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSError;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Opens and writes files on the disk of an executor, in tasks that cannot finish them. */
public final class Abandoned {
  private static final StructType SCHEMA = StructType.fromDDL("text string");

  private Abandoned() {}

  /** The local file system, in a task that Spark kills while it creates a file. */
  public static final class Killed extends LocalFileSystem {
    @Override
    public FSDataOutputStream create(Path file, boolean overwrite) throws IOException {
      super.create(file, overwrite).close();
      throw new InterruptedIOException("the task is killed");
    }
  }

  /** Usage: Abandoned DIRECTORY. Prints what went wrong. */
  public static void main(String[] arguments) {
    Path directory = new Path(arguments[0]);
    write(new Path(directory, "too-large.tfrecord"), new Configuration());
    Configuration killed = new Configuration();
    killed.setClass("fs.file.impl", Killed.class, FileSystem.class);
    killed.setBoolean("fs.file.impl.disable.cache", true);
    write(new Path(directory, "interrupted.tfrecord"), killed);
  }

  private static void write(Path target, Configuration conf) {
    Options options = new Options(Map.of("writelocality", "local"));
    Column[] columns = Column.of(SCHEMA, options.recordType);
    UTF8String text = UTF8String.fromString("x".repeat(1 << 20));
    try {
      RecordWriter writer = new RecordWriter("unused", target, columns, options, conf);
      try {
        writer.write(new GenericInternalRow(new Object[] {text}));
      } finally {
        writer.close();
      }
    } catch (IOException | UncheckedIOException | FSError error) {
      System.out.println(error);
    }
  }
}
