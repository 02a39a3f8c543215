package phalanx.spark;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.NullType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;

/** A column of a table, and the feature that it is read from and written to. */
final class Column implements Serializable {
  private static final long serialVersionUID = 1;
  private static final String[] VECTOR = {"type", "size", "indices", "values"};

  /** The types of single values. */
  enum Value {
    LONG(FeatureValues.INT64, 8),
    INT(FeatureValues.INT64, 4),
    SHORT(FeatureValues.INT64, 2),
    BYTE(FeatureValues.INT64, 1),
    BOOLEAN(FeatureValues.INT64, 1),
    FLOAT(FeatureValues.FLOAT, 4),
    DOUBLE(FeatureValues.FLOAT, 8),
    DECIMAL(FeatureValues.FLOAT, 8),
    STRING(FeatureValues.BYTES, 8),
    BINARY(FeatureValues.BYTES, 8),
    NULL(FeatureValues.NONE, 8);

    final int kind;

    /** The bytes that an element takes in Spark's arrays. */
    final int size;

    Value(int kind, int size) {
      this.kind = kind;
      this.size = size;
    }
  }

  final String name;

  /** The position of the column in a row. */
  final int ordinal;

  final DataType type;

  /** 0 for a single value, 1 for a list, 2 for a feature list. */
  final int depth;

  final Value value;

  /** Is the innermost list a Vector of Spark's machine learning library? */
  final boolean isVector;

  final int precision;
  final int scale;

  Column(StructField field, int ordinal) {
    name = field.name();
    this.ordinal = ordinal;
    type = field.dataType();
    DataType inner = unwrap(type);
    int found = 0;
    while (inner instanceof ArrayType) {
      inner = unwrap(((ArrayType) inner).elementType());
      found++;
    }
    isVector = isVector(inner);
    value = isVector ? Value.DOUBLE : valueOf(inner);
    depth = isVector ? found + 1 : found;
    if (value == null || depth > 2) {
      throw new IllegalArgumentException(
          "column '" + name + "' has the type " + type.simpleString()
              + ", which no feature can hold: make it numbers, booleans, text, binary or vectors, "
              + "or arrays of these");
    }
    boolean isDecimal = inner instanceof DecimalType;
    precision = isDecimal ? ((DecimalType) inner).precision() : 0;
    scale = isDecimal ? ((DecimalType) inner).scale() : 0;
  }

  /** The columns of a table whose records are of this type. */
  static Column[] of(StructType schema, Options.RecordType recordType) {
    StructField[] fields = schema.fields();
    Column[] columns = new Column[fields.length];
    for (int i = 0; i < fields.length; i++) {
      columns[i] = new Column(fields[i], i);
      if (columns[i].depth == 2 && recordType != Options.RecordType.SequenceExample) {
        throw new IllegalArgumentException(
            "column '" + fields[i].name() + "' has arrays of arrays, which only a SequenceExample "
                + "can hold: set the option recordType to SequenceExample");
      }
    }
    return columns;
  }

  static boolean canHold(DataType type) {
    DataType inner = unwrap(type);
    int depth = 0;
    while (inner instanceof ArrayType) {
      inner = unwrap(((ArrayType) inner).elementType());
      depth++;
    }
    return isVector(inner) ? depth < 2 : depth < 3 && valueOf(inner) != null;
  }

  byte[] nameBytes() {
    return name.getBytes(StandardCharsets.UTF_8);
  }

  boolean isSequence() {
    return depth == 2;
  }

  private static DataType unwrap(DataType type) {
    return type instanceof UserDefinedType ? ((UserDefinedType<?>) type).sqlType() : type;
  }

  private static boolean isVector(DataType type) {
    return type instanceof StructType
        && Arrays.equals(((StructType) type).fieldNames(), VECTOR);
  }

  private static Value valueOf(DataType type) {
    if (type instanceof LongType) {
      return Value.LONG;
    } else if (type instanceof IntegerType) {
      return Value.INT;
    } else if (type instanceof ShortType) {
      return Value.SHORT;
    } else if (type instanceof ByteType) {
      return Value.BYTE;
    } else if (type instanceof BooleanType) {
      return Value.BOOLEAN;
    } else if (type instanceof FloatType) {
      return Value.FLOAT;
    } else if (type instanceof DoubleType) {
      return Value.DOUBLE;
    } else if (type instanceof DecimalType) {
      return Value.DECIMAL;
    } else if (type instanceof StringType) {
      return Value.STRING;
    } else if (type instanceof BinaryType) {
      return Value.BINARY;
    }
    return type instanceof NullType ? Value.NULL : null;
  }
}
