"""Whether a backend's first answer to a link with a session shows that it speaks the other era."""

from actors import ports
from actors.links.eras import Eras
from actors.protocol import codec, errors
from actors.protocol.bridge import eras as rules
from actors.protocol.bridge.eras import Case, Verdict
from actors.protocol.link_handshake import refuses
from actors.protocol.link_loss import refusal_of
from actors.protocol.link_state import Link
from actors.protocol.messages import Error
from actors.services import Services

SURE = (Case.MODERN_CODE, Case.OTHER_VERSION)
"""What only servers of the other era say."""


class Fitness:
    """Of one link; without `eras` every server is taken for one with sessions."""

    def __init__(self, backend: str, services: Services, eras: Eras | None) -> None:
        self._backend = backend
        self._services = services
        self._eras = eras

    def refused(self, link: Link, said: ports.TransportEvent) -> bool:
        """INITIALIZING: whether this is an answer to `initialize` that is a reason to look in the other era."""
        spec = self._services.table.value.backends.get(self._backend)
        if self._eras is None or spec is None or not isinstance(said, ports.FrameReceived):
            return False
        try:
            message = codec.decode_message(said.frame, self._services.limits.message_bytes)
        except errors.Malformed:
            return False
        if not isinstance(message, Error) or not refuses(link, message, said.related):
            return False
        case = rules.of_error(message.error, said.status)
        looks = rules.INITIALIZE[case] is Verdict.LOOK
        why = f"server {spec.name!r} refused to initialize: {refusal_of(message.error)}"
        return looks and self._eras.refused_legacy(spec, surely=case in SURE, said=why)

    def ready(self, took: float) -> None:
        """The handshake is over, so many seconds after the connection was begun."""
        spec = self._services.table.value.backends.get(self._backend)
        if self._eras is not None and spec is not None:
            self._eras.found_legacy(spec, took)
