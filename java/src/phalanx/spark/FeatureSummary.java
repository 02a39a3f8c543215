package phalanx.spark;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/** The kind of a feature in the records read so far, and whether it is always a single value. */
final class FeatureSummary implements Serializable {
  private static final long serialVersionUID = 1;

  final byte[] name;
  final boolean isSequence;
  int kind;
  boolean isSingle = true;

  /** The record in which it was found first, as the beginning of an error message. */
  String where;

  FeatureSummary(byte[] name, boolean isSequence) {
    this.name = name;
    this.isSequence = isSequence;
  }

  /** Adds values of a kind; int64 and float may be mixed, which makes the feature float. */
  void addKind(int found) throws DecodeException {
    boolean isMixed = kind + found == FeatureValues.FLOAT + FeatureValues.INT64;
    if (kind != FeatureValues.NONE && kind != found && !isMixed) {
      throw new DecodeException(
          "holds " + FeatureValues.KINDS[found] + " values, and " + FeatureValues.KINDS[kind]
              + " values were expected");
    }
    kind = isMixed ? FeatureValues.FLOAT : found;
  }

  String text() {
    return new String(name, StandardCharsets.UTF_8);
  }

  String checkedText() {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(name)).toString();
    } catch (CharacterCodingException error) {
      throw new IllegalArgumentException(
          "a feature is called '" + text() + "', which is not UTF-8: give a schema without it");
    }
  }

  DataType type(boolean isBinary) {
    DataType type = DataTypes.LongType;
    if (kind == FeatureValues.FLOAT) {
      type = DataTypes.FloatType;
    } else if (kind == FeatureValues.BYTES) {
      type = isBinary ? DataTypes.BinaryType : DataTypes.StringType;
    }
    if (isSequence) {
      return DataTypes.createArrayType(DataTypes.createArrayType(type));
    }
    return isSingle ? type : DataTypes.createArrayType(type);
  }
}
