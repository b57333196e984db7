/* dapfl.learning._native: buffers in, every length checked before anything is read. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "models.h"

enum { MOST_WEIGHTS = 8, MOST_SAMPLES = 1 << 20 };

static const Py_ssize_t CNN_SIZES[] = {250, 10, 5000, 20, 16000, 50, 500, 10};
static const Py_ssize_t LOGISTIC_SIZES[] = {CLASSES * PIXELS, CLASSES};

typedef struct {
    Py_buffer held[MOST_WEIGHTS + 2];
    int count;
    float *weights[MOST_WEIGHTS];
    const float *images;
    void *other;  /* labels, or a place for scores */
    int samples;
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

/* `parts` arrays of float32 that can be written, images, and `width` bytes beside each of them; 0 or -1. */
static int acquire(Arguments *a, const Py_ssize_t *sizes, int parts, PyObject *weights, PyObject *images,
                   PyObject *other, Py_ssize_t width, int writable) {
    a->count = 0;
    if (!PyTuple_Check(weights) || PyTuple_GET_SIZE(weights) != parts) {
        PyErr_Format(PyExc_TypeError, "the weights are a tuple of %d arrays", parts);
        return -1;
    }
    for (int i = 0; i < parts; i++) {
        Py_buffer *buffer = hold(a, PyTuple_GET_ITEM(weights, i), PyBUF_WRITABLE);
        if (!buffer) goto fail;
        if (buffer->itemsize != 4 || buffer->len != 4 * sizes[i]) {
            PyErr_Format(PyExc_ValueError, "weights %d: %zd float32 wanted", i, sizes[i]);
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
    a->images = pixels->buf, a->other = beside->buf, a->samples = (int)samples;
    return 0;
fail:
    release(a);
    return -1;
}

static PyObject *finish(Arguments *a, int failed) {
    release(a);
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *py_cnn_step(PyObject *self, PyObject *args) {
    PyObject *weights, *images, *labels;
    double eta;
    Arguments a;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOd", &weights, &images, &labels, &eta)) return NULL;
    if (acquire(&a, CNN_SIZES, 8, weights, images, labels, sizeof(int64_t), 0)) return NULL;
    CnnWeights w = {a.weights[0], a.weights[1], a.weights[2], a.weights[3],
                    a.weights[4], a.weights[5], a.weights[6], a.weights[7]};
    return finish(&a, cnn_step(&w, a.images, a.other, a.samples, (float)eta));
}

static PyObject *py_cnn_scores(PyObject *self, PyObject *args) {
    PyObject *weights, *images, *out;
    Arguments a;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &weights, &images, &out)) return NULL;
    if (acquire(&a, CNN_SIZES, 8, weights, images, out, sizeof(float) * CLASSES, 1)) return NULL;
    CnnWeights w = {a.weights[0], a.weights[1], a.weights[2], a.weights[3],
                    a.weights[4], a.weights[5], a.weights[6], a.weights[7]};
    Py_BEGIN_ALLOW_THREADS
    cnn_scores(&w, a.images, a.samples, a.other);
    Py_END_ALLOW_THREADS
    return finish(&a, 0);
}

static PyObject *py_logistic_step(PyObject *self, PyObject *args) {
    PyObject *weights, *images, *labels;
    double eta;
    Arguments a;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOd", &weights, &images, &labels, &eta)) return NULL;
    if (acquire(&a, LOGISTIC_SIZES, 2, weights, images, labels, sizeof(int64_t), 0)) return NULL;
    LogisticWeights w = {a.weights[0], a.weights[1]};
    return finish(&a, logistic_step(&w, a.images, a.other, a.samples, (float)eta));
}

static PyObject *py_logistic_scores(PyObject *self, PyObject *args) {
    PyObject *weights, *images, *out;
    Arguments a;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &weights, &images, &out)) return NULL;
    if (acquire(&a, LOGISTIC_SIZES, 2, weights, images, out, sizeof(float) * CLASSES, 1)) return NULL;
    LogisticWeights w = {a.weights[0], a.weights[1]};
    Py_BEGIN_ALLOW_THREADS
    logistic_scores(&w, a.images, a.samples, a.other);
    Py_END_ALLOW_THREADS
    return finish(&a, 0);
}

static PyObject *py_usable(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyBool_FromLong(KERNELS_USABLE);
}

static PyMethodDef methods[] = {
    {"cnn_step", py_cnn_step, METH_VARARGS, "cnn_step(weights, images, labels, eta): one step of SGD, in place."},
    {"cnn_scores", py_cnn_scores, METH_VARARGS, "cnn_scores(weights, images, out): logits into out."},
    {"logistic_step", py_logistic_step, METH_VARARGS, "logistic_step(weights, images, labels, eta): in place."},
    {"logistic_scores", py_logistic_scores, METH_VARARGS, "logistic_scores(weights, images, out): logits into out."},
    {"usable", py_usable, METH_NOARGS, "Whether this CPU has the instructions used."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
