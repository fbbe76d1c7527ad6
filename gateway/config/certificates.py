"""Whether a certificate and its key can be served with, found out before anybody connects."""

import os
import ssl
import stat
from pathlib import Path


def tls_fault(cert: Path, key: Path) -> tuple[str, str] | None:
    """Which of the two, `cert` or `key`, is at fault, and why; None: TLS can be served by them, as far as that can be
    told by who may not read them (see `Settings.unreadable`)."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, password=lambda: "")  # else it is asked for on the terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return "key", "is not the key of this certificate"
        if not _holds_certificate(cert):
            return "cert", "holds no certificate in PEM"
        if error.library == "SSL" and error.reason is not None:  # it can be read, but is too weak
            return "cert", f"can't be used for TLS: {error.reason.replace('_', ' ').lower()}"
        return "key", "holds no private key in PEM without a password"
    except PermissionError:
        return ("cert", "holds no certificate in PEM") if not _holds_certificate(cert) else None
    except OSError as error:
        return ("key" if os.access(cert, os.R_OK) else "cert"), f"can't be read: {error.strerror}"
    return None


def is_missing(file: Path) -> bool:
    """Whether it is not there, as far as that can be told: a folder may be closed to who asks."""
    try:
        return not stat.S_ISREG(file.stat().st_mode)  # since Python 3.14 `is_file` says no of what it may not look at
    except PermissionError:
        return False
    except OSError:
        return True


def _holds_certificate(file: Path) -> bool:
    try:
        ssl.create_default_context(cafile=file)
    except PermissionError:
        return True  # nobody knows
    except OSError:
        return False
    return True
