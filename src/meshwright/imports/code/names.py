"""What the names of a Python program stand for, without running it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from meshwright.imports.code import libraries
from meshwright.imports.code.branches import answers, branches, ruled_out, set_only_in
from meshwright.imports.code.composed import composed
from meshwright.imports.code.declared import (
    default_said,
    fields_of,
    is_command,
    option_of,
    without_default,
)
from meshwright.imports.code.environment import of_environment
from meshwright.imports.code.exclusive import excluded, set_afterwards
from meshwright.imports.code.held import decided, first_of, of_holder, of_place, put, update
from meshwright.imports.code.loaded import loaded_table, loads_table
from meshwright.imports.code.operators import literal
from meshwright.imports.code.returns import bound, outcome
from meshwright.imports.code.syntax import defaults_of, dotted

_DEEPEST = 4
"""Functions that call one another are followed so far."""
_PLAIN_BASES = ("object", "BaseModel", "NamedTuple", "TypedDict", "ABC")
_ELSEWHERE = ("remote", "local", "spawn")
"""How Modal and Ray start a function of the program on another machine."""
_OF_WORDS = ("fire.Fire", "Fire", "typer.run", "CLI", "jsonargparse.CLI", "jsonargparse.auto_cli", "auto_cli", "tyro.cli", "defopt.run")  # fmt: skip
"""What hands a command line's words to a function of the program, by its parameters' names."""


class Known:
    """What names stand for in a program, as far as one place says it."""

    def __init__(
        self,
        tree: ast.AST,
        said: Mapping[str, Any] | None = None,
        below: Mapping[str, Any] | None = None,
        tables: Callable[[str], dict[str, Any] | None] | None = None,
    ) -> None:
        self._tables = tables
        """Reads a table that the program loads from a file, by the name that it has there."""
        self.names: dict[str, Any] = {"__name__": "__main__"}  # what is started
        self.fields: dict[str, Any] = dict(said or {})
        """Of whatever object: a parsed command line, a dataclass, a class of constants."""
        self.declared: dict[str, Any] = dict(said or {})
        """Of dataclasses alone."""
        self.arguments: dict[str, Any] = {}
        """Of a parser of its own, by name: what is said for them, or their defaults."""
        self.is_parsed = False
        """Whether a command line is parsed into dataclasses."""
        self.heard: set[str] = set()  # names of `said` that some value came from
        self._said = frozenset(said or ())
        self._first: dict[str, ast.expr] = {}  # the first table that a name is set to
        self._whence: dict[str, set[str]] = {}  # names of `said` that a name's value came from
        every = list(ast.walk(tree))
        self.functions = {one.name: one for one in every if isinstance(one, ast.FunctionDef)}
        self._gives: dict[str, list[ast.expr]] = {}
        self._following: dict[str, dict[str, Any]] = {}  # functions, with what their names are
        self._plain = {
            one.name
            for one in every
            if isinstance(one, ast.ClassDef)
            and all(ast.unparse(base).rpartition(".")[2] in _PLAIN_BASES for base in one.bases)
        }
        self._unset: set[str] = set()  # options that are None where nothing is said
        self.parameters: dict[str, Any] = {}
        """Of functions: what they are called with, or else their defaults."""
        self._branches = branches(tree)
        self._parser_says(tree, every)
        nodes = sorted(
            (node for node in every if isinstance(node, (ast.stmt, ast.Call))),
            key=lambda node: (node.lineno, node.col_offset),
        )
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._class(node)
            elif isinstance(node, ast.Call):
                self._option(node)
            else:
                self._line(node)
        imported = {name.asname or name.name for one in every if isinstance(one, ast.ImportFrom) for name in one.names}  # fmt: skip
        for name, value in (below or {}).items():  # of files that it imports, before any call
            if name in imported or "*" in imported:
                self.names.setdefault(name, value)
        for function in self.functions.values():
            self._defaults(function)
            if is_command(function):
                self._told(function.name)
        self._calls(nodes)
        never = {node for node in nodes if isinstance(node, ast.Assign) and self._never(node)}
        for name in set_only_in(never, nodes) & self.parameters.keys():
            self.names.pop(name, None)
        for name, value in (below or {}).items():  # of classes that it imports
            self.fields.setdefault(name, value)
        self._once_more(nodes)

    def _once_more(self, nodes: list[ast.stmt | ast.Call]) -> None:
        """Take assignments and calls again, with what functions are called with and tables whose place a default said."""
        for node in nodes:
            if isinstance(node, ast.Call):
                self._handed(node)
            elif not isinstance(node, ast.AnnAssign):
                self._line(node)

    def _line(self, node: ast.stmt) -> None:
        """Take what a line sets, opens, adds to a table or goes over, unless its branch is ruled out."""
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and self._never(node):
            return
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value, self.sure(node))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for one in node.items:
                if isinstance(one.optional_vars, ast.Name):
                    self._assign(one.optional_vars, one.context_expr)
        elif isinstance(node, ast.Expr):
            update(node.value, self.value, self.sure(node))
        elif isinstance(node, ast.For) and (first := first_of(node, self.value)) is not None:
            self.names.setdefault(*first)

    def _option(self, node: ast.Call) -> None:
        """Take what a call says of a command line: that there is one, or an option of it."""
        called = dotted(node.func)
        self.is_parsed |= called.endswith(("HfArgumentParser", "TrlParser"))
        if called.endswith(".add_argument") or called in ("click.option", "typer.Option"):
            self._argument(node)

    def holds(self, test: ast.expr) -> Any:
        """What a test comes to, where an option that nobody sets is none; None where the program does not say it."""
        said = self.value(test)
        name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""  # fmt: skip
        return False if said is None and name and name in self._unset else said

    def listen(self, names: Iterable[str]) -> None:
        """Note from here on, as of what a command line says, which of these names some value comes from."""
        self._said |= frozenset(names)

    def sure(self, node: ast.stmt) -> bool | None:
        """Whether the tests that a line stands under are known to hold; None where it stands under none."""
        guards, _usual = self._branches.get(node, ((), frozenset()))
        return decided(guards, self.value) if guards else None

    def _parser_says(self, tree: ast.AST, every: list[ast.AST]) -> None:
        """Take what a parser sets after its options, and leave out those that the command's words rule out."""
        called = {one.attr for one in every if isinstance(one, ast.Attribute)}
        if "set_defaults" in called:
            self.fields = set_afterwards(tree) | self.fields
        if "add_mutually_exclusive_group" in called:
            self.fields |= dict.fromkeys(excluded(tree, self._said), False)

    def _never(self, node: ast.Assign | ast.AnnAssign) -> bool:
        heard = set(self.heard)  # what decides a branch is not what a value comes from
        out = ruled_out(node, self._branches, self.value)
        self.heard = heard
        return out

    def _calls(self, nodes: list[ast.stmt | ast.Call]) -> None:
        """Take what functions and classes of the program are called with."""
        made: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Call):
                self._handed(node)
            if isinstance(node, ast.Call) and self.is_own(node):
                self.heard = set()
                for key, its in self.keywords(node):
                    self._whence.setdefault(key, set()).update(self.heard)
                    self.heard = set()
                    if its is not None and key not in made:
                        self.fields[key] = its  # over the class's own default, the first for good
                        made.add(key)

    def _defaults(self, function: ast.FunctionDef) -> None:
        """Take what a function's parameters are where nobody says them."""
        for arg, default in defaults_of(function):
            if arg.arg == "max_length" and answers(function):
                continue  # of what it generates, not of what is trained on
            if (said := self.value(default_said(default))) is not None:
                self.parameters.setdefault(arg.arg, said)
            elif is_command(function) and isinstance(default_said(default), ast.Constant):
                self._unset.add(arg.arg)

    def _handed(self, node: ast.Call) -> None:
        """Take what a function of the program is called with for its parameters."""
        called = node.func
        if dotted(called) in _OF_WORDS and node.args and isinstance(node.args[0], ast.Name):
            self._told(node.args[0].id)
            return
        if isinstance(called, ast.Attribute) and called.attr in _ELSEWHERE:
            called = called.value
        function = self.functions.get(called.id) if isinstance(called, ast.Name) else None
        if function is None:
            return
        named = [
            (arg.arg, value) for arg, value in zip(function.args.args, node.args, strict=False)
        ]
        named += [(one.arg, one.value) for one in node.keywords if one.arg]
        for name, value in named:
            before, self.heard = self.heard, set()
            if (said := self.value(value)) is not None:
                self.parameters[name] = said
                self._whence.setdefault(name, set()).update(self.heard)
            self.heard |= before

    def _told(self, name: str) -> None:
        """Take what the command line says for the parameters of a function that hears it (`fire.Fire(train)`)."""
        function = self.functions.get(name)
        for arg in function.args.args + function.args.kwonlyargs if function is not None else []:
            if arg.arg in self._said:
                self.parameters[arg.arg] = literal(self.fields[arg.arg])
                self._whence.setdefault(arg.arg, set()).add(arg.arg)
            if arg.arg in self.parameters:  # its command line
                self.arguments.setdefault(arg.arg, self.parameters[arg.arg])

    def _assign(self, target: ast.expr, value: ast.expr, sure: bool | None = None) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._assign(one, its, sure)
            return
        before, self.heard = self.heard, set()
        said = self.value(value)
        if isinstance(target, (ast.Name, ast.Attribute)) and said is not None and self.heard:
            name = target.id if isinstance(target, ast.Name) else target.attr
            self._whence.setdefault(name, set()).update(self.heard)
        self.heard |= before
        if isinstance(target, ast.Name) and said is not None:
            # A table is read again, with what was not known yet when its line was.
            if isinstance(said, dict) and self._first.setdefault(target.id, value) is value:
                self.names[target.id] = said
            self.names.setdefault(target.id, said)
            if sure:  # a branch that the program's own values take, over what stands before it
                self.names[target.id] = said
        elif isinstance(target, ast.Subscript):
            put(self.value(target.value), self.value(target.slice), said, sure)
        elif isinstance(target, ast.Tuple) and isinstance(said, dict) and isinstance(target.elts[0], ast.Name):  # fmt: skip
            self.names.setdefault(target.elts[0].id, said)  # `config, place = load_config(…)`
        elif isinstance(target, ast.Tuple) and isinstance(said, (list, tuple)):
            for one, its in zip(target.elts, said, strict=False):
                if isinstance(one, ast.Name):
                    self.names.setdefault(one.id, its)
        elif isinstance(target, ast.Attribute) and said is not None:
            self.fields.setdefault(target.attr, said)

    def _class(self, node: ast.ClassDef) -> None:
        """Take what a class declares, its dataclasses' fields apart."""
        made = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        for name, default in fields_of(node):
            said = self.value(default)
            if said is not None:
                self.fields.setdefault(name, said)
                if made:
                    self.declared.setdefault(name, said)

    def _argument(self, node: ast.Call) -> None:
        """Take an option of a parser: what is said for it, or its default."""
        option = option_of(node, self.value)
        name = option.name
        self._unset.add(without_default(node))
        if option.switches_off and self.fields.get(name) is True:
            self.fields[name] = False  # said, which switches it off
        if name and option.default is not None:
            self.fields.setdefault(name, option.default)
        if name and name in self.fields:
            self.arguments[name] = self.fields[name]
            if option.is_handed_on:
                self.parameters.setdefault(name, self.fields[name])

    def is_own(self, call: ast.Call) -> bool:
        """Whether a call makes an object of a class of the program's own, built on nothing of a library's."""
        return dotted(call.func) in self._plain

    def keywords(self, call: ast.Call) -> Iterator[tuple[str, Any]]:
        """A call's keyword arguments, also of a table that is handed over with two stars."""
        for keyword in call.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                yield keyword.arg, value
            elif isinstance(value, dict):
                yield from ((str(key), one) for key, one in value.items())

    def value(self, node: ast.expr) -> Any:
        """A constant, or None where the program does not say one."""
        if isinstance(node, ast.Constant):
            return node.value
        if handler := _VALUES.get(type(node)):
            return handler(self, node)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return composed(node, self.value)

    def _hear(self, name: str) -> None:
        if name in self._said:
            self.heard.add(name)
        self.heard |= self._whence.get(name, set())

    def _name(self, node: ast.Name) -> Any:
        self._hear(node.id)
        inner = next(reversed(self._following.values()), {})
        if node.id in inner:
            return inner[node.id]
        return self.names.get(node.id, self.parameters.get(node.id))

    def _attribute(self, node: ast.Attribute) -> Any:
        if (known := libraries.of_name(node)) is not None:
            return known
        table = self.value(node.value) if self._tables is not None else None
        if isinstance(table, dict) and node.attr in table:
            return table[node.attr]
        self._hear(node.attr)
        return self.fields.get(node.attr)

    def _compared(self, node: ast.Compare) -> Any:
        """Whether an option that nobody sets is None; else what is compared."""
        left, other = node.left, node.comparators[0]
        none = isinstance(other, ast.Constant) and other.value is None and isinstance(node.ops[0], (ast.Is, ast.IsNot))  # fmt: skip
        if none and isinstance(left, ast.Attribute) and left.attr in self._unset and self.value(left) is None:  # fmt: skip
            return isinstance(node.ops[0], ast.Is)
        return composed(node, self.value)

    def _subscript(self, node: ast.Subscript) -> Any:
        table, key = self.value(node.value), self.value(node.slice)
        if isinstance(key, str):
            self._hear(key)
        if table is None and isinstance(key, str) and key in self._said:
            return self.fields.get(key)  # its options as a table (`args["precision"]`)
        named = isinstance(key, (str, int)) and isinstance(node.value, ast.Name)
        if isinstance(table, dict) and named and key not in table:
            # A function may call its part of a table as the program calls the whole.
            handed = self.parameters.get(ast.unparse(node.value))
            table = handed if isinstance(handed, dict) else table
        if isinstance(table, (list, tuple, str)) and isinstance(key, int):
            return table[key] if -len(table) <= key < len(table) else None
        return table.get(key) if isinstance(table, dict) and isinstance(key, (str, int)) else None

    def _call(self, node: ast.Call) -> Any:
        called, args = dotted(node.func), [self.value(arg) for arg in node.args]
        if called in ("os.environ.get", "os.getenv", "environ.get", "getenv"):
            return args[1] if len(args) > 1 else None
        if (made := libraries.of_call(node, called, args, self.value)) is not None:
            return made
        if called == "dict" and not args:
            return dict(self.keywords(node))
        if (held := of_holder(called, args, dict(self.keywords(node)))) is not None:
            return held
        if called in ("asdict", "dataclasses.asdict"):
            return {name: self.fields.get(name, one) for name, one in self.declared.items()}
        if (place := of_place(node, called, args, self.value)) is not None:
            return place
        if called in ("open", "Path", "pathlib.Path") and args:
            return args[0]  # where a file lies stands for the file
        if self._tables is not None and args and loads_table(called):
            return loaded_table(called, args[0], self._tables)
        if called.endswith(".get") and isinstance(node.func, ast.Attribute) and args:
            table = self.value(node.func.value)
            if isinstance(table, dict) and isinstance(args[0], str) and args[0] in table:
                return table[args[0]]
            return args[1] if len(args) > 1 else None
        asked = of_environment(node, self.functions, self.value)
        return asked if asked is not None else self._returned(node)

    def _returned(self, call: ast.Call) -> Any:
        """What a function or method of the program gives back for a call's arguments, or where it says one thing alone."""
        called = call.func
        name = called.id if isinstance(called, ast.Name) else ""
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) in ("self", "cls"):
            name = called.attr
        function = self.functions.get(name)
        if function is None or name in self._following or len(self._following) > _DEEPEST:
            return None
        if name not in self._gives:
            self._gives[name] = [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value]  # fmt: skip
        given = self._gives[name]
        if not given:
            return None
        handed = self._following[name] = bound(function, call, self.value)
        try:
            _done, found = outcome(function.body, self.value, handed)
            return self.value(given[0]) if found is None and len(given) == 1 else found
        finally:
            del self._following[name]


_VALUES: dict[type, Callable[[Known, Any], Any]] = {
    ast.Name: Known._name,
    ast.Attribute: Known._attribute,
    ast.Subscript: Known._subscript,
    ast.Call: Known._call,
    ast.Compare: Known._compared,
}
