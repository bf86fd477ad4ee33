"""What a reader of averaged weights should know, told from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.checkpoint.opened import Checkpoint
from perdure.models.averages import Average
from perdure.models.saved import Form, number_in

_STATISTICS = ("running_mean", "running_var")


def remarks(checkpoint: Checkpoint, average: Average) -> list[str]:
    """Of how many updates it is, what it lacks, and whose statistics of BatchNorm it has; a sentence each."""
    notes = []
    if average.counter is not None:
        count = number_in(checkpoint, average.counter)
        notes.append(f"{average.name} is averaged over {count} update{'' if count == 1 else 's'}")
        if not count:
            notes[-1] = f"{average.name} has averaged nothing yet: it is the model as it was when it was made"
    borrowed = average.borrowed
    if borrowed:
        more = f" and {len(borrowed) - 5} more" if len(borrowed) > 5 else ""
        shown = ", ".join(borrowed[:5]) + more
        notes.append(f"{average.name} does not hold {shown}: taken from the live weights")
    if _has_live_statistics(checkpoint, average):
        notes.append(
            f"the BatchNorm statistics in {average.name} are those of the live weights; "
            "torch.optim.swa_utils.update_bn(loader, average) in the script measures its own"
        )
    return notes


def _has_live_statistics(checkpoint: Checkpoint, average: Average) -> bool:
    """Whether the statistics are bit for bit the live ones, though the weights are others."""
    if average.of is None:
        return False
    digests = {entry.name: entry.digest for entry in checkpoint.manifest.entries}
    live, held = average.of.tensors, average.complete
    names = [name for name in live if name.rpartition(".")[2] in _STATISTICS]
    same = [_digest(live[name], digests) == _digest(held[name], digests) for name in names]
    moved = any(_digest(live[name], digests) != _digest(held[name], digests) for name in average.of.parameters)
    return bool(same) and all(same) and moved


def _digest(form: Form, digests: Mapping[str, str]) -> str | None:
    return digests.get(form.entry or "")
