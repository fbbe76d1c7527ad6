from typing import Any

import pytest

from gateway.cli.arguments import from_pairs

SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "list": {"type": "array"},
        "map": {"type": "object"},
        "maybe": {"type": ["integer", "null"]},
        "either": {"type": ["integer", "string"]},
        "free": {},
        "odd": True,
    }
}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("text=5", "5"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ("count=5", 5),
        ("ratio=0.5", 0.5),
        ("on=true", True),
        ("list=[1,2]", [1, 2]),
        ('map={"a":1}', {"a": 1}),
        ("maybe=null", None),
        ("either=5", "5"),
        ("free=5", "5"),
        ("odd=5", "5"),
        ("unknown=5", "5"),
    ],
)
def test_a_pair_has_the_type_of_its_property(pair: str, value: Any) -> None:
    assert from_pairs([pair], SCHEMA) == {pair.partition("=")[0]: value}


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": []}])
def test_without_a_schema_everything_is_text(schema: dict[str, Any]) -> None:
    assert from_pairs(["a=1"], schema) == {"a": "1"}


def test_a_value_that_does_not_fit_is_told_by_its_name() -> None:
    with pytest.raises(ValueError, match='"maybe" must be integer or null, in JSON'):
        from_pairs(["maybe=often"], SCHEMA)
