package phalanx.hadoop;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.util.zip.DeflaterOutputStream;
import java.util.zip.GZIPOutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.DefaultCodec;
import org.apache.hadoop.io.compress.DeflateCodec;
import org.apache.hadoop.io.compress.GzipCodec;

/** The names and the compression of the files that both output formats write. */
final class OutputFiles {
  private static final int BUFFER = 1 << 17;

  private OutputFiles() {}

  /** The extension of a file; {@code codec} is null without compression. */
  static String extension(Configuration conf, Class<? extends CompressionCodec> codec)
      throws IOException {
    String given = conf.get(TFRecordFileOutputFormat.EXTENSION, ".tfrecord");
    String extension = given.equals("none") ? "" : given;
    if (codec == null) {
      return extension;
    }
    if (codec == GzipCodec.class) {
      return extension + ".gz";
    }
    if (codec == DefaultCodec.class || codec == DeflateCodec.class) {
      return extension + ".deflate";
    }
    throw new IOException(
        codec.getName() + " is not a codec that TensorFlow reads: use GzipCodec or DefaultCodec");
  }

  static TFRecordWriter create(
      Configuration conf, Path path, Class<? extends CompressionCodec> codec) throws IOException {
    OutputStream file = path.getFileSystem(conf).create(path, false);
    if (codec == GzipCodec.class) {
      file = new GZIPOutputStream(file, BUFFER);
    } else if (codec != null) {
      file = new DeflaterOutputStream(file);
    }
    return new TFRecordWriter(new BufferedOutputStream(file, BUFFER));
  }
}
