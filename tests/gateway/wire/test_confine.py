"""Children with less than the gateway has: limits, another user, a sandbox. With real processes."""

import json
import os
import pwd
import shutil
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from actors.protocol.table import Confinement, Sandbox, StdioTarget
from gateway.wire.errors import SpawnError
from gateway.wire.process import Patience, end_group, spawn
from tests.support.patience import PATIENCE
from tests.support.processes import need

LINUX = sys.platform == "linux"
ROOT = os.geteuid() == 0
CANARY = "s3cret-of-a-child"


async def said(target: StdioTarget) -> tuple[bytes, bytes, int]:
    """What a child wrote to its end, and its status."""
    written = {"out": b"", "err": b""}

    async def read(name, stream):
        while chunk := await stream.receive_some():
            written[name] += chunk

    with trio.fail_after(PATIENCE):
        child = await spawn(target)
        try:
            child.stdin.close()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, "out", child.stdout)
                nursery.start_soon(read, "err", child.stderr)
            status = await child.process.wait()
        finally:
            with trio.CancelScope(shield=True):
                await end_group(child, Patience())
                child.close_pipes()
    return written["out"], written["err"], status


def python(script: str, confinement: Confinement, command: str = sys.executable, **more: object) -> StdioTarget:
    return StdioTarget(command, ("-I", "-S", "-c", textwrap.dedent(script)), confinement=confinement, **more)  # type: ignore[arg-type]


async def answer(target: StdioTarget) -> object:
    out, err, status = await said(target)
    assert status == 0, err.decode()
    return json.loads(out)


async def test_limits_are_those_of_the_child_and_of_all_that_it_starts():
    script = """
        import json, resource, subprocess, sys
        mine = [resource.getrlimit(kind) for kind in (resource.RLIMIT_DATA, resource.RLIMIT_NOFILE)]
        show = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])"
        grandchild = subprocess.run([sys.executable, "-S", "-c", show], stdout=subprocess.PIPE).stdout
        print(json.dumps([mine, int(grandchild)]))
    """
    memory = 512 * 1024 * 1024
    limits, grandchild = await answer(python(script, Confinement(memory=memory, files=64)))
    assert limits == [[memory, memory], [64, 64]]
    assert grandchild == 64


async def test_a_child_that_takes_more_memory_than_it_may_have_fails_alone():
    out, err, status = await said(python("x = bytearray(1 << 30); print(len(x))", Confinement(memory=256 << 20)))
    assert (out, status) == (b"", 1)
    assert b"MemoryError" in err


async def test_a_limited_command_that_is_not_there_is_told_as_ever():
    with pytest.raises(SpawnError, match="command 'no-such-program' not found"):
        await spawn(StdioTarget("no-such-program", confinement=Confinement(files=64)))


async def test_a_command_with_a_path_is_looked_up_from_its_own_directory(tmp_path):
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho on\n")
    program.chmod(0o755)
    out, _, _ = await said(StdioTarget("./server", cwd=str(tmp_path), confinement=Confinement(files=64)))
    assert out == b"on\n"


@pytest.mark.skipif(not ROOT, reason="only root starts programs as somebody else")
async def test_a_child_runs_as_another_user_with_nothing_of_ours():
    # Where the interpreter of the tests is may be closed to others, and the one of the system may be another.
    shell = "id -un; id -u; echo $HOME $USER ${TMPDIR:-none}; pwd"
    nobody = pwd.getpwnam("nobody")
    target = StdioTarget("sh", ("-c", shell), confinement=Confinement(user="nobody"))
    name, uid, variables, cwd = (await said(target))[0].decode().splitlines()
    assert (name, int(uid)) == ("nobody", nobody.pw_uid)
    home = nobody.pw_dir if Path(nobody.pw_dir).is_dir() else "/"
    assert variables == f"{home} nobody none"
    assert cwd == home


@pytest.mark.skipif(not (ROOT and LINUX), reason="only root starts programs as somebody else")
async def test_processes_of_another_user_are_limited():
    shell = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 5 & done; echo all"
    target = StdioTarget("sh", ("-c", shell), confinement=Confinement(user="games", processes=5))
    out, err, status = await said(target)
    assert status != 0
    assert out == b""
    assert b"fork" in err


async def test_a_user_that_is_not_there_is_an_error_that_names_it():
    with pytest.raises(SpawnError, match="there is no user 'nobody-of-this-name'"):
        await spawn(StdioTarget("true", confinement=Confinement(user="nobody-of-this-name")))


@pytest.fixture
def bubblewrap():
    if not LINUX:
        pytest.skip("bubblewrap is for Linux")
    return need("bwrap", "bubblewrap")


SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin")
LOOK = """
    import json, os, socket, sys
    def can(do):
        try:
            do()
        except OSError as error:
            return error.strerror
        return "yes"
    read, write, foreign, port = sys.argv[1:]
    print(json.dumps({
        "read": can(lambda: open(read + "/note").read()),
        "write there": can(lambda: open(read + "/new", "w")),
        "write": can(lambda: open(write + "/new", "w").write("x")),
        "foreign": can(lambda: open(foreign + "/note").read()),
        "tmp": can(lambda: open("/tmp/mine", "w")),
        "shadow": can(lambda: open("/etc/shadow").read()),
        "keys": can(lambda: os.listdir("/etc/ssl/private")),
        "certificates": can(lambda: os.listdir("/etc/ssl/certs")),
        "network": can(lambda: socket.create_connection(("127.0.0.1", int(port)), 5)),
        "processes": sum(name.isdigit() for name in os.listdir("/proc")),
        "variable": os.environ["TOKEN"],
    }))
"""


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / name for name in ("read", "write", "foreign")]
    for folder in made:
        folder.mkdir()
        (folder / "note").write_text("hello")
    return [str(folder) for folder in made]


@pytest.mark.parametrize("network", [False, True])
async def test_a_sandbox_shows_what_is_declared_and_nothing_else(bubblewrap, folders, network):
    if SYSTEM_PYTHON is None:
        pytest.skip("there is no Python in /usr/bin")
    read, write, foreign = folders
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    sandbox = Sandbox((read,), (write,), network)
    words = ("-I", "-S", "-c", textwrap.dedent(LOOK), read, write, foreign, str(port))
    target = StdioTarget(SYSTEM_PYTHON, words, (("TOKEN", CANARY),), None, Confinement(sandbox=sandbox))
    async with listener:
        seen = await answer(target)
    assert isinstance(seen, dict)
    assert seen.pop("network") == ("yes" if network else "Network is unreachable") or not network
    assert seen.pop("processes") <= 3
    assert seen == {
        "read": "yes",
        "write there": "Read-only file system",
        "write": "yes",
        "foreign": "No such file or directory",
        "tmp": "yes",
        "shadow": "No such file or directory",
        "keys": "No such file or directory",
        "certificates": "yes" if Path("/etc/ssl/certs").is_dir() else "No such file or directory",
        "variable": CANARY,
    }
    assert Path(write, "new").read_text() == "x"
    assert not Path("/tmp/mine").exists()


async def test_no_variable_of_a_child_is_on_a_command_line(bubblewrap):
    target = StdioTarget("cat", (), (("TOKEN", CANARY),), None, Confinement(files=64, sandbox=Sandbox()))
    with trio.fail_after(PATIENCE):
        child = await spawn(target)
        await child.stdin.send_all(b"{}\n")
        assert await child.stdout.receive_some() == b"{}\n"
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert any(b"--unshare-all" in line for line in lines)
        assert not any(CANARY.encode() in line for line in lines)
        with trio.CancelScope(shield=True):
            child.stdin.close()
            await end_group(child, Patience())
            child.close_pipes()


async def test_a_program_that_the_sandbox_lacks_is_an_error_that_says_so(bubblewrap, tmp_path):
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o755)
    with pytest.raises(SpawnError, match="its sandbox has no folder with"):
        await spawn(StdioTarget(str(program), confinement=Confinement(sandbox=Sandbox())))
    out, _, status = await said(StdioTarget(str(program), confinement=Confinement(sandbox=Sandbox((str(tmp_path),)))))
    assert (out, status) == (b"", 0)


async def test_what_runs_in_a_sandbox_ends_with_its_group(bubblewrap):
    target = StdioTarget("sh", ("-c", "trap '' TERM; setsid sleep 600 & echo on; sleep 600"))
    target = StdioTarget(target.command, target.args, confinement=Confinement(sandbox=Sandbox()))
    with trio.fail_after(PATIENCE):
        child = await spawn(target)
        assert await child.stdout.receive_some() == b"on\n"
        await end_group(child, Patience(0.1, 0.1, 5))
        # Even what has left the group is gone, with the sandbox, and lets go of the pipe.
        while await child.stdout.receive_some():
            pass
        child.close_pipes()


@pytest.mark.skipif(not LINUX, reason="Linux has it")
async def test_children_gain_no_privileges_once_that_is_forbidden():
    script = """
        import sys, trio
        sys.path.insert(0, sys.argv[1])
        from actors.protocol.table import StdioTarget
        from gateway.wire.confine import forbid_new_privileges
        from gateway.wire.process import spawn
        async def main():
            child = await spawn(StdioTarget("grep", ("NoNewPrivs", "/proc/self/status")))
            print((await child.stdout.receive_some()).split()[1].decode())
            await child.process.wait()
        assert forbid_new_privileges()
        trio.run(main)
    """
    root = str(Path(__file__).parents[3])
    target = StdioTarget(sys.executable, ("-c", textwrap.dedent(script), root))
    out, err, _ = await said(target)
    assert out == b"1\n", err
