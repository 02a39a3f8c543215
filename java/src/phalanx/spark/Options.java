package phalanx.spark;

import java.io.Serializable;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.spark.sql.execution.datasources.FileIndexOptions;

/** The options of {@code format("tfrecord")}; those of all file sources are Spark's. */
final class Options implements Serializable {
  private static final long serialVersionUID = 1;

  enum RecordType {
    Example,
    SequenceExample,
    ByteArray
  }

  enum Codec {
    NONE(""),
    GZIP(".gz"),
    DEFLATE(".deflate");

    final String extension;

    Codec(String extension) {
      this.extension = extension;
    }
  }

  private static final List<String> NAMES =
      List.of(
          "recordType", "codec", "binaryColumns", "columns", "inferRecords", "writeLocality",
          "partitionOverwriteMode");

  // Options of Spark's streams, writers and tables; FileIndexOptions has those of its readers.
  private static final Set<String> OTHERS =
      Set.of(
          "path", "paths", "ignorecorruptfiles", "maxfilespertrigger", "maxbytespertrigger",
          "maxfileage", "maxcachedfiles", "discardcachedinputratio", "latestfirst", "filenameonly",
          "cleansource", "sourcearchivedir", "checkpointlocation", "queryname", "mergeschema",
          "maxrecordsperfile");

  private static final Map<String, String> INSTEAD =
      Map.of(
          "maxpartitionbytes", "set spark.sql.files.maxPartitionBytes",
          "partitionby", "call partitionBy of the writer",
          "compression", "the option is called codec");

  private static final Map<String, Codec> CODECS = new HashMap<>();

  static {
    String hadoop = "org.apache.hadoop.io.compress.";
    List.of("", "none", "uncompressed").forEach(name -> CODECS.put(name, Codec.NONE));
    List.of("gzip", hadoop + "gzipcodec").forEach(name -> CODECS.put(name, Codec.GZIP));
    List.of("deflate", "zlib", hadoop + "defaultcodec", hadoop + "deflatecodec")
        .forEach(name -> CODECS.put(name, Codec.DEFLATE));
  }

  final RecordType recordType;
  final Codec codec;
  final List<String> binaryColumns;

  /** The columns to infer; null for all. */
  final List<String> columns;

  /** How many records to infer the schema from. */
  final long inferRecords;

  final boolean writesLocally;

  /** Parses options, whose names are not case-sensitive. */
  Options(Map<String, String> given) {
    Map<String, String> options = new TreeMap<>();
    given.forEach((name, text) -> options.put(name.toLowerCase(Locale.ROOT), text));
    options.keySet().forEach(Options::check);
    recordType = chooseRecordType(options.getOrDefault("recordtype", "Example"));
    String name = options.getOrDefault("codec", "");
    codec = CODECS.get(name.toLowerCase(Locale.ROOT));
    if (codec == null) {
      throw new IllegalArgumentException(
          "TensorFlow cannot read the codec " + name + ": use gzip or deflate");
    }
    binaryColumns = split(options.getOrDefault("binarycolumns", ""));
    columns = options.containsKey("columns") ? split(options.get("columns")) : null;
    inferRecords = parseCount(options.get("inferrecords"));
    writesLocally = parseLocality(options.getOrDefault("writelocality", "distributed"));
  }

  private static void check(String name) {
    // A point is in settings of Hadoop, and an underscore in those that Spark sets itself.
    boolean isKnown =
        NAMES.stream().anyMatch(name::equalsIgnoreCase)
            || OTHERS.contains(name)
            || FileIndexOptions.isValidOption(name)
            || isFileIndexOption(name)
            || name.contains(".")
            || name.contains("_");
    if (!isKnown) {
      throw new IllegalArgumentException(
          "format('tfrecord') has no option " + name + ": "
              + INSTEAD.getOrDefault(name, "there are " + String.join(", ", NAMES)));
    }
  }

  private static boolean isFileIndexOption(String name) {
    return FileIndexOptions.getAllOptions().exists(name::equalsIgnoreCase);
  }

  private static RecordType chooseRecordType(String text) {
    for (RecordType type : RecordType.values()) {
      if (type.name().equalsIgnoreCase(text)) {
        return type;
      }
    }
    throw wrong("recordType", text, "Example, SequenceExample, ByteArray");
  }

  private static boolean parseLocality(String text) {
    if (text.equalsIgnoreCase("local")) {
      return true;
    }
    if (text.equalsIgnoreCase("distributed")) {
      return false;
    }
    throw wrong("writeLocality", text, "distributed, local");
  }

  private static IllegalArgumentException wrong(String name, String text, String choices) {
    return new IllegalArgumentException(
        "the option " + name + " is '" + text + "': it can be " + choices);
  }

  private static long parseCount(String text) {
    if (text == null) {
      return Long.MAX_VALUE;
    }
    if (!text.matches("0*[1-9][0-9]{0,17}")) {
      throw new IllegalArgumentException(
          "the option inferRecords is '" + text + "': it must be a number, 1 or more");
    }
    return Long.parseLong(text);
  }

  private static List<String> split(String text) {
    return Arrays.stream(text.split(","))
        .map(String::trim)
        .filter(name -> !name.isEmpty())
        .collect(Collectors.toList());
  }
}
