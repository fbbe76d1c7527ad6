"""What a reference to an object of Python names: `package.module:attribute` or `path/to/file.py:attribute`.

Of a module or a file alone it is the `server`.
"""

import importlib
import sys
from collections.abc import Callable
from functools import reduce
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

from msgspec import Struct

FILE = ".py"
DEFAULT = "server"
OURS = ("actors", "gateway", "stagedoor")


def split(reference: str) -> tuple[str, str]:
    """Module or file, and attribute. ValueError where it is not written so."""
    where, colon, attribute = reference.rpartition(":")
    if not colon:
        where, attribute = reference, DEFAULT
    if not where or not attribute or (where.startswith(".") and not where.endswith(FILE)):
        raise ValueError("must be written as module:attribute or path/to/file.py:attribute")
    return where, attribute


def placed(reference: str, folder: Path) -> str:
    """The reference with the path of a file in this folder; one to a module as it is."""
    where, colon, attribute = reference.rpartition(":")
    if not (where if colon else reference).endswith(FILE):
        return reference
    return f"{folder / Path(where).expanduser()}:{attribute}" if colon else str(folder / Path(reference).expanduser())


def import_object(reference: str) -> Any:
    """The object that is named; modules are found beside the packages that are installed and in the current directory.
    ValueError says what is not there, can't be read, or would end the process; what else the module itself raises is
    not caught."""
    where, attribute = split(reference)
    try:
        module = _import_file(Path(where)) if where.endswith(FILE) else _import(where, Path.cwd())
    except ImportError as error:
        raise ValueError(f"cannot be imported: {error}") from error
    except SyntaxError as error:
        raise ValueError(f"cannot be read: {error.filename or where}, line {error.lineno or 1}: {error.msg}") from error
    except ValueError as error:
        if "null bytes" not in str(error):  # Python before 3.11.4 has no SyntaxError for these
            raise
        raise ValueError(f"cannot be read: {where}, line 1: {error}") from error
    except SystemExit as error:
        raise ValueError(f"it ends the process when it is imported (SystemExit: {error})") from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise ValueError(f'there is no "{attribute}" in {where}') from error


class Loaded(Struct, frozen=True):
    """What was loaded so that it can be loaded anew: the object, and the modules that were there before it."""

    reference: str
    found: Any
    others: frozenset[str]

    @property
    def modules(self) -> frozenset[str]:
        """Those that came with it, or since, and belong to it."""
        return frozenset(_own(self.others))

    def files(self) -> set[Path]:
        """Those of the modules, and what lies beside them: what they import next may be there."""
        known = (getattr(sys.modules.get(name), "__file__", None) for name in self.modules)
        return {beside for file in known if file for beside in Path(file).parent.glob(f"*{FILE}")}


def load_anew(reference: str, before: Loaded | None = None, make: Callable[[Any], Any] = lambda found: found) -> Loaded:
    """What is made of the object that is named, with its modules as they stand in their files now. ValueError as
    `import_object`; where that or anything else is raised, the modules of before are there as they were."""
    sys.dont_write_bytecode = True  # what is kept is told apart by whole seconds, and edits come faster
    importlib.invalidate_caches()
    old = {name: sys.modules.pop(name) for name in (before.modules if before else ())}
    others = before.others if before else frozenset(sys.modules)
    loaded = None
    try:
        loaded = Loaded(reference, make(import_object(reference)), others)
    finally:
        if loaded is None:
            for name in _own(others):
                del sys.modules[name]
            sys.modules.update(old)
    return loaded


def _own(others: frozenset[str]) -> set[str]:
    """The modules that have come since, without those that are installed, and ours."""
    installed = [Path(path) for path in (get_path("stdlib"), get_path("purelib"), get_path("platlib"))]
    found = set()
    for name in set(sys.modules) - others:
        file = getattr(sys.modules.get(name), "__file__", None)  # an import that fails takes its module back
        if file and name.partition(".")[0] not in OURS and not any(map(Path(file).is_relative_to, installed)):
            found.add(name)
    return found


def is_server(found: Any) -> bool:
    """Whether it can be served as it is."""
    return hasattr(found, "connect") and not isinstance(found, type)


def _import(name: str, folder: Path) -> ModuleType:
    _findable(folder)
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """A module of a package as one, so that it finds the others there. Any other file by its path, since several may
    have the same name; what lies beside it can be imported."""
    file = path.resolve()
    if not file.is_file():
        raise ValueError(f"there is no file {path}")
    folder, name = file.parent, file.stem
    while (folder / "__init__.py").is_file():
        folder, name = folder.parent, f"{folder.name}.{name}"
    if folder == file.parent:
        _findable(folder)
        return sys.modules.get(str(file)) or _load(file)
    module = _import(name, folder)
    if Path(module.__file__ or "").resolve() != file:
        raise ValueError(f"another module is called {name}: {module.__file__}")
    return module


def _load(file: Path) -> ModuleType:
    spec = spec_from_file_location(str(file), file)
    assert spec is not None, "its name ends as those of modules do"
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    whole = False
    try:
        spec.loader.exec_module(module)
        whole = True
    finally:
        if not whole:
            del sys.modules[spec.name]
    return module


def _findable(folder: Path) -> None:
    """Behind all that is installed: what lies in the folder takes no library's place."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
