"""The data folder whose broker a command addresses."""

from pathlib import Path

import pytest

from broker.cli.broker_folder import DEFAULT_FOLDER, VARIABLE, broker_folder
from broker.cli.settings_layers import load

pytestmark = pytest.mark.usefixtures("without_settings")


def test_default_is_that_of_the_settings() -> None:
    """A broker that was started without settings is found without settings."""
    assert Path(broker_folder(None, None)) == load().server.data_dir == Path(DEFAULT_FOLDER)


def test_layers_win_as_they_do_for_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is overridden by the environment, and that by the flag; other keys of the file do not matter."""
    file = tmp_path / "s.toml"
    file.write_text("[server]\ndata_dir = 'file'\nfrom_a_later_version = 1\n")
    assert broker_folder(None, file) == "file"
    monkeypatch.setenv(VARIABLE.lower(), "environment")
    assert broker_folder(None, file) == "environment"
    assert broker_folder("flag", file) == "flag"


@pytest.mark.parametrize("content", ["", "[server]\n", "server = 3\n"])
def test_file_without_the_setting_leaves_the_default(tmp_path: Path, content: str) -> None:
    """A file without the key leaves the default."""
    file = tmp_path / "s.toml"
    file.write_text(content)
    assert broker_folder(None, file) == DEFAULT_FOLDER
