package phalanx.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSError;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Opens and writes files on the disk of an executor, in tasks that cannot finish them. */
public final class Abandoned {
  private static final StructType SCHEMA = StructType.fromDDL("text string");

  private Abandoned() {}

  /** Usage: Abandoned DIRECTORY. Prints what went wrong. */
  public static void main(String[] arguments) {
    Path directory = new Path(arguments[0]);
    write(new Path(directory, "too-large.tfrecord"));
    Thread.currentThread().interrupt(); // as Spark does with the tasks of a failed job
    write(new Path(directory, "interrupted.tfrecord"));
  }

  private static void write(Path target) {
    Options options = new Options(Map.of("writelocality", "local"));
    Column[] columns = Column.of(SCHEMA, options.recordType);
    UTF8String text = UTF8String.fromString("x".repeat(1 << 20));
    try {
      RecordWriter writer =
          new RecordWriter("unused", target, columns, options, new Configuration());
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
