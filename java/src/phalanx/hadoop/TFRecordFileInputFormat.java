package phalanx.hadoop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.mapreduce.InputSplit;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.RecordReader;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.input.FileSplit;

/**
 * Reads TFRecord files: the key is the data of a record, and there is no value.
 *
 * <p>Gzip and zlib are detected. One task reads a file, unless its index lies beside it ({@code
 * train.tfrecord.index}, as {@code RecordIndex.save} writes it): then it is split between records.
 */
public class TFRecordFileInputFormat extends FileInputFormat<BytesWritable, NullWritable> {
  /** Whether to verify checksums, true by default. */
  public static final String CHECKS_CRC = "tensorflow.read.crc32check";

  @Override
  public RecordReader<BytesWritable, NullWritable> createRecordReader(
      InputSplit split, TaskAttemptContext context) {
    return new TFRecordFileRecordReader();
  }

  /** Not at any byte; {@link #getSplits} splits files between records. */
  @Override
  protected boolean isSplitable(JobContext context, Path file) {
    return false;
  }

  /** Excludes indexes and schemas. */
  @Override
  protected List<FileStatus> listStatus(JobContext job) throws IOException {
    List<FileStatus> all = super.listStatus(job);
    Set<Path> paths = new HashSet<>();
    all.forEach(file -> paths.add(file.getPath()));
    List<FileStatus> data = new ArrayList<>();
    for (FileStatus file : all) {
      String name = file.getPath().getName();
      boolean isIndex = paths.contains(RecordIndex.dataOf(file.getPath()));
      if (!isIndex && !name.equals("schema.json")) {
        data.add(file);
      }
    }
    return data;
  }

  @Override
  public List<InputSplit> getSplits(JobContext job) throws IOException {
    long least = Math.max(getFormatMinSplitSize(), getMinSplitSize(job));
    long most = getMaxSplitSize(job);
    List<InputSplit> splits = new ArrayList<>();
    for (InputSplit whole : super.getSplits(job)) {
      FileSplit file = (FileSplit) whole;
      FileSystem fileSystem = file.getPath().getFileSystem(job.getConfiguration());
      FileStatus status = fileSystem.getFileStatus(file.getPath());
      long size = computeSplitSize(status.getBlockSize(), least, most);
      RecordIndex index =
          file.getLength() > size ? RecordIndex.load(fileSystem, status) : null;
      if (index == null) {
        splits.add(file);
      } else {
        addSplits(splits, fileSystem, status, index, size);
      }
    }
    return splits;
  }

  private static void addSplits(
      List<InputSplit> splits, FileSystem fileSystem, FileStatus file, RecordIndex index, long size)
      throws IOException {
    long start = 0;
    for (int i = 1; i < index.offsets.length; i++) {
      long end = index.offsets[i];
      if (end - start >= size || end == file.getLen()) {
        BlockLocation[] blocks = fileSystem.getFileBlockLocations(file, start, end - start);
        String[] hosts = blocks.length == 0 ? new String[0] : blocks[0].getHosts();
        splits.add(new FileSplit(file.getPath(), start, end - start, hosts));
        start = end;
      }
    }
  }
}
