"""A user's own function, named as `module:function` in a recipe or on the command line."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import sha256_of

OF_SCRIPT = "__main__:"  # begins the name of a function of the script that runs
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
