package phalanx.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.ByteOrder;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeArrayWriter;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeWriter;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads the values of one column from features into the rows that Spark keeps in memory. */
final class ColumnReader {
  private static final VarHandle WORDS =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final long NOT_ASCII = 0x8080808080808080L;

  final Column column;
  private final UnsafeRowWriter row;
  private final UnsafeArrayWriter steps;
  private final UnsafeRowWriter vector;
  private final UnsafeArrayWriter list;
  private final FeatureValues values;
  private final Wire wire = new Wire();

  ColumnReader(Column column, UnsafeRowWriter row, FeatureValues values) {
    this.column = column;
    this.row = row;
    this.values = values;
    steps = column.isSequence() ? new UnsafeArrayWriter(row, 8) : null;
    UnsafeWriter outer = steps == null ? row : steps;
    vector = column.isVector ? new UnsafeRowWriter(outer, 4) : null;
    list = new UnsafeArrayWriter(vector == null ? outer : vector, column.value.size);
  }

  /** Reads a Feature, or a FeatureList, into the row. */
  void read(byte[] data, int start, int end) throws DecodeException {
    if (column.isSequence()) {
      readSteps(data, start, end);
    } else if (!values.read(data, start, end)) {
      setNull();
    } else {
      checkKind();
      if (column.depth == 1) {
        writeList(row, column.ordinal);
      } else if (values.count != 1) {
        throw new DecodeException("has " + values.count + " values, and 1 were expected");
      } else {
        write(row, column.ordinal, 0);
      }
    }
  }

  void setNull() {
    if (column.depth == 0 && column.precision > Decimal.MAX_LONG_DIGITS()) {
      row.write(column.ordinal, (Decimal) null, column.precision, column.scale);
    } else {
      row.setNullAt(column.ordinal);
    }
  }

  private void checkKind() throws DecodeException {
    int expected = column.value.kind;
    if (values.kind != expected && expected != FeatureValues.NONE) {
      throw new DecodeException(
          "holds " + FeatureValues.KINDS[values.kind] + " values, and "
              + FeatureValues.KINDS[expected] + " values were expected");
    }
  }

  private void readSteps(byte[] data, int start, int end) throws DecodeException {
    int count = 0;
    wire.set(data, start, end);
    while (!wire.isEmpty()) {
      int tag = wire.tag();
      count += tag == 10 ? 1 : 0;
      wire.skip(tag);
    }
    int before = row.cursor();
    steps.initialize(count);
    wire.set(data, start, end);
    for (int step = 0; step < count; ) {
      int tag = wire.tag();
      if (tag != 10) {
        wire.skip(tag);
        continue;
      }
      int length = wire.length();
      // A step without a list is an empty one.
      if (values.read(data, wire.at, wire.at + length)) {
        checkKind();
      }
      writeList(steps, step++);
      wire.at += length;
    }
    row.setOffsetAndSizeFromPreviousCursor(column.ordinal, before);
  }

  private void writeList(UnsafeWriter outer, int ordinal) throws DecodeException {
    int before = outer.cursor();
    if (vector == null) {
      writeElements();
    } else {
      vector.resetRowWriter();
      vector.write(0, (byte) 1); // a dense vector has type 1, and only values
      vector.setNullAt(1);
      vector.setNullAt(2);
      int start = vector.cursor();
      writeElements();
      vector.setOffsetAndSizeFromPreviousCursor(3, start);
    }
    outer.setOffsetAndSizeFromPreviousCursor(ordinal, before);
  }

  private void writeElements() throws DecodeException {
    int count = values.count;
    int start = list.cursor();
    list.initialize(count);
    int first = start + 8 + (count + 63) / 64 * 8;
    if (column.value == Column.Value.LONG) {
      copy(values.longs, Platform.LONG_ARRAY_OFFSET, first, 8L * count);
    } else if (column.value == Column.Value.FLOAT) {
      copy(values.floats, Platform.FLOAT_ARRAY_OFFSET, first, 4L * count);
    } else {
      for (int i = 0; i < count; i++) {
        write(list, i, i);
      }
    }
  }

  private void copy(Object from, long offset, int target, long size) {
    Platform.copyMemory(from, offset, list.getBuffer(), target, size);
  }

  private void write(UnsafeWriter to, int ordinal, int i) throws DecodeException {
    switch (column.value) {
      case LONG:
        to.write(ordinal, values.longs[i]);
        break;
      case INT:
        to.write(ordinal, (int) integer(i, Integer.MIN_VALUE, Integer.MAX_VALUE));
        break;
      case SHORT:
        to.write(ordinal, (short) integer(i, Short.MIN_VALUE, Short.MAX_VALUE));
        break;
      case BYTE:
        to.write(ordinal, (byte) integer(i, Byte.MIN_VALUE, Byte.MAX_VALUE));
        break;
      case BOOLEAN:
        to.write(ordinal, values.longs[i] != 0);
        break;
      case FLOAT:
        to.write(ordinal, values.floats[i]);
        break;
      case DOUBLE:
        to.write(ordinal, (double) values.floats[i]);
        break;
      case DECIMAL:
        to.write(ordinal, decimal(values.floats[i]), column.precision, column.scale);
        break;
      case STRING:
        checkText(i);
        to.write(ordinal, values.data, values.starts[i], values.ends[i] - values.starts[i]);
        break;
      case BINARY:
        to.write(ordinal, values.data, values.starts[i], values.ends[i] - values.starts[i]);
        break;
      default: // a column of nulls
        to.setNull8Bytes(ordinal);
    }
  }

  private long integer(int i, long least, long greatest) throws DecodeException {
    long number = values.longs[i];
    if (number < least || number > greatest) {
      throw unreadable(number + " is not between " + least + " and " + greatest);
    }
    return number;
  }

  /** The decimal that stands for the same float, as 2.10 for 2.0999999. */
  private Decimal decimal(float number) throws DecodeException {
    if (!Float.isFinite(number)) {
      throw unreadable(number + " is no decimal");
    }
    BigDecimal decimal =
        new BigDecimal((double) number).setScale(column.scale, RoundingMode.HALF_EVEN);
    if (decimal.precision() > column.precision) {
      throw unreadable(number + " has too many digits");
    }
    if ((float) decimal.doubleValue() != number) {
      throw unreadable(number + " would be rounded to " + decimal.toPlainString());
    }
    return Decimal.apply(decimal);
  }

  private DecodeException unreadable(String reason) {
    return new DecodeException(
        "cannot be read as " + column.type.simpleString() + ": " + reason);
  }

  private void checkText(int i) throws DecodeException {
    int at = values.starts[i];
    int end = values.ends[i];
    for (; end - at >= 8; at += 8) {
      if (((long) WORDS.get(values.data, at) & NOT_ASCII) != 0) {
        break;
      }
    }
    while (at < end && values.data[at] >= 0) {
      at++;
    }
    if (at < end && !UTF8String.fromBytes(values.data, at, end - at).isValid()) {
      throw new DecodeException(
          "holds bytes that are not text: read it as binary, with the option binaryColumns set to "
              + column.name + " or with a schema");
    }
  }
}
