"""What a text has in it that its reader does not see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.protocol.lookalikes import TELL_MAX, alike, hidden, hidden_within, shown

UNSEEN = {
    "\x1b": "an escape sequence",
    "\x9b": "an escape sequence",
    "\x00": "a control character",
    "\x07": "a control character",
    "\x7f": "a control character",
    "\x85": "a control character",
    "\u202e": "a character that turns the direction of text",
    "\u2066": "a character that turns the direction of text",
    "\u200f": "a character that turns the direction of text",
    "\u200b": "a character without a width",
    "\u2060": "a character without a width",
    "\ufeff": "a character without a width",
    "\u00ad": "a character without a width",
    "\u3164": "a character without a width",
    "\U000e0041": "a letter of the tags block, which nobody sees",
    "\U000e0001": "a letter of the tags block, which nobody sees",
    "\U000e0100": "a variation selector that nothing is varied by",
    "\ud800": "half of a character",
}


@pytest.mark.parametrize("character", UNSEEN)
def test_11_each_kind_of_what_nobody_sees_is_told_with_its_code_and_place(character: str) -> None:
    assert hidden(f"ab{character}c") == [f"{UNSEEN[character]} (U+{ord(character):04X} at 2)"]
    assert shown(f"ab{character}c") == f"ab\\u{{{ord(character):X}}}c"


@pytest.mark.parametrize("text", ["", "plain", "two\nlines\tand a tab\r\n", "Grüße, 世界, ελληνικά", "a star ⭐️"])
def test_text_that_is_all_there_is_to_see_is_left_alone(text: str) -> None:
    assert hidden(text) == []
    assert shown(text) == text


def test_it_is_found_wherever_it_stands_and_of_much_the_first_is_told() -> None:
    item = {"name": "x", "inputSchema": {"properties": {"a\u200b": {"enum": ["ok", "\u202e"]}}}}
    assert hidden_within(item) == [
        "inputSchema.properties: in a name: a character without a width (U+200B at 1)",
        "inputSchema.properties.a\\u{200B}.enum[1]: a character that turns the direction of text (U+202E at 0)",
    ]
    assert len(hidden_within({"description": "\u200b" * 1000, "title": "\u200b" * 1000})) == TELL_MAX


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("read_file", "r\u0435ad_file"),
        ("read_file", "READ_FILE"),
        ("read_file", "read_f\u0456le"),
        ("read_file", "\uff52ead_file"),
        ("read_file", "read\u200b_file"),
        ("tool1", "tooll"),
        ("toolI", "tooll"),
        ("go0d", "good"),
        ("modern", "modem"),
    ],
)
def test_11_names_that_look_the_same_are_found(one: str, other: str) -> None:
    assert alike(["something", one, "else", other]) == [(one, other)]


def test_names_that_do_not_look_the_same_are_not() -> None:
    assert alike(["read_file", "read_files", "write_file", "read_file"]) == []


@given(st.text())
def test_what_is_shown_has_nothing_in_it_that_is_not_seen(text: str) -> None:
    assert hidden(shown(text)) == []
    assert (shown(text) == text) == (hidden(text) == [])
