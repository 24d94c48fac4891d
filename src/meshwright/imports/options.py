"""The options of a file, checked when read; what nobody read is named in the end."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping
from typing import Any

from meshwright.imports.numbers import with_numbers
from meshwright.imports.option_tables import choices, idle, known
from meshwright.imports.reading import Reading, Remark
from meshwright.imports.shell.words import readable, shown, unmarked, unset
from meshwright.specs.errors import SpecError

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0", "none", "null", ""})
_MOST = 10**12


class Options:
    """Values by name. Every name that is asked for counts as read.

    Args:
        values: by name, tables inside flattened with dots.
        prefix: how a person writes a name (`--` for flags).
        absent: values that mean that the file does not say (`"auto"`).
    """

    def __init__(
        self, values: Mapping[str, Any], prefix: str = "", absent: tuple[Any, ...] = ("auto",)
    ) -> None:
        self.values = dict(values)
        self.prefix = prefix
        self.absent = absent
        self.read: set[str] = set()
        self.within: tuple[str, ...] = ()
        """Tables whose names are another framework's own: `actor.megatron.` holds Megatron-LM's."""
        self.spoken: dict[str, str] = {}
        """Beginnings of names, by the beginnings under which the tables know them."""
        self.left: dict[str, str] = {}
        """Names whose values are nothing but what the file leaves to its environment, and that."""
        self.assumed: set[str] = set()
        """Names that the file does not say, with the value that its program takes then."""
        self.guessing = False
        self.guessed: dict[str, tuple[str, float | str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def has(self, *names: str) -> bool:
        """Whether any of the names is there; does not count as reading it."""
        return any(name in self.values for name in names)

    def raw(self, *names: str) -> Any:
        """The first value that is there, None where none is or it means "not said"."""
        found = None
        # What the file says counts over what its program takes by itself.
        for name in sorted(names, key=self.assumed.__contains__) if self.assumed else names:
            if name in self.values:
                self.read.add(name)
                value = self.values[name]
                if found is None and value is not None and not self._silent(value):
                    found = value
        return found

    def _silent(self, value: Any) -> bool:
        return isinstance(value, str) and value.strip().lower() in self.absent

    def _name(self, names: tuple[str, ...]) -> str:
        return self.prefix + next((name for name in names if name in self.values), names[0])

    def text(self, *names: str, default: str = "") -> str:
        """A value as text; several words are joined.

        Raises:
            SpecError: the value depends on something that the file does not state.
        """
        value = self.raw(*names)
        if value is None:
            return default
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list):
            value = " ".join(map(str, value))
        if self.guessing and default and unset(str(value)):
            self.guessed[self._name(names)] = (shown(str(value)), default)
            return default
        return self._stated(names, str(value))

    def _stated(self, names: tuple[str, ...], text: str) -> str:
        missing = unset(text)
        if missing:
            raise Missing(self._name(names), missing[0], shown(text), self._all_missing())
        return text

    def _own(self, name: str) -> str:
        """A name as the framework of its table writes it."""
        told = next((one for one in self.spoken if name.startswith(one)), "")
        if told:
            return self.spoken[told] + name.removeprefix(told)
        outer = next((one for one in self.within if name.startswith(one)), "")
        return name.removeprefix(outer)

    def _all_missing(self) -> list[str]:
        """Every name that the values leave to the environment, in order."""
        found: dict[str, None] = {}
        for name, value in self.values.items():
            if known(name, ("common",)) == "" or re.search(
                r"path|dir|name|tokenizer|^save|^load|addr|port", name
            ):
                continue
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str):
                    found |= dict.fromkeys(unset(one))
        return [name for name in found if not name.startswith("$")]

    def loose(self, *names: str) -> str:
        """A value as text, without the parts that the file does not state."""
        value = self.raw(*names)
        if isinstance(value, list):
            value = " ".join(map(str, value))
        text = "" if value is None else unmarked(str(value))
        if not text and value is not None and unset(str(value)):
            self.left[self._name(names)] = unset(str(value))[0]
        return text

    def whole(self, *names: str, default: int = 0, least: int = 0) -> int:
        """A whole number; `1e6`, `4k` and `1_000` count as such.

        Raises:
            SpecError: not a whole number of at least `least`.
        """
        number = self.number(*names, default=default)
        if not float(number).is_integer() or not least <= number <= _MOST:
            raise SpecError(
                self._name(names), self.raw(*names), f"a whole number of at least {least} expected"
            )
        return int(number)

    def number(self, *names: str, default: float = 0.0) -> float:
        """A number.

        Raises:
            SpecError: not a finite number.
        """
        value = self.raw(*names)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None or (
            isinstance(value, str) and value.strip().lower() in ("none", "null", "")
        ):
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        if self.guessing and unset(str(value)):
            self.guessed[self._name(names)] = (shown(str(value)), default)
            return default
        _refuse_open(self._name(names), value)
        text = self._stated(names, str(value)).strip().replace("_", "").replace(",", "")
        scale = {"k": 1_000, "m": 10**6, "b": 10**9, "t": 10**12}.get(text[-1:].lower(), 1)
        try:
            made = float(text[:-1] if scale > 1 else text) * scale
        except ValueError:
            made = math.nan
        if re.fullmatch(
            r"[xX.?\s]{2,}|<[^<>]*>|your\S*|to?do\S*|tobefilled|fillme\S*|fixme|changeme",
            text,
            re.IGNORECASE,
        ):
            raise SpecError(self._name(names), value, "is a place left for its reader: fill it in, or give --model")  # fmt: skip
        if isinstance(value, list) and len(value) > 1:
            raise SpecError(self._name(names), value, "are tried one after another by a search or an autotuner: one number is expected")  # fmt: skip
        if len(text) > 40 or not math.isfinite(made):
            raise SpecError(self._name(names), value, "a number is expected")
        return made

    def flag(self, *names: str, default: bool = False) -> bool:
        """A switch; a name without a value is on.

        Raises:
            SpecError: neither true nor false.
        """
        value = self.raw(*names)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if isinstance(value, list):
            if not value:
                return True
            value = value[0]
        if self.guessing and unset(str(value)):
            self.guessed[self._name(names)] = (shown(str(value)), default)
            return default
        _refuse_open(self._name(names), value)
        text = self._stated(names, str(value)).strip().lower()
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise SpecError(self._name(names), value, "true or false is expected")

    def word(self, *names: str, default: str = "") -> str:
        """A value as one lower-case word without quotes; where guesses are wanted, one that the file does not state is none."""
        value = self.raw(*names)
        if self.guessing and not default and isinstance(value, str) and unset(value):
            self.guessed[self._name(names)] = (shown(value), default)
            return default
        return self.text(*names, default=default).strip().strip("\"'").lower()

    def finish(self, reading: Reading, *tables: str, strict: bool = False) -> None:
        """Name every option that nobody read, by what the tables say of it.

        Raises:
            SpecError: an option is not known, and `strict`.
        """
        for option, (text, default) in self.guessed.items():
            taken = default if isinstance(default, str) else f"{default:g}"
            said = f"{taken} is taken" if default else "it counts as not said"
            reading.guess(option, f"{text[:60]} is not stated in the file; {said}")
        taken_over = sorted(
            name for name in self.assumed & self.read if self.values[name] not in (None, False, "")
        )
        if taken_over:
            said = ", ".join(
                f"{name} {shown(str(self.values[name]))[:40]}" for name in taken_over[:8]
            )
            reading.note(f"the program's own defaults count where the command is silent: {said}")
        if reading.model is not None:
            reading.model = with_numbers(reading.model, self.values)
        if not reading.model_name:
            reading.model_left = next(((n, v) for n, v in self.left.items() if _NAMES_A_MODEL.search(n)), ("", ""))  # fmt: skip
        alike: dict[str, list[str]] = {}
        off = self._off()
        for name, value in self.values.items():
            if name in self.read or value is None or name in self.assumed or name.startswith(off):
                continue
            own = self._own(name)
            effect = known(own, tables)
            unsaid = effect is not None and self._silent(value)
            if effect == "" or unsaid or idle(own, value, effect, tables):
                continue
            option = self.prefix + name
            if effect is not None:
                alike.setdefault(effect, []).append(option)
                continue
            if strict:
                raise SpecError(
                    option, value, f"this option is not known{_alike(name)} (--strict refuses it)"
                )
            near = _alike(own) if "megatron" in tables else ""
            short = shown(str(value))[:60] if not isinstance(value, (dict, list)) or value else ""
            text = (
                f"{short} is not understood; it is left out{near}"
                if short
                else f"it is left out{near}"
            )
            reading.remarks.append(Remark("unread", option, text))
        self._strangers(reading, tables, strict)
        for effect, options in alike.items():
            # One sentence for what has one effect: a list of thirty options is read by nobody.
            more = f", and {len(options) - 3} more" if len(options) > 3 else ""
            reading.remarks.append(Remark("unmodelled", ", ".join(options[:3]) + more, effect))

    def _off(self) -> tuple[str, ...]:
        """Beginnings of the names in tables that say `enabled: false`: the rest of such a table says nothing."""
        return tuple(
            name.removesuffix("enabled")
            for name, value in self.values.items()
            if name.endswith(".enabled") and str(value).lower() == "false"
        )

    def _strangers(self, reading: Reading, tables: tuple[str, ...], strict: bool) -> None:
        """Name the values that an option of a few known words does not take, read or not."""
        for name, value in self.values.items():
            if name in self.assumed or not isinstance(value, str) or unset(value):
                continue
            words = choices(self._own(name), tables)
            word = value.strip().strip("\"'").lower()
            if not words or not word or any(fnmatch.fnmatchcase(word, one) for one in words):
                continue
            option, plain = self.prefix + name, [one for one in words if one != "none"]
            expected = ", ".join(plain[:6])
            if strict:
                raise SpecError(option, value, f"one of {expected} is expected (--strict)")
            text = f"{shown(value)[:60]} is not understood (known: {expected}); the usual one is priced"
            if not any(one.option == option for one in reading.remarks):
                reading.remarks.append(Remark("unread", option, text))


def _refuse_open(name: str, value: Any) -> None:
    """Refuse a value that OmegaConf would take out of the configuration that includes this one.

    Raises:
        SpecError: it is one.
    """
    if isinstance(value, str) and re.search(r"\$\{\w[\w.:]*\}", value):
        raise SpecError(name, value, "takes model and batch from the configuration that includes it: import that one")  # fmt: skip


_NAMES_A_MODEL = re.compile(r"model|pretrain|hf.checkpoint|config.name")


def _alike(name: str) -> str:
    """Megatron-LM's flag of nearly that name, as a question."""
    from difflib import get_close_matches

    from meshwright.exports.megatron_read import known_flags

    found = get_close_matches(name, known_flags(), 1, 0.85)
    return f"; did you mean --{found[0]}?" if found and found[0] != name else ""


class Missing(SpecError):
    """An option whose value the file leaves to its environment."""

    def __init__(self, option: str, name: str, text: str, others: list[str] | None = None) -> None:
        self.missing = name
        self.others = others or []
        name, _, said = readable(name).partition("=")
        plain = name.lstrip("$")
        if name.isdigit():
            remedy = f'the script takes it as its argument {name}: --args "…" gives all of them; --guess takes what it can'
        elif name.startswith("$"):
            remedy = "this depends on the machine; give the option's value with --set; --guess takes what it can"
        elif said:
            remedy = f"{plain} is what {said[:60]} says on the machine: --set {plain}=… gives it; --guess takes what it can"
        else:
            rest = [one for one in self.others if one != name and not one.isdigit()][:8]
            also = f" (also {', '.join(rest)})" if rest else ""
            remedy = f"the file does not state {plain}{also}: --set {plain}=… gives it; --guess takes what it can"
        super().__init__(option, text, remedy)


def counted(value: Any) -> int:
    """A number of things as a table holds it; 0 where it is no whole number above 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def flattened(data: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Tables inside tables as one, with dotted names; empty tables and lists stay values."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and depth < 12:
            found |= flattened(value, f"{name}.", depth + 1)
        else:
            found[name] = value
    return found


def flags_of(words: list[str]) -> dict[str, Any]:
    """The `--flag value…` words of a command line by name (dashes), the last one counting."""
    found: dict[str, Any] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_flag(word):
            continue
        name, equals, inline = word.lstrip("-").partition("=")
        values = [inline] if equals else []
        while not equals and index < len(words) and not _ends_value(words[index]):
            values.append(words[index])
            index += 1
        # A variable that nothing sets expands to no word at all, beside a value.
        values = [value for value in values if unmarked(value)] or values
        if values and not equals and all(_of_options(value) for value in values):
            values = []  # `--fp16 $EXTRA_ARGS`: more options or none, no value of this one
        name = name.replace("_", "-")
        found[name] = True if not values else values[0] if len(values) == 1 else values
    return found


_MORE = re.compile(r"(?i)(?:^|_)(?:args?|arguments|options?|opts?|flags|extras?|params|parameters|overrides|switch(?:es)?)$|^extra_|[@*]")  # fmt: skip


def _of_options(value: str) -> bool:
    """Whether a word is nothing but a variable that nothing sets and that is named after options."""
    names = unset(value)
    return not unmarked(value) and bool(names) and all(_MORE.search(one) for one in names)


def _ends_value(word: str) -> bool:
    """Whether a word is an option and no value, also one of a single letter, which no name says what it is."""
    return _is_flag(word) or re.fullmatch(r"-[A-Za-z]", word) is not None


def _is_flag(word: str) -> bool:
    return word.startswith("--") and len(word) > 2 and not word[2].isdigit()
