package phalanx.spark;

/** A message that is not a valid Example, or does not hold what was expected. */
final class DecodeException extends Exception {
  private static final long serialVersionUID = 1;

  DecodeException(String reason) {
    super(reason, null, false, false);
  }

  /** The same error, of a feature. */
  DecodeException of(String feature) {
    return new DecodeException("feature '" + feature + "' " + getMessage());
  }
}
