"""References to objects of Python: by module, by file, and loaded anew."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.config import load
from gateway.config.references import import_object, load_anew

Put = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.dont_write_bytecode", sys.dont_write_bytecode)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


def test_a_file_is_a_reference_with_its_attribute_or_its_server(put: Put) -> None:
    file = put("weather.py", "server = 'served'\nother = 'other'")
    assert import_object(str(file)) == "served"
    assert import_object(f"{file}:other") == "other"


def test_files_of_one_name_are_told_apart_also_from_what_is_installed(put: Put) -> None:
    first, second = put("a/json.py", "server = 'a'"), put("b/json.py", "server = 'b'")
    assert [import_object(str(file)) for file in (first, second, first)] == ["a", "b", "a"]
    assert import_object("json:dumps") is json.dumps


def test_a_file_finds_what_lies_beside_it_and_in_its_package(put: Put) -> None:
    put("beside_of_this_test.py", "found = 'beside'")
    assert import_object(str(put("one.py", "from beside_of_this_test import found as server"))) == "beside"
    put("package_of_this_test/__init__.py", "")
    put("package_of_this_test/near.py", "found = 'near'")
    assert import_object(str(put("package_of_this_test/two.py", "from .near import found as server"))) == "near"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no file"),
        ("def (", "cannot be read: .*bad.py, line 1: invalid syntax"),
        ("import no_such_module", "cannot be imported: No module named 'no_such_module'"),
        ("raise SystemExit(3)", r"ends the process when it is imported \(SystemExit: 3\)"),
        ("\0", "cannot be read: .*bad.py, line 1: .*null bytes"),
        ("", 'there is no "server" in .*bad.py'),
    ],
)
def test_what_can_not_be_had_is_said(text: str | None, said: str, put: Put, tmp_path: Path) -> None:
    file = tmp_path / "bad.py" if text is None else put("bad.py", text)
    with pytest.raises(ValueError, match=said):
        import_object(str(file))


def test_a_module_is_named_from_the_top() -> None:
    for reference in (".", ".weather", "..weather:server"):
        with pytest.raises(ValueError, match="must be written as"):
            import_object(reference)


def test_in_a_configuration_a_file_is_relative_to_it(put: Put) -> None:
    put("servers/weather.py", "from stagedoor import Server\nserver = Server('weather')")
    config = put("stagedoor.json", json.dumps({"mcpServers": {"w": {"native": "servers/weather.py:server"}}}))
    assert load(config, {}).settings.table.backends["w"].target.server.name == "weather"  # type: ignore[union-attr]


def test_it_is_loaded_anew_with_all_that_belongs_to_it(put: Put) -> None:
    put("part_of_this_test.py", "found = 1")
    file = put("whole.py", "import json\nfrom part_of_this_test import found as server")
    first = load_anew(str(file))
    assert (first.found, first.modules) == (1, {str(file), "part_of_this_test"})
    assert {file, file.with_name("part_of_this_test.py")} <= first.files()
    put("part_of_this_test.py", "found = 2")
    assert load_anew(str(file), first).found == 2
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "raised"), [("raise KeyError", KeyError), ("def (", ValueError), ("raise SystemExit", ValueError)]
)
def test_where_that_fails_everything_is_as_it_was(text: str, raised: type[Exception], put: Put) -> None:
    put("part_of_this_test.py", "found = 1")
    file = put("whole.py", "from part_of_this_test import found as server")
    first = load_anew(str(file))
    modules = {name: sys.modules[name] for name in first.modules}
    put("part_of_this_test.py", text)
    with pytest.raises(raised):
        load_anew(str(file), first)
    assert {name: sys.modules[name] for name in first.modules} == modules


def test_what_it_imported_later_is_loaded_anew_too(put: Put) -> None:
    put("late_of_this_test.py", "found = 1")
    file = put("lazy.py", "def server():\n    import late_of_this_test\n    return late_of_this_test.found")
    first = load_anew(str(file))
    assert first.found() == 1
    put("late_of_this_test.py", "found = 2")
    second = load_anew(str(file), first)
    assert second.found() == 2
    assert second.modules == {str(file), "late_of_this_test"}


def test_what_was_imported_for_nothing_is_imported_again(put: Put) -> None:
    put("made_of_this_test.py", "found = 1")
    file = put("maker.py", "server = 1")

    def make(found: int) -> int:
        if found == 2:
            raise ValueError("none")
        return found

    first = load_anew(str(file), None, make)
    put("extra_of_this_test.py", "found = 2")
    put("maker.py", "from extra_of_this_test import found as server")
    with pytest.raises(ValueError, match="none"):
        load_anew(str(file), first, make)
    put("extra_of_this_test.py", "found = 3")
    assert load_anew(str(file), first, make).found == 3
