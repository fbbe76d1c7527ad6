"""What a message of the modern era is, by a ladder of checks: the first rung that fails is the answer.

Before it: Origin, authorization, verb, Accept, and JSON. After it: the Mcp-Param headers, once the tool's schema is
at hand (`headers.check_arguments`), and what the endpoint offers. The specification fixes the codes; the order is
that of the official SDKs.
"""

from collections.abc import Collection

from actors.protocol import errors, meta, modern_tasks
from actors.protocol import headers as mirrored
from actors.protocol.classify import ModernNotification, ModernRequest, Rejection
from actors.protocol.codec import Frame
from actors.protocol.errors import ProtocolError, Refusal
from actors.protocol.headers import Headers
from actors.protocol.messages import Notification, Request
from actors.protocol.methods import METHODS, Kind, Sender, known
from actors.protocol.versions import MODERN_VERSIONS, SERVED


def modern(
    frame: Frame,
    headers: Headers | None,
    accepts_sse: bool = True,
    *,
    extensions: Collection[str] | None = None,
    extra_methods: Collection[str] = (),
    one_server: bool = False,
) -> ModernRequest | ModernNotification | Rejection:
    """The route of a frame that `classify` found to be of this era; never raises.

    `headers` are None on transports that have none: then nothing is mirrored. `extensions` are the ids that a client's
    declaration counts for (None: all), `extra_methods` what they add to the methods of the core. `one_server`: behind
    the endpoint, which may know a log level that no revision has.
    """
    if isinstance(frame, Notification):
        refused = _notification_refused(headers)
        return ModernNotification(frame) if refused is None else Rejection(refused)
    if not isinstance(frame, Request):
        return Rejection(errors.invalid_request("one request or one notification is expected"))
    try:
        return _request(frame, headers, accepts_sse, extensions, extra_methods, one_server=one_server)
    except Refusal as refusal:
        return Rejection(errors.for_modern(refusal.error), frame.id)


def between_peers(method: str) -> bool:
    """Whether a client's notification goes to the one server behind an endpoint, if that is of this era too: what no
    table knows, and progress, which nobody here asked for. A posted cancel means nothing on HTTP, where the disconnect
    cancels, and ids are not unique to a caller."""
    return modern_tasks.is_strange(method) or method == "notifications/progress"


def mismatch(detail: str) -> ProtocolError:
    """-32020: headers and body disagree, or a header is missing or malformed."""
    return errors.refusal("header_mismatch", detail)


def _request(
    request: Request,
    headers: Headers | None,
    accepts_sse: bool,
    extensions: Collection[str] | None,
    extra_methods: Collection[str],
    *,
    one_server: bool,
) -> ModernRequest:
    if request.method == "subscriptions/listen" and not accepts_sse:
        raise Refusal(errors.refusal("not_acceptable", "subscriptions/listen is answered by text/event-stream"))
    if headers is not None:
        _check(mirrored.repeated(headers))
    version, keys = meta.look(request.params)
    if headers is not None:
        _check(mirrored.check_routing(headers, request.method, request.params, version))
    if version not in MODERN_VERSIONS:
        raise Refusal(errors.unsupported_protocol_version(version, SERVED))
    envelope = meta.envelope(version, keys, extensions)
    strange = None if one_server else meta.unknown_level(envelope.level)
    if strange is not None:
        raise Refusal(strange)
    row = known(request.method, Sender.CLIENT, version)
    unknown = request.method not in METHODS  # the one server behind an endpoint may know it
    if not unknown and (row is None or row.kind is not Kind.REQUEST) and request.method not in extra_methods:
        raise Refusal(errors.method_not_found(request.method))
    return ModernRequest(request, envelope)


def _check(detail: str | None) -> None:
    if detail is not None:
        raise Refusal(mismatch(detail))


def _notification_refused(headers: Headers | None) -> ProtocolError | None:
    """Which headers a notification needs is not defined; a revision that is not served is refused all the same."""
    named = None if headers is None else headers.get(mirrored.VERSION_HEADER.lower())
    if named is None or named in SERVED:
        return None
    return errors.unsupported_protocol_version(named, SERVED)
