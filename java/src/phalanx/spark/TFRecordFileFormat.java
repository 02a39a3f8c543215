package phalanx.spark;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.internal.SessionStateHelper;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * TFRecord files as tables inside the JVM: {@code format("tfrecord")}, wherever this class is on the
 * class path. Spark prefers it to the data source of the same name in Python.
 */
public class TFRecordFileFormat
    implements FileFormat, DataSourceRegister, SessionStateHelper, Serializable {
  private static final long serialVersionUID = 1;

  /** The column of records that are not decoded. */
  static final String BYTE_ARRAY = "byteArray";

  private final transient Directories directories = new Directories();
  private final transient Set<String> skipped = ConcurrentHashMap.newKeySet();

  @Override
  public String shortName() {
    return "tfrecord";
  }

  @Override
  public String toString() {
    return "TFRecord";
  }

  /** Spark compares tables by their formats, among others, to find those that are cached. */
  @Override
  public boolean equals(Object other) {
    return other != null && other.getClass() == getClass();
  }

  @Override
  public int hashCode() {
    return getClass().hashCode();
  }

  @Override
  public boolean supportDataType(DataType type) {
    return Column.canHold(type);
  }

  @Override
  public Option<StructType> inferSchema(
      SparkSession session, Map<String, String> given, Seq<FileStatus> files) {
    Options options = parse(given);
    if (options.recordType == Options.RecordType.ByteArray) {
      return Option.apply(new StructType().add(BYTE_ARRAY, DataTypes.BinaryType));
    }
    Configuration conf = getHadoopConf(session, given);
    List<Path> paths =
        CollectionConverters.asJava(files).stream()
            .map(FileStatus::getPath)
            .filter(path -> directories.isData(path, conf))
            .sorted()
            .collect(Collectors.toList());
    if (paths.isEmpty()) {
      return Option.empty();
    }
    try {
      return Option.apply(infer(session, options, paths, conf));
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    }
  }

  private static StructType infer(
      SparkSession session, Options options, List<Path> paths, Configuration conf)
      throws IOException {
    List<FeatureSummary> found = SavedSchema.load(paths.get(0), conf);
    if (found == null) {
      JavaSparkContext context = JavaSparkContext.fromSparkContext(session.sparkContext());
      found = SchemaInference.summarize(context, paths, conf, options.inferRecords);
    }
    String where = RecordFile.describe(paths.get(0).getParent());
    if (found.isEmpty()) {
      throw new IllegalArgumentException(
          "there are no features in " + where + " to infer the columns from: give a schema");
    }
    List<String> lists =
        found.stream().filter(each -> each.isSequence).map(FeatureSummary::text).toList();
    if (!lists.isEmpty() && options.recordType == Options.RecordType.Example) {
      throw new IllegalArgumentException(
          where + " holds SequenceExamples: set the option recordType to SequenceExample");
    }
    // A feature list has precedence over a feature of the same name.
    List<FeatureSummary> features = new ArrayList<>(found);
    features.removeIf(each -> !each.isSequence && lists.contains(each.text()));
    features.sort(Comparator.comparing(each -> each.name, Arrays::compareUnsigned));
    return toColumns(features, options, paths);
  }

  private static StructType toColumns(
      List<FeatureSummary> features, Options options, List<Path> paths) {
    StructType all = new StructType();
    for (FeatureSummary feature : features) {
      String name = feature.checkedText();
      List<String> binary = options.binaryColumns;
      boolean isBinary = binary.contains(name) || binary.contains("*");
      all = all.add(name, feature.type(isBinary));
    }
    if (options.columns == null) {
      return all;
    }
    StructType chosen = new StructType();
    for (String name : options.columns) {
      if (Arrays.asList(all.fieldNames()).contains(name)) {
        chosen = chosen.add(all.apply(name));
      } else if (paths.stream().noneMatch(path -> path.toString().contains("/" + name + "="))) {
        throw new IllegalArgumentException(
            "there is no column " + name + ": there are " + String.join(", ", all.fieldNames()));
      }
    }
    return chosen;
  }

  /** Splits files that have an index beside them; Spark asks this for every file of a query. */
  @Override
  public boolean isSplitable(SparkSession session, Map<String, String> given, Path path) {
    Configuration conf = getHadoopConf(session, given);
    if (!directories.isData(path, conf)) {
      skipped.add(path.toString());
      return false;
    }
    return directories.index(path, conf) != null;
  }

  @Override
  public Function1<PartitionedFile, Iterator<InternalRow>> buildReaderWithPartitionValues(
      SparkSession session,
      StructType data,
      StructType partitions,
      StructType required,
      Seq<Filter> filters,
      Map<String, String> given,
      Configuration conf) {
    Options options = parse(given);
    if (options.recordType == Options.RecordType.ByteArray) {
      checkByteArray(data);
    }
    Column.of(required, options.recordType);
    return new FileReader(
        options,
        required,
        partitions,
        skipped,
        SerializableConfiguration.broadcast(session.sparkContext(), conf));
  }

  @Override
  public OutputWriterFactory prepareWrite(
      SparkSession session, Job job, Map<String, String> given, StructType schema) {
    Options options = parse(given);
    if (options.recordType == Options.RecordType.ByteArray) {
      checkByteArray(schema);
    }
    return new RecordWriterFactory(Column.of(schema, options.recordType), options);
  }

  private static Options parse(Map<String, String> given) {
    return new Options(CollectionConverters.asJava(given));
  }

  private static void checkByteArray(StructType schema) {
    Column[] columns = Column.of(schema, Options.RecordType.ByteArray);
    if (columns.length != 1
        || columns[0].depth != 0
        || columns[0].value.kind != FeatureValues.BYTES) {
      String found =
          Arrays.stream(columns)
              .map(each -> each.name + " (" + each.type.simpleString() + ")")
              .collect(Collectors.joining(", "));
      throw new IllegalArgumentException(
          "with the recordType ByteArray there must be one column, of binary, called " + BYTE_ARRAY
              + "; found " + (found.isEmpty() ? "none" : found));
    }
  }
}
