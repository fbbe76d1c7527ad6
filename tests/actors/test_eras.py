"""What is known of the eras of servers, and what a contradiction makes of it."""

from actors.protocol.table import BackendSpec, StdioTarget
from actors.upstreams.eras import Eras

ALPHA = BackendSpec("alpha", StdioTarget("alpha"))


def test_nothing_is_known_of_a_server_that_nobody_asked() -> None:
    eras = Eras()
    assert eras.modern(ALPHA) is None
    assert eras.legacy(ALPHA) is None


def test_a_verdict_is_that_of_the_configured_target() -> None:
    eras = Eras()
    eras.found_modern(ALPHA, True)
    eras.found_legacy(ALPHA)
    assert (eras.modern(ALPHA), eras.legacy(ALPHA)) == (True, True)
    other = BackendSpec("alpha", StdioTarget("other"))
    assert (eras.modern(other), eras.legacy(other)) == (None, None)


def test_a_refused_initialize_is_a_reason_to_look_in_the_other_era_once() -> None:
    eras = Eras()
    assert eras.refused_legacy(ALPHA, surely=False)
    assert eras.legacy(ALPHA) is False
    eras.found_modern(ALPHA, False)
    assert (eras.modern(ALPHA), eras.legacy(ALPHA)) == (None, None)
    assert not eras.refused_legacy(ALPHA, surely=False)
    assert eras.modern(ALPHA) is None
    assert eras.refused_legacy(ALPHA, surely=False)


def test_words_that_only_the_other_era_has_are_a_reason_in_any_case() -> None:
    eras = Eras()
    eras.found_modern(ALPHA, False)
    assert eras.refused_legacy(ALPHA, surely=True)
    assert eras.modern(ALPHA) is None


def test_what_was_found_before_outlives_a_refusal_by_the_other_era() -> None:
    eras = Eras()
    eras.found_modern(ALPHA, True)
    assert eras.refused_legacy(ALPHA, surely=False)
    assert (eras.modern(ALPHA), eras.legacy(ALPHA)) == (True, False)


def test_a_silence_is_no_proof_against_a_refusal_of_the_other_era() -> None:
    eras = Eras()
    eras.found_modern(ALPHA, False, sure=False)
    assert eras.modern(ALPHA) is False, "as long as nothing speaks for it"
    assert eras.refused_legacy(ALPHA, surely=False)
    assert (eras.modern(ALPHA), eras.legacy(ALPHA)) == (None, False)
