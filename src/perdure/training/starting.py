"""A run that begins with the weights of another file, and goes on with its own from the second session on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError, LoopError
from perdure.core.say import say
from perdure.training.coming_in import bring_in
from perdure.training.engine import Engine
from perdure.training.journal import Journal
from perdure.training.restored import Restored


def start_from(
    name: str, engine: Engine, journal: Journal, path: Path, *, only: Collection[str] | None, trust: bool
) -> Restored | None:
    """What ``Run.start_from`` does, for an opened run.

    Args:
        name: Name of the run.
        engine: Where it stands; its tracked objects are filled.
        journal: Where it is noted.
        path: What to start from.
        only: Names of the tracked objects that are filled; all by default.
        trust: Let a file of ``torch.save`` run code.
    """
    if engine.resumed_from is not None:
        return None
    if engine.plan is not None:
        raise LoopError(
            "run.start_from() was called behind the head of the loop; the run has begun already",
            hint="put it between run.track(...) and the loop",
        )
    restored = bring_in(path, _objects(engine.state.world.objects, only), partly=True, trust=trust)
    for line in restored.lines():
        say(f"{name}: {line}")
    journal.event(
        "started_from", path=str(path), form=restored.form, taken=[*restored.taken], left=[*map(str, restored.left)]
    )
    return restored


def _objects(tracked: Mapping[str, Any], only: Collection[str] | None) -> dict[str, Any]:
    """The tracked objects that are to be filled."""
    names = [only] if isinstance(only, str) else tracked if only is None else only
    unknown = [name for name in names if name not in tracked]
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} is not tracked; tracked are: {', '.join(tracked) or 'none'}",
            hint="the names are those of run.track(name=...)",
        )
    if not tracked:
        raise ConfigError("nothing is tracked yet", hint="run.track(model=model) first, then run.start_from(path)")
    return {name: tracked[name] for name in names}
