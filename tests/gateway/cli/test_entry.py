import subprocess
import sys


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "stagedoor", "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: stagedoor ")


def test_the_public_api_is_that_of_servers_in_the_process() -> None:
    import gateway.native
    import stagedoor

    assert {name: getattr(stagedoor, name) for name in stagedoor.__all__} == {
        name: getattr(gateway.native, name) for name in stagedoor.__all__
    }


def test_composition_has_the_parts_that_the_commands_need() -> None:
    from gateway import app
    from gateway.cli import Parts, composed

    assert composed() == Parts(app.run, app.open_client)
