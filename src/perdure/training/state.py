"""Everything that a checkpoint holds, as one tree; taken from the run, and put back into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.checkpoint.opened import Checkpoint
from perdure.core.progress import Position
from perdure.data.book import LoaderBook
from perdure.data.generators import capture_global, restore_global
from perdure.training.calls import Calls
from perdure.training.resume import Resume
from perdure.training.world.names import ParameterNames
from perdure.training.world.world import World


class RunState:
    """The state of a run.

    Attributes:
        world: The tracked objects.
        vars: The user's variables.
        calls: The open passes.
        book: Generators of loaders between passes.
        resume: The checkpoint that the session began with, None after a fresh start.
    """

    def __init__(self) -> None:
        self.world = World()
        self.vars: dict[str, Any] = {}
        self.calls = Calls(self.world)
        self.book = LoaderBook()
        self.resume: Resume | None = None
        self._head: dict[str, Any] | None = None

    @property
    def armed(self) -> bool:
        """A checkpoint is being taken up, and its boundary is not reached yet."""
        return self.resume is not None and self.resume.armed

    def take_up(self, checkpoint: Checkpoint, position: Position) -> None:
        """Read a checkpoint; only the variables are put back here."""
        self.resume = Resume(checkpoint, position)
        for tree in self.resume.trees():
            self.world.restore_plain(self.vars, tree["vars"])
        self.book.resume(tree["loaders"])

    def track(self, objects: Mapping[str, Any]) -> None:
        """Add objects, and put back what can be resolved of them now."""
        self.world.track(objects)
        if self.resume is not None:
            only = None if self.resume.armed else set(objects)
            for tree in self.resume.trees():
                self.resume.lend(self.world)
                self.world.restore(tree["objects"], strict=False, only=only, lent=self.resume.lent)

    def tree(self, plan: Mapping[str, Any] | None, names: ParameterNames | None = None) -> dict[str, Any]:
        """All of it; tensors are live references, not copies.

        Args:
            plan: How far the run goes.
            names: What ``World.parameter_names`` gives now, where the caller has it already.
        """
        objects = dict(self.world.capture(names))
        if self.resume is not None:  # tracked in an earlier session and not in this one: nothing is lost
            objects = {**self.resume.tree["objects"], **objects}
        return {
            "objects": objects,
            "vars": self.vars,
            "head": self._head,
            **self.calls.states(),
            "loaders": self.book.state(),
            "plan": plan,
            "generators": capture_global(),
        }

    def capture_head(self) -> None:
        """The head of an epoch: its code runs again when the epoch is resumed, so it must find what it found."""
        self._head = {
            "small": self.world.capture_head(),
            "vars": self.world.copy_small(self.vars),
            "generators": capture_global(),
        }

    def restore_head(self) -> None:
        """Put back the small structure and the generators of the head of the checkpoint's epoch."""
        assert self.resume is not None
        head: dict[str, Any] = dict(self.resume.tree["head"])
        self._head = head
        self.world.restore_head(head["small"])
        self.world.restore_plain(self.vars, head["vars"])
        restore_global(head["generators"])

    def leave_head(self) -> None:
        """The epoch is over."""
        self._head = None

    def restore_boundary(self) -> list[str]:
        """Put everything of the checkpoint's boundary back, the generators last.

        Returns:
            Names of objects that the checkpoint holds and this script does not track.

        Raises:
            StateMismatchError: The live objects do not fit; every difference is listed.
        """
        resume = self.resume
        assert resume is not None
        for tree in resume.trees():
            self.world.restore(tree["objects"], strict=True, lent=resume.lent)
            self.world.restore_plain(self.vars, tree["vars"])
        self.book.restore_outside()
        restore_global(resume.tree["generators"])
        return resume.end(self.world.names)
