"""cnn-mnist trained by torch, also where this package has been built with training code of its own."""

from functools import partial

from dapfl.learning import datasets
from dapfl.learning.models import CNN
from dapfl.learning.tasks import Task

TASK = Task("cnn-mnist by torch", CNN, partial(datasets.load, "mnist"))
