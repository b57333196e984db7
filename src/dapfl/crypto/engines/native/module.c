/* dapfl.crypto.engines._native: checks the sizes of what Python hands over, lets go of the
 * interpreter's lock, and calls a backend. Nothing below this file checks a length again. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "batch.h"

#include <fenv.h>
#include <string.h>

static const backend *const BACKENDS[] = {&dapfl_ifma, &dapfl_avx2, &dapfl_portable};
#define BACKEND_COUNT (sizeof BACKENDS / sizeof BACKENDS[0])
#define MAX_BATCHES 4096
#define MAX_EXPONENT 4096

/* Backends count on rounding toward zero (avx2.c); the caller's rounding is put back. */
#define WITHOUT_LOCK(call)              \
    do {                                \
        Py_BEGIN_ALLOW_THREADS          \
        int rounding = fegetround();    \
        fesetround(FE_TOWARDZERO);      \
        call;                           \
        fesetround(rounding);           \
        Py_END_ALLOW_THREADS            \
    } while (0)

static const backend *find_backend(const char *name) {
    for (size_t i = 0; i < BACKEND_COUNT; i++)
        if (!strcmp(name, BACKENDS[i]->name) && BACKENDS[i]->usable()) return BACKENDS[i];
    PyErr_Format(PyExc_ValueError, "this machine has no backend '%s'", name);
    return NULL;
}

static int refuse(const char *what) {
    PyErr_Format(PyExc_ValueError, "%s has the wrong size", what);
    return 0;
}

/* The words of a ring in the order of batch.h, after a header of RING_HEADER words: `length` bytes in all. */
static int read_ring_at(const uint64_t *word, size_t length, ring *r) {
    if (length < RING_HEADER * 8 || (uintptr_t)word % 8) return refuse("ring");
    uint64_t K = word[0], root_bytes = word[1], modulus_bytes = word[2], cut = word[3];
    if (K < 4 || K % 4 || K > MAX_LIMBS) return refuse("ring");
    if (root_bytes < 1 || root_bytes > BITS * K / 8) return refuse("ring");
    if (modulus_bytes != 2 * root_bytes && modulus_bytes != 2 * root_bytes - 1) return refuse("ring");
    if (cut > 2 * K || length != 8 * (RING_HEADER + RING_WORDS(K))) return refuse("ring");
    *r = (ring){(int)K, (int)root_bytes, (int)modulus_bytes, (int)cut, word + RING_HEADER, 0, 0, 0, 0, 0, 0};
    r->root = r->minus_inverse + 4;
    r->cover = r->root + K;
    r->one = r->cover + K;
    r->lift = r->one + 2 * K;
    r->square = r->lift + MAX_CHUNKS * 2 * K;
    r->mu = r->square + 2 * K;
    return 1;
}

static int read_ring(const Py_buffer *view, ring *r) { return read_ring_at(view->buf, (size_t)view->len, r); }

/* `count` rings, one after the other, with the same limbs and widths. Sets rings to memory for the caller to free. */
static int read_rings(const Py_buffer *view, size_t count, ring **rings) {
    *rings = NULL;
    if (!count || count > (size_t)view->len / 8 || (size_t)view->len % (8 * count)) return refuse("rings");
    size_t words = (size_t)view->len / (8 * count);
    ring *r = calloc(count, sizeof *r);
    if (!(*rings = r)) return PyErr_NoMemory(), 0;
    for (size_t i = 0; i < count; i++) {
        if (!read_ring_at((const uint64_t *)view->buf + i * words, 8 * words, &r[i])) return 0;
        if (r[i].limbs != r->limbs || r[i].root_bytes != r->root_bytes || r[i].modulus_bytes != r->modulus_bytes)
            return refuse("rings");
    }
    return 1;
}

/* `view` must be count rows of `width` bytes; a row may have up to `chunks` times K limbs. */
static int check_rows(const Py_buffer *view, size_t count, Py_ssize_t width, const ring *r, int chunks,
                      const char *what) {
    if (width < 1 || 8 * (size_t)width > (size_t)chunks * (size_t)(r->limbs * BITS)) return refuse(what);
    return (size_t)view->len == count * (size_t)width && (size_t)view->len / (size_t)width == count ? 1 : refuse(what);
}

static int check_words(const Py_buffer *view, size_t words, const char *what) {
    return (uintptr_t)view->buf % 8 == 0 && (size_t)view->len == 8 * words ? 1 : refuse(what);
}

static int read_messages(const Py_buffer *view, Py_ssize_t width, const Py_buffer *scales, size_t count,
                         const ring *r, messages *m) {
    *m = (messages){{NULL, 0}, NULL};
    if (!view->buf) return 1;
    if (!check_rows(view, count, width, r, MESSAGE_CHUNKS, "messages")) return 0;
    if (!scales->buf || !check_words(scales, MESSAGE_CHUNKS * (size_t)r->limbs, "scales")) return refuse("scales");
    *m = (messages){{view->buf, (size_t)width}, scales->buf};
    return 1;
}

/* The number of significant bits of a little-endian exponent, which must not be zero. */
static size_t exponent_bits(const Py_buffer *view) {
    const uint8_t *bytes = view->buf;
    size_t length = (size_t)view->len;
    while (length && !bytes[length - 1]) length--;
    if (!length || length > MAX_EXPONENT) return (size_t)refuse("exponent");
    size_t bits = 8 * length;
    for (uint8_t top = bytes[length - 1]; !(top & 0x80); top = (uint8_t)(top << 1)) bits--;
    return bits;
}

static int read_shape(Py_ssize_t window, Py_ssize_t spacing, Py_ssize_t exponent_bytes, table_shape *shape) {
    if ((window != 4 && window != 8) || exponent_bytes < 1 || exponent_bytes > MAX_EXPONENT) return refuse("table");
    size_t digits = 8 * (size_t)exponent_bytes / (size_t)window;
    if (spacing < 1 || (size_t)spacing > digits) return refuse("table");
    size_t rows = (digits + (size_t)spacing - 1) / (size_t)spacing;
    *shape = (table_shape){rows, (int)window, (size_t)spacing, (size_t)exponent_bytes};
    return 1;
}

static int check_table(const Py_buffer *view, table_shape shape, const ring *r) {
    return check_words(view, (shape.rows << shape.window) * 2 * (size_t)r->limbs, "table");
}

static void release(Py_buffer *views, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
}

/* What a backend's return value means to Python; None on success. */
static PyObject *finish(int ran, int status, Py_buffer *views, size_t count) {
    release(views, count);
    if (!ran) return NULL;
    if (status) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *backends(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < BACKEND_COUNT; i++) {
        const backend *b = BACKENDS[i];
        if (!b->usable()) continue;
        PyObject *item = Py_BuildValue("(si)", b->name, b->lanes);
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* powers(backend, ring, bases, width, exponent, messages, message_width, scales, out) */
static PyObject *powers(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[6] = {0};
    Py_ssize_t width, message_width;
    if (!PyArg_ParseTuple(args, "sy*y*ny*z*nz*w*", &name, &v[0], &v[1], &width, &v[2], &v[3], &message_width, &v[4],
                          &v[5]))
        return NULL;
    const backend *b = find_backend(name);
    ring r;
    messages m;
    size_t count = width > 0 ? (size_t)v[1].len / (size_t)width : 0, bits = 0;
    int status = 0;
    int ran = b && read_ring(&v[0], &r) && check_rows(&v[1], count, width, &r, MAX_CHUNKS, "bases") &&
              (bits = exponent_bits(&v[2])) && read_messages(&v[3], message_width, &v[4], count, &r, &m) &&
              check_rows(&v[5], count, r.modulus_bytes, &r, 2, "out");
    if (ran)
        WITHOUT_LOCK(status = b->powers(&r, count, (rows){v[1].buf, (size_t)width}, v[2].buf, bits, 0, m, v[5].buf));
    return finish(ran, status, v, 6);
}

/* public_powers(backend, ring, bases, width, exponent, out) */
static PyObject *public_powers(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[4] = {0};
    Py_ssize_t width;
    if (!PyArg_ParseTuple(args, "sy*y*ny*w*", &name, &v[0], &v[1], &width, &v[2], &v[3])) return NULL;
    const backend *b = find_backend(name);
    ring r;
    const messages none = {{NULL, 0}, NULL};
    size_t count = width > 0 ? (size_t)v[1].len / (size_t)width : 0, bits = 0;
    int status = 0;
    int ran = b && read_ring(&v[0], &r) && check_rows(&v[1], count, width, &r, MAX_CHUNKS, "bases") &&
              (bits = exponent_bits(&v[2])) && check_rows(&v[3], count, r.modulus_bytes, &r, 2, "out");
    if (ran)
        WITHOUT_LOCK(status = b->powers(&r, count, (rows){v[1].buf, (size_t)width}, v[2].buf, bits, 1, none,
                                        v[3].buf));
    return finish(ran, status, v, 4);
}

/* quotients(backend, ring, bases, width, exponent, scale, out) -> index of the first base that is no unit, or count */
static PyObject *quotients(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[5] = {0};
    Py_ssize_t width;
    if (!PyArg_ParseTuple(args, "sy*y*ny*y*w*", &name, &v[0], &v[1], &width, &v[2], &v[3], &v[4])) return NULL;
    const backend *b = find_backend(name);
    ring r;
    size_t count = width > 0 ? (size_t)v[1].len / (size_t)width : 0, bits = 0, bad = 0;
    int status = 0;
    int ran = b && read_ring(&v[0], &r) && check_rows(&v[1], count, width, &r, MAX_CHUNKS, "bases") &&
              (bits = exponent_bits(&v[2])) && check_words(&v[3], (size_t)r.limbs, "scale") &&
              check_rows(&v[4], count, r.root_bytes, &r, 2, "out");
    if (ran)
        WITHOUT_LOCK(status = b->quotients(&r, count, (rows){v[1].buf, (size_t)width}, v[2].buf, bits, v[3].buf,
                                           v[4].buf, &bad));
    PyObject *done = finish(ran, status, v, 5);
    Py_XDECREF(done);
    return done ? PyLong_FromSize_t(bad) : NULL;
}

/* build_table(backend, ring, base, inverse, window, spacing, exponent_bytes, out) */
static PyObject *build_table(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[4] = {0};
    Py_ssize_t window, spacing, exponent_bytes;
    if (!PyArg_ParseTuple(args, "sy*y*y*nnnw*", &name, &v[0], &v[1], &v[2], &window, &spacing, &exponent_bytes, &v[3]))
        return NULL;
    const backend *b = find_backend(name);
    ring r;
    table_shape shape;
    int status = 0;
    int ran = b && read_ring(&v[0], &r) && check_rows(&v[1], 1, v[1].len, &r, MAX_CHUNKS, "base") &&
              check_words(&v[2], (size_t)r.limbs, "inverse") && read_shape(window, spacing, exponent_bytes, &shape) &&
              check_table(&v[3], shape, &r);
    if (ran)
        WITHOUT_LOCK(status = b->build_table(&r, (rows){v[1].buf, (size_t)v[1].len}, v[2].buf, shape, v[3].buf));
    return finish(ran, status, v, 4);
}

/* table_powers(backend, ring, table, window, spacing, exponent_bytes, exponents, messages, message_width, scales,
 *              out) */
static PyObject *table_powers(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[6] = {0};
    Py_ssize_t window, spacing, exponent_bytes, message_width;
    if (!PyArg_ParseTuple(args, "sy*y*nnny*z*nz*w*", &name, &v[0], &v[1], &window, &spacing, &exponent_bytes, &v[2],
                          &v[3], &message_width, &v[4], &v[5]))
        return NULL;
    const backend *b = find_backend(name);
    ring r;
    messages m;
    table_shape shape;
    size_t count = exponent_bytes > 0 ? (size_t)v[2].len / (size_t)exponent_bytes : 0;
    int status = 0;
    int ran = b && read_ring(&v[0], &r) && read_shape(window, spacing, exponent_bytes, &shape) &&
              check_table(&v[1], shape, &r) &&
              ((size_t)v[2].len == count * (size_t)exponent_bytes || refuse("exponents")) &&
              read_messages(&v[3], message_width, &v[4], count, &r, &m) &&
              check_rows(&v[5], count, r.modulus_bytes, &r, 2, "out");
    if (ran) WITHOUT_LOCK(status = b->table_powers(&r, count, v[1].buf, shape, v[2].buf, m, v[5].buf));
    return finish(ran, status, v, 6);
}

/* residue_powers(backend, ring, bases, width, exponent, out) */
static PyObject *residue_powers(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[4] = {0};
    Py_ssize_t width;
    if (!PyArg_ParseTuple(args, "sy*y*ny*w*", &name, &v[0], &v[1], &width, &v[2], &v[3])) return NULL;
    const backend *b = find_backend(name);
    ring r;
    size_t count = width > 0 ? (size_t)v[1].len / (size_t)width : 0, bits = 0;
    int status = 0;
    int ran = b && read_ring(&v[0], &r) && check_rows(&v[1], count, width, &r, MAX_CHUNKS, "bases") &&
              (bits = exponent_bits(&v[2])) && check_rows(&v[3], count, r.root_bytes, &r, 2, "out");
    if (ran)
        WITHOUT_LOCK(status = b->residue_powers(&r, count, (rows){v[1].buf, (size_t)width}, v[2].buf, bits, v[3].buf));
    return finish(ran, status, v, 4);
}

/* power_product(backend, ring, bases, width, exponents, exponent_width, out): modulo the root if out is as wide as it,
 * else modulo root^2 */
static PyObject *power_product(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[4] = {0};
    Py_ssize_t width, exponent_width;
    if (!PyArg_ParseTuple(args, "sy*y*ny*nw*", &name, &v[0], &v[1], &width, &v[2], &exponent_width, &v[3])) return NULL;
    const backend *b = find_backend(name);
    ring r;
    size_t count = width > 0 ? (size_t)v[1].len / (size_t)width : 0;
    int status = 0;
    int ran = b && read_ring(&v[0], &r) && check_rows(&v[1], count, width, &r, MAX_CHUNKS, "bases") &&
              (exponent_width >= 1 && exponent_width <= MAX_EXPONENT ? 1 : refuse("exponents")) &&
              ((size_t)v[2].len == count * (size_t)exponent_width || refuse("exponents")) &&
              check_rows(&v[3], 1, v[3].len == r.root_bytes ? r.root_bytes : r.modulus_bytes, &r, 2, "out");
    if (ran)
        WITHOUT_LOCK(status = b->power_product(&r, v[3].len == r.root_bytes, count, (rows){v[1].buf, (size_t)width},
                                               (rows){v[2].buf, (size_t)exponent_width}, v[3].buf));
    return finish(ran, status, v, 4);
}

/* product(backend, ring, batches, out): batches is a tuple of buffers as long as out */
static PyObject *product(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[2] = {0};
    PyObject *batches;
    if (!PyArg_ParseTuple(args, "sy*O!w*", &name, &v[0], &PyTuple_Type, &batches, &v[1])) return NULL;
    const backend *b = find_backend(name);
    ring r;
    Py_ssize_t batch_count = PyTuple_GET_SIZE(batches), held = 0;
    Py_buffer *views = calloc((size_t)batch_count + 1, sizeof *views);
    const uint8_t **data = calloc((size_t)batch_count + 1, sizeof *data);
    int status = views && data ? 0 : -1;
    int ran = b && read_ring(&v[0], &r) &&
              (v[1].len % r.modulus_bytes == 0 && batch_count >= 1 && batch_count <= MAX_BATCHES ? 1 : refuse("out"));
    for (; ran && !status && held < batch_count; held++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(batches, held), &views[held], PyBUF_SIMPLE)) {
            ran = 0;
            break;
        }
        data[held] = views[held].buf;
        if (views[held].len != v[1].len) ran = refuse("batch");
    }
    if (ran && !status) {
        size_t count = (size_t)(v[1].len / r.modulus_bytes);
        WITHOUT_LOCK(status = b->product(&r, count, (size_t)batch_count, data, v[1].buf));
    }
    if (views) release(views, (size_t)held);
    free(views);
    free(data);
    return finish(ran, status, v, 2);
}

/* combine(backend, ring, low, low_width, high, high_width, p, inverse, out, out_width) */
static PyObject *combine(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[6] = {0};
    Py_ssize_t low, high, width;
    if (!PyArg_ParseTuple(args, "sy*y*ny*ny*y*w*n", &name, &v[0], &v[1], &low, &v[2], &high, &v[3], &v[4], &v[5],
                          &width))
        return NULL;
    const backend *b = find_backend(name);
    ring r;
    size_t count = low > 0 ? (size_t)v[1].len / (size_t)low : 0;
    int status = 0;
    int ran = b && read_ring(&v[0], &r) && check_rows(&v[1], count, low, &r, 1, "low") &&
              check_rows(&v[2], count, high, &r, 1, "high") && check_words(&v[3], (size_t)r.limbs, "p") &&
              check_words(&v[4], (size_t)r.limbs, "inverse") && check_rows(&v[5], count, width, &r, 2, "out");
    if (ran)
        WITHOUT_LOCK(status = b->combine(&r, count, (rows){v[1].buf, (size_t)low}, (rows){v[2].buf, (size_t)high},
                                         v[3].buf, v[4].buf, v[5].buf, (size_t)width));
    return finish(ran, status, v, 6);
}

/* Rows of exponents for as many rings; they may have up to MAX_EXPONENT bytes. */
static int check_exponents(const Py_buffer *view, size_t count, Py_ssize_t width) {
    if (width < 1 || width > MAX_EXPONENT) return refuse("exponents");
    return (size_t)view->len == count * (size_t)width ? 1 : refuse("exponents");
}

/* lane_powers(backend, count, rings, bases, width, exponents, exponent_width, messages, message_width, out) */
static PyObject *lane_powers(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[5] = {0};
    Py_ssize_t count, width, exponent_width, message_width;
    if (!PyArg_ParseTuple(args, "sny*y*ny*ny*nw*", &name, &count, &v[0], &v[1], &width, &v[2], &exponent_width, &v[3],
                          &message_width, &v[4]))
        return NULL;
    const backend *b = find_backend(name);
    ring *r = NULL;
    size_t rows_ = count > 0 ? (size_t)count : 0;
    int status = 0;
    int ran = b && read_rings(&v[0], rows_, &r) && check_rows(&v[1], rows_, width, r, MAX_CHUNKS, "bases") &&
              check_exponents(&v[2], rows_, exponent_width) &&
              check_rows(&v[3], rows_, message_width, r, MESSAGE_CHUNKS, "messages") &&
              check_rows(&v[4], rows_, r->modulus_bytes, r, 2, "out");
    if (ran)
        WITHOUT_LOCK(status = b->lane_powers(r, rows_, (rows){v[1].buf, (size_t)width},
                                             (rows){v[2].buf, (size_t)exponent_width},
                                             (rows){v[3].buf, (size_t)message_width}, v[4].buf));
    free(r);
    return finish(ran, status, v, 5);
}

/* lane_quotients_residues(backend, count, rings, bases, width, exponents, exponent_width, scales, out, residues) */
static PyObject *lane_quotients_residues(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_buffer v[6] = {0};
    Py_ssize_t count, width, exponent_width;
    if (!PyArg_ParseTuple(args, "sny*y*ny*ny*w*w*", &name, &count, &v[0], &v[1], &width, &v[2], &exponent_width, &v[3],
                          &v[4], &v[5]))
        return NULL;
    const backend *b = find_backend(name);
    ring *r = NULL;
    size_t rows_ = count > 0 ? (size_t)count : 0;
    int status = 0;
    int ran = b && read_rings(&v[0], rows_, &r) && check_rows(&v[1], rows_, width, r, MAX_CHUNKS, "bases") &&
              check_exponents(&v[2], rows_, exponent_width) &&
              check_words(&v[3], rows_ * (size_t)r->limbs, "scales") &&
              check_rows(&v[4], rows_, r->root_bytes, r, 2, "out") &&
              check_rows(&v[5], rows_, r->root_bytes, r, 2, "residues");
    if (ran)
        WITHOUT_LOCK(status = b->lane_quotients(r, rows_, (rows){v[1].buf, (size_t)width},
                                                (rows){v[2].buf, (size_t)exponent_width}, v[3].buf, v[4].buf,
                                                v[5].buf));
    free(r);
    return finish(ran, status, v, 6);
}

static PyMethodDef METHODS[] = {
    {"backends", backends, METH_NOARGS, "(name, lanes) of each backend that this CPU can run"},
    {"powers", powers, METH_VARARGS, "powers of many bases with one exponent"},
    {"public_powers", public_powers, METH_VARARGS, "powers with one exponent that anyone may know"},
    {"residue_powers", residue_powers, METH_VARARGS, "powers of many bases with one exponent, modulo the root"},
    {"quotients", quotients, METH_VARARGS, "L(base^exponent)*scale of many bases"},
    {"lane_powers", lane_powers, METH_VARARGS, "powers with a ring, an exponent and a message for each row"},
    {"lane_quotients_residues", lane_quotients_residues, METH_VARARGS,
     "quotients with a ring, an exponent and a scale for each row, and the powers modulo the roots"},
    {"build_table", build_table, METH_VARARGS, "a table of powers of one base"},
    {"table_powers", table_powers, METH_VARARGS, "powers of one base with many exponents"},
    {"power_product", power_product, METH_VARARGS, "one product of powers of many bases with public exponents"},
    {"product", product, METH_VARARGS, "products of batches, row by row"},
    {"combine", combine, METH_VARARGS, "Chinese remainders"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native", "Batches of arithmetic modulo a square.", -1, METHODS,
                             NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&MODULE); }
