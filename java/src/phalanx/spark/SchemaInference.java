package phalanx.spark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.util.SerializableConfiguration;

/** Finds the features that files hold, by reading their records. */
final class SchemaInference {
  private static final int TASKS_PER_CORE = 4;

  private SchemaInference() {}

  /** Summarizes the features of files: many of them in parallel, or a number of records here. */
  static List<FeatureSummary> summarize(
      JavaSparkContext context, List<Path> files, Configuration conf, long most)
      throws IOException {
    List<List<FeatureSummary>> found = new ArrayList<>();
    if (files.size() == 1 || most < Long.MAX_VALUE) {
      long left = most;
      for (Path file : files) {
        if (left > 0) {
          List<FeatureSummary> summaries = new ArrayList<>();
          left -= summarizeFile(file, conf, left, summaries);
          found.add(summaries);
        }
      }
    } else {
      List<String> names = new ArrayList<>();
      files.forEach(file -> names.add(file.toString()));
      int tasks = Math.min(files.size(), TASKS_PER_CORE * context.defaultParallelism());
      var shared = context.broadcast(new SerializableConfiguration(conf));
      found.addAll(
          context
              .parallelize(names, tasks)
              .map(
                  name -> {
                    List<FeatureSummary> summaries = new ArrayList<>();
                    summarizeFile(
                        new Path(name), shared.value().value(), Long.MAX_VALUE, summaries);
                    return summaries;
                  })
              .collect());
      shared.destroy();
    }
    return merge(found);
  }

  /** Summarizes the first {@code most} records of a file; returns how many there were. */
  private static long summarizeFile(
      Path path, Configuration conf, long most, List<FeatureSummary> found) throws IOException {
    FeatureSummarizer summarizer = new FeatureSummarizer();
    int known = 0;
    long count = 0;
    try (RecordFile file = new RecordFile(path, conf)) {
      for (; count < most && file.next(); count++) {
        try {
          summarizer.add(file.data, file.start, file.end);
        } catch (DecodeException error) {
          throw file.error(error);
        }
        for (; known < summarizer.found.size(); known++) {
          summarizer.found.get(known).where = file.error("").getMessage();
        }
      }
    }
    found.addAll(summarizer.found);
    return count;
  }

  /** Merges the summaries of files, in their order. */
  private static List<FeatureSummary> merge(Collection<List<FeatureSummary>> files)
      throws IOException {
    Map<String, FeatureSummary> merged = new LinkedHashMap<>();
    for (List<FeatureSummary> file : files) {
      for (FeatureSummary each : file) {
        if (each.kind == FeatureValues.NONE) {
          continue;
        }
        // Latin-1 keeps names apart that are not UTF-8.
        String key = each.isSequence + new String(each.name, StandardCharsets.ISO_8859_1);
        FeatureSummary summary = merged.putIfAbsent(key, each);
        if (summary != null) {
          try {
            summary.addKind(each.kind);
          } catch (DecodeException error) {
            throw new IOException(each.where + error.of(each.text()).getMessage());
          }
          summary.isSingle &= each.isSingle;
        }
      }
    }
    return new ArrayList<>(merged.values());
  }
}
