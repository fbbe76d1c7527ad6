"""Revisions: negotiation and feature gates."""

import pytest

from actors.protocol.versions import (
    FEATURES,
    LATEST_HANDSHAKE,
    MODERN,
    MODERN_VERSIONS,
    VERSIONS,
    Era,
    at_least,
    can_use,
    era_of,
    negotiate,
)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_supported_revision_is_echoed(version):
    assert negotiate(version) == version


@pytest.mark.parametrize("version", [MODERN, "", "2099-01-01", "1.0", "2025-11-26", "garbage"])
def test_any_other_gets_the_newest_that_has_a_handshake(version):
    assert negotiate(version) == LATEST_HANDSHAKE == "2025-11-25"


def test_revisions_are_ordered_by_time():
    assert list(VERSIONS) == sorted(VERSIONS)
    assert at_least("2025-06-18", "2025-06-18")
    assert at_least("2025-11-25", "2025-06-18")
    assert not at_least("2025-03-26", "2025-06-18")


def test_batches_exist_in_one_revision_only():
    assert [can_use(version, "batches") for version in VERSIONS] == [False, True, False, False]


@pytest.mark.parametrize(
    ("feature", "first"),
    [
        ("audio", "2025-03-26"),
        ("progress_message", "2025-03-26"),
        ("completions_capability", "2025-03-26"),
        ("elicitation", "2025-06-18"),
        ("structured_content", "2025-06-18"),
        ("resource_link", "2025-06-18"),
        ("title", "2025-06-18"),
        ("priming", "2025-11-25"),
        ("url_elicitation", "2025-11-25"),
        ("sampling_tools", "2025-11-25"),
    ],
)
def test_a_feature_is_there_from_its_first_revision_on(feature, first):
    for version in VERSIONS:
        assert can_use(version, feature) == (version >= first)


def test_every_feature_begins_with_a_known_revision():
    assert {span.first for span in FEATURES.values()} <= {*VERSIONS, *MODERN_VERSIONS}
    with pytest.raises(KeyError):
        can_use("2025-11-25", "no such feature")


def test_a_revision_is_of_the_era_with_sessions_if_it_has_a_handshake():
    assert {era_of(version) for version in VERSIONS} == {Era.LEGACY}
    assert era_of(MODERN) is era_of("2099-01-01") is Era.MODERN


@pytest.mark.parametrize("feature", ["priming", "polling", "tasks", "batches", "elicitation_id"])
def test_what_needs_a_session_ends_with_them(feature):
    assert can_use("2025-11-25", feature) == (feature != "batches")
    assert not can_use(MODERN, feature)


@pytest.mark.parametrize("feature", ["result_type", "envelope", "any_structured_content"])
def test_what_came_without_sessions_is_not_there_before(feature):
    assert [can_use(version, feature) for version in (LATEST_HANDSHAKE, MODERN)] == [False, True]
