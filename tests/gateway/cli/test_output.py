"""Tables on a terminal that is too narrow for them."""

import sys
from collections.abc import Callable, Sequence

import pytest

from gateway.cli.output import NAME, print_rows

WIDTH = 60


@pytest.fixture
def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str], Sequence[Sequence[str]]], str]:
    """What stands on the terminal."""

    def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        monkeypatch.setenv("COLUMNS", str(WIDTH))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        print_rows(columns, rows)
        return capsys.readouterr().out

    return show


def test_what_a_row_is_named_by_can_be_copied(printed) -> None:
    words = ["a word and another"] * 6
    said = printed(("handle", *"abcdef"), [("971308ad4a41", *words), ("af2fdfc0c14f", *words)])
    assert "971308ad4a41" in said
    assert "af2fdfc0c14f" in said


def test_a_name_that_is_too_long_is_folded_and_never_cut(printed) -> None:
    said = printed(("key", "what"), [("n" * (NAME + 30), "it does")])
    assert said.count("n") == NAME + 30
    assert "it does" in said
