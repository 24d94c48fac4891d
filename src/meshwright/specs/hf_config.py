"""A parsed Hugging Face config.json, read with checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.specs.errors import SpecError

_LIMIT = 10**9


def decoded(value: Any) -> Any:
    """Return a config's value with numbers that JSON has no word for as numbers.

    transformers 5 writes an infinity as `{"__float__": "Infinity"}`.
    """
    if isinstance(value, Mapping):
        if set(value) == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
            return float(value["__float__"].replace("Infinity", "inf"))
        return {key: decoded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [decoded(inner) for inner in value]
    return value


class UndescribedError(SpecError):
    """A variant of a family that its reader does not describe; transformers' own modules may still be counted."""


class _Watched(dict[str, Any]):
    """A table that notes which keys were asked for."""

    def __init__(self, data: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(data)
        self._read = read

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._read.add(str(key))
        return super().__contains__(key)


class Config:
    """A parsed config.json whose values are checked when read; each may have several spellings."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.read: set[str] = {"model_type"}
        """Keys that were asked for, present or not."""
        # A head of no width is one that is not stated: of latent attention without rotary dimensions.
        stated = {key: value for key, value in data.items() if key != "head_dim" or value != 0}
        self.data: Mapping[str, Any] = _Watched(stated, self.read)

    def spelt(self, **changes: Any) -> Config:
        """The same config with some keys given in another spelling; shares what was read."""
        other = Config({**self.data, **changes})
        other.read, other.data = self.read, _Watched(other.data, self.read)
        return other

    def _find(self, names: Sequence[str]) -> tuple[str, Any]:
        self.read.update(names)
        for name in names:
            if self.data.get(name) is not None:
                return name, self.data[name]
        return names[0], None

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number.

        Raises:
            SpecError: absent without a default, not whole, or out of range.
        """
        name, value = self._find(names)
        if value is None:
            if default is None:
                spellings = " or ".join(names)
                raise SpecError(f"config.{name}", None, f"this key is required ({spellings})")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LIMIT:
            raise SpecError(f"config.{name}", value, f"a whole number of at least {least} expected")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """Return a true or false.

        Raises:
            SpecError: anything else.
        """
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SpecError(f"config.{name}", value, "true or false is expected")
        return value

    def layers_named(self, name: str) -> list[Any]:
        """Return a list, or an empty one where the key is absent.

        Raises:
            SpecError: not a list.
        """
        self.read.add(name)
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise SpecError(f"config.{name}", value, "a list is expected")
        return value
