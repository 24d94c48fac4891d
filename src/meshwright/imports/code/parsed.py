"""What a program's own parser of its command line gives: the words of the command that starts it, or else its defaults."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from meshwright.imports.code.declared import option_of
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted
from meshwright.imports.code.values import Made, Module, Unknown, run_of

HANDED = re.compile(r"(?:parsed_|cli_)?args|namespace|opts?")
"""What the parameters are called that take a parsed command line."""
PARSES = ("parse_args", "parse_known_args")


def declares(module: Module) -> bool:
    """Whether a file declares options of a command line."""
    return next(_added(module), None) is not None


def parsed(module: Module) -> Made:
    """The options that a file's parser has, by name; one that the command has to say and does not is unknown."""
    run = run_of(module)
    if module.options is None:
        known = Known(module.tree, run.said)
        module.options = Made("arguments")
        for node in _added(module):
            name = option_of(node, known.value).name
            needed = any(one.arg == "required" for one in node.keywords)
            none = Unknown(name) if needed else None
            module.options.fields[name] = known.arguments.get(name, none)
    return module.options


def _added(module: Module) -> Iterator[ast.Call]:
    """The calls that add an option to a parser."""
    calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    return (one for one in calls if dotted(one.func).endswith(".add_argument"))
