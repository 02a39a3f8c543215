package phalanx.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.TaskContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowJoiner;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;
import phalanx.hadoop.RecordIndex;
import scala.collection.Iterator;
import scala.collection.Iterator$;
import scala.runtime.AbstractFunction1;

/** Opens the files of a table in the tasks that read them. */
final class FileReader extends AbstractFunction1<PartitionedFile, Iterator<InternalRow>>
    implements Serializable {
  private static final long serialVersionUID = 1;

  private final Options options;
  private final StructType required;
  private final StructType partitions;
  private final Set<String> skipped;
  private final Broadcast<SerializableConfiguration> conf;

  /**
   * @param required the columns of the query that are in the files
   * @param skipped files that hold no records; the driver adds to them until the tasks start
   */
  FileReader(
      Options options,
      StructType required,
      StructType partitions,
      Set<String> skipped,
      Broadcast<SerializableConfiguration> conf) {
    this.options = options;
    this.required = required;
    this.partitions = partitions;
    this.skipped = skipped;
    this.conf = conf;
  }

  @Override
  public Iterator<InternalRow> apply(PartitionedFile part) {
    Path path = part.toPath();
    if (skipped.contains(path.toString())) {
      return Iterator$.MODULE$.empty();
    }
    boolean isRaw = options.recordType == Options.RecordType.ByteArray;
    Column[] columns = Column.of(required, options.recordType);
    UnsafeRowJoiner joiner = null;
    UnsafeRow values = null;
    if (!partitions.isEmpty()) {
      joiner = GenerateUnsafeRowJoiner.create(required, partitions);
      values = UnsafeProjection.create(partitions).apply(part.partitionValues());
    }
    RecordFile file;
    try {
      file = open(path, part, conf.value().value());
    } catch (FileNotFoundException error) {
      throw sneak(error);
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    }
    if (file == null) {
      return Iterator$.MODULE$.empty();
    }
    RecordRows rows = new RecordRows(file, columns, isRaw, values, joiner);
    TaskContext task = TaskContext.get();
    if (task != null) {
      task.addTaskCompletionListener(
          ended -> {
            try {
              rows.close();
            } catch (IOException error) {
              throw new UncheckedIOException(error);
            }
          });
    }
    return rows;
  }

  /** Opens the records that begin in a part of a file; null if there are none. */
  private static RecordFile open(Path path, PartitionedFile part, Configuration conf)
      throws IOException {
    if (part.length() == part.fileSize()) {
      return new RecordFile(path, conf);
    }
    RecordIndex index = Directories.loadIndex(path, conf);
    if (index == null) {
      throw new IOException(
          RecordFile.describe(path) + " or its index has changed: read the table again");
    }
    int first = find(index.offsets, part.start());
    int end = find(index.offsets, part.start() + part.length());
    if (first == end) {
      return null;
    }
    long start = index.offsets[first];
    return new RecordFile(
        path, conf, start, index.offsets[end] - start, first * index.stride);
  }

  /** The first offset that is not before a position. */
  private static int find(long[] offsets, long position) {
    int found = java.util.Arrays.binarySearch(offsets, position);
    return found >= 0 ? found : -found - 1;
  }

  /** Throws the exception itself: Spark ignores missing files only by its class. */
  @SuppressWarnings("unchecked")
  private static <E extends Exception> RuntimeException sneak(Exception error) throws E {
    throw (E) error;
  }
}
