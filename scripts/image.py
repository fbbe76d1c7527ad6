"""Carries out a Dockerfile in a folder, for machines where no container engine runs.

    python scripts/image.py FOLDER [--target STAGE]

The steps are read from the Dockerfile itself, so that what is tried here is what an engine would do. FOLDER becomes the
file system of the stage, as far as the image has files of its own (below `/opt`, `/src`, `/usr/local`, `/var/lib`; what
else is named is this machine's). What an engine alone can do is left out, and said: files of base images, of which only
`python` is stood in for, by a fresh virtual environment of the Python that runs this, with its pip. Prints, as JSON,
with what a container would be started.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OWN = re.compile(r"(?<![\w./$}])/(?=(?:opt|src|usr/local|var/lib)\b)")
"""Where an absolute path of the image begins that is the image's own."""
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PASSED = re.compile(r"(PIP|UV)_\w+|\w+_proxy|\w+_PROXY|SSL_CERT_\w+|LANG", re.ASCII)
"""Variables of this machine that steps need to fetch packages here; an engine hands on the like."""
FOR_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
"""What pip is configured to on this machine, by the variable that tells uv the same."""


@dataclass(frozen=True)
class Instruction:
    """One line of the Dockerfile: `RUN` and what stands behind it."""

    word: str
    rest: str

    @property
    def flags(self) -> dict[str, str]:
        return dict(re.findall(r"--([a-z-]+)=(\S+)", self.rest))

    @property
    def words(self) -> list[str]:
        """Without flags; of the JSON form its elements."""
        plain = re.sub(r"--[a-z-]+=\S+\s*", "", self.rest)
        return json.loads(plain) if plain.startswith("[") else shlex.split(plain)


def instructions(text: str) -> list[Instruction]:
    """What a Dockerfile says, in order: comments left out, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


@dataclass(frozen=True)
class Config:
    """With what a container of a stage is started."""

    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0"
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)


class Builder:
    """Builds stages one after the other, each in the same folder, since virtual environments know where they are. A
    stage that is done is put aside, where later ones find what they copy from it."""

    def __init__(self, folder: Path, context: Path) -> None:
        self.folder = folder
        self._context = context
        self._aside = folder.with_name(f"{folder.name}.stages")
        self._args: dict[str, str] = {}
        self._configs: dict[str, Config] = {}
        self._external: set[str] = set()
        self._variables: dict[str, str] = {}
        self._stage = ""
        self.config = Config()

    def build(self, dockerfile: str, target: str | None) -> Config:
        """Carries out the stages that the target needs; without one, that is the last."""
        stages = _stages(instructions(dockerfile))
        names = list(stages)
        wanted = _needed(stages, target or names[-1])
        for given in instructions(dockerfile):
            if given.word == "FROM":
                break
            name, _, value = given.rest.partition("=")
            self._args[name] = value
        for name in names:
            if name in wanted:
                self._begin(name, stages[name][0])
                for given in stages[name][1:]:
                    self._carry_out(given)
        return self.config

    def _carry_out(self, given: Instruction) -> None:
        env = self.config.env
        match given.word:
            case "RUN":
                self._run(re.sub(r"^(--mount=type=cache,\S+\s+)+", "", given.rest))  # caches are this machine's
            case "COPY":
                self._copy(given)
            case "ARG":
                name, _, value = given.rest.partition("=")
                self._variables[name] = os.environ.get(name, value)  # as by --build-arg
            case "ENV":
                pairs = (word.partition("=") for word in given.words)
                self._change(env={**env, **{name: self.inside(value) for name, _, value in pairs}})
            case "WORKDIR":
                self._change(workdir=self.inside(given.rest))
                Path(self.config.workdir).mkdir(parents=True, exist_ok=True)
            case "USER":
                self._change(user=given.rest)
            case "EXPOSE":
                self._change(ports=[*self.config.ports, *given.words])
            case "ENTRYPOINT":
                self._change(entrypoint=given.words, cmd=[])
            case "CMD":
                self._change(cmd=given.words)
            case "HEALTHCHECK":
                self._change(healthcheck=json.loads(given.rest.partition("CMD ")[2]))
            case "LABEL" | "STOPSIGNAL":
                pass
            case _:
                raise SystemExit(f"this script does not know the instruction {given.word}")

    def _change(self, **to: object) -> None:
        self.config = replace(self.config, **to)  # type: ignore[arg-type]

    def inside(self, text: str) -> str:
        """Text of the Dockerfile with the image's own paths where they are here."""
        return OWN.sub(f"{self.folder}/", text)

    def _begin(self, name: str, source: Instruction) -> None:
        if self._stage:
            self._configs[self._stage] = self.config
            self.folder.rename(self._aside / self._stage)
        self._stage, self._variables = name, {}
        base = string.Template(source.words[0]).safe_substitute(self._args)
        if base in self._configs:
            say(f"{name}: from {base}")
            shutil.copytree(self._aside / base, self.folder, symlinks=True, copy_function=linked)
            self.config = self._configs[base]
            return
        self._aside.mkdir(parents=True, exist_ok=True)
        self.config = Config()
        if base.startswith("python:"):
            say(f"{name}: from Python {sys.version.split()[0]} in the place of {base}")
            self._python()
        else:
            say(f"{name}: left out, {base} is an image")
            self.folder.mkdir()
            self._external.add(name)

    def _python(self) -> None:
        """Puts into the folder what stands for the image of Python: made once, it has pip as that one has."""
        made = self._aside / "python"
        if made.exists():
            shutil.copytree(made, self.folder, symlinks=True, copy_function=linked)
            return
        python = getattr(sys, "_base_executable", sys.executable)
        local = self.folder / "usr" / "local"
        subprocess.run([python, "-m", "venv", "--without-pip", local], check=True)
        pip = importlib.metadata.distribution("pip")
        for place in {file.parts[0] for file in pip.files or () if file.parts[0] != ".."}:
            ours = Path(str(pip.locate_file(place)))
            shutil.copytree(ours, local / "lib" / f"python{VERSION}" / "site-packages" / place)
        shutil.copytree(self.folder, made, symlinks=True, copy_function=linked)

    def _run(self, command: str) -> None:
        env = for_uv() | {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
        env |= {"PATH": f"{self.folder}/usr/local/bin:/usr/bin:/bin", "HOME": str(Path.home())}
        env |= {name: value for name, value in self.config.env.items() if name != "HOME"} | self._variables
        say(f"RUN {command}")
        subprocess.run(
            ["/bin/sh", "-ec", self.inside(command)], cwd=self.config.workdir, env=env, stdout=sys.stderr, check=True
        )

    def _copy(self, given: Instruction) -> None:
        *sources, target = given.words
        origin = given.flags.get("from")
        say(f"COPY {given.rest}")
        if origin in self._external:
            say(f"  left out: {origin} is an image")
            return
        top = self._aside / origin if origin else self._context
        into = Path(self.inside(target)) if target.startswith("/") else Path(self.config.workdir, target)
        for source in sources:
            there = top / source.lstrip("/")
            if there.is_dir():
                copy = linked if origin else shutil.copy2
                shutil.copytree(there, into, symlinks=True, dirs_exist_ok=True, ignore=_ignored, copy_function=copy)
            else:
                file = into / there.name if target.endswith("/") else into
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(there, file)


@cache
def for_uv() -> dict[str, str]:
    """Variables that tell uv where pip gets its packages: it reads nothing that pip is configured by."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    lines = sorted(told.stdout.splitlines(), key=lambda line: line.startswith(":env:"))  # variables win over files
    found = re.findall(r"^[^=]*\.([a-z-]+)='(.*)'$", "\n".join(lines), re.M)
    lists = {key: re.split(r"(?:\\n|\s)+", value.strip()) for key, value in found if key in FOR_UV}
    return {FOR_UV[key]: ("," if key == "find-links" else " ").join(values) for key, values in lists.items()}


def linked(source: str, target: str) -> None:
    """A copy of a file of another stage, which nobody writes to: who installs over it makes a file of its own."""
    os.link(source, target)


def _ignored(_folder: str, names: list[str]) -> list[str]:
    """What `.dockerignore` leaves out of every folder."""
    return [name for name in names if name == "__pycache__"]


def _stages(given: list[Instruction]) -> dict[str, list[Instruction]]:
    """The instructions of each stage by its name, its FROM first."""
    stages: dict[str, list[Instruction]] = {}
    for instruction in given:
        if instruction.word == "FROM":
            stages[instruction.words[-1]] = current = [instruction]
        elif stages:
            current.append(instruction)
    return stages


def _needed(stages: dict[str, list[Instruction]], target: str) -> set[str]:
    """The stages that this one is made of."""
    if target not in stages:
        raise SystemExit(f"the Dockerfile has no stage {target}; there are {', '.join(stages)}")
    found = {target}
    for given in stages[target]:
        named = given.words[0] if given.word == "FROM" else given.flags.get("from") if given.word == "COPY" else None
        if named in stages and named not in found:
            found |= _needed(stages, named)
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Carry out the Dockerfile in a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if folder.exists():
        raise SystemExit(f"{folder} is there already: the steps need a clean folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = Builder(folder, ROOT).build((ROOT / "Dockerfile").read_text(), given.target)
    print(json.dumps(asdict(config)))


if __name__ == "__main__":
    main()
