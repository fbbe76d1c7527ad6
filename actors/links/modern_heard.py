"""What a transport says, as events of the machine of a link without sessions."""

from collections.abc import Iterator
from typing import NamedTuple

from actors import ports
from actors.links.heard import diagnosed
from actors.protocol import codec
from actors.protocol import link_events as ev
from actors.protocol.errors import Malformed
from actors.protocol.messages import RequestId
from actors.protocol.modern import link_events as mv


class Garbled(NamedTuple):
    """A message that can't be read. Only the request that it belongs to fails, if it belongs to one."""

    malformed: Malformed
    said: ports.FrameReceived

    def failed(self, pending: dict[RequestId, object]) -> mv.Failed | None:
        """The end of that request."""
        malformed, said = self.malformed, self.said
        id = malformed.outcome_of if malformed.outcome_of in pending else said.related
        if id is None or malformed.asks:
            return None
        return mv.Failed(id, "malformed", "the backend answered with something malformed", "unknown", said.status)


def heard(said: ports.TransportEvent, most: int) -> Iterator[mv.Event | Garbled]:
    """The event that this comes to; a message may have `most` bytes. What only sessions have is nothing."""
    match said:
        case ports.FrameReceived(frame, related, _, status):
            try:
                yield mv.Heard(codec.decode_message(frame, most), related, status)
            except Malformed as malformed:
                yield Garbled(malformed, said)
        case ports.RequestFailed(id, reason, message, executed, status, detail, stderr):
            yield mv.Failed(id, reason, message, executed, status, diagnosed(status, stderr, detail))
        case ports.Spoke():
            yield mv.Spoke()
        case ports.TransportClosed(reason, message, detail, stderr):
            yield ev.Closed(reason, message, diagnostics=diagnosed(None, stderr, detail))
