"""What all nouns share: frozen, strict pydantic models whose errors are one sentence."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from meshwright.specs.errors import SpecError, nearest


class Spec(BaseModel):
    """A frozen value object. Unknown fields are errors, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, ser_json_inf_nan="null")

    @classmethod
    def parse(cls, data: Any, where: str = "") -> Self:
        """Build from plain data (a parsed file).

        Raises:
            SpecError: one sentence naming the first offending field.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise spec_error(error, cls, where) from None

    def plain(self) -> dict[str, Any]:
        """Return JSON- and TOML-ready data: no None, tuples as lists."""
        return self.model_dump(mode="json", exclude_none=True)

    def but(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed.

        Raises:
            SpecError: a field is unknown or its new value is not accepted.
        """
        return type(self).parse({**self.model_dump(), **changes})


def spec_error(error: ValidationError, cls: type[BaseModel], where: str = "") -> SpecError:
    """Turn pydantic's report into our one sentence about its first problem."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in ((where,) if where else ()) + tuple(first["loc"]))
    path = path or cls.__name__.lower()
    cause = (first.get("ctx") or {}).get("error")
    if isinstance(cause, SpecError):
        field = f"{path}.{cause.field}" if path != cls.__name__.lower() else cause.field
        return SpecError(field, cause.value, cause.remedy)
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
