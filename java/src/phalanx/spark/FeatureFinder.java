package phalanx.spark;

import java.util.Arrays;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Finds the features of a message by their names. Features that nobody asked for are skipped, or
 * added if {@code discovers} is true.
 */
final class FeatureFinder {
  private static final int MOST_FEATURES = 16384;
  private static final int ENTRIES = Wire.delimited(1);
  private static final int LISTS = Wire.delimited(2);

  private final boolean discovers;
  private boolean readsLists;
  // Nobody shall be able to choose names that collide.
  private final int seed = ThreadLocalRandom.current().nextInt();

  int count;
  private byte[][] names = new byte[16][];
  private boolean[] sequences = new boolean[16];
  private int[] followers = new int[16];
  private int[] slots = newSlots(64);

  /** Where the value of each feature is; {@code data[i]} is null if the message lacks it. */
  byte[][] data = new byte[16][];

  int[] starts = new int[16];
  int[] ends = new int[16];

  private final Wire message = new Wire();
  private final Wire map = new Wire();
  private final Wire entry = new Wire();
  private int last;

  FeatureFinder(boolean discovers) {
    this.discovers = discovers;
    readsLists = discovers;
  }

  /** Adds a feature, or a feature list, and returns its number. */
  int add(byte[] name, boolean sequence) {
    if (count == names.length) {
      grow();
    }
    names[count] = name;
    sequences[count] = sequence;
    followers[count] = count + 1;
    readsLists |= sequence;
    slots[findSlot(name, 0, name.length, sequence)] = count;
    return count++;
  }

  byte[] name(int number) {
    return names[number];
  }

  boolean isSequence(int number) {
    return sequences[number];
  }

  private void grow() {
    int capacity = 2 * count;
    names = Arrays.copyOf(names, capacity);
    sequences = Arrays.copyOf(sequences, capacity);
    followers = Arrays.copyOf(followers, capacity);
    data = Arrays.copyOf(data, capacity);
    starts = Arrays.copyOf(starts, capacity);
    ends = Arrays.copyOf(ends, capacity);
    slots = newSlots(4 * capacity);
    for (int i = 0; i < count; i++) {
      slots[findSlot(names[i], 0, names[i].length, sequences[i])] = i;
    }
  }

  private static int[] newSlots(int size) {
    int[] slots = new int[size];
    Arrays.fill(slots, -1);
    return slots;
  }

  private int findSlot(byte[] from, int start, int end, boolean sequence) {
    int hash = sequence ? seed ^ 0x9e3779b9 : seed;
    for (int i = start; i < end; i++) {
      hash = (hash ^ from[i]) * 0x01b873593;
      hash ^= hash >>> 15;
    }
    int mask = slots.length - 1;
    int slot = hash & mask;
    while (slots[slot] >= 0 && !hasName(slots[slot], from, start, end, sequence)) {
      slot = slot + 1 & mask;
    }
    return slot;
  }

  private boolean hasName(int number, byte[] from, int start, int end, boolean sequence) {
    byte[] name = names[number];
    return name.length == end - start
        && sequences[number] == sequence
        && Arrays.equals(name, 0, name.length, from, start, end);
  }

  /** Finds the features of a message; the last entry of a name counts. */
  void find(byte[] from, int start, int end) throws DecodeException {
    Arrays.fill(data, 0, count, null);
    last = -1;
    message.set(from, start, end);
    try {
      while (!message.isEmpty()) {
        int tag = message.tag();
        if (tag == ENTRIES || (tag == LISTS && readsLists)) {
          int length = message.length();
          readMap(from, message.at, message.at + length, tag == LISTS);
          message.at += length;
        } else {
          message.skip(tag);
        }
      }
    } catch (DecodeException error) {
      throw error.getMessage().equals("is damaged")
          ? new DecodeException("the message is damaged")
          : error;
    }
  }

  private void readMap(byte[] from, int start, int end, boolean sequence) throws DecodeException {
    map.set(from, start, end);
    while (!map.isEmpty()) {
      int tag = map.tag();
      if (tag == ENTRIES) {
        int length = map.length();
        readEntry(from, map.at, map.at + length, sequence);
        map.at += length;
      } else {
        map.skip(tag);
      }
    }
  }

  private void readEntry(byte[] from, int start, int end, boolean sequence)
      throws DecodeException {
    // The usual form: a short name, its value, and nothing else.
    if (end - start >= 4 && from[start] == ENTRIES && from[start + 1] >= 0
        && from[start + 1] <= end - start - 4) {
      int nameEnd = start + 2 + from[start + 1];
      if (from[nameEnd] == LISTS) {
        entry.set(from, nameEnd + 1, end);
        int length = entry.length();
        if (entry.at + length == end) {
          found(from, start + 2, nameEnd, sequence, from, entry.at, end);
          return;
        }
      }
    }
    readAnyEntry(from, start, end, sequence);
  }

  private void readAnyEntry(byte[] from, int start, int end, boolean sequence)
      throws DecodeException {
    int nameStart = end;
    int nameEnd = end;
    byte[] value = from;
    int valueStart = end;
    int valueEnd = end;
    boolean hasValue = false;
    entry.set(from, start, end);
    while (!entry.isEmpty()) {
      int tag = entry.tag();
      if (tag == ENTRIES) {
        int length = entry.length();
        nameStart = entry.at;
        nameEnd = entry.at += length;
      } else if (tag == LISTS) {
        int length = entry.length();
        if (hasValue) { // protobuf merges a value in several parts by concatenation
          if (value == from) {
            // The entry is large enough for all parts, so that each is copied once.
            value = new byte[end - start];
            System.arraycopy(from, valueStart, value, 0, valueEnd - valueStart);
            valueEnd -= valueStart;
            valueStart = 0;
          }
          System.arraycopy(from, entry.at, value, valueEnd, length);
          valueEnd += length;
        } else {
          valueStart = entry.at;
          valueEnd = entry.at + length;
        }
        hasValue = true;
        entry.at += length;
      } else {
        entry.skip(tag);
      }
    }
    found(from, nameStart, nameEnd, sequence, value, valueStart, valueEnd);
  }

  private void found(
      byte[] from, int nameStart, int nameEnd, boolean sequence, byte[] value, int start, int end)
      throws DecodeException {
    int number = findNumber(from, nameStart, nameEnd, sequence);
    if (number >= 0) {
      data[number] = value;
      starts[number] = start;
      ends[number] = end;
    }
  }

  /** Most messages have their features in the same order: tries the one that followed before. */
  private int findNumber(byte[] from, int start, int end, boolean sequence)
      throws DecodeException {
    int guess = last < 0 ? 0 : followers[last];
    if (guess < count && hasName(guess, from, start, end, sequence)) {
      last = guess;
      return guess;
    }
    int number = slots[findSlot(from, start, end, sequence)];
    if (number < 0 && discovers) {
      if (count == MOST_FEATURES) {
        throw new DecodeException(
            "there are more than " + MOST_FEATURES + " different features: give a schema");
      }
      number = add(Arrays.copyOfRange(from, start, end), sequence);
    }
    if (number >= 0) {
      if (last >= 0) {
        followers[last] = number;
      }
      last = number;
    }
    return number;
  }
}
