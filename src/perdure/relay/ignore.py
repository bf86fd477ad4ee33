"""What of a project stays behind: the rules of ``.gitignore`` and ``.perdureignore`` files, as git reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec

from perdure.core.errors import BundleError, ConfigError

GIT_RULES, OWN_RULES = ".gitignore", ".perdureignore"

_NEVER_NAMES = frozenset(
    {
        ".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache",
        ".tox", ".nox", ".venv", "node_modules", ".DS_Store",
    }
)  # fmt: skip

_FETCHED, _BEING_FETCHED = "perdure-relay.json", ".part"
_EMULATOR = ("emulator.json", "account.json", "rules.json")
"""What tells our own folders: a relay that was fetched, one that is being fetched, an emulator of Kaggle."""


@dataclass(frozen=True)
class _Rules:
    """The rules of one file, for what lies below a folder."""

    base: Path
    shown: str
    spec: GitIgnoreSpec
    lines: tuple[int, ...]
    wanted: tuple[str, ...] = ()

    def say(self, path: Path, is_folder: bool) -> tuple[bool, str] | None:
        """Whether it stays behind, and which line says so; None if no line speaks of it."""
        name = path.relative_to(self.base).as_posix() + ("/" if is_folder else "")
        found = self.spec.check_file(name)
        if found.include is None or found.index is None:
            return None
        return found.include, f"{self.shown}:{self.lines[found.index]}"

    def wants_below(self, folder: Path) -> bool:
        """Whether a line takes something along that lies below a folder, by its path."""
        name = folder.relative_to(self.base).as_posix() + "/"
        return any(pattern.startswith(name) and len(pattern) > len(name) for pattern in self.wanted)


@dataclass(frozen=True)
class Ignore:
    """The rules that hold in one folder of a project.

    A deeper file wins over one further up, and any ``.perdureignore`` over every ``.gitignore``: it can also take
    along a path below a folder that git ignores. A file that git tracks although a rule ignores it stays behind all
    the same: only the rules are read.

    Attributes:
        project: The project.
        git: Rules of ``.gitignore`` files, the deepest first.
        own: Rules of ``.perdureignore`` files, the deepest first.
        left: Why everything in this folder stays behind that is not taken along by its path; empty if it does not.
    """

    project: Path
    git: tuple[_Rules, ...] = ()
    own: tuple[_Rules, ...] = ()
    left: str = ""

    @classmethod
    def of_project(cls, project: Path) -> Ignore:
        """The rules from outside of a project: those of the git repository that it is a part of.

        Raises:
            BundleError: A file of rules cannot be read, or holds a line that is no pattern.
        """
        outside: list[_Rules] = []
        repository = next((folder for folder in (project, *project.parents) if (folder / ".git").exists()), None)
        if repository is not None:
            outside += _read(repository, repository / ".git" / "info" / "exclude", project)
            for folder in reversed(project.parents):
                if folder == repository or repository in folder.parents:
                    outside += _read(folder, folder / GIT_RULES, project)
        return cls(project, git=tuple(reversed(outside)))

    def inside(self, folder: Path) -> Ignore:
        """The rules that hold in a folder of it, whose own files are read now.

        Raises:
            BundleError: A file of rules cannot be read, or holds a line that is no pattern.
        """
        git = tuple(_read(folder, folder / GIT_RULES, self.project))
        own = tuple(_read(folder, folder / OWN_RULES, self.project))
        return Ignore(self.project, git + self.git, own + self.own, self.left)

    def into(self, folder: Path, reason: str) -> Ignore | None:
        """The rules for looking into a folder that stays behind; None where nothing in it is taken along."""
        if _always(folder, True) or not any(rules.wants_below(folder) for rules in self.own):
            return None
        return replace(self, left=reason)

    def reason(self, path: Path, is_folder: bool) -> str:
        """Why something in this folder stays behind: ``".gitignore:3"``; empty if it travels."""
        if always := _always(path, is_folder):
            return always
        for rules in (*self.own, *(() if self.left else self.git)):
            said = rules.say(path, is_folder)
            if said is not None:
                ignored, where = said
                return where if ignored else ""
        return self.left


def _always(path: Path, is_folder: bool) -> str:
    if path.name in _NEVER_NAMES or path.suffix in (".pyc", ".pyo"):
        return "never needed"
    if is_folder and (path / "pyvenv.cfg").is_file():
        return "a virtual environment"
    return _ours(path) if is_folder else ""


def _ours(folder: Path) -> str:
    """Folders that runs, a relay, or its rehearsal have left beside the project: results, and keys of the emulator.

    A checkpoint that travelled would lie in the output of a session that is killed, and look like one of its own.
    """
    if (folder / "run.json").is_file() and any(
        (folder / name).exists() for name in ("checkpoints", "session.json")
    ):
        return "a run"
    if any((folder / "checkpoints").glob("step-*/manifest.json")):
        return "a run"
    if (folder / _FETCHED).is_file():
        return "a relay that was fetched"
    if folder.suffix == _BEING_FETCHED and (folder / "want.json").is_file():
        return "a relay that is being fetched"
    if all((folder / name).is_file() for name in _EMULATOR):
        return "an emulator"
    return ""


def _read(base: Path, file: Path, project: Path) -> Iterator[_Rules]:
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}", hint="check its permissions") from error
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if _is_rule(line)]
    try:
        spec = GitIgnoreSpec.from_lines([line for _, line in numbered])
    except ValueError as error:
        raise BundleError(
            f"{file} holds a line that is no pattern: {error}", hint="mend it, as git reads it"
        ) from error
    shown = file.relative_to(project).as_posix() if file.is_relative_to(project) else str(file)
    wanted = tuple(line[1:].strip().lstrip("/") for _, line in numbered if line.startswith("!"))
    yield _Rules(base, shown, spec, tuple(number for number, _ in numbered), wanted)


def _is_rule(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def below(project: Path, target: str) -> str:
    """A target as a path below its project, with ``/``.

    Raises:
        ConfigError: It lies elsewhere.
    """
    path = Path(target)
    try:
        inner = (project / path).resolve().relative_to(project.resolve())
    except ValueError:
        raise ConfigError(
            f"{target} is not in the project {project}", hint="name the project's folder with --project"
        ) from None
    return str(PurePosixPath(inner))
