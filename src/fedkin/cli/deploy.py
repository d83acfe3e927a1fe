"""`fedkin deploy init|keys DIR`: an app for real sites over Flower, and keys to try TLS with."""

from __future__ import annotations

from importlib.util import find_spec

from fedkin.cli.flags import UserError

HELP = """\
usage: fedkin deploy init DIR [flags]   Write an app for Flower, a file for each site, and start commands.
       fedkin deploy keys DIR [flags]   Make a CA, a certificate and site keys, to try TLS with.
"""


def command(words: list[str]) -> int:
    if find_spec("flwr") is None:
        raise UserError("fedkin deploy needs Flower: pip install 'fedkin[flower]'.")
    if not words or words[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0 if words else 2
    import tyro

    if words[0] == "init":
        from fedkin.deploy.scaffold import Init, init

        init(tyro.cli(tyro.conf.PositionalRequiredArgs[Init], args=words[1:], prog="fedkin deploy init"))
    elif words[0] == "keys":
        from fedkin.deploy.keys import Keys, keys

        keys(tyro.cli(tyro.conf.PositionalRequiredArgs[Keys], args=words[1:], prog="fedkin deploy keys"))
    else:
        raise UserError(f"There is no 'fedkin deploy {words[0]}'. Known: init, keys.")
    return 0
