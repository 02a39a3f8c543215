package phalanx.spark;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** Prints what the codec of the jar reads, for comparison with the codec of the package. */
public final class Agreement {
  private Agreement() {}

  /** Usage: Agreement messages FILE, or Agreement frames FILE... */
  public static void main(String[] arguments) throws IOException {
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    for (int i = 1; i < arguments.length; i++) {
      if (arguments[0].equals("messages")) {
        printMessages(new Path(arguments[i]), out);
      } else {
        printFrames(new Path(arguments[i]), out);
      }
    }
    out.flush();
  }

  /** One line for each file: its records, and the error at the end. */
  private static void printFrames(Path path, PrintStream out) {
    StringBuilder line = new StringBuilder();
    try (RecordFile file = new RecordFile(path, new Configuration())) {
      while (file.next()) {
        line.append(HexFormat.of().formatHex(file.data, file.start, file.end)).append(' ');
      }
    } catch (IOException error) {
      line.append('!').append(error.getMessage());
    }
    out.println(line);
  }

  /** One line for each message: its features and their values, or why there are none. */
  private static void printMessages(Path path, PrintStream out) throws IOException {
    try (RecordFile file = new RecordFile(path, new Configuration())) {
      while (file.next()) {
        try {
          out.println(describe(file.data, file.start, file.end));
        } catch (DecodeException error) {
          out.println("!");
        } catch (IllegalArgumentException error) {
          out.println("?");
        }
      }
    }
  }

  private static String describe(byte[] data, int start, int end) throws DecodeException {
    FeatureSummarizer summarizer = new FeatureSummarizer();
    summarizer.add(data, start, end);
    List<FeatureSummary> found = new ArrayList<>(summarizer.found);
    found.removeIf(each -> each.kind == FeatureValues.NONE);
    found.sort(
        Comparator.comparing((FeatureSummary each) -> each.name, Arrays::compareUnsigned)
            .thenComparing(each -> each.isSequence));
    StringBuilder line = new StringBuilder();
    for (FeatureSummary each : found) {
      // One feature at a time, because a name may occur twice.
      StructType schema = new StructType().add(each.checkedText(), each.type(true));
      Column[] columns = Column.of(schema, Options.RecordType.SequenceExample);
      line.append(HexFormat.of().formatHex(each.name)).append('=');
      append(line, new ExampleReader(columns).read(data, start, end), 0, each.type(true));
      line.append(' ');
    }
    return line.toString();
  }

  private static void append(StringBuilder to, SpecializedGetters from, int i, DataType type) {
    if (from.isNullAt(i)) {
      to.append("null");
    } else if (type instanceof ArrayType) {
      ArrayData list = from.getArray(i);
      to.append('[');
      for (int j = 0; j < list.numElements(); j++) {
        append(to, list, j, ((ArrayType) type).elementType());
        to.append(',');
      }
      to.append(']');
    } else if (type.equals(DataTypes.LongType)) {
      to.append(from.getLong(i));
    } else if (type.equals(DataTypes.FloatType)) {
      to.append(HexFormat.of().toHexDigits(Float.floatToIntBits(from.getFloat(i))));
    } else {
      to.append(HexFormat.of().formatHex(from.getBinary(i)));
    }
  }
}
