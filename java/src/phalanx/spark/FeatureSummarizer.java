package phalanx.spark;

import java.util.ArrayList;
import java.util.List;

/** Summarizes the features of messages, whatever their names are. */
final class FeatureSummarizer {
  /** The features in the order in which they were found. */
  final List<FeatureSummary> found = new ArrayList<>();

  private final FeatureFinder finder = new FeatureFinder(true);
  private final FeatureValues values = new FeatureValues();
  private final Wire wire = new Wire();

  void add(byte[] data, int start, int end) throws DecodeException {
    finder.find(data, start, end);
    for (int i = 0; i < finder.count; i++) {
      if (i == found.size()) {
        found.add(new FeatureSummary(finder.name(i), finder.isSequence(i)));
      }
      if (finder.data[i] == null) {
        continue;
      }
      FeatureSummary summary = found.get(i);
      try {
        if (summary.isSequence) {
          addSteps(summary, finder.data[i], finder.starts[i], finder.ends[i]);
        } else if (values.read(finder.data[i], finder.starts[i], finder.ends[i])) {
          summary.addKind(values.kind);
          summary.isSingle &= values.count == 1;
        }
      } catch (DecodeException error) {
        throw error.of(summary.text());
      }
    }
  }

  private void addSteps(FeatureSummary summary, byte[] data, int start, int end)
      throws DecodeException {
    wire.set(data, start, end);
    while (!wire.isEmpty()) {
      int tag = wire.tag();
      if (tag != Wire.delimited(1)) {
        wire.skip(tag);
        continue;
      }
      int length = wire.length();
      if (values.read(data, wire.at, wire.at + length)) {
        summary.addKind(values.kind);
      }
      wire.at += length;
    }
  }
}
