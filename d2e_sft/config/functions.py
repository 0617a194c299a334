"""A user's own function, named as `module:function:KEY=VALUE,…` in a recipe or on the command line."""

import hashlib
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import sha256_of

OF_SCRIPT = "__main__:"  # begins the name of a function of the script that runs
_CUSTOM = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")  # module:function
MOVE_FUNCTION = "move it into a module and name that, as objective=module:function"


def refuse_function(argument: str, value: Any) -> None:
    """Raise UserError if a function is given instead of its name, `module:function`, which a run can record."""
    if not callable(value):
        return
    qualname = getattr(value, "__qualname__", "")
    name = f"{value.__module__}:{qualname}" if qualname.isidentifier() else "module:function"
    raise UserError(
        f"{argument}: got the function {qualname or repr(value)}; expected its name",
        f"pass {name!r} ('__main__:f' for a function f of the script itself), so that the run can record it",
    )


def code_of(name: str, role: str) -> str:
    """Return the SHA-256 of the file that `module:function` is in, of a script only of the function.

    Empty without a source. A script also has the arguments of the training, which may change.
    """
    function = load_function(name, role)
    if name.startswith(OF_SCRIPT):
        try:
            return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
        except (OSError, TypeError):  # typed into a shell, or an object
            return ""
    module = inspect.getmodule(function) or sys.modules[name.partition(":")[0]]
    file = getattr(module, "__file__", None)
    return sha256_of(Path(file)) if file else ""


def parse_named(
    role: str, text: str, known: Mapping[str, Mapping[str, float]], most: Mapping[str, float] | None = None
) -> tuple[str, dict[str, float]]:
    """Return the name and the given options of `NAME` or `NAME:KEY=VALUE,…`.

    NAME is `known`, with the defaults of its options, or `module:function`. Options may also be separated by `:`, in
    case a comma has another meaning. `most` are the largest values of options. UserError names the `role` of NAME.
    """
    words = str(text).split(":")
    count = next((place for place, word in enumerate(words) if place and "=" in word), len(words))
    if words[0] in known:
        count = 1
    name, option_text = ":".join(words[:count]), ",".join(words[count:])
    if name not in known and not _CUSTOM.fullmatch(name):
        raise UserError(
            f"{role} {name!r}: no such {role}; expected {', '.join(known)}, or a custom module:function "
            f"(examples/{role}s.py has some).{did_you_mean(name, known)}"
        )
    options = {}
    for option in option_text.split(",") if option_text else ():
        key, equals, value = option.partition("=")
        if name in known and key not in known[name]:
            raise UserError(_no_option(role, text, name, key, known[name]))
        if not equals:
            raise UserError(f"{role} {text!r}: got {option!r}; expected KEY=VALUE")
        options[key] = _number(f"{role} {text!r}", key, value, (most or {}).get(key, math.inf))
    return name, options


def _no_option(role: str, text: str, name: str, key: str, known: Mapping[str, Any]) -> str:
    has = ", ".join(f"{one} [{value:g}]" if isinstance(value, int | float) else one for one, value in known.items())
    return f"{role} {text!r}: {name} has no option {key!r}; it has {has or 'none'}.{did_you_mean(key, known)}"


def _number(where: str, key: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value <= most and math.isfinite(value)):
        expected = "a finite number, 0 or more" if most == math.inf else f"0 to {most:g}"
        raise UserError(f"{where}: {key}={text}: out of range; expected {expected}")
    return value


def load_with_options(role: str, text: str, arguments: Sequence[str]) -> Callable[..., Any]:
    """Import the function of `module:function:KEY=VALUE,…` and return it with its options as keywords.

    The function is called with the `arguments`; options are its keyword-only arguments, `*, KEY=DEFAULT`. UserError if
    it cannot be imported, takes other arguments, or lacks an option.
    """
    name, options = parse_named(role, text, {})
    function = load_function(name, role)
    try:
        takes = inspect.signature(function)
    except ValueError:  # unknown to Python
        return partial(function, **options)
    known = {key: one.default for key, one in takes.parameters.items() if one.kind is one.KEYWORD_ONLY}
    called = name.rpartition(":")[2]
    for key, value in options.items():
        if key not in known:
            remedy = f"options are named in the function: def {called}({', '.join(arguments)}, *, {key}={value:g})"
            raise UserError(_no_option(role, text, name, key, known), remedy)
    try:
        takes.bind(*arguments, **options)
    except TypeError as error:
        raise UserError(
            f"{role} {text!r}: takes {takes}: {error}; expected ({', '.join(arguments)}), then options of its own as "
            "*, NAME=DEFAULT",
            f"write def {called}({', '.join(arguments)}), and give options without a default in the name: "
            f"{name}:NAME=VALUE",
        ) from None
    return partial(function, **options) if options else function


def load_function(name: str, role: str) -> Callable[..., Any]:
    """Import `function` of `module:function`, which may be in the working folder; UserError if that fails.

    `role` says in the message what the function is used as.
    """
    module_name, _, function_name = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        raise UserError(
            f"{role} {name!r}: module {module_name!r} cannot be imported ({type(error).__name__}: {error})",
            "run the command in the folder that holds the module, or install it",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function) and name.startswith(OF_SCRIPT):
        raise UserError(
            f"{role} {name!r}: the program that runs now has no function {function_name!r}",
            f"a function of another script: {MOVE_FUNCTION}",
        )
    if not callable(function):
        is_other = "is not a function" if hasattr(module, function_name) else "does not exist"
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = did_you_mean(function_name, names)
        raise UserError(f"{role} {name!r}: {function_name!r} of {module.__file__} {is_other}.{hint}")
    return function
