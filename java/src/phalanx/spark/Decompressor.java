package phalanx.spark;

import java.io.IOException;
import java.io.InputStream;
import java.util.zip.CRC32;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;

/**
 * Decompresses gzip or zlib. Java's own streams ask {@code available()} whether another member
 * follows, which remote files may answer with 0, and would end a file in the middle.
 */
final class Decompressor extends InputStream {
  private static final int BLOCK = 1 << 16;

  private final InputStream in;
  private final boolean isGzip;
  private final Inflater inflater;
  private final CRC32 crc = new CRC32();
  private final byte[] block = new byte[BLOCK];
  private int at;
  private int end;
  private boolean inMember;

  Decompressor(InputStream in, boolean isGzip) {
    this.in = in;
    this.isGzip = isGzip;
    inflater = new Inflater(isGzip);
  }

  @Override
  public int read() throws IOException {
    byte[] one = new byte[1];
    return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
  }

  @Override
  public int read(byte[] target, int offset, int length) throws IOException {
    while (true) {
      if (!inMember && !beginMember()) {
        return -1;
      }
      int count = inflate(target, offset, length);
      if (count > 0) {
        return count;
      }
    }
  }

  private int inflate(byte[] target, int offset, int length) throws IOException {
    try {
      int count = inflater.inflate(target, offset, length);
      if (count > 0) {
        if (isGzip) {
          crc.update(target, offset, count);
        }
        return count;
      }
    } catch (DataFormatException error) {
      throw damaged(error.getMessage());
    }
    if (inflater.finished()) {
      at = end - inflater.getRemaining();
      endMember();
    } else if (inflater.needsDictionary()) {
      throw damaged("it needs a dictionary");
    } else if (fill()) {
      inflater.setInput(block, 0, end);
      at = end;
    } else {
      throw new IOException("the " + name() + " data is cut short");
    }
    return 0;
  }

  /** Begins the next member. Zeros between members are padding, as tar and tape leave it. */
  private boolean beginMember() throws IOException {
    int first = next();
    while (first == 0) {
      first = next();
    }
    if (first < 0) {
      return false;
    }
    inflater.reset();
    crc.reset();
    at--;
    if (isGzip) {
      readGzipHeader();
    }
    inflater.setInput(block, at, end - at);
    at = end;
    inMember = true;
    return true;
  }

  private void readGzipHeader() throws IOException {
    if (need() != 0x1f || need() != 0x8b || need() != 8) {
      throw damaged("incorrect header check");
    }
    int flags = need();
    for (int i = 0; i < 6; i++) {
      need();
    }
    if ((flags & 4) != 0) {
      for (int size = need() | need() << 8; size > 0; size--) {
        need();
      }
    }
    for (int flag = 8; flag <= 16; flag *= 2) { // a name and a comment, each ended by a zero
      while ((flags & flag) != 0 && need() != 0) {
        continue;
      }
    }
    if ((flags & 2) != 0) {
      need();
      need();
    }
  }

  private void endMember() throws IOException {
    inMember = false;
    if (isGzip) {
      long sum = number();
      long size = number();
      if (sum != crc.getValue()) {
        throw damaged("incorrect data check");
      }
      if (size != (inflater.getBytesWritten() & 0xffffffffL)) {
        throw damaged("incorrect length check");
      }
    }
  }

  private long number() throws IOException {
    return need() | need() << 8 | need() << 16 | (long) need() << 24;
  }

  private int need() throws IOException {
    int value = next();
    if (value < 0) {
      throw new IOException("the " + name() + " data is cut short");
    }
    return value;
  }

  private int next() throws IOException {
    return at < end || fill() ? block[at++] & 0xff : -1;
  }

  private boolean fill() throws IOException {
    at = 0;
    end = Math.max(0, in.read(block, 0, BLOCK));
    return end > 0;
  }

  private IOException damaged(String reason) {
    return new IOException("the " + name() + " data is damaged (" + reason + ")");
  }

  private String name() {
    return isGzip ? "gzip" : "zlib";
  }

  @Override
  public void close() throws IOException {
    inflater.end();
    in.close();
  }
}
