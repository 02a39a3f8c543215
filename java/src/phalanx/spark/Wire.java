package phalanx.spark;

/**
 * A position in protobuf's wire format. It follows the rules of the codec in C (wire.c), so that
 * both accept the same messages.
 */
final class Wire {
  private static final int MOST_GROUPS = 100;
  private static final int MOST_SHORT = 5;

  byte[] data;
  int at;
  int end;

  static int delimited(int number) {
    return number << 3 | 2;
  }

  void set(byte[] from, int start, int stop) {
    data = from;
    at = start;
    end = stop;
  }

  boolean isEmpty() {
    return at == end;
  }

  long varint() throws DecodeException {
    if (at < end && data[at] >= 0) {
      return data[at++];
    }
    long value = 0;
    for (int bits = 0; bits < 70 && at < end; bits += 7) {
      byte next = data[at++];
      value |= (next & 0x7fL) << bits;
      if (next >= 0) {
        return value;
      }
    }
    throw damaged();
  }

  /** Reads a tag or a length, for which protobuf takes at most 5 bytes. */
  private long shortVarint() throws DecodeException {
    int start = at;
    long value = varint();
    if (at - start > MOST_SHORT || value >>> 32 != 0) {
      throw damaged();
    }
    return value;
  }

  int tag() throws DecodeException {
    int tag = (int) shortVarint();
    if (tag >>> 3 == 0) {
      throw damaged();
    }
    return tag;
  }

  /** Reads a length; as many bytes follow. */
  int length() throws DecodeException {
    long length = shortVarint();
    if (length > end - at) {
      throw damaged();
    }
    return (int) length;
  }

  /** Skips the content of a field after its tag. */
  void skip(int tag) throws DecodeException {
    if ((tag & 7) == 2) {
      skipDelimited();
      return;
    }
    int[] open = new int[MOST_GROUPS];
    int depth = 0;
    int next = tag;
    while (true) {
      switch (next & 7) {
        case 0:
          varint();
          break;
        case 1:
          skipBytes(8);
          break;
        case 2:
          skipDelimited();
          break;
        case 3:
          if (depth == MOST_GROUPS) {
            throw damaged();
          }
          open[depth++] = next >>> 3;
          break;
        case 4:
          if (depth == 0 || open[--depth] != next >>> 3) {
            throw damaged();
          }
          break;
        case 5:
          skipBytes(4);
          break;
        default:
          throw damaged();
      }
      if (depth == 0) {
        return;
      }
      // In an unknown group protobuf allows the field number 0.
      next = (int) shortVarint();
    }
  }

  private void skipDelimited() throws DecodeException {
    int length = length();
    at += length;
  }

  private void skipBytes(int count) throws DecodeException {
    if (end - at < count) {
      throw damaged();
    }
    at += count;
  }

  static DecodeException damaged() {
    return new DecodeException("is damaged");
  }
}
