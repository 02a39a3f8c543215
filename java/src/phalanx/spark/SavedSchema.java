package phalanx.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** A schema beside the files, as {@code phalanx.records.Schema.save} writes it. */
final class SavedSchema {
  static final String NAME = "schema.json";
  private static final int VERSION = 1;

  private SavedSchema() {}

  /** The features of the schema beside a file; null if there is none. */
  static List<FeatureSummary> load(Path file, Configuration conf) throws IOException {
    Path path = new Path(file.getParent(), NAME);
    FileSystem fileSystem = path.getFileSystem(conf);
    if (!fileSystem.exists(path)) {
      return null;
    }
    JsonNode schema;
    try (InputStream in = fileSystem.open(path)) {
      schema = new ObjectMapper().readTree(in);
    } catch (JsonProcessingException error) {
      throw wrong(path, error.getOriginalMessage());
    }
    if (schema == null || schema.path("version").asInt() != VERSION) {
      throw wrong(path, "its version is not " + VERSION);
    }
    List<FeatureSummary> features = new ArrayList<>();
    for (JsonNode feature : schema.path("features")) {
      byte[] name = feature.path("name").asText().getBytes(StandardCharsets.UTF_8);
      FeatureSummary summary =
          new FeatureSummary(name, feature.path("sequence").asBoolean());
      String kind = feature.path("kind").asText();
      summary.kind = Arrays.asList(FeatureValues.KINDS).indexOf(kind);
      if (summary.kind < FeatureValues.BYTES || !feature.path("shape").isArray()) {
        throw wrong(path, "it has no kind or shape for '" + summary.text() + "'");
      }
      summary.isSingle = feature.path("shape").isEmpty();
      features.add(summary);
    }
    return features;
  }

  private static IOException wrong(Path path, String reason) {
    return new IOException(
        RecordFile.describe(path) + " is not a schema of records: " + reason);
  }
}
