package phalanx.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Writes records to a stream. */
public final class TFRecordWriter implements Closeable {
  private final OutputStream out;

  /** @param out the stream, which should be buffered */
  public TFRecordWriter(OutputStream out) {
    this.out = out;
  }

  public void write(byte[] record) throws IOException {
    write(record, 0, record.length);
  }

  public void write(byte[] data, int offset, int length) throws IOException {
    ByteBuffer header = ByteBuffer.allocate(Frames.HEADER).order(ByteOrder.LITTLE_ENDIAN);
    header.putLong(length);
    header.putInt(Frames.maskedCrc(header.array(), 0, 8));
    out.write(header.array());
    out.write(data, offset, length);
    ByteBuffer footer = ByteBuffer.allocate(Frames.FOOTER).order(ByteOrder.LITTLE_ENDIAN);
    out.write(footer.putInt(Frames.maskedCrc(data, offset, length)).array());
  }

  @Override
  public void close() throws IOException {
    out.close();
  }
}
