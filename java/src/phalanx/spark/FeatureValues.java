package phalanx.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/** The values of one Feature, reused from one Feature to the next. */
final class FeatureValues {
  static final int NONE = 0;
  static final int BYTES = 1;
  static final int FLOAT = 2;
  static final int INT64 = 3;
  static final String[] KINDS = {"nothing", "bytes", "float", "int64"};

  /** One byte of a message can become eight. */
  private static final int MOST_INT64S = 512 << 20 >> 3;

  private static final int LIST = Wire.delimited(1);
  private static final VarHandle FLOATS =
      MethodHandles.byteArrayViewVarHandle(float[].class, ByteOrder.LITTLE_ENDIAN);

  int kind;
  int count;
  long[] longs = new long[16];
  float[] floats = new float[16];

  /** Bytes are parts of this array, from {@code starts[i]} to {@code ends[i]}. */
  byte[] data;

  int[] starts = new int[16];
  int[] ends = new int[16];

  private final Wire wire = new Wire();
  private final Wire inner = new Wire();

  /**
   * Reads a Feature. Of several lists the last one counts, together with those of its kind directly
   * before it.
   *
   * @return whether it holds a list
   */
  boolean read(byte[] from, int start, int end) throws DecodeException {
    data = from;
    kind = NONE;
    count = 0;
    int size = end - start;
    // The usual form: one list with one field, whose lengths take one byte each.
    if (size >= 4 && size < 0x82 && isList(from[start]) && from[start + 1] == size - 2
        && from[start + 2] == LIST && from[start + 3] == size - 4) {
      kind = from[start] >> 3;
      append(start + 4, end);
      return true;
    }
    wire.set(from, start, end);
    while (!wire.isEmpty()) {
      int tag = wire.tag();
      if (!isList(tag)) {
        wire.skip(tag);
        continue;
      }
      if (tag >>> 3 != kind) {
        kind = tag >>> 3;
        count = 0;
      }
      int length = wire.length();
      readList(wire.at, wire.at + length);
      wire.at += length;
    }
    return kind != NONE;
  }

  private static boolean isList(int tag) {
    return tag == 10 || tag == 18 || tag == 26;
  }

  private void readList(int start, int end) throws DecodeException {
    inner.set(data, start, end);
    while (!inner.isEmpty()) {
      int tag = inner.tag();
      if (tag == LIST) {
        int length = inner.length();
        append(inner.at, inner.at + length);
        inner.at += length;
      } else if (kind == INT64 && tag == 8) { // numbers may also be unpacked
        int first = inner.at;
        inner.varint();
        append(first, inner.at);
      } else if (kind == FLOAT && tag == 13) {
        if (end - inner.at < 4) {
          throw Wire.damaged();
        }
        append(inner.at, inner.at + 4);
        inner.at += 4;
      } else {
        inner.skip(tag);
      }
    }
  }

  /** Appends packed numbers, or one byte string. */
  private void append(int start, int end) throws DecodeException {
    if (kind == INT64) {
      appendInt64s(start, end);
    } else if (kind == FLOAT) {
      appendFloats(start, end);
    } else {
      if (count == starts.length) {
        starts = Arrays.copyOf(starts, 2 * count);
        ends = Arrays.copyOf(ends, 2 * count);
      }
      starts[count] = start;
      ends[count++] = end;
    }
  }

  private void appendFloats(int start, int end) throws DecodeException {
    int more = (end - start) / 4;
    if (more * 4 != end - start) {
      throw Wire.damaged();
    }
    if (floats.length - count < more) {
      floats = Arrays.copyOf(floats, Math.max(count + more, 2 * count));
    }
    for (int i = 0; i < more; i++) {
      floats[count + i] = (float) FLOATS.get(data, start + 4 * i);
    }
    count += more;
  }

  private void appendInt64s(int start, int end) throws DecodeException {
    byte[] from = data;
    int at = start;
    if (longs.length - count < end - start) {
      reserveInt64s(start, end);
    }
    long[] to = longs;
    int next = count;
    while (at < end) {
      long value = from[at++];
      if (value < 0) {
        value &= 0x7f;
        int bits = 7;
        byte more;
        do {
          if (at == end || bits == 70) {
            throw Wire.damaged();
          }
          more = from[at++];
          value |= (more & 0x7fL) << bits;
          bits += 7;
        } while (more < 0);
      }
      to[next++] = value;
    }
    count = next;
  }

  /** Makes room for the varints, which end with the bytes that are not negative. */
  private void reserveInt64s(int start, int end) throws DecodeException {
    long more = 0;
    for (int i = start; i < end; i++) {
      more += data[i] >= 0 ? 1 : 0;
    }
    if (count + more > MOST_INT64S) {
      throw new DecodeException(
          "has more int64 values than fit into 512 MiB: write it as bytes or floats");
    }
    if (longs.length - count < more) {
      longs = Arrays.copyOf(longs, (int) Math.max(count + more, 2L * count));
    }
  }
}
