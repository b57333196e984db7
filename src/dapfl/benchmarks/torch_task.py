"""cnn-mnist as torch trains it, whatever this package was built with: what everyone else's rounds take."""

from functools import partial

from dapfl.learning import data
from dapfl.learning.models import CNN
from dapfl.learning.tasks import Task

TASK = Task("cnn-mnist by torch", CNN, partial(data.load, "mnist"))
