"""The device to train on: proved, not believed."""

from __future__ import annotations

import torch

from perdure.core.errors import AcceleratorError, ConfigError

ACCELERATORS = ("auto", "gpu", "cpu")


def check_accelerator(accelerator: str) -> None:
    """Refuse what is no accelerator.

    Raises:
        ConfigError: It is not one of ``"auto"``, ``"gpu"``, ``"cpu"``.
    """
    if accelerator not in ACCELERATORS:
        raise ConfigError(
            f'accelerator must be "auto", "gpu" or "cpu", got {accelerator!r}',
            hint='"gpu" refuses to start without a working one',
        )


def choose_device(accelerator: str, promised: str) -> torch.device:
    """The device for a run.

    A GPU counts only once it has run a kernel with the right result: ``is_available()`` is true for cards that
    the build has no code for (Kaggle's P100: github.com/Kaggle/kaggle-cli/issues/1151).

    Args:
        accelerator: What the script asks for.
        promised: Why a GPU is expected here; empty if none is.

    Raises:
        AcceleratorError: A GPU was asked for or promised and does not work.
    """
    check_accelerator(accelerator)
    if accelerator == "cpu":
        return torch.device("cpu")
    trouble = _trouble()
    if not trouble:
        return torch.device("cuda", torch.cuda.current_device())
    if accelerator == "gpu" or promised:
        asked = "a GPU was asked for" if accelerator == "gpu" else f"a GPU is expected here ({promised})"
        raise AcceleratorError(
            f"{asked}, but {trouble}",
            hint='switch the accelerator on (Kaggle: Settings > Accelerator > GPU T4 x2), or say accelerator="cpu"',
        )
    return torch.device("cpu")


def _trouble() -> str:
    """What is wrong with the GPU; empty if it works."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built for the CPU only"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees none"
    try:
        x_MK = torch.arange(64.0).reshape(8, 8)
        y_MN = (x_MK.cuda() @ x_MK.cuda()).cpu()
        right = torch.allclose(y_MN, x_MK @ x_MK)
    except RuntimeError as error:
        name, major_minor = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
        arch = "sm_{}{}".format(*major_minor)
        return f"{name} ({arch}) cannot run a kernel of this torch, built for {torch.cuda.get_arch_list()}: {error}"
    return "" if right else f"{torch.cuda.get_device_name()} computes wrong results"
