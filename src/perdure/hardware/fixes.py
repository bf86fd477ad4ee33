"""What to do first when a card is missing or does not work: one text for doctor, refusal and verdicts."""

from __future__ import annotations

_SWITCH_ON = {
    "kaggle": (
        "switch the accelerator on: Settings > Accelerator > GPU T4 x2 in the editor (the account's phone number "
        'must be verified), or "machine_shape": "NvidiaTeslaT4" in kernel-metadata.json for a pushed notebook'
    ),
    "colab": "switch the accelerator on: Runtime > Change runtime type > T4 GPU",
    "local": (
        "install the NVIDIA driver until nvidia-smi lists the card; in a container, start it with --gpus all and "
        "the NVIDIA container toolkit"
    ),
}
_RESTART = {
    "kaggle": "stop the session with the power button and start a new one, or push the notebook again",
    "colab": "start a new machine: Runtime > Disconnect and delete runtime",
    "local": "end the processes that hold the card and reload the driver, or restart the machine",
}
_IMAGE_TORCH = {
    "kaggle": (
        "take the cell out that installs torch over the image's (a requirements file may do it too), then "
        "stop the session with the power button and start a new one"
    ),
    "colab": (
        "take the cell out that installs torch over the image's (a requirements file may do it too), then "
        "Runtime > Disconnect and delete runtime"
    ),
    "local": "install a CUDA build of torch in this environment, by the command that pytorch.org/get-started gives",
}
_OTHER_CARD = {
    "kaggle": (
        "choose a card that the image has code for: Settings > Accelerator > GPU T4 x2, or "
        '"machine_shape": "NvidiaTeslaT4" in kernel-metadata.json (the GPU switch alone may give a P100)'
    ),
    "colab": "choose a card that the image has code for: Runtime > Change runtime type > T4 GPU",
    "local": (
        "install a build of the framework that has code for this card; for older cards an older version, "
        "pytorch.org/get-started/previous-versions"
    ),
}
_SAME = ("kaggle", "colab", "local")

_FIXES: dict[str, dict[str, str]] = {
    "no-library": _SWITCH_ON,
    "no-driver": _SWITCH_ON
    | {"local": "load the NVIDIA driver (sudo modprobe nvidia) or install it again: nvidia-smi must list the card"},
    "no-cards": _SWITCH_ON
    | {
        "local": "check that the card sits in its slot and lspci shows it; in a container, start it with --gpus all"
    },
    "version-mismatch": _RESTART | {"local": "restart the machine: the driver was updated while it ran"},
    "no-permission": _RESTART
    | {"local": "give this user the right to open /dev/nvidia*; in a container, start it with --gpus all"},
    "all-lost": _RESTART,
    "card-lost": _RESTART,
    "nvml": _RESTART,
    "hidden": dict.fromkeys(
        _SAME, "take CUDA_VISIBLE_DEVICES away, or name a card that exists in it, before Python starts"
    ),
    "no-slices": dict.fromkeys(
        _SAME, "create a MIG slice (sudo nvidia-smi mig -cgi ... -C), or switch MIG mode off"
    ),
    "cpu-torch": _IMAGE_TORCH,
    "cpu-tensorflow": dict.fromkeys(_SAME, "install TensorFlow with its CUDA libraries: tensorflow[and-cuda]")
    | {place: _IMAGE_TORCH[place].replace("torch", "TensorFlow") for place in ("kaggle", "colab")},
    "no-kernels": _OTHER_CARD,
    "wrong-results": _RESTART,
    "hung-kernel": _RESTART,
    "crashed-kernel": _RESTART,
    "framework-blind": _IMAGE_TORCH
    | {"local": "install the framework again, built for a CUDA that is not newer than the driver's"},
    "not-given": _OTHER_CARD
    | {"local": "name the card in CUDA_VISIBLE_DEVICES by its UUID (nvidia-smi -L) before Python starts"},
}


def fix(code: str, platform: str = "local") -> str:
    """The first thing to do.

    Menu entries are those of the platforms' editors, ``machine_shape`` is a field of kernel-metadata.json
    (github.com/Kaggle/kaggle-cli, docs/kernels_metadata.md).

    Args:
        code: What is wrong: a ``trouble_code`` of ``Cards``, or ``"card-lost"``, ``"cpu-torch"``,
            ``"cpu-tensorflow"``, ``"no-kernels"`` (the build has no code for the card), ``"wrong-results"``,
            ``"hung-kernel"``, ``"crashed-kernel"``, ``"framework-blind"`` (it does not see the card that the driver
            shows), ``"not-given"`` (another accelerator than asked for).
        platform: ``"local"``, ``"kaggle"`` or ``"colab"``.

    Returns:
        Words that can stand in a sentence: no capital, no full stop. For a code that is not known, the way to
        find out more.
    """
    places = _FIXES.get(code)
    if places is None:
        return "run perdure doctor, it checks this machine line by line"
    return places.get(platform, places["local"])
