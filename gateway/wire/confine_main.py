"""Sets limits on itself, becomes another user and then another program. Run as a script:

    python -I -S confine_main.py memory=BYTES processes=N files=N user=UID:GID:GROUP,GROUP -- /PATH/OF/COMMAND ARGS...

It imports little, since each child that is limited waits for it.
"""

import os
import resource
import sys

LIMITS = {"memory": resource.RLIMIT_DATA, "processes": resource.RLIMIT_NPROC, "files": resource.RLIMIT_NOFILE}
"""Memory is what a process may write to: addresses that are only reserved, of which some runtimes take much, are not
counted (getrlimit(2))."""
NOT_FOUND = 127
"""The status by which shells say that there is no such program."""


def limit(kind: int, wanted: int) -> None:
    """Soft and hard; nobody may go beyond the hard limit that there is, and less than wanted is no less of a limit."""
    hard = resource.getrlimit(kind)[1]
    found = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (found, found))


def become(user: str) -> None:
    """For good: real, effective and saved, the groups first, while that is allowed."""
    uid, gid, groups = user.split(":")
    os.setgroups([int(group) for group in groups.split(",")])
    os.setgid(int(gid))
    os.setuid(int(uid))


def main(words: list[str]) -> None:
    """Never returns, but by SystemExit."""
    end = words.index("--")
    for word in words[:end]:
        name, _, value = word.partition("=")
        if name == "user":
            become(value)
        else:
            limit(LIMITS[name], int(value))
    command = words[end + 1 :]
    try:
        # A path, not a name: another user may not be able to read what Python would load to look it up.
        os.execv(command[0], command)  # noqa: S606 - starting it is what this is for
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        raise SystemExit(NOT_FOUND) from None


if __name__ == "__main__":
    main(sys.argv[1:])
