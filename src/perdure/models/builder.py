"""The function that makes a model, named on a command line: found, and called."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from perdure.core.errors import ConfigError
from perdure.core.runs import did_you_mean
from perdure.models.quiet import GUARD, check_quiet
from perdure.models.twin import unwrapped


def build(name: str, folder: Path) -> nn.Module:
    """Import a module of the user's and call the function in it that makes the model.

    Args:
        name: ``module:function``, such as ``train:build_model``; the function takes no arguments.
        folder: Where the module is looked for first: the folder that the command is run in.

    Returns:
        The model, on the CPU, without the wrappers of torch.compile and DataParallel at any depth.

    Raises:
        ConfigError: It cannot be found, would start a training, fails, or gives no ``torch.nn.Module``.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ConfigError(f"--model is module:function, got {name!r}", hint="for example train:build_model")
    with _importing_from(folder), contextlib.redirect_stdout(sys.stderr):
        function = _function(_import(module_name), module_name, function_name)
        try:
            made = function()
            if not isinstance(made, nn.Module):
                raise ConfigError(
                    f"{name}() gives an object of type {type(made).__name__} and no torch.nn.Module",
                    hint="let it return the model",
                )
            return _plain(made)
        except ConfigError:
            raise
        except Exception as error:
            raise _failed(f"{name}() failed", error) from error


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """With the folder first on the path, as in ``python train.py``."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _import(name: str) -> Any:
    try:
        spec = importlib.util.find_spec(name)  # imports the packages above it
        if spec is not None:
            check_quiet(Path(spec.origin or ""))
            return importlib.import_module(name)
    except ConfigError:
        raise
    except SystemExit as error:
        raise ConfigError(
            f"{name} ends the program when it is imported (exit code {error.code})", hint=GUARD
        ) from error
    except Exception as error:
        if not _is_absent(name, error):
            raise _failed(f"{name} cannot be imported", error) from error
    hint = f"run the command in the folder of {name.partition('.')[0]}.py; a notebook cannot be imported"
    raise ConfigError(f"there is no module {name!r} here", hint=hint)


def _is_absent(name: str, error: Exception) -> bool:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _function(module: Any, module_name: str, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        hint = did_you_mean(name, own) or f"write a function in {module_name}.py that returns the model"
        raise ConfigError(f"{module_name} has no function {name!r}", hint=hint)
    return found


def _failed(what: str, error: Exception) -> ConfigError:
    """The user's own error in one line, with the place in the user's code."""
    last = next(reversed(traceback.extract_tb(error.__traceback__)), None)
    place = f" ({last.filename}:{last.lineno})" if last else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
    message = str(error.msg if isinstance(error, SyntaxError) else error).partition("\n")[0]
    return ConfigError(
        f"{what}: {type(error).__name__}: {message}{place}",
        hint="the function is called without arguments, on the CPU",
    )


def _plain(model: nn.Module) -> nn.Module:
    """The model on the CPU, with memory, without wrappers at any depth."""
    model = unwrapped(model)
    for owner in model.modules():
        for name, child in owner._modules.items():
            if child is not None:
                owner._modules[name] = unwrapped(child)
    if any(parameter.is_meta for parameter in model.parameters()):
        return model.to_empty(device="cpu")
    return model.cpu()
