"""What to do first when a card is missing or does not work: one text for doctor, refusal and verdicts."""

from __future__ import annotations


def fix(code: str, platform: str = "local") -> str:
    """The first thing to do.

    Args:
        code: What is wrong: a ``trouble_code`` of ``Cards``, or ``"cpu-torch"``, ``"no-kernels"`` (the build has
            no code for the card), ``"wrong-results"``, ``"hung-kernel"``, ``"crashed-kernel"``,
            ``"framework-blind"``, ``"not-given"`` (another accelerator than asked for).
        platform: ``"local"``, ``"kaggle"`` or ``"colab"``.
    """
    return ""
