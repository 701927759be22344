"""Fixtures that the commands' tests share."""

import pytest

from mxstats.cli import main


@pytest.fixture
def run(capsys):
    """Run a command line; give its exit code, stdout and stderr."""

    def command(*arguments):
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return command
