"""Command line: arguments in, one call of the engine, a reply for people or, with ``--json``, for programs.

To touch: a command is a function from arguments to `reply.Reply`, beside its options in the module of its group;
what several commands take is in `given`, how replies and errors are printed in `line`.
"""

from engine.commands.line import main

__all__ = ["main"]
