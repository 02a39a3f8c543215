package phalanx.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import phalanx.hadoop.RecordIndex;

/**
 * What lies beside the files of a table: indexes of files, and the lists of a writer in Python that
 * hide files from readers. Each directory is listed once, as Spark lists the files of a table once.
 */
final class Directories {
  private static final String COMMIT = "_commit-";

  private static final class Beside {
    final Set<Path> indexes = new HashSet<>();
    final Set<Path> hidden = new HashSet<>();
  }

  private final Map<Path, Beside> besides = new ConcurrentHashMap<>();

  /** Is the file to be read? Schemas, indexes and hidden files are not. */
  boolean isData(Path file, Configuration conf) {
    if (file.getName().equals(SavedSchema.NAME)) {
      return false;
    }
    Path indexed = RecordIndex.dataOf(file);
    if (indexed != null && exists(indexed, conf)) {
      return false;
    }
    for (Path each = file.getParent(); each != null; each = each.getParent()) {
      if (beside(each, conf).hidden.contains(file)) {
        return false;
      }
      if (!each.getName().contains("=")) {
        return true;
      }
    }
    return true;
  }

  /** The index beside a file; null if there is none. */
  RecordIndex index(Path file, Configuration conf) {
    Path index = file.suffix(RecordIndex.SUFFIX);
    return beside(file.getParent(), conf).indexes.contains(index) ? loadIndex(file, conf) : null;
  }

  static RecordIndex loadIndex(Path file, Configuration conf) {
    try {
      FileSystem fileSystem = file.getFileSystem(conf);
      return RecordIndex.load(fileSystem, fileSystem.getFileStatus(file));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static boolean exists(Path file, Configuration conf) {
    try {
      return file.getFileSystem(conf).exists(file);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private Beside beside(Path directory, Configuration conf) {
    return besides.computeIfAbsent(
        directory,
        path -> {
          try {
            return list(path, conf);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
  }

  private static Beside list(Path directory, Configuration conf) throws IOException {
    Beside found = new Beside();
    FileSystem fileSystem = directory.getFileSystem(conf);
    FileStatus[] all;
    try {
      all =
          fileSystem.listStatus(
              directory,
              path ->
                  path.getName().startsWith(COMMIT) || path.getName().endsWith(RecordIndex.SUFFIX));
    } catch (FileNotFoundException error) {
      return found;
    }
    for (FileStatus each : all) {
      if (each.getPath().getName().startsWith(COMMIT)) {
        try (InputStream in = fileSystem.open(each.getPath())) {
          for (JsonNode name : new ObjectMapper().readTree(in)) {
            found.hidden.add(new Path(directory, name.asText()));
          }
        } catch (FileNotFoundException error) {
          continue; // the commit has ended
        }
      } else {
        found.indexes.add(each.getPath());
      }
    }
    return found;
  }
}
