"""Bringing what a relay has come to: its runs, its model files, and whatever else its script has left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.core.errors import CorruptError
from perdure.platforms.protocol import Platform, Progress
from perdure.relay.bringing import Bringer
from perdure.relay.choosing import Choice, Kept, choose, sources_of
from perdure.relay.listing import CARD
from perdure.relay.placing import Landing
from perdure.relay.proving import card_problems, checkpoint_problems, digests_of, suspects
from perdure.relay.records import Relay

_TRIES = 2
"""How often a file is brought whose digest is wrong: a download can be damaged, a file that stays so is damaged."""


@dataclass(frozen=True)
class Fetched:
    """What was brought.

    Attributes:
        folder: Where it lies.
        checkpoints: Folders of the checkpoints, every byte of them proven.
        models: Model files, proven by the digests of their card.
        others: Files of the script, of which only the size is known to be right.
        size_bytes: Bytes of all files.
        remarks: What could not be brought, a sentence each.
    """

    folder: Path
    checkpoints: tuple[Path, ...]
    models: tuple[Path, ...]
    others: tuple[Path, ...]
    size_bytes: int
    remarks: tuple[str, ...] = ()


def fetch_run(
    platform: Platform, relay: Relay, out: Path, progress: Progress | None = None, *, tensors: bool = True
) -> Fetched:
    """Bring what a relay has come to, as it lay in the working folders of its sessions.

    Downloads go on where they were interrupted. The folder gets its name when everything in it is proven; until
    then it is filled under a hidden name beside it. What an earlier call brought for this relay is replaced.

    Args:
        platform: Where its sessions ran.
        relay: The relay; it need not be at its end.
        out: The folder.
        progress: Called with bytes that are there, and bytes in all.
        tensors: Whether the checkpoints are wanted, and not only status, model files and other files.

    Raises:
        RelayError: There is nothing yet, or something else lies in ``out``.
        CorruptError: What came is not what was written, twice. It stays under the hidden name.
        DiskFullError: There is no room.
        TransientPlatformError: It could not be finished, or another process is at it; the next call goes on.
        PlatformError, OSError: As the platform or the system say.
    """
    want = _want(relay, tensors)
    landing = Landing(out, relay.id, want)
    with landing.held():
        receipt = landing.receipt()
        if _holds(receipt.get("want"), want) and landing.is_complete(receipt):
            landing.leave()
            return _fetched(landing.out, receipt)
        landing.begin()
        choice = choose(platform, relay, landing.folder, tensors=tensors)
        landing.check_room(choice.size_bytes)
        facts = _bring_proven(choice, landing.folder, progress)
        landing.put(facts)
        landing.leave()
    return _fetched(landing.out, facts)


def _want(relay: Relay, tensors: bool) -> dict[str, Any]:
    runs = [[source.stand.name, source.stand.checkpoint, source.session] for source in relay.standing.runs]
    return {"runs": runs, "newest": sources_of(relay)[-1].number, "tensors": tensors}


def _holds(there: Any, want: Mapping[str, Any]) -> bool:
    """Whether what lies there is what is wanted, or more."""
    return isinstance(there, Mapping) and there in (want, {**want, "tensors": True})


def _bring_proven(choice: Choice, root: Path, progress: Progress | None) -> dict[str, Any]:
    """Bring all files, and those that are damaged once more; the facts for the receipt.

    Raises:
        CorruptError: Something that has to be right is still damaged.
    """
    for left in reversed(range(_TRIES)):
        missing = _bring(choice, progress)
        damaged, broken = _damaged(choice, root)
        needed = [*missing, *damaged.values(), *(text for kept, text in broken.items() if kept.newest)]
        if not needed and (not broken or not left):
            return _facts(choice, root, broken)
        for name in damaged:
            _forget(choice, root, root / name)
        for kept, text in broken.items():
            for path in suspects(root / kept.run_folder, kept.name, [text]):
                _forget(choice, root, path)
    raise CorruptError(
        "what was fetched is not what was written",
        path=root,
        problems=needed,
        hint=f"what came lies in {root}; perdure relay fetch tries again",
    )


def _bring(choice: Choice, progress: Progress | None) -> list[str]:
    """Bring what is not there yet; what does not come, a sentence each."""
    by_session: dict[int, tuple[Bringer, list[str]]] = {}
    for name, bring in choice.names.items():
        by_session.setdefault(id(bring), (bring, []))[1].append(name)
    before, missing = 0, []
    for bring, names in by_session.values():
        sizes = {name: bring.listing.sizes[name] or 0 for name in names}
        here = sum(size for name, size in sizes.items() if bring.is_here(name))
        bring.bring(names, _shifted(progress, before + here, choice.size_bytes))
        missing += [f"{name} is listed and does not come whole" for name in set(names) - set(bring.brought)]
        before += sum(sizes.values())
    return missing


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    return None if progress is None else lambda there, _: progress(before + there, total)


def _damaged(choice: Choice, root: Path) -> tuple[dict[str, str], dict[Kept, str]]:
    """What is wrong with model files, by name; and with checkpoints."""
    damaged = card_problems(root, _cards(choice))
    proofs = {
        kept: checkpoint_problems(root / kept.run_folder / "checkpoints" / kept.name) for kept in choice.checkpoints
    }
    return damaged, {kept: "; ".join(problems) for kept, problems in proofs.items() if problems}


def _cards(choice: Choice) -> list[str]:
    return [name for name in choice.names if name.rpartition("/")[2] == CARD]


def _forget(choice: Choice, root: Path, path: Path) -> None:
    """Have a file, or all files of a folder, brought again."""
    name = path.relative_to(root).as_posix()
    for each, bring in choice.names.items():
        if each == name or each.startswith(name + "/"):
            bring.forget(each)


def _facts(choice: Choice, root: Path, broken: Mapping[Kept, str]) -> dict[str, Any]:
    dropped = {f"{kept.run_folder}checkpoints/{kept.name}/manifest.json" for kept in broken}
    files = sorted(name for name in choice.names if name not in dropped)
    models = [card.removesuffix(CARD) + name for card in _cards(choice) for name, _ in digests_of(root / card)]
    return {
        "files": files,
        "checkpoints": [
            f"{kept.run_folder}checkpoints/{kept.name}" for kept in choice.checkpoints if kept not in broken
        ],
        "models": sorted(set(models)),
        "others": _others(files, choice, models),
        "size_bytes": sum((root / name).stat().st_size for name in files),
        "remarks": [
            *(f"the older checkpoint {kept.name} is left out: {text}" for kept, text in broken.items()),
            *(
                f"the output of session {number} is no longer there: its other files are missing"
                for number in choice.gone
            ),
            *(f"{name!a} is left where it is: no file can be called that here" for name in choice.refused),
        ],
    }


def _others(files: list[str], choice: Choice, models: list[str]) -> list[str]:
    runs = {run for bring in choice.names.values() for run in bring.listing.run_folders}
    proven = (*runs, *(f"{model}/" for model in models))
    return [name for name in files if name not in models and not name.startswith(proven)]


def _fetched(folder: Path, facts: Mapping[str, Any]) -> Fetched:
    paths = defaultdict(
        tuple, {key: tuple(folder / name for name in facts[key]) for key in ("checkpoints", "models", "others")}
    )
    return Fetched(
        folder,
        paths["checkpoints"],
        paths["models"],
        paths["others"],
        int(facts["size_bytes"]),
        tuple(facts["remarks"]),
    )
