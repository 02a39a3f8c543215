package phalanx.spark;

import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.NoSuchElementException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowJoiner;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import scala.collection.AbstractIterator;

/** The rows of a file; each is valid until the next one is read. */
final class RecordRows extends AbstractIterator<InternalRow> implements Closeable {
  private final RecordFile file;
  private final ExampleReader examples;
  private final UnsafeRowWriter bytes;
  private final UnsafeRow empty;
  private final UnsafeRow partition;
  private final UnsafeRowJoiner joiner;
  private boolean isRead;
  private boolean isClosed;

  /**
   * @param columns the columns to decode; without any, no record is decoded
   * @param isRaw whether the only column holds the records themselves
   * @param partition the values of the partition columns, which are added to every row
   * @param joiner adds them; null if there are none
   */
  RecordRows(
      RecordFile file,
      Column[] columns,
      boolean isRaw,
      UnsafeRow partition,
      UnsafeRowJoiner joiner) {
    this.file = file;
    this.partition = partition;
    this.joiner = joiner;
    empty = new UnsafeRowWriter(0).getRow();
    bytes = isRaw && columns.length > 0 ? new UnsafeRowWriter(1) : null;
    examples = !isRaw && columns.length > 0 ? new ExampleReader(columns) : null;
  }

  @Override
  public boolean hasNext() {
    if (isRead) {
      return true;
    }
    if (isClosed) {
      return false;
    }
    try {
      isRead = file.next();
      if (!isRead) {
        close();
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    }
    return isRead;
  }

  @Override
  public InternalRow next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    isRead = false;
    UnsafeRow row = read();
    return joiner == null ? row : joiner.join(row, partition);
  }

  private UnsafeRow read() {
    if (examples != null) {
      try {
        return examples.read(file.data, file.start, file.end);
      } catch (DecodeException error) {
        IOException named = file.error(error);
        throw new UncheckedIOException(named.getMessage(), named);
      }
    }
    if (bytes != null) {
      bytes.reset();
      bytes.zeroOutNullBytes();
      bytes.write(0, file.data, file.start, file.end - file.start);
      return bytes.getRow();
    }
    return empty;
  }

  @Override
  public void close() throws IOException {
    if (!isClosed) {
      isClosed = true;
      file.close();
    }
  }
}
