import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta

from actors.protocol.table import Limits
from gateway.config.document import read
from gateway.config.models import File, Gateway
from gateway.config.reference import GUIDE, SCHEMA, filled, schema_text, tables
from gateway.config.sections import PLACES

ROOT = Path(__file__).parents[3]


@pytest.fixture
def schema() -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema_text()))


def test_the_committed_schema_is_what_the_models_say() -> None:
    assert (ROOT / SCHEMA).read_text() == schema_text(), "run `python -m gateway.config`"


def test_the_tables_of_the_guide_are_what_the_models_say() -> None:
    guide = (ROOT / GUIDE).read_text()
    assert guide == filled(guide), "run `python -m gateway.config`"


def test_the_guide_has_every_table_once() -> None:
    guide = (ROOT / GUIDE).read_text()
    assert sorted(re.findall(r"<!-- table: (\S+) -->", guide)) == sorted(tables())


def test_every_link_inside_the_guide_leads_somewhere() -> None:
    guide = (ROOT / GUIDE).read_text()
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", guide, re.MULTILINE)}
    assert set(re.findall(r"\(#([\w-]+)\)", guide)) <= headings


def test_every_limit_has_one_place_and_its_sentence() -> None:
    assert [place.limit for place in PLACES] == list(Limits.__dataclass_fields__)
    assert len({(place.section, place.key) for place in PLACES}) == len(PLACES)
    for place in PLACES:
        section: Any = Gateway.model_fields[place.section].annotation
        assert section.model_fields[place.key].description
        assert section.model_fields[place.key].default == getattr(Limits(), place.limit)


def test_every_key_has_a_sentence() -> None:
    rows = [row for table in tables().values() for row in table.splitlines()[2:]]
    assert rows
    assert [row for row in rows if len(row.split(" | ")[-1]) < 12] == []


def test_the_schema_is_one() -> None:
    schema = json.loads(schema_text())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    meta.validate(schema)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").iterdir()), ids=lambda path: path.name)
def test_every_example_fits_the_schema_and_refers_to_it(schema: Draft202012Validator, example: Path) -> None:
    data = read(example).data
    schema.validate(data)
    assert (example.parent / data["$schema"]).resolve() == ROOT / SCHEMA


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("{}", True),
        ('{"mcpServers": {"a": {"command": "x", "timeout": "${T:-3}", "disabled": "${OFF:-false}"}}}', True),
        ('{"gateway": {"limits": {"messageBytes": "${SIZE}"}}}', True),
        ('{"mcpServers": {"a": {}}}', False),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://h"}}}', False),
        ('{"mcpServers": {"a": {"command": "x", "timeout": "soon"}}}', False),
        ('{"gateway": {"limits": {"messageBytes": 0}}}', False),
        ('{"gateway": {"listn": ""}}', False),
    ],
)
def test_the_schema_tells_what_fits(schema: Draft202012Validator, text: str, fits: bool) -> None:
    assert schema.is_valid(json.loads(text)) is fits


def test_the_schema_says_what_each_key_is_for() -> None:
    def silent(part: Any) -> list[str]:
        return [
            name
            for name, one in part.get("properties", {}).items()
            if "description" not in one and "$ref" not in str(one)
        ]

    schema = json.loads(schema_text())
    assert [name for part in (schema, *schema["$defs"].values()) for name in silent(part)] == []
    assert schema["title"] == File.model_config["title"]
