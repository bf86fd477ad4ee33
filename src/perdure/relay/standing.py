"""What the sessions of a relay have come to so far, brought forward by one session. Pure."""

from __future__ import annotations

from dataclasses import replace

from perdure.relay.records import RunSource, RunStand, SessionRecord, Standing

IDLE_MOST = 3
"""Sessions in a row without progress after which a relay asks for its user."""

ALIKE_MOST = 2
"""Failures at the same step, or refusals, in a row after which it does."""


def standing_after(standing: Standing, session: SessionRecord) -> Standing:
    """The standing of a relay when one more session was collected.

    A run is gone on from where it got the furthest; of sessions that hold the same step, from the newest.

    Args:
        standing: Before it.
        session: The session, collected.
    """
    moved = session.outcome == "finished" or any(_is_ahead(run, standing) for run in session.runs)
    alike = standing.alike + 1 if session.outcome == standing.last and not moved else 1
    return replace(
        standing,
        runs=_sources(standing, session),
        collected=standing.collected + 1,
        idle=0 if moved else standing.idle + 1,
        last=session.outcome,
        alike=alike,
        newest=session.number,
        accelerator_s=standing.accelerator_s + session.accelerator_s,
    )


def forgiven(standing: Standing) -> Standing:
    """The standing of a relay that its user lets go on: what had gone wrong in a row is not held against it."""
    return replace(standing, idle=0, alike=0, last=standing.last if standing.last == "finished" else "")


def trouble(standing: Standing) -> str:
    """Why a relay cannot go on by itself; empty if it can."""
    if standing.last == "failed" and standing.alike >= ALIKE_MOST:
        return "the script failed twice at the same step"
    if standing.last == "refused" and standing.alike >= ALIKE_MOST:
        return "two sessions in a row refused to train"
    if standing.idle >= IDLE_MOST:
        return f"{standing.idle} sessions in a row made no progress"
    return ""


def _sources(standing: Standing, session: SessionRecord) -> tuple[RunSource, ...]:
    sources = {source.stand.name: source for source in standing.runs}
    for run in session.runs:
        known = sources.get(run.name)
        if run.checkpoint and (known is None or run.step >= known.stand.step):
            sources[run.name] = RunSource(run, session.number)
    return tuple(sources.values())


def _is_ahead(run: RunStand, standing: Standing) -> bool:
    """Whether a run got further than in every session before."""
    if not run.checkpoint:
        return False
    known = next((source.stand for source in standing.runs if source.stand.name == run.name), None)
    if known is None:
        return run.step > 0 or run.status == "finished"
    return run.step > known.step or (run.status == "finished" and known.status != "finished")
