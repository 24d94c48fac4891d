"""What all nouns share: frozen, strict pydantic models whose errors are one sentence."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from meshwright.specs.errors import SpecError, nearest

_LONGEST = 100_000
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Spec(BaseModel):
    """A frozen value object. Unknown fields are errors, never ignored."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, allow_inf_nan=False, ser_json_inf_nan="null"
    )

    line_breaks: ClassVar[bool] = False
    """Whether texts may have several lines: only where they are this package's own prose."""

    @classmethod
    def parse(cls, data: Any, where: str = "") -> Self:
        """Build from plain data (a parsed file).

        Raises:
            SpecError: one sentence naming the first offending field; also for text with control
                characters, which reaches terminals, scripts and pages.
        """
        check_texts(data, where or cls.__name__.lower(), cls.line_breaks)
        return cls._validated(data, where)

    @classmethod
    def _validated(cls, data: Any, where: str = "") -> Self:
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise spec_error(error, cls, where) from None

    def plain(self) -> dict[str, Any]:
        """Return JSON- and TOML-ready data: no None, tuples as lists."""
        return self.model_dump(mode="json", exclude_none=True)

    def but(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed; what was left at its default stays so.

        Raises:
            SpecError: a field is unknown or its new value is not accepted.
        """
        check_texts(changes, type(self).__name__.lower(), self.line_breaks)  # the rest was checked
        return self._validated({**self.model_dump(exclude_unset=True), **changes})


def check_texts(data: Any, where: str, line_breaks: bool = False) -> None:
    """Refuse text that does more than show: line breaks, escapes, marks that turn its direction.

    Raises:
        SpecError: such a character, or a text of more than 100,000 characters.
    """
    waiting = [(where, data)]
    while waiting:
        field, value = waiting.pop()
        if isinstance(value, str):
            if len(value) > _LONGEST:
                raise SpecError(field, value, f"at most {_LONGEST:,} characters are expected")
            shown = value.replace("\n", " ") if line_breaks else value
            if not shown.isprintable() and _CONTROL.search(shown):
                raise SpecError(field, value, "text without control characters is expected")
        elif isinstance(value, dict):
            waiting += [(f"a name in {field}", key) for key in value]
            waiting += [(f"{field}.{key}", one) for key, one in value.items()]
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{field}.{index}", one) for index, one in enumerate(value)]


def spec_error(error: ValidationError, cls: type[BaseModel], where: str = "") -> SpecError:
    """Turn pydantic's report into our one sentence about its first problem."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in ((where,) if where else ()) + tuple(first["loc"]))
    path = path or cls.__name__.lower()
    cause = (first.get("ctx") or {}).get("error")
    if isinstance(cause, SpecError):
        return SpecError(
            _joined(path, cause.field, cls.__name__.lower()), cause.value, cause.remedy
        )
    if first["type"] == "extra_forbidden":
        return SpecError(
            path,
            first["input"],
            f"no such field; {nearest(str(first['loc'][-1]), cls.model_fields)}",
        )
    if first["type"] == "missing":
        return SpecError(path, None, "this field is required")
    message = first["msg"].removeprefix("Value error, ")
    return SpecError(path, first["input"], message[0].lower() + message[1:])


def _joined(path: str, field: str, noun: str) -> str:
    """A field's path: where pydantic was, then what the validator there names, which may be the same field."""
    if path == noun:
        return field
    return path if path.split(".")[-1] == field.split(".")[-1] else f"{path}.{field}"
