"""Code of the user's own: an object in a Python file, referred to as `path/to/file.py:NAME`.

A task or a policy is either built in and has a plain name, or it is a plugin and has such a reference.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from dapfl.errors import ConfigError

FORM = "path/to/file.py:NAME"
"""How a reference is written, for messages."""


@dataclass(frozen=True)
class Plugin:
    """The object called `name` in a Python file of the user's own.

    >>> plugin = Plugin.parse("examples/own_task.py:rings")
    >>> plugin.file.name, plugin.name, str(plugin)
    ('own_task.py', 'rings', 'examples/own_task.py:rings')
    >>> Plugin.parse("cnn-mnist") is None
    True
    """

    file: Path
    name: str

    @classmethod
    def parse(cls, reference: str) -> "Plugin | None":
        """The plugin that a reference stands for; None if the text is not a reference to a Python file."""
        file, _, name = reference.rpartition(":")
        return cls(Path(file), name) if file.endswith(".py") and name else None

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"

    def load(self) -> object:
        """The object itself. A process runs a file once, whatever path it is named by."""
        module = _module(self.file)
        if not hasattr(module, self.name):
            raise ConfigError(f"The file {self.file} does not define '{self.name}'.")
        return getattr(module, self.name)


def relocated(reference: str, place: Callable[[Path], Path]) -> str:
    """The reference with its file at `place(file)`; a built-in name stays as it is.

    >>> relocated("tasks/wards.py:TASK", lambda file: Path(file.name))
    'wards.py:TASK'
    >>> relocated("cnn-mnist", Path.resolve)
    'cnn-mnist'
    """
    plugin = Plugin.parse(reference)
    return str(Plugin(place(plugin.file), plugin.name)) if plugin else reference


def _module(file: Path) -> ModuleType:
    """The user's file as a module."""
    if not file.is_file():
        raise ConfigError(f"The file {file} does not exist.")
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"dapfl_plugin_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # a path ending in .py always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up a class's module there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"The file {file} fails: {type(error).__name__}: {error}.") from error
    return module
