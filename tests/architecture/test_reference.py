"""docs/api.md is what the docstrings say."""

import importlib.util
from pathlib import Path

import gateway.client
import stagedoor

spec = importlib.util.spec_from_file_location("reference", Path(__file__).parents[2] / "scripts" / "reference.py")
assert spec is not None
assert spec.loader is not None
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def test_the_reference_is_that_of_the_docstrings() -> None:
    assert reference.DOCUMENT.read_text() == reference.reference(), "run scripts/reference.py"


def test_whatever_is_exported_is_in_it_and_says_what_it_is() -> None:
    text = reference.DOCUMENT.read_text()
    for name in {*stagedoor.__all__, *gateway.client.__all__}:
        assert f"### `{name}`" in text
    entries = text.split("\n### ")[1:]
    silent = [
        entry.splitlines()[0] for entry in entries if not entry.partition("```python")[2].partition("```")[2].strip()
    ]
    assert silent == []
