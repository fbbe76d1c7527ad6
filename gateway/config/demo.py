"""What the gateway serves when nobody has configured it: the demo servers, in this process."""

from pathlib import Path

from gateway.config.build import Resolve
from gateway.config.document import Document
from gateway.config.loading import settings_from
from gateway.config.references import import_object
from gateway.config.settings import Settings

SERVERS = {"demo": {"native": "gateway.native.demo:server"}, "notes": {"native": "gateway.native.notes:server"}}


def demo_settings(resolve: Resolve = import_object) -> Settings:
    """Settings with the demo servers and every default."""
    data = {"mcpServers": SERVERS, "gateway": {"auth": {"anonymous": True}}}  # they can do no harm
    return settings_from(Document(data, {}, "the built-in configuration", Path.cwd()), {}, resolve)
