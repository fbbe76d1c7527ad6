"""What operators and auditors are told of tokens for servers and of users' accounts, in metrics and in the audit trail:
never a token."""

from dataclasses import dataclass
from typing import Literal

from actors.ports import NO_AUDIT, Audit, Telemetry

TokenEvent = Literal["token.fetch", "token.refresh", "token.refused", "token.revoke"]
ConnectOutcome = Literal["connected", "disconnected", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class TokenTrail:
    """Counts what becomes of tokens and accounts, and writes it into the audit trail."""

    audit: Audit = NO_AUDIT
    telemetry: Telemetry | None = None

    def token(self, event: TokenEvent, server: str, *, account: str = "", iss: str = "", **more: object) -> None:
        """Something became of a token for this server; `account`: of the principal whose it is."""
        if self.telemetry is not None:
            self.telemetry.count("stagedoor_upstream_tokens_total", (server, event.removeprefix("token.")))
        if self.audit.on:
            tell = self.audit.record_often if event == "token.refused" else self.audit.record
            tell(event, server=server, **_said(account=account, iss=iss, **more))

    def connect(
        self,
        outcome: ConnectOutcome,
        server: str = "",
        *,
        account: str = "",
        ip: str = "",
        reason: str = "",
        era: str = "",
    ) -> None:
        """Something became of an account, or somebody who might not was at its page. `era`: of the client whose call
        has led there."""
        if self.telemetry is not None:
            self.telemetry.count("stagedoor_account_connections_total", (server, outcome))
        if self.audit.on:
            stranger = outcome in ("refused", "failed")
            tell = self.audit.record_often if stranger else self.audit.record
            tell("connect", outcome=outcome, **_said(server=server, account=account, ip=ip, reason=reason, era=era))

    def stranger(self, ip: str) -> None:
        """Somebody has shown a token on a page that nobody has."""
        if self.audit.on:
            self.audit.record_often("authn.fail", reason="unknown", status=403, **_said(ip=ip))


def _said(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value}


NO_TRAIL = TokenTrail()
