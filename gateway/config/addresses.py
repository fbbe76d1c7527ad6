"""Where a listener is, as it is written."""

import re

from gateway.config.settings import Address


def parse_address(text: str) -> Address:
    """`HOST:PORT` or `[V6]:PORT`; port 0 stands for any free one. ValueError for anything else."""
    match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>\d{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080 (0.0.0.0:8080 for every interface)")
    return Address(match["v6"] or match["host"], int(match["port"]))


def parse_listen(text: str) -> Address:
    """The same, or `unix:/PATH`. ValueError for anything else."""
    scheme, colon, path = text.partition(":")
    if not colon or scheme != "unix":
        return parse_address(text)
    if not path.startswith("/") or "\0" in path:
        raise ValueError("must be unix: and the absolute path of a socket, such as unix:/run/stagedoor.sock")
    return Address.unix(path)
