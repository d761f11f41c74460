"""The command `spark-prof`: what ends it becomes one line on stderr and an exit code.

The subcommands are imported only where signals are heeded: that takes most of a second.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from spark_prof.ending import TerminatedError, end_at_once, ended_by_signals, stopped_with
from spark_prof.errors import NO_MEMORY, CommandError, SparkProfError, lacks_memory


def main() -> int:
    """Runs the command line; returns the exit code."""
    code = 0
    try:
        with ended_by_signals():
            code = _run()
    except KeyboardInterrupt:
        code = 130
    except TerminatedError:
        code = 143
    except Exception as error:
        if not lacks_memory(error):
            raise
        print(f"spark-prof: {NO_MEMORY}; give it more, or less to read", file=sys.stderr)
        code = 2
    code = stopped_with() or code
    if code in (129, 130, 143):
        with suppress(OSError):  # the terminal may be gone
            print("spark-prof: stopped", file=sys.stderr, flush=True)
        end_at_once()
    return code


def _run() -> int:
    import typer

    from spark_prof.cli.app import app as commands

    try:
        result = commands(prog_name="spark-prof", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SparkProfError as error:
        if not stopped_with():
            print(f"spark-prof: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, CommandError) else 2
    except typer.Exit as ended:
        return int(ended.exit_code)
    except typer.Abort:
        return 130
    except Exception as error:
        if stopped_with():  # some libraries make an error of their own of what ends them
            return 0
        # Typer's own usage errors know how to show themselves; anything else is our fault.
        show = getattr(error, "show", None)
        if show is None:
            raise
        message = getattr(error, "format_message", None)
        text = " ".join(str(message() if message else error).split()).rstrip(".")
        context = getattr(error, "ctx", None)
        command = context.command_path if context else " ".join(["spark-prof", *_subcommand()])
        print(f"spark-prof: {text}; see {command} --help", file=sys.stderr)
        return 2


def _subcommand() -> list[str]:
    """The subcommand that was typed, for the parser's errors that do not say in which they are."""
    from spark_prof.cli.app import app as commands

    callbacks = [row.callback for row in commands.registered_commands if row.callback]
    return [word for word in sys.argv[1:2] if word in {callback.__name__ for callback in callbacks}]


if __name__ == "__main__":
    sys.exit(main())
