package phalanx.spark;

import java.util.Arrays;
import java.util.Comparator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Encodes rows as Examples or SequenceExamples, with the features sorted by name as protobuf sorts
 * them. A message is written backwards, because the size of each part precedes the part.
 */
final class ExampleWriter {
  private final Column[] columns;
  private final byte[][] names;
  private final BackwardBuffer out;

  ExampleWriter(Column[] given, BackwardBuffer out) {
    columns = given.clone();
    Arrays.sort(
        columns, Comparator.comparing(Column::nameBytes, Arrays::compareUnsigned));
    names = Arrays.stream(columns).map(Column::nameBytes).toArray(byte[][]::new);
    this.out = out;
  }

  /** Writes a message in front of what the buffer holds. */
  void write(InternalRow row) {
    putMap(row, true);
    putMap(row, false);
  }

  private void putMap(InternalRow row, boolean sequence) {
    int end = out.size();
    for (int i = columns.length - 1; i >= 0; i--) {
      Column column = columns[i];
      if (column.isSequence() != sequence
          || column.value == Column.Value.NULL
          || row.isNullAt(column.ordinal)) {
        continue;
      }
      int stop = out.size();
      putValue(column, row, column.ordinal);
      out.putHeader(2, out.size() - stop);
      out.put(names[i]);
      out.putHeader(1, names[i].length);
      out.putHeader(1, out.size() - stop);
    }
    if (out.size() > end) {
      out.putHeader(sequence ? 2 : 1, out.size() - end);
    }
  }

  private void putValue(Column column, InternalRow row, int ordinal) {
    if (column.isSequence()) {
      ArrayData steps = row.getArray(ordinal);
      for (int i = steps.numElements() - 1; i >= 0; i--) {
        if (steps.isNullAt(i)) {
          throw nullInList(column);
        }
        int stop = out.size();
        putList(column, steps, i);
        out.putHeader(1, out.size() - stop);
      }
    } else if (column.depth == 1) {
      putList(column, row, ordinal);
    } else {
      putFeature(column, row, ordinal, ordinal + 1);
    }
  }

  private void putList(Column column, SpecializedGetters from, int ordinal) {
    if (column.isVector) {
      putVector(column, from.getStruct(ordinal, 4));
      return;
    }
    ArrayData list = from.getArray(ordinal);
    for (int i = 0; i < list.numElements(); i++) {
      if (list.isNullAt(i)) {
        throw nullInList(column);
      }
    }
    putFeature(column, list, 0, list.numElements());
  }

  /** A sparse vector is written with all its zeros. */
  private void putVector(Column column, InternalRow vector) {
    ArrayData values = vector.getArray(3);
    if (vector.getByte(0) == 1) {
      putFeature(column, values, 0, values.numElements());
      return;
    }
    int stop = out.size();
    float[] dense = new float[vector.getInt(1)];
    ArrayData indices = vector.getArray(2);
    for (int i = 0; i < indices.numElements(); i++) {
      dense[indices.getInt(i)] = (float) values.getDouble(i);
    }
    for (int i = dense.length - 1; i >= 0; i--) {
      out.putFloat(dense[i]);
    }
    endFeature(column, dense.length, stop);
  }

  /** Writes the values from {@code first} up to {@code end} as a Feature. */
  private void putFeature(Column column, SpecializedGetters from, int first, int end) {
    int stop = out.size();
    switch (column.value) {
      case LONG:
        for (int i = end - 1; i >= first; i--) {
          out.putVarint(from.getLong(i));
        }
        break;
      case INT:
        for (int i = end - 1; i >= first; i--) {
          out.putVarint(from.getInt(i));
        }
        break;
      case SHORT:
        for (int i = end - 1; i >= first; i--) {
          out.putVarint(from.getShort(i));
        }
        break;
      case BYTE:
        for (int i = end - 1; i >= first; i--) {
          out.putVarint(from.getByte(i));
        }
        break;
      case BOOLEAN:
        for (int i = end - 1; i >= first; i--) {
          out.putVarint(from.getBoolean(i) ? 1 : 0);
        }
        break;
      case FLOAT:
        for (int i = end - 1; i >= first; i--) {
          out.putFloat(from.getFloat(i));
        }
        break;
      case DOUBLE:
        for (int i = end - 1; i >= first; i--) {
          out.putFloat((float) from.getDouble(i));
        }
        break;
      case DECIMAL:
        for (int i = end - 1; i >= first; i--) {
          out.putFloat(
              (float) from.getDecimal(i, column.precision, column.scale).toDouble());
        }
        break;
      case STRING:
        for (int i = end - 1; i >= first; i--) {
          UTF8String text = from.getUTF8String(i);
          out.put(text);
          out.putHeader(1, text.numBytes());
        }
        break;
      case BINARY:
        for (int i = end - 1; i >= first; i--) {
          byte[] bytes = from.getBinary(i);
          out.put(bytes);
          out.putHeader(1, bytes.length);
        }
        break;
      default:
        break;
    }
    endFeature(column, end - first, stop);
  }

  /** Writes the headers of a Feature whose values are written; numbers are packed. */
  private void endFeature(Column column, int count, int stop) {
    if (count > 0 && column.value.kind != FeatureValues.BYTES) {
      out.putHeader(1, out.size() - stop);
    }
    out.putHeader(column.value.kind, out.size() - stop);
  }

  private static IllegalArgumentException nullInList(Column column) {
    return new IllegalArgumentException(
        "column '" + column.name + "' has nulls inside its lists, which no feature can hold");
  }
}
