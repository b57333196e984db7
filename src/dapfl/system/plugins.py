"""Code of the user's own: an object in a Python file, referred to as `path/to/file.py:NAME`.

A task or a policy is either built in and has a plain name, or it is a plugin and has such a reference.
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from dapfl.errors import ConfigError

_INSTALLED = ("site-packages", "dist-packages")  # the folders of installed packages
_LARGEST_PACKAGE = 10 << 20

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
        if reference.endswith(".py"):
            raise ConfigError(f"{reference} is a file: say what in it is meant, as {reference}:NAME.")
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


def home_of(file: Path) -> Path:
    """The folder where the imports of a file begin: its own, or the one that its package is in."""
    folder = file.resolve().parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def companions(file: Path) -> set[Path]:
    """A user's file with all that it imports from beside it: other files, and packages as a whole.

    They are found in the text: what is imported under a name that is made at run time is not. What lies
    beside an installed package are other installed packages, which nobody copies along.
    """
    home, found, todo = home_of(file), set[Path](), [file.resolve()]
    installed = home.name in _INSTALLED
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        if path.parent != home:  # in a package
            todo += _files_in(home / path.relative_to(home).parts[0])
        for name in () if installed or path.suffix != ".py" else _imports(path):
            if (home / f"{name}.py").is_file():
                todo.append(home / f"{name}.py")
            elif (home / name / "__init__.py").is_file():
                todo += _files_in(home / name)
    return found


def _files_in(package: Path) -> list[Path]:
    files = [each for each in package.rglob("*") if each.is_file() and "__pycache__" not in each.parts]
    if sum(each.stat().st_size for each in files) > _LARGEST_PACKAGE:
        raise ConfigError(
            f"The package {package} has more than {_LARGEST_PACKAGE >> 20} MB, too much to copy along: keep "
            "data out of it."
        )
    return files


def _imports(file: Path) -> set[str]:
    """The first parts of the names that a Python file imports; empty if it is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        return set()
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return {name.partition(".")[0] for name in names}


def _module(file: Path) -> ModuleType:
    """The user's file as a module. It may import its neighbours, as a script may."""
    if not file.is_file():
        raise ConfigError(f"The file {file} does not exist.")
    home = home_of(file)
    if str(home) not in sys.path:
        sys.path.insert(0, str(home))
    inside = file.resolve().relative_to(home).with_suffix("").parts
    try:
        return importlib.import_module(".".join(inside)) if len(inside) > 1 else _run(file)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"The file {file} fails: {type(error).__name__}: {error}.") from error


def _run(file: Path) -> ModuleType:
    """A file that is in no package, under a name that no other file can have."""
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
    except BaseException:
        del sys.modules[name]
        raise
    return module
