"""The tables of docs/performance.md and README.md, made of benchmarks/results: nobody types a figure.

    .venv/bin/python benchmarks/page.py

Each table stands between a pair of comments, such as ``<!-- resume: begin -->`` and ``<!-- resume: end -->``. What
was not measured says so. A test holds that the pages are what this makes of the results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PERFORMANCE, README = ROOT / "docs/performance.md", ROOT / "README.md"
UNKNOWN = "Not measured for this version yet."
NONE, FRESH, OURS = "no checkpoint", "fresh start", "perdure"
ASYNCHRONOUS = (
    "torch.distributed.checkpoint async_save",
    "torchsnapshot async_take",
    "moonclip",
    "Lightning AsyncCheckpointIO",
)
MMAP = "torch.load(mmap=True) + load_state_dict"

Figures = Mapping[str, Any]


# ---------------------------------------------------------------- words


def seconds(value: float) -> str:
    """With as many digits as mean something."""
    if abs(value) < 0.0995:
        return f"{value * 1000:.1f} ms"
    return f"{value:.2f} s" if abs(value) < 99.5 else f"{value:.0f} s"


def spread(found: Figures) -> str:
    """Median, lowest, highest."""
    return f"{seconds(found['median'])} ({seconds(found['low'])} to {seconds(found['high'])})"


def size(count: float) -> str:
    """In powers of 1000."""
    return f"{count / 1e9:.2f} GB" if abs(count) >= 1e9 else f"{count / 1e6:.1f} MB"


def share(value: float) -> str:
    """A ratio in percent."""
    return f"{100 * value:.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"


def rows(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines))


def where(found: Figures) -> str:
    """The line under a table."""
    machine, versions = found.get("machine", {}), found.get("versions", {})
    cores = machine.get("cores", found.get("cpu_count", "?"))
    parts = [found["date"], f"{cores} cores", machine.get("processor", ""), machine.get("file_system", "")]
    parts += [f"torch {versions.get('torch', found.get('torch', '?'))}", _missing(found.get("missing", {}))]
    return f"Measured {', '.join(part for part in parts if part)}."


def _missing(names: Mapping[str, str]) -> str:
    return f"left out: {', '.join(names)}" if names else ""


# ---------------------------------------------------------------- the tables


def saving(found: Figures) -> str:
    """Saves beside their peers."""
    figures = found["figures"]
    none = figures[NONE]["end_to_end_s"]["median"]
    lines = [
        [
            name,
            "yes" if each["durable"] else "no",
            spread(each["still_s"]) if name != NONE else "",
            spread(each["added_s"]) if name != NONE else "",
            f"{each['end_to_end_s']['median'] / none:.3f}",
        ]
        for name, each in figures.items()
    ]
    heads = ["way", "on disk", "stood still", "added to eight steps", "end to end, over none"]
    return f"A state of {size(found['state_bytes'])}.\n\n{rows(heads, lines)}\n\n{stalls(found)}\n{where(found)}"


def stalls(found: Figures) -> str:
    """The ratios that are promised."""
    figures, name = found["figures"], _best_asynchronous(found)
    ours = figures[OURS]["still_s"]["median"]
    said = [f"For a checkpoint of ours training stands still for {seconds(ours)}"]
    for peer, called in (("torch.save", "torch.save"), (name, f"{name}, the best asynchronous peer")):
        said += [f"{share(ours / figures[peer]['still_s']['median'])} of the time for {called}"] if peer else []
    return ", ".join(said) + "."


def _best_asynchronous(found: Figures) -> str:
    there = [name for name in ASYNCHRONOUS if name in found["figures"]]
    return min(there, key=lambda name: float(found["figures"][name]["still_s"]["median"]), default="")


def resume(found: Figures) -> str:
    """Resumes beside their peers."""
    lines = [
        [name, *(spread(found[how][name][key]) for how in ("cold", "warm") for key in ("first_step_s", "adds_s"))]
        for name in found["cold"]
    ]
    heads = ["way", "cold: to the first step", "cold: adds", "warm: to the first step", "warm: adds"]
    raw = ", ".join(f"{spread(each)} by {name}" for name, each in found["raw_direct_read_s"].items())
    ratios = found["ratios"]
    return (
        f"A state of {size(found['state_bytes'])}.\n\n{rows(heads, lines)}\n\n"
        f"Reading {size(found['read_bytes'])} past the page cache and dropping them: {raw}. Cold, our resume adds "
        f"{ratios['cold_adds_over_raw_read']:.2f} times the faster of these to a fresh start. To the first step it "
        f"takes {ratios['cold_first_step_over_torch_mmap']:.2f} times as long as `{MMAP}` cold, "
        f"{ratios['warm_first_step_over_torch_mmap']:.2f} times warm.\n{where(found)}"
    )


def fast_forward(found: Figures) -> str:
    """Fast-forward beside its peers."""
    wrong = found["missing"]
    lines = [
        [f"{name} (another batch than an uninterrupted pass deals)" if name in wrong else name, spread(each)]
        for name, each in found["next_batch_s"].items()
    ]
    what = f"behind batch {found['at_batch']:,} of {found['samples']:,} shuffled samples in batches of "
    what += f"{found['batch_size']}, {found['workers']} workers"
    return f"Taken up {what}.\n\n{rows(['way', 'to the next batch'], lines)}\n\n{where(found)}"


def throughput(found: Figures) -> str:
    """Bytes a second beside a raw write."""
    lines = [
        [name, spread(each["seconds"]), f"{each['bytes_per_s']['median'] / 1e6:.0f} MB/s", share(each["of_raw"])]
        for name, each in found["ways"].items()
    ]
    table = rows(["way", "a write", "bytes a second", "of raw"], lines)
    removing = f"Removing the checkpoint before, which follows: {spread(found['removing_s'])}."
    return f"A state of {size(found['state_bytes'])}.\n\n{table}\n\n{removing}\n{where(found)}"


def frozen(found: Figures) -> str:
    """What a frozen backbone costs."""
    lines = [
        ["state", size(found["state_bytes"])],
        ["changed from step to step", size(found["changed_bytes"])],
        ["first checkpoint", size(found["first_bytes"])],
        ["later ones", size(found["later_bytes"]["median"])],
        ["later ones, of what changed", f"{found['later_of_changed']['median']:.3f}"],
        ["the largest of them, of what changed", f"{found['later_of_changed']['high']:.3f}"],
        ["torch.save, each", size(found["torch_save_bytes"])],
    ]
    return f"{rows(['what', 'bytes'], lines)}\n\n{where(found)}"


def memory(found: Figures) -> str:
    """Memory at most."""
    lines = [
        [name, size(max(0, extra)), f"{max(0.0, found['extra_of_state'][name]):.2f}"]
        for name, extra in found["extra_bytes"].items()
        if name != NONE
    ]
    table = rows(["way", "extra memory at most", "in states"], lines)
    return f"A state of {size(found['state_bytes'])}.\n\n{table}\n\n{where(found)}"


def tiny(found: Figures) -> str:
    """Very many tensors."""
    keys = ("stall_s", "save_s", "torch_save_s", "resume_s", "torch_load_s")
    lines = [
        [f"{int(count):,}", *(f"{seconds(each[k]['median'])}, {each[k]['us_a_tensor']:.0f} µs each" for k in keys)]
        for count, each in found["counts"].items()
    ]
    heads = ["tensors", "boundary", "save", "torch.save", "resume", "torch.load"]
    return f"{rows(heads, lines)}\n\n{where(found)}"


def _over_none(figures: Mapping[str, Any]) -> tuple[str, str]:
    """End to end, over the same without checkpoints: ours, and the best two of the others."""
    none = figures[NONE]["end_to_end_s"]["median"]
    over = {name: each["end_to_end_s"]["median"] / none for name, each in figures.items() if name != NONE}
    others = sorted((name for name in over if name != OURS), key=over.__getitem__)[:2]
    return f"{over[OURS]:.2f}", ", ".join(f"{name} {over[name]:.2f}" for name in others)


def costs() -> str:
    """The short table of the README: a line a figure, of those that were measured."""
    lines = []
    if found := read("saving"):
        each, best = found["figures"], _best_asynchronous(found)
        others = f"torch.save {seconds(each['torch.save']['still_s']['median'])}"
        others += f", {best} {seconds(each[best]['still_s']['median'])}" if best else ""
        text = f"training stands still for a checkpoint of {size(found['state_bytes'])}"
        lines.append([text, seconds(each[OURS]["still_s"]["median"]), others])
        lines.append(["a checkpoint every eight steps, over none at all", *_over_none(each)])
    if found := read("resume"):
        each = found["cold"]
        took = {name: way["first_step_s"]["median"] for name, way in each.items() if name not in (OURS, FRESH)}
        shown = [MMAP] if min(took, key=took.__getitem__) == MMAP else [MMAP, min(took, key=took.__getitem__)]
        text = "process start to first step, cold, digests checked"
        others = ", ".join(f"{name} {seconds(took[name])}" for name in shown)
        lines.append([text, seconds(each[OURS]["first_step_s"]["median"]), f"without digests: {others}"])
    if found := read("fast_forward"):
        each = found["next_batch_s"]
        right = [name for name in each if not name.startswith(OURS) and name not in found["missing"]]
        others = ", ".join(f"{name} {seconds(each[name]['median'])}" for name in right)
        lines.append([f"next batch behind batch {found['at_batch']:,}", seconds(each[OURS]["median"]), others])
    if found := read("bytes"):
        ways = {name: share(each["of_raw"]) for name, each in found["ways"].items()}
        text = "bytes to disk a second, digests and fsync included, of a raw direct write"
        ours = f"{ways['perdure, beside the training']}, where training waits {ways['perdure, training waits']}"
        lines.append([text, ours, f"torch.save {ways['torch.save and fsync']}"])
    if found := read("memory"):
        extra = found["extra_of_state"]
        others = ", ".join(f"{name} {extra[name]:.2f}" for name in ASYNCHRONOUS if name in extra)
        lines.append(["extra memory at most, in states", f"{extra[OURS]:.2f}", others])
    return rows(["figure", "Perdure", "others"], lines) if lines else UNKNOWN


TABLES: dict[str, Callable[[Figures], str]] = {
    "saving": saving,
    "bytes": throughput,
    "frozen": frozen,
    "memory": memory,
    "tiny": tiny,
    "resume": resume,
    "fast_forward": fast_forward,
}


def read(name: str) -> Figures | None:
    """The results of one benchmark, None if there are none."""
    path = RESULTS / f"{name}.json"
    found: Figures | None = json.loads(path.read_text()) if path.exists() else None
    return found


def between(page: str, name: str, text: str) -> str:
    """The page with this text between the comments of that name.

    Raises:
        ValueError: It has no such comments.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{begin} and {end} must be there once each")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def made() -> dict[Path, str]:
    """The pages as they should be."""
    performance = PERFORMANCE.read_text()
    for name, table in TABLES.items():
        found = read(name)
        performance = between(performance, name, table(found) if found else UNKNOWN)
    return {PERFORMANCE: performance, README: between(README.read_text(), "costs", costs())}


def main() -> None:
    """Write the pages."""
    for path, text in made().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
