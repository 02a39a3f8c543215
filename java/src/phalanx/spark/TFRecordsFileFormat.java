package phalanx.spark;

/** The same format under its old name. */
public class TFRecordsFileFormat extends TFRecordFileFormat {
  private static final long serialVersionUID = 1;

  @Override
  public String shortName() {
    return "tfrecords";
  }
}
