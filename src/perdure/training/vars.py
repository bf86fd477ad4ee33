"""``run.vars``: the user's own variables that must survive."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import ConfigError


class Vars:
    """A namespace whose values are part of every checkpoint.

    Values are numbers, strings, None, lists, dicts, arrays and tensors. They are put back in place: a list
    taken from here before a resume is refilled and not replaced.

    Example:
        >>> run.vars.best = 0.0                 # above the loop: the value for a fresh start
        >>> run.vars.best = max(run.vars.best, accuracy)
    """

    def __init__(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = object.__getattribute__(self, "_values")
        try:
            return values[name]
        except KeyError:
            raise AttributeError(
                f"run.vars has no {name!r}; it has {sorted(values) or 'nothing yet'}. "
                f"Set it above the loop: run.vars.{name} = ... (a resumed run puts its own value back)"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            raise ConfigError(f"run.vars cannot hold {name!r}", hint="use a name without leading underscores")
        self._values[name] = value

    def __delattr__(self, name: str) -> None:
        getattr(self, name)
        del self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __dir__(self) -> list[str]:
        return sorted(self._values)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"run.vars({inside})"
