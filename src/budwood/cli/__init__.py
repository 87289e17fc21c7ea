"""The command line: each command parses its flags, calls one function of the library, and shows what came back."""


def main() -> None:
    """Run `budwood`: prepare the process, then load the commands."""
    from budwood.cli._process import prepare

    prepare()

    from budwood.cli._app import app

    app()
