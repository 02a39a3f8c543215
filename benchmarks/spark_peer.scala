/* A straightforward Spark data source for TFRecord files: rows, inside the JVM. It is the baseline of
   benchmarks/spark.py, and supports only what that benchmark needs. */
package phalanx.benchmark

import java.io.{BufferedInputStream, BufferedOutputStream, ByteArrayOutputStream, DataInputStream}
import java.nio.{ByteBuffer, ByteOrder}
import java.util.zip.CRC32C

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, Path}
import org.apache.hadoop.mapreduce.{Job, TaskAttemptContext}
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeArrayData}
import org.apache.spark.sql.execution.datasources.{FileFormat, OutputWriter, OutputWriterFactory, PartitionedFile}
import org.apache.spark.sql.sources.Filter
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String
import org.apache.spark.util.SerializableConfiguration

class TFRecordPeer extends FileFormat with Serializable {
  override def inferSchema(
      session: SparkSession, options: Map[String, String], files: Seq[FileStatus]) = None

  override def prepareWrite(
      session: SparkSession, job: Job, options: Map[String, String], schema: StructType)
      : OutputWriterFactory = new OutputWriterFactory {
    override def getFileExtension(context: TaskAttemptContext) = ".tfrecord"
    override def newInstance(path: String, schema: StructType, context: TaskAttemptContext) =
      new RowWriter(path, schema, context)
  }

  override def isSplitable(session: SparkSession, options: Map[String, String], path: Path) = false

  override def buildReader(
      session: SparkSession, dataSchema: StructType, partitionSchema: StructType,
      requiredSchema: StructType, filters: Seq[Filter], options: Map[String, String],
      configuration: Configuration): PartitionedFile => Iterator[InternalRow] = {
    val shared = session.sparkContext.broadcast(new SerializableConfiguration(configuration))
    file => new Rows(file.toPath, shared.value.value, requiredSchema)
  }
}

class Rows(path: Path, configuration: Configuration, schema: StructType)
    extends Iterator[InternalRow] {
  private val in = new DataInputStream(
    new BufferedInputStream(path.getFileSystem(configuration).open(path), 1 << 20))
  private val columns = schema.fieldNames.zipWithIndex.map { case (name, column) =>
    UTF8String.fromString(name) -> column
  }.toMap
  private val isArray = schema.map(_.dataType.isInstanceOf[ArrayType]).toArray
  private val row = new GenericInternalRow(schema.length)
  private val header = new Array[Byte](12)
  private val crc = new CRC32C
  private var data = new Array[Byte](1 << 16)
  private var at = 0
  private var longs = new Array[Long](64)
  private var isRead = false
  private var isAtEnd = false

  override def hasNext: Boolean = {
    if (!isRead && !isAtEnd) {
      if (in.readNBytes(header, 0, 12) < 12) { isAtEnd = true; in.close() }
      else { readRecord(); isRead = true }
    }
    !isAtEnd
  }

  override def next(): InternalRow = { hasNext; isRead = false; row }

  private def check(bytes: Array[Byte], length: Int, expected: Int): Unit = {
    crc.reset()
    crc.update(bytes, 0, length)
    val value = crc.getValue.toInt
    require(((value >>> 15) | (value << 17)) + 0xa282ead8 == expected, s"$path is damaged")
  }

  private def readRecord(): Unit = {
    val numbers = ByteBuffer.wrap(header).order(ByteOrder.LITTLE_ENDIAN)
    check(header, 8, numbers.getInt(8))
    val length = numbers.getLong(0).toInt
    if (data.length < length + 4) data = new Array[Byte](2 * length + 4)
    in.readFully(data, 0, length + 4)
    check(data, length, ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN).getInt(length))
    java.util.Arrays.fill(row.values.asInstanceOf[Array[AnyRef]], null)
    at = 0
    while (at < length) {
      at += 1
      val end = varint().toInt + at
      while (at < end) readEntry()
    }
  }

  private def readEntry(): Unit = {
    at += 1
    val end = varint().toInt + at
    at += 1
    val size = varint().toInt
    val column = columns.getOrElse(UTF8String.fromBytes(data, at, size), -1)
    at += size
    if (column >= 0 && at < end) {
      at += 1
      varint()
      if (at < end) readFeature(column, end)
    }
    at = end
  }

  private def readFeature(column: Int, end: Int): Unit = {
    val kind = data(at) >> 3
    at += 1
    varint()
    if (at == end) row.update(column, UnsafeArrayData.fromPrimitiveArray(new Array[Long](0)))
    else {
      at += 1
      val size = varint().toInt
      kind match {
        case 1 => row.update(column, UTF8String.fromBytes(data, at, size).copy())
        case 2 =>
          row.update(column, ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN).getFloat(at))
        case 3 =>
          var count = 0
          while (at < end) {
            if (count == longs.length) longs = java.util.Arrays.copyOf(longs, 2 * count)
            longs(count) = varint()
            count += 1
          }
          if (isArray(column))
            row.update(
              column, UnsafeArrayData.fromPrimitiveArray(java.util.Arrays.copyOf(longs, count)))
          else row.update(column, longs(0))
      }
    }
  }

  private def varint(): Long = {
    var value = 0L
    var shift = 0
    var byte = data(at)
    while (byte < 0) {
      value |= (byte & 0x7fL) << shift
      shift += 7
      at += 1
      byte = data(at)
    }
    at += 1
    value | byte.toLong << shift
  }
}

/* The parts of a message, from the inside to the outside. */
class Part extends ByteArrayOutputStream {
  def varint(value: Long): Unit = {
    var rest = value
    while ((rest & ~0x7fL) != 0) { write((rest | 0x80).toInt); rest >>>= 7 }
    write(rest.toInt)
  }

  def field(number: Int, bytes: Array[Byte], size: Int): Unit = {
    write(number << 3 | 2)
    varint(size)
    write(bytes, 0, size)
  }

  def field(number: Int, part: Part): Unit = field(number, part.bytes, part.size)

  private def bytes = buf
}

class RowWriter(val path: String, schema: StructType, context: TaskAttemptContext)
    extends OutputWriter {
  private val file = new Path(path)
  private val out = new BufferedOutputStream(
    file.getFileSystem(context.getConfiguration).create(file), 1 << 20)
  private val names = schema.fieldNames.map(_.getBytes("UTF-8"))
  private val types = schema.map(_.dataType).toArray
  private val values, list, feature, entry, features, message = new Part
  private val crc = new CRC32C
  private val frame = ByteBuffer.allocate(12).order(ByteOrder.LITTLE_ENDIAN)

  override def write(row: InternalRow): Unit = {
    features.reset()
    var column = 0
    while (column < types.length) {
      if (!row.isNullAt(column)) {
        Seq(values, list, feature, entry).foreach(_.reset())
        val kind = types(column) match {
          case StringType =>
            val text = row.getUTF8String(column).getBytes
            list.field(1, text, text.length)
            1
          case FloatType =>
            values.write(
              ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putFloat(row.getFloat(column)).array)
            list.field(1, values)
            2
          case LongType =>
            values.varint(row.getLong(column))
            list.field(1, values)
            3
          case ArrayType(LongType, _) =>
            row.getArray(column).toLongArray().foreach(values.varint)
            list.field(1, values)
            3
        }
        feature.field(kind, list)
        entry.field(1, names(column), names(column).length)
        entry.field(2, feature)
        features.field(1, entry)
      }
      column += 1
    }
    message.reset()
    message.field(1, features)
    val bytes = message.toByteArray
    frame.putLong(0, bytes.length).putInt(8, checksum(frame.array, 8))
    out.write(frame.array)
    out.write(bytes)
    frame.putInt(8, checksum(bytes, bytes.length))
    out.write(frame.array, 8, 4)
  }

  private def checksum(bytes: Array[Byte], length: Int): Int = {
    crc.reset()
    crc.update(bytes, 0, length)
    val value = crc.getValue.toInt
    ((value >>> 15) | (value << 17)) + 0xa282ead8
  }

  override def close(): Unit = out.close()
}
