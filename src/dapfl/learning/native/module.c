/* dapfl.learning._native: buffers in, every length and row number checked before anything is read. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "models.h"

enum { MOST_WEIGHTS = 8, MOST_SAMPLES = 1 << 20 };

/* The fastest first. */
static const kernels *const KERNELS[] = {&dapfl_sixteen, &dapfl_eight};
enum { KINDS = sizeof KERNELS / sizeof *KERNELS };

typedef struct {
    int parts;
    Py_ssize_t sizes[MOST_WEIGHTS];  /* of the parts, in numbers */
} Model;

static const Model CNN = {8, {250, 10, 5000, 20, 16000, 50, 500, 10}};
static const Model LOGISTIC = {2, {CLASSES * PIXELS, CLASSES}};

typedef struct {
    Py_buffer held[MOST_WEIGHTS + 3];
    int count;
    float *weights[MOST_WEIGHTS];
    const float *images;
    void *other;  /* labels, or a place for scores */
    Py_ssize_t samples;
} Arguments;

static void release(Arguments *a) {
    while (a->count) PyBuffer_Release(&a->held[--a->count]);
}

static Py_buffer *hold(Arguments *a, PyObject *object, int flags) {
    Py_buffer *buffer = &a->held[a->count];
    if (PyObject_GetBuffer(object, buffer, PyBUF_C_CONTIGUOUS | flags)) return NULL;
    a->count++;
    return buffer;
}

/* A model's weights, images, and `width` bytes beside each of them; 0 or -1. */
static int acquire(Arguments *a, const Model *model, PyObject *weights, PyObject *images, PyObject *other,
                   Py_ssize_t width, int writable) {
    a->count = 0;
    if (!PyTuple_Check(weights) || PyTuple_GET_SIZE(weights) != model->parts) {
        PyErr_Format(PyExc_TypeError, "the weights are a tuple of %d arrays", model->parts);
        return -1;
    }
    for (int i = 0; i < model->parts; i++) {
        Py_buffer *buffer = hold(a, PyTuple_GET_ITEM(weights, i), PyBUF_WRITABLE);
        if (!buffer) goto fail;
        if (buffer->itemsize != 4 || buffer->len != 4 * model->sizes[i]) {
            PyErr_Format(PyExc_ValueError, "weights %d: %zd float32 wanted", i, model->sizes[i]);
            goto fail;
        }
        a->weights[i] = buffer->buf;
    }
    Py_buffer *pixels = hold(a, images, 0), *beside = pixels ? hold(a, other, writable ? PyBUF_WRITABLE : 0) : NULL;
    if (!beside) goto fail;
    Py_ssize_t samples = pixels->len / (4 * PIXELS);
    if (pixels->itemsize != 4 || samples < 1 || samples > MOST_SAMPLES || pixels->len != samples * 4 * PIXELS ||
        beside->len != samples * width) {
        PyErr_SetString(PyExc_ValueError, "images of 28x28 float32 wanted, at least one, and as much beside them");
        goto fail;
    }
    a->images = pixels->buf, a->other = beside->buf, a->samples = samples;
    return 0;
fail:
    release(a);
    return -1;
}

/* Row numbers of the images, batch after batch: as many as the lengths say. NULL, or where they are. */
static const int64_t *acquire_rows(Arguments *a, PyObject *order, PyObject *lengths) {
    if (!PyList_Check(lengths)) {
        PyErr_SetString(PyExc_TypeError, "the lengths of the batches are a list of whole numbers");
        return NULL;
    }
    Py_buffer *buffer = hold(a, order, 0);
    if (!buffer) return NULL;
    const int64_t *rows = buffer->buf;
    Py_ssize_t count = buffer->len / (Py_ssize_t)sizeof *rows, left = count;
    int good = buffer->itemsize == sizeof *rows && count <= MOST_SAMPLES;
    for (Py_ssize_t i = 0; good && i < count; i++) good = rows[i] >= 0 && rows[i] < a->samples;
    for (Py_ssize_t i = 0; good && i < PyList_GET_SIZE(lengths); i++) {
        Py_ssize_t length = PyLong_AsSsize_t(PyList_GET_ITEM(lengths, i));
        if (length == -1 && PyErr_Occurred()) return NULL;
        good = length >= 1 && length <= left;
        left -= length;
    }
    if (good && !left) return rows;
    PyErr_SetString(PyExc_ValueError, "int64 numbers of rows that are there wanted, as many as the batches take");
    return NULL;
}

/* The kernels with vectors of so many lanes, if this CPU can run them. */
static const kernels *with_lanes(int lanes) {
    for (int i = 0; i < KINDS; i++)
        if (KERNELS[i]->lanes == lanes && KERNELS[i]->usable()) return KERNELS[i];
    PyErr_Format(PyExc_ValueError, "no kernels with %d lanes here", lanes);
    return NULL;
}

static PyObject *epoch(const Model *model, PyObject *args) {
    PyObject *weights, *images, *labels, *order, *lengths;
    double eta;
    int lanes;
    Arguments a;
    if (!PyArg_ParseTuple(args, "iOOOOOd", &lanes, &weights, &images, &labels, &order, &lengths, &eta)) return NULL;
    const kernels *k = with_lanes(lanes);
    if (!k) return NULL;
    Step *step = model == &CNN ? k->cnn_step : k->logistic_step;
    if (acquire(&a, model, weights, images, labels, sizeof(int64_t), 0)) return NULL;
    const int64_t *rows = acquire_rows(&a, order, lengths);
    for (Py_ssize_t i = 0; rows && i < PyList_GET_SIZE(lengths); i++) {
        int count = (int)PyLong_AsSsize_t(PyList_GET_ITEM(lengths, i));
        if (step(a.weights, a.images, a.other, rows, count, (float)eta)) {
            PyErr_NoMemory();
            break;
        }
        rows += count;
    }
    release(&a);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *scores(const Model *model, PyObject *args) {
    PyObject *weights, *images, *out;
    int lanes;
    Arguments a;
    if (!PyArg_ParseTuple(args, "iOOO", &lanes, &weights, &images, &out)) return NULL;
    const kernels *k = with_lanes(lanes);
    if (!k) return NULL;
    Scores *score = model == &CNN ? k->cnn_scores : k->logistic_scores;
    if (acquire(&a, model, weights, images, out, sizeof(float) * CLASSES, 1)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    score(a.weights, a.images, (int)a.samples, a.other);
    Py_END_ALLOW_THREADS
    release(&a);
    Py_RETURN_NONE;
}

static PyObject *cnn_epoch(PyObject *self, PyObject *args) { return (void)self, epoch(&CNN, args); }
static PyObject *cnn_logits(PyObject *self, PyObject *args) { return (void)self, scores(&CNN, args); }
static PyObject *logistic_epoch(PyObject *self, PyObject *args) { return (void)self, epoch(&LOGISTIC, args); }
static PyObject *logistic_logits(PyObject *self, PyObject *args) { return (void)self, scores(&LOGISTIC, args); }

static PyObject *lanes(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    PyObject *found = PyList_New(0);
    for (int i = 0; found && i < KINDS; i++) {
        if (!KERNELS[i]->usable()) continue;
        PyObject *lanes = PyLong_FromLong(KERNELS[i]->lanes);
        if (!lanes || PyList_Append(found, lanes)) Py_CLEAR(found);
        Py_XDECREF(lanes);
    }
    return found;
}

#define EPOCH "(lanes, weights, images, labels, order, lengths, eta): a step of SGD on each batch of the order, in place."
#define LOGITS "(lanes, weights, images, out): logits into out."
static PyMethodDef methods[] = {
    {"cnn_epoch", cnn_epoch, METH_VARARGS, "cnn_epoch" EPOCH},
    {"cnn_scores", cnn_logits, METH_VARARGS, "cnn_scores" LOGITS},
    {"logistic_epoch", logistic_epoch, METH_VARARGS, "logistic_epoch" EPOCH},
    {"logistic_scores", logistic_logits, METH_VARARGS, "logistic_scores" LOGITS},
    {"lanes", lanes, METH_NOARGS, "The numbers of lanes of the vectors that this CPU can compute with, the fastest first."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
