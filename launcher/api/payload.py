"""A function and its arguments as bytes, for tasks that have none of the user's files.

What comes from the program itself (``__main__``, a notebook's cell), a closure or a lambda travels as code;
cloudpickle does that. What comes from a module travels as its name, and a module of the user's own, that is
not installed, would not be
there: so such modules travel as code, too.
"""

from __future__ import annotations

import io

from launcher.api.annotated import Pickler
from launcher.errors import LaunchError
from launcher.feed.remote.frames import check_size
from launcher.feed.remote.own_modules import by_value


def dumps(value: object, what: str) -> bytes:
    """The bytes of a function, or of arguments.

    Args:
        what: it is, for the message.

    Raises:
        LaunchError: it can't be carried to another process.
    """
    with by_value():
        return plain(value, what)


#: What to try when that can't be carried which goes to the tasks, and which comes from them.
_THERE = "make locks, sessions and open files within the function; put what it needs into its arguments"
_BACK = "return texts, numbers, arrays; write models and the like to files, say below ctx.output_dir"


def back(value: object, what: str) -> bytes:
    """The bytes of what goes back, to a program that has the modules itself: they are only named.

    Raises:
        LaunchError: it can't be carried to the program.
    """
    return plain(value, what, "to the program that drives the job", _BACK)


def plain(value: object, what: str, where: str = "to another process", advice: str = _THERE) -> bytes:
    """The bytes of something, modules only named.

    Args:
        what: it is, for the message.
        where: it is to go.
        advice: what to try if it can't.

    Raises:
        LaunchError: it can't be carried there.
    """
    try:
        file = io.BytesIO()
        Pickler(file).dump(value)
        check_size([found := file.getvalue()], "it")
        return found
    except Exception as error:
        text = f"{what} can't be carried {where}: {type(error).__name__}: {error}"
        raise LaunchError(f"{text}; {advice}") from error
