/* The Python module phalanx.records._native. It takes and returns buffers, and releases the GIL
   while it works. The package codec documents the functions. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "crc32c.h"
#include "decode.h"
#include "encode.h"
#include "framing.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native codec needs a little-endian machine; use the codec in Python"
#endif

static PyTypeObject *block_type;
static PyObject *decode_error;
static uint64_t hash_seed;

/* Memory that C filled, exposed to Python as a read-only buffer. */
typedef struct {
    PyObject_HEAD
    buffer bytes;
} block;

/* Takes ownership of the memory, even if it fails. */
static PyObject *block_from(buffer *bytes) {
    block *self = (block *)PyType_GenericAlloc(block_type, 0);
    if (self == NULL) {
        buffer_free(bytes);
        return NULL;
    }
    self->bytes = *bytes;
    *bytes = (buffer){0};
    return (PyObject *)self;
}

static void block_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    buffer_free(&((block *)self)->bytes);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int block_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    static uint8_t nothing[8];
    buffer *bytes = &((block *)self)->bytes;
    return PyBuffer_FillInfo(view, self, bytes->data ? bytes->data : nothing,
                             (Py_ssize_t)bytes->size, 1, flags);
}

static Py_ssize_t block_length(PyObject *self) {
    return (Py_ssize_t)((block *)self)->bytes.size;
}

static PyType_Slot block_slots[] = {
    {Py_tp_dealloc, block_dealloc},
    {Py_bf_getbuffer, block_getbuffer},
    {Py_sq_length, block_length},
    {Py_tp_doc, "Memory that the codec filled: a read-only buffer."},
    {0, NULL},
};

static PyType_Spec block_spec = {
    .name = "phalanx.records._native.Block",
    .basicsize = sizeof(block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = block_slots,
};

static PyObject *native_crc32c(PyObject *module, PyObject *args) {
    Py_buffer data;
    unsigned int crc = 0;
    if (!PyArg_ParseTuple(args, "y*|I:crc32c", &data, &crc))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    crc = crc32c_extend(crc, data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *native_scan(PyObject *module, PyObject *args) {
    Py_buffer data;
    Py_ssize_t start, most;
    int check_data;
    if (!PyArg_ParseTuple(args, "y*nnp:scan", &data, &start, &most, &check_data))
        return NULL;
    if (start < 0 || start > data.len) {
        PyBuffer_Release(&data);
        PyErr_SetString(PyExc_ValueError, "scan starts outside the data");
        return NULL;
    }
    buffer spans = {0};
    frame_status status = FRAME_PARTIAL;
    uint64_t length = 0;
    size_t at = (size_t)start, size = (size_t)data.len;
    bool has_memory = true;
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t count = 0; count < most; count++) {
        status = frame_read((uint8_t *)data.buf + at, size - at, check_data, &length);
        if (status != FRAME_GOOD)
            break;
        int64_t found[2] = {(int64_t)(at + FRAME_HEADER), (int64_t)length};
        has_memory = buffer_append(&spans, found, sizeof found);
        if (!has_memory)
            break;
        at += FRAME_OVERHEAD + (size_t)length;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    if (!has_memory) {
        buffer_free(&spans);
        return PyErr_NoMemory();
    }
    PyObject *block = block_from(&spans);
    if (block == NULL)
        return NULL;
    return Py_BuildValue("(NniK)", block, (Py_ssize_t)at, (int)status, (unsigned long long)length);
}

static PyObject *native_find(PyObject *module, PyObject *args) {
    Py_buffer data;
    Py_ssize_t start;
    if (!PyArg_ParseTuple(args, "y*n:find", &data, &start))
        return NULL;
    size_t at;
    if (start < 0)
        start = 0;
    Py_BEGIN_ALLOW_THREADS;
    at = frame_find(data.buf, (size_t)data.len, (size_t)start);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    return PyLong_FromSize_t(at);
}

static PyObject *native_frame(PyObject *module, PyObject *args) {
    PyObject *records;
    if (!PyArg_ParseTuple(args, "O:frame", &records))
        return NULL;
    PyObject *list = PySequence_List(records);
    if (list == NULL)
        return NULL;
    buffer out = {0};
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        Py_buffer data;
        if (PyObject_GetBuffer(PyList_GetItem(list, i), &data, PyBUF_SIMPLE) < 0)
            goto failed;
        bool has_room = buffer_reserve(&out, (size_t)data.len + FRAME_OVERHEAD);
        if (has_room) {
            uint8_t *frame = out.data + out.size;
            if (data.len > 0)
                memcpy(frame + FRAME_HEADER, data.buf, (size_t)data.len);
            frame_seal(frame, (uint64_t)data.len);
            out.size += (size_t)data.len + FRAME_OVERHEAD;
        }
        PyBuffer_Release(&data);
        if (!has_room) {
            PyErr_NoMemory();
            goto failed;
        }
    }
    Py_DECREF(list);
    return block_from(&out);
failed:
    Py_DECREF(list);
    buffer_free(&out);
    return NULL;
}

static const char *kind_names[] = {"nothing", "bytes", "float", "int64"};

/* Raises DecodeError(row, feature or None, description). */
static void raise_decode_error(const decoder *d, decode_status status) {
    const column *c = d->failed >= 0 ? &d->columns[d->failed] : NULL;
    PyObject *text = NULL, *name = NULL;
    switch (status) {
    case DECODE_NO_MEMORY:
        PyErr_NoMemory();
        return;
    case DECODE_OTHER_KIND:
        text = PyUnicode_FromFormat("holds %s values, and %s values were expected",
                                    kind_names[d->found_kind], kind_names[c->kind]);
        break;
    case DECODE_OTHER_WIDTH:
        text = PyUnicode_FromFormat("has %lld values, and %lld were expected",
                                    (long long)d->found_width, (long long)c->width);
        break;
    case DECODE_OVER_BUDGET:
        text = PyUnicode_FromFormat("needs more than %d MiB for the rows that lack it: decode fewer "
                                    "rows at a time, or give it the shape (None,)",
                                    MOST_PADDING >> 20);
        break;
    case DECODE_OVER_INT64S:
        text = PyUnicode_FromFormat("has more int64 values than fit into %d MiB: decode fewer rows "
                                    "at a time, or write it as bytes or floats",
                                    MOST_INT64S >> 20);
        break;
    case DECODE_TOO_MANY:
        text = PyUnicode_FromString("there are more than 16384 different features: give a schema");
        break;
    default:
        text = PyUnicode_FromString(c ? "is damaged" : "the message is damaged");
    }
    if (c != NULL)
        name = PyUnicode_DecodeUTF8((char *)c->name, (Py_ssize_t)c->name_size, "replace");
    else
        name = Py_NewRef(Py_None);
    if (text != NULL && name != NULL) {
        PyObject *args = Py_BuildValue("(LOO)", (long long)d->rows, name, text);
        if (args != NULL)
            PyErr_SetObject(decode_error, args);
        Py_XDECREF(args);
    }
    Py_XDECREF(text);
    Py_XDECREF(name);
}

/* The fields of RawColumn in the package codec. */
static PyObject *column_to_tuple(column *c) {
    PyObject *name = PyBytes_FromStringAndSize((char *)c->name, (Py_ssize_t)c->name_size);
    PyObject *values = block_from(&c->values);
    PyObject *value_offsets = block_from(&c->value_offsets);
    PyObject *step_offsets = block_from(&c->step_offsets);
    PyObject *row_offsets = block_from(&c->row_offsets);
    PyObject *validity = block_from(&c->validity);
    if (!name || !values || !value_offsets || !step_offsets || !row_offsets || !validity) {
        Py_XDECREF(name);
        Py_XDECREF(values);
        Py_XDECREF(value_offsets);
        Py_XDECREF(step_offsets);
        Py_XDECREF(row_offsets);
        Py_XDECREF(validity);
        return NULL;
    }
    return Py_BuildValue("(NiOLNNNNNLLLLL)", name, (int)c->kind, c->sequence ? Py_True : Py_False,
                         (long long)c->width, values, value_offsets, step_offsets, row_offsets,
                         validity, (long long)c->missing,
                         (long long)(c->shortest == INT64_MAX ? 0 : c->shortest),
                         (long long)c->longest,
                         (long long)(c->narrowest == INT64_MAX ? 0 : c->narrowest),
                         (long long)c->widest);
}

static bool add_columns(decoder *d, PyObject *columns) {
    PyObject *list = PySequence_List(columns);
    if (list == NULL)
        return false;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        Py_buffer name;
        int number, sequence;
        long long width;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "y*ipL;(name, kind, sequence, width)",
                              &name, &number, &sequence, &width))
            goto failed;
        bool is_valid = number >= KIND_BYTES && number <= KIND_INT64 && width >= RAGGED &&
                        width <= INT32_MAX && !(sequence && width != RAGGED);
        bool has_memory = is_valid && decoder_add(d, name.buf, (size_t)name.len, (kind)number,
                                                  sequence, width) == DECODE_DONE;
        PyBuffer_Release(&name);
        if (!is_valid) {
            PyErr_SetString(PyExc_ValueError, "no such column can be decoded");
            goto failed;
        }
        if (!has_memory) {
            PyErr_NoMemory();
            goto failed;
        }
    }
    Py_DECREF(list);
    return true;
failed:
    Py_DECREF(list);
    return false;
}

/* Spans are pairs of int64: the offset of a message in the data, and its length. */
static bool check_spans(const Py_buffer *data, const Py_buffer *spans) {
    const int64_t *pairs = spans->buf;
    int64_t total = 0, count = spans->len / 16;
    if (spans->len % 16 != 0 || (uintptr_t)spans->buf % sizeof(int64_t) != 0 || count > INT32_MAX)
        return false;
    for (int64_t i = 0; i < count; i++) {
        int64_t start = pairs[2 * i], length = pairs[2 * i + 1];
        if (start < 0 || length < 0 || start > data->len || length > data->len - start)
            return false;
        total += length;
        if (total > INT32_MAX)
            return false;
    }
    return true;
}

static PyObject *native_decode(PyObject *module, PyObject *args) {
    Py_buffer data, spans;
    PyObject *columns, *result = NULL;
    int sequence;
    if (!PyArg_ParseTuple(args, "y*y*Op:decode", &data, &spans, &columns, &sequence))
        return NULL;
    decoder d;
    decoder_init(&d, sequence, columns == Py_None, (size_t)spans.len / 16, hash_seed);
    if (!check_spans(&data, &spans)) {
        PyErr_SetString(PyExc_ValueError, "spans lie outside the data, or hold 2 GiB or more");
        goto done;
    }
    if (columns != Py_None && !add_columns(&d, columns))
        goto done;
    decode_status status = DECODE_DONE;
    const int64_t *pairs = spans.buf;
    const uint8_t *start = data.buf ? data.buf : (const uint8_t *)"";
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t i = 0; i < spans.len / 16 && status == DECODE_DONE; i++)
        status = decoder_add_row(&d, start + pairs[2 * i], (size_t)pairs[2 * i + 1]);
    Py_END_ALLOW_THREADS;
    if (status != DECODE_DONE) {
        raise_decode_error(&d, status);
        goto done;
    }
    result = PyList_New(0);
    for (int32_t i = 0; result != NULL && i < d.count; i++) {
        PyObject *tuple = column_to_tuple(&d.columns[i]);
        if (tuple == NULL || PyList_Append(result, tuple) < 0)
            Py_CLEAR(result);
        Py_XDECREF(tuple);
    }
done:
    decoder_free(&d);
    PyBuffer_Release(&data);
    PyBuffer_Release(&spans);
    return result;
}

/* A column and the Python buffers that it refers to. */
typedef struct {
    source_column column;
    Py_buffer name, values, value_offsets, step_offsets, row_offsets, present;
} held_column;

static void release_column(held_column *held) {
    Py_buffer *all[] = {&held->name,         &held->values,      &held->value_offsets,
                        &held->step_offsets, &held->row_offsets, &held->present};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->obj != NULL)
            PyBuffer_Release(all[i]);
}

/* The `count` + 1 int64 offsets in a buffer, or NULL if it has another size. */
static const int64_t *offsets_in(const Py_buffer *view, int64_t count) {
    bool is_valid = view->obj != NULL && (uintptr_t)view->buf % sizeof(int64_t) == 0 &&
                    view->len % 8 == 0 && view->len / 8 - 1 == count;
    return is_valid ? view->buf : NULL;
}

static bool hold_column(held_column *held, PyObject *tuple, int64_t rows) {
    source_column *c = &held->column;
    int number, sequence;
    long long width, value_count, step_count;
    if (!PyArg_ParseTuple(
            tuple,
            "y*ipLy*Lz*z*Lz*z*;(name, kind, sequence, width, values, value_count, value_offsets, "
            "step_offsets, step_count, row_offsets, present)",
            &held->name, &number, &sequence, &width, &held->values, &value_count,
            &held->value_offsets, &held->step_offsets, &step_count, &held->row_offsets,
            &held->present))
        return false;
    *c = (source_column){
        .name = held->name.buf,
        .name_size = (size_t)held->name.len,
        .sequence = sequence,
        .width = width,
        .values = held->values.buf,
        .values_size = (size_t)held->values.len,
        .value_count = value_count,
        .step_count = step_count,
        .present = held->present.obj ? held->present.buf : NULL,
    };
    bool is_valid = number >= KIND_BYTES && number <= KIND_INT64 && width >= RAGGED &&
                    value_count >= 0 && step_count >= 0 &&
                    (c->present == NULL || held->present.len == rows);
    if (is_valid) {
        c->kind = (kind)number;
        c->row_offsets = offsets_in(&held->row_offsets, rows);
        c->step_offsets = offsets_in(&held->step_offsets, step_count);
        c->value_offsets = offsets_in(&held->value_offsets, value_count);
        is_valid = (c->width != RAGGED || c->row_offsets != NULL) &&
                   (!c->sequence || c->step_offsets != NULL) &&
                   (c->kind != KIND_BYTES || c->value_offsets != NULL) && encode_check(c, rows);
    }
    if (!is_valid)
        PyErr_SetString(PyExc_ValueError, "a column's offsets do not fit its values");
    return is_valid;
}

static PyObject *native_encode(PyObject *module, PyObject *args) {
    PyObject *columns, *result = NULL;
    long long rows;
    int sequence, framed;
    if (!PyArg_ParseTuple(args, "OLpp:encode", &columns, &rows, &sequence, &framed))
        return NULL;
    PyObject *list = PySequence_List(columns);
    if (list == NULL)
        return NULL;
    size_t count = (size_t)PyList_Size(list), held_count = 0;
    held_column *held = calloc(count + 1, sizeof *held);
    source_column *sources = calloc(count + 1, sizeof *sources);
    buffer out = {0}, ends = {0};
    if (held == NULL || sources == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (rows < 0) {
        PyErr_SetString(PyExc_ValueError, "rows cannot be fewer than 0");
        goto done;
    }
    for (; held_count < count; held_count++) {
        if (!hold_column(&held[held_count], PyList_GetItem(list, (Py_ssize_t)held_count), rows)) {
            release_column(&held[held_count]);
            goto done;
        }
        sources[held_count] = held[held_count].column;
    }
    bool has_memory = true;
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t row = 0; has_memory && row < rows; row++) {
        has_memory = encode_row(&out, sources, count, row, sequence, framed);
        int64_t end = (int64_t)out.size;
        has_memory = has_memory && buffer_append(&ends, &end, sizeof end);
    }
    Py_END_ALLOW_THREADS;
    if (!has_memory) {
        PyErr_NoMemory();
        goto done;
    }
    PyObject *messages = block_from(&out), *end_block = block_from(&ends);
    if (messages != NULL && end_block != NULL)
        result = Py_BuildValue("(OO)", messages, end_block);
    Py_XDECREF(messages);
    Py_XDECREF(end_block);
done:
    for (size_t i = 0; held != NULL && i < held_count; i++)
        release_column(&held[i]);
    free(held);
    free(sources);
    buffer_free(&out);
    buffer_free(&ends);
    Py_DECREF(list);
    return result;
}

static PyMethodDef methods[] = {
    {"crc32c", native_crc32c, METH_VARARGS, "crc32c(data, crc=0) -> int"},
    {"scan", native_scan, METH_VARARGS,
     "scan(data, start, most, check_data) -> (spans, next, status, length)"},
    {"find", native_find, METH_VARARGS, "find(data, start) -> offset"},
    {"frame", native_frame, METH_VARARGS, "frame(records) -> bytes of a TFRecord file"},
    {"decode", native_decode, METH_VARARGS,
     "decode(data, spans, columns or None, sequence) -> columns"},
    {"encode", native_encode, METH_VARARGS,
     "encode(columns, rows, sequence, framed) -> (messages, end of each)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "phalanx.records._native",
    .m_doc = "The TFRecord codec in C; see phalanx.records.codec.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    crc32c_init();
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    /* Python's own seed against names that are made to collide. */
    PyObject *text = PyUnicode_FromString("phalanx");
    hash_seed = text ? (uint64_t)PyObject_Hash(text) : 0;
    Py_XDECREF(text);
    block_type = (PyTypeObject *)PyType_FromSpec(&block_spec);
    decode_error = PyErr_NewException("phalanx.records._native.DecodeError", PyExc_ValueError, NULL);
    if (block_type == NULL || decode_error == NULL ||
        PyModule_AddObjectRef(module, "Block", (PyObject *)block_type) < 0 ||
        PyModule_AddObjectRef(module, "DecodeError", decode_error) < 0 ||
        PyModule_AddStringConstant(module, "CRC32C", crc32c_implementation()) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
