"""What of a project is going to travel, and whether it may: looked at before anything is packed or pushed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from perdure.core.errors import BundleError
from perdure.core.intervals import format_bytes
from perdure.relay.ignore import Ignore, below
from perdure.relay.secrets import MOST_BYTES as MOST_SCANNED
from perdure.relay.secrets import kind_by_name, kinds_in

MOST_BYTES = 200_000_000
"""What a project may hold. It is unpacked in every session, and sent anew with every relay."""

MOST_FILES = 10_000

_SHOWN = 10


@dataclass(frozen=True)
class Item:
    """One file or link that travels.

    Attributes:
        name: Path below the project, with ``/``.
        path: Where it is.
        size_bytes: Its size; 0 for a link.
        executable: Whether it may be run.
        link: Where it leads, below its own folder; empty for a file.
    """

    name: str
    path: Path
    size_bytes: int
    executable: bool = False
    link: str = ""


@dataclass(frozen=True)
class Left:
    """Something that stays behind.

    Attributes:
        name: Path below the project; a folder ends with ``/`` and stands for all that is in it.
        reason: Why: ``".gitignore:3"``, ``"a virtual environment"``.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Survey:
    """A project that may travel.

    Attributes:
        project: Its folder.
        target: What is run, below it, with ``/``.
        items: What travels, by name.
        left: What stays behind.
        notes: What the user should know, one sentence each.
    """

    project: Path
    target: str
    items: tuple[Item, ...]
    left: tuple[Left, ...]
    notes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all that travels."""
        return sum(item.size_bytes for item in self.items)


def survey(project: Path, target: str, arguments: tuple[str, ...] = ()) -> Survey:
    """Look at a project; nothing is written, nothing is sent.

    Args:
        project: Its folder.
        target: The script or notebook, below it or as an absolute path.
        arguments: Its arguments.

    Raises:
        ConfigError: The target lies outside of the project.
        BundleError: There is nothing to run, something secret would travel, it is too large, or a link leads out.
    """
    project = project.resolve()
    if not project.is_dir():
        raise BundleError(f"there is no folder {project}", hint="name the project's folder with --project")
    name = below(project, target)
    left: list[Left] = []
    found = islice(_walk(project, Ignore.of_project(project), left), 5 * MOST_FILES)  # not a whole home folder
    items = sorted(found, key=lambda item: item.name)
    _check_size(items)
    _check_target(project, name, items, left, arguments)
    _check_links(items, left)
    _check_secrets(items)
    return Survey(project, name, tuple(items), tuple(sorted(left, key=lambda item: item.name)), _notes(items, name))


def _walk(folder: Path, outer: Ignore, left: list[Left]) -> Iterator[Item]:
    rules = outer.inside(folder)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from error
    for entry in entries:
        path = Path(entry.path)
        name = path.relative_to(rules.project).as_posix()
        is_folder = entry.is_dir(follow_symlinks=False)
        reason = rules.reason(path, is_folder)
        inner = rules.into(path, reason) if reason and is_folder else None
        if inner:
            yield from _walk(path, inner, left)
        elif reason:
            left.append(Left(name + "/" * is_folder, reason))
        elif entry.is_symlink():
            yield Item(name, path, 0, link=_link(rules.project, path, name))
        elif is_folder:
            yield from _walk(path, rules, left)
        elif entry.is_file(follow_symlinks=False):
            state = entry.stat(follow_symlinks=False)
            yield Item(name, path, state.st_size, bool(state.st_mode & stat.S_IXUSR))
        else:
            left.append(Left(name, "neither file nor folder"))


def _link(project: Path, path: Path, name: str) -> str:
    """Where a link leads, below its own folder."""
    goal = Path(os.path.realpath(path))
    if not goal.exists():
        raise BundleError(
            f"{name} is a link that leads nowhere: {os.readlink(path)}", hint=_leave_out(name, "take it away, or")
        )
    if not goal.is_relative_to(project):
        raise BundleError(
            f"{name} is a link that leads out of the project: {goal}",
            hint=_leave_out(
                name, "copy what it shows into the project, or attach it as a data set with --dataset, or"
            ),
        )
    return Path(os.path.relpath(goal, path.parent.resolve())).as_posix()


def _check_target(
    project: Path, name: str, items: list[Item], left: list[Left], arguments: tuple[str, ...]
) -> None:
    path = project / name
    check_there(path, name, project)
    item = next((item for item in items if item.name == name), None)
    if item is None:
        why = next((f": {entry.reason}" for entry in left if _covers(entry, name)), "")
        raise BundleError(
            f"nothing to run: {name} stays behind{why}", hint=f"write !{name} into .perdureignore to take it along"
        )
    if path.suffix == ".ipynb":
        _check_notebook(path, name, arguments)
    elif path.suffix == ".py" and not path.stat().st_size:
        raise BundleError(f"nothing to run: {name} is empty", hint="save it, then try again")
    elif path.suffix != ".py" and not item.executable:
        raise BundleError(
            f"nothing to run: {name} is neither a .py script nor an .ipynb notebook, and not executable",
            hint=f"chmod +x {name}, if it is a program",
        )


def check_there(path: Path, name: str, project: Path) -> None:
    """Refuse a target that is no file.

    Raises:
        BundleError: There is none.
    """
    if not path.is_file():
        raise BundleError(f"nothing to run: there is no file {name} in {project}", hint="name a .py or .ipynb file")


def _covers(entry: Left, name: str) -> bool:
    return entry.name.rstrip("/") == name or (entry.name.endswith("/") and name.startswith(entry.name))


def _check_notebook(path: Path, name: str, arguments: tuple[str, ...]) -> None:
    if arguments:
        raise BundleError(
            f"a notebook takes no arguments, got {' '.join(arguments)!r}",
            hint="set variables instead: --env NAME=VALUE",
        )
    try:
        book = json.loads(path.read_bytes())
        cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        language = (book.get("metadata") or {}).get("language_info", {}).get("name", "python")
        code = "".join("".join(cell.get("source", "")) for cell in cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(
            f"{name} is no notebook ({type(error).__name__})", hint="open it and save it again"
        ) from error
    if str(language).lower() != "python":
        raise BundleError(f"{name} is a notebook in {language}", hint="only Python is run")
    if not code.strip():
        raise BundleError(f"nothing to run: {name} has no code in it", hint="save it, then try again")


def _check_size(items: list[Item]) -> None:
    total = sum(item.size_bytes for item in items)
    if total <= MOST_BYTES and len(items) <= MOST_FILES:
        return
    largest = sorted(items, key=lambda item: -item.size_bytes)[:_SHOWN]
    lines = "".join(f"\n  - {item.name}: {format_bytes(item.size_bytes)}" for item in largest)
    raise BundleError(
        f"the project is too large to travel: {len(items)} files, {format_bytes(total)}, where {MOST_FILES} files "
        f"and {format_bytes(MOST_BYTES)} are the most; its largest files:{lines}",
        hint="leave data out with .perdureignore, and attach it as a data set: --dataset OWNER/NAME",
    )


def _check_links(items: list[Item], left: list[Left]) -> None:
    names = {item.name for item in items}
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    for item in items:
        if not item.link:
            continue
        goal = os.path.normpath(os.path.join(os.path.dirname(item.name), item.link))
        if goal not in names | folders:
            why = next((f": {entry.reason}" for entry in left if _covers(entry, goal)), "")
            raise BundleError(
                f"{item.name} is a link to {goal}, which stays behind{why}", hint=_leave_out(item.name)
            )


def _check_secrets(items: list[Item]) -> None:
    found = [(item.name, line) for item in items for line in _secrets(item)]
    if not found:
        return
    lines = "".join(f"\n  - {name}: {line}" for name, line in found[:_SHOWN])
    more = f"\n  - and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise BundleError(
        f"something secret would travel with the project:{lines}{more}",
        hint=_leave_out(found[0][0], "keep secrets in the platform's own place for them;")
        + "; a line that only looks like one may say '# perdure: not a secret'",
    )


def _secrets(item: Item) -> Iterator[str]:
    kind = kind_by_name(item.name)
    if kind:
        yield kind
    elif not item.link and item.size_bytes <= MOST_SCANNED:
        try:
            data = item.path.read_bytes()
        except OSError as error:
            raise _unreadable(item.path, error) from error
        yield from (f"line {number} looks like {kind}" for number, kind in kinds_in(data))


def _notes(items: list[Item], target: str) -> tuple[str, ...]:
    """A mistake that would cost a session; only noted, because the platform's Python may know more."""
    item = next(item for item in items if item.name == target)
    if item.path.suffix != ".py":
        return ()
    try:
        compile(item.path.read_bytes(), target, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return (f"{target} is no Python that this interpreter understands: {str(error) or type(error).__name__}",)
    return ()


def _leave_out(name: str, first: str = "") -> str:
    return f"{first} leave it out: echo '/{name}' >> .perdureignore".strip()


def _unreadable(path: Path, error: OSError) -> BundleError:
    return BundleError(f"{path} cannot be read: {error.strerror or error}", hint="check its permissions")
