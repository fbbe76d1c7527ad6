"""The README draws the machines as they are."""

import importlib.util
from pathlib import Path

import pytest

from actors.machines.session.state import TRANSITIONS, SessionPhase

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("diagrams", ROOT / "scripts" / "diagrams.py")
assert spec is not None
assert spec.loader is not None
diagrams = importlib.util.module_from_spec(spec)
spec.loader.exec_module(diagrams)


def test_the_diagrams_in_the_readme_are_those_of_the_tables() -> None:
    text = diagrams.DOCUMENT.read_text()
    assert diagrams.render(text) == text, "run scripts/diagrams.py"


def test_a_diagram_has_every_phase_and_every_cause() -> None:
    drawn = diagrams.draw(TRANSITIONS, SessionPhase.NEW)
    assert all(phase.name in drawn for phase in SessionPhase)
    assert all(cause in drawn for _, cause in TRANSITIONS)
    assert drawn.endswith("CLOSED --> [*]\n")


def test_a_readme_without_a_place_for_a_diagram_is_an_error() -> None:
    with pytest.raises(ValueError, match="session"):
        diagrams.render("# nothing")


def test_every_file_of_the_layer_is_named_in_its_readme() -> None:
    for layer in (ROOT / "actors" / "machines", ROOT / "actors" / "protocol"):
        text = (layer / "README.md").read_text()
        files = [p.relative_to(layer).with_suffix("") for p in layer.rglob("*.py") if p.stem != "__init__"]
        assert [str(name) for name in files if f"`{name}`" not in text] == []
