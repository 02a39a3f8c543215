package phalanx.spark;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;

/** Decodes Examples and SequenceExamples to rows. */
final class ExampleReader {
  private final UnsafeRowWriter row;
  private final FeatureFinder finder = new FeatureFinder(false);
  private final ColumnReader[] readers;

  ExampleReader(Column[] columns) {
    row = new UnsafeRowWriter(columns.length);
    FeatureValues values = new FeatureValues();
    readers = new ColumnReader[columns.length];
    for (int i = 0; i < columns.length; i++) {
      readers[i] = new ColumnReader(columns[i], row, values);
      finder.add(columns[i].nameBytes(), columns[i].isSequence());
    }
  }

  /** Decodes a message; the row is valid until the next call. */
  UnsafeRow read(byte[] data, int start, int end) throws DecodeException {
    finder.find(data, start, end);
    row.reset();
    row.zeroOutNullBytes();
    for (int i = 0; i < readers.length; i++) {
      byte[] value = finder.data[i];
      if (value == null) {
        readers[i].setNull();
        continue;
      }
      try {
        readers[i].read(value, finder.starts[i], finder.ends[i]);
      } catch (DecodeException error) {
        throw error.of(readers[i].column.name);
      }
    }
    return row.getRow();
  }
}
