"""The checkpoints that a session must go on from: waited for, found anywhere below the inputs, and proved."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.checkpoint.manifest import MANIFEST, digest_of
from perdure.checkpoint.search import Found, find_checkpoints
from perdure.checkpoint.verify import verify
from perdure.core.errors import CheckpointError
from perdure.core.say import say, warn
from perdure.relay.inside.order import Expected
from perdure.relay.inside.refusing import Refused

_LOOK_EVERY_S = 2.0


@dataclass(frozen=True)
class Resumable:
    """A checkpoint that is there and whole.

    Attributes:
        expected: What was asked for.
        folder: Where it is.
        digest: Digest of its manifest, which holds those of all its bytes.
        finished: Whether its run was at its end.
    """

    expected: Expected
    folder: Path
    digest: str
    finished: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For the marker."""
        return {**vars(self.expected), "digest": f"xxh3-128:{self.digest}"}


def await_expected(
    expects: Sequence[Expected],
    roots: Sequence[Path],
    wait_s: float,
    bring: Callable[[Sequence[Expected]], Iterable[Path]] = lambda _: (),
    *,
    older: bool = False,
) -> list[Resumable]:
    """Wait until every expected checkpoint is mounted, and prove each.

    A newer checkpoint of the same run does not take the place of the expected one: that is for the run to decide,
    once the one that is known to be good is known to be there.

    Args:
        expects: What must be there.
        roots: Input folders.
        wait_s: How long it may take until they are mounted.
        bring: Called at last with what is missing; the folders into which some of it was brought.
        older: Whether an older checkpoint of the run that is whole will do for one that is there and damaged.

    Raises:
        Refused: One is not there, or it is not what was written.
    """
    end_s = time.monotonic() + wait_s
    while True:
        seen = _look(expects, roots)
        lacking = [item for item in expects if item not in seen or seen[item].error]
        if not lacking:
            break
        if time.monotonic() >= end_s:
            brought = _look(lacking, list(bring(lacking)))
            seen |= {item: found for item, found in brought.items() if not found.error}
            _refuse_what_lacks(expects, seen, roots, wait_s, older)
            break
        time.sleep(min(_LOOK_EVERY_S, max(0.05, end_s - time.monotonic())))
    return [_prove_or_older(item, seen[item], roots if older else ()) for item in expects]


def _look(expects: Sequence[Expected], roots: Sequence[Path]) -> dict[Expected, Found]:
    """Where the expected ones are; one that looks right is taken before one that does not."""
    seen: dict[Expected, Found] = {}
    if not expects:
        return seen
    wanted = {(item.run, item.checkpoint): item for item in expects}
    for each in _all(roots):
        name = each.manifest.run if each.manifest else each.folder.parent.parent.name
        item = wanted.get((name, each.folder.name))
        if item is None or (each.manifest is not None and each.manifest.step != item.step):
            continue
        if item not in seen or (seen[item].error and not each.error):
            seen[item] = each
    return seen


def _all(roots: Sequence[Path]) -> Iterator[Found]:
    for root in roots:
        try:
            yield from find_checkpoints(root)
        except CheckpointError:  # not mounted yet, or not to be listed: looked at again
            continue


def _refuse_what_lacks(
    expects: Sequence[Expected], seen: dict[Expected, Found], roots: Sequence[Path], wait_s: float, older: bool
) -> None:
    for item in expects:
        found = seen.get(item)
        if found is None:
            where = " or ".join(str(root) for root in roots) or "any input: there is none"
            raise Refused(
                f"the run {item.run!r} was to go on from {item.checkpoint}, and that is not below {where} "
                f"(waited {wait_s:.0f} s); nothing was started afresh"
            )
        if found.error and not older:
            raise Refused(
                f"the run {item.run!r} was to go on from {item.checkpoint}, and that is not whole: "
                f"{found.problem}; nothing was started afresh"
            )


def _prove_or_older(item: Expected, found: Found, roots: Sequence[Path]) -> Resumable:
    """The expected one, proved; if it is damaged, the newest older one that is whole, where such are looked for."""
    try:
        return _prove(item, found)
    except Refused as refused:
        known = [each for each in _all(roots) if each.manifest is not None and not each.error]
        for each in sorted(known, key=lambda each: each.key, reverse=True):
            if each.manifest is None or each.manifest.run != item.run or not 0 < each.manifest.step < item.step:
                continue
            with contextlib.suppress(Refused):
                proved = _prove(Expected(item.run, each.manifest.step, each.folder.name), each)
                warn(f"{refused}; an older checkpoint is whole, and the run goes on from step {each.manifest.step}")
                return proved
        raise


def _prove(item: Expected, found: Found) -> Resumable:
    folder = found.folder
    try:
        problems = verify(folder).problems
        digest = digest_of((folder / MANIFEST).read_bytes())
    except (CheckpointError, OSError) as error:
        problems, digest = (str(error),), ""
    if problems:
        raise Refused(
            f"the run {item.run!r} was to go on from {item.checkpoint}, and that is not what was written: "
            f"{problems[0]}; nothing was started afresh"
        )
    say(f"found {item.run} at step {item.step}, every digest of it is right: {folder}")
    return Resumable(item, folder, digest, found.manifest is not None and found.manifest.finished)
