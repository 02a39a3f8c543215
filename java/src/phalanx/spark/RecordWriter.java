package phalanx.spark;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.util.zip.DeflaterOutputStream;
import java.util.zip.GZIPOutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.OutputWriter;

/** Writes the rows of a task to a file. */
final class RecordWriter extends OutputWriter {
  private static final int BUFFER = 1 << 17;

  private final String path;
  private final Path target;
  private final Path file;
  private final FileSystem fileSystem;
  private final OutputStream out;
  private final BackwardBuffer record = new BackwardBuffer();
  private final Column[] columns;
  private final ExampleWriter examples;
  private boolean isClosed;

  /**
   * @param path the file that Spark moves into place when the task has succeeded
   * @param target where to write the file instead, on the disk of this executor; null for path
   */
  RecordWriter(String path, Path target, Column[] columns, Options options, Configuration conf)
      throws IOException {
    this.path = path;
    this.target = target;
    this.columns = columns;
    boolean isRaw = options.recordType == Options.RecordType.ByteArray;
    examples = isRaw ? null : new ExampleWriter(columns, record);
    file = target == null ? new Path(path) : hide(target);
    fileSystem = file.getFileSystem(conf);
    out = open(options);
  }

  private OutputStream open(Options options) throws IOException {
    boolean isOpen = false;
    try {
      OutputStream raw = fileSystem.create(file, target != null);
      OutputStream compressed = raw;
      if (options.codec == Options.Codec.GZIP) {
        compressed = new GZIPOutputStream(raw, BUFFER);
      } else if (options.codec == Options.Codec.DEFLATE) {
        compressed = new DeflaterOutputStream(raw);
      }
      isOpen = true;
      return new BufferedOutputStream(compressed, BUFFER);
    } finally {
      if (!isOpen) {
        deleteHidden(); // a task that is killed can leave an empty file
      }
    }
  }

  private void deleteHidden() throws IOException {
    if (target != null) {
      fileSystem.delete(file, false);
    }
  }

  private static Path hide(Path target) {
    return new Path(target.getParent(), "." + target.getName() + ".part");
  }

  @Override
  public void write(InternalRow row) {
    try {
      record.clear();
      if (examples != null) {
        examples.write(row);
      } else {
        putBytes(row);
      }
      record.writeFrame(out);
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  private void putBytes(InternalRow row) {
    if (row.isNullAt(0)) {
      throw new IllegalArgumentException(
          "a record cannot be null: leave those rows out, or write empty ones");
    }
    if (columns[0].value == Column.Value.STRING) {
      record.put(row.getUTF8String(0));
    } else {
      record.put(row.getBinary(0));
    }
  }

  /** Spark closes the writers of failed tasks, too, and deletes their files. */
  @Override
  public void close() {
    if (isClosed) {
      return;
    }
    isClosed = true;
    try {
      try {
        out.close();
        if (target != null && !isAborted()) {
          fileSystem.delete(target, false); // of an earlier attempt
          if (!fileSystem.rename(file, target)) {
            throw new IOException(file + " cannot be renamed to " + target.getName());
          }
        }
      } finally {
        deleteHidden();
      }
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  private static boolean isAborted() {
    TaskContext task = TaskContext.get();
    return task != null && (task.isFailed() || task.isInterrupted());
  }

  @Override
  public String path() {
    return path;
  }
}
