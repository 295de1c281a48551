"""The models of the settings, and the documented file that is generated from them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from broker.cli.config import documented, texts_of
from broker.settings import Settings, limits, sections
from broker.settings.access import Auth
from broker.settings.change import changes, merged
from broker.settings.fields import AT_ONCE, NEXT_CONNECTION, reload_of

DOCUMENTED = Path(__file__).parents[2] / "config" / "slotmq.toml"
UNITS = ("_bytes", "_ms", "_s")


def numbers() -> list[tuple[str, str, Any]]:
    """Return every key that has limits, as (section, key, field)."""
    return [
        (name, key, field)
        for name, _, fields in sections()
        for key, field in fields.items()
        if isinstance(field.json_schema_extra, dict) and "unit" in field.json_schema_extra
    ]


def uncommented(text: str) -> dict[str, Any]:
    """Return the file with every default uncommented."""
    lines = [line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in text.splitlines()]
    return tomllib.loads("\n".join(lines))


def plain(settings: Settings) -> dict[str, Any]:
    """Return settings as TOML values."""
    values = settings.model_dump(mode="json")
    values["auth"]["users"] = {name: value.get_secret_value() for name, value in settings.auth.users.items()}
    values["auth"]["default_pass"] = settings.auth.default_pass.get_secret_value()
    values["cluster"]["url"] = settings.cluster.url.get_secret_value()
    values["tls"]["key_password"] = settings.tls.key_password.get_secret_value()
    return values


def test_documented_file_is_the_one_the_models_write() -> None:
    """config/slotmq.toml is what `slotmq config example` writes."""
    assert DOCUMENTED.read_text() == documented(), "run: slotmq config example > config/slotmq.toml"


def test_documented_file_has_every_key_at_its_default() -> None:
    """Uncommenting every line of the documented file changes no setting, and no key is missing."""
    assert uncommented(DOCUMENTED.read_text()) == plain(Settings())


def test_documented_file_sets_nothing_as_it_stands() -> None:
    """The documented file is valid as it is: it names sections and sets no key."""
    assert all(section == {} for section in tomllib.loads(DOCUMENTED.read_text()).values())


def test_every_key_says_what_it_means() -> None:
    """Each key has a text below it, and each number has the unit that its name ends with."""
    for section, model, fields in sections():
        texts = texts_of(model)
        assert not [key for key in fields if not texts.get(key)], section
    for section, key, field in numbers():
        unit = field.json_schema_extra["unit"]
        ending = next((ending for ending in UNITS if key.endswith(ending)), None)
        assert ending is None or ending == f"_{unit}", f"{section}.{key} is in {unit}"
        assert ending is not None or unit not in ("bytes", "ms", "s"), f"{section}.{key} is in {unit}"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        (section, key, value)
        for section, key, field in numbers()
        for value in (limits(field)[0] - 1, limits(field)[1] + 1)
    ],
)
def test_number_outside_its_limits_is_refused(section: str, key: str, value: float) -> None:
    """A value below the least or above the greatest is an error."""
    with pytest.raises(ValidationError):
        Settings.model_validate({section: {key: value}})


def test_settings_take_nothing_from_the_environment_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings made in a test do not depend on the environment."""
    monkeypatch.setenv("SLOTMQ_SERVER__PORT", "1")
    assert Settings().server.port == 5672


def test_passwords_are_not_printed() -> None:
    """Neither str() nor repr() of settings contains a password."""
    settings = Settings(auth={"users": {"alice": "wonderland"}})
    assert "wonderland" not in f"{settings} {settings!r} {settings.model_dump_json()}"


def test_settings_do_not_change_after_they_were_read() -> None:
    """A section is frozen, so the settings in force are those that were checked."""
    with pytest.raises(ValidationError):
        setattr(Settings().server, "port", 1)  # noqa: B010 - the type checker refuses the plain form, which is the point


def test_every_key_says_when_a_reload_takes_it() -> None:
    """The documented file says for every key when a reload applies it: at once, for new connections, or not."""
    said = DOCUMENTED.read_text().replace("\n# ", " ")
    when = [reload_of(field) for _section, _model, fields in sections() for field in fields.values()]
    assert set(when) == {"", AT_ONCE, NEXT_CONNECTION}
    for word in (AT_ONCE, NEXT_CONNECTION):
        assert said.count(f"Reload: {word}.") == when.count(word)


def test_changes_are_those_that_a_running_broker_can_take() -> None:
    """Merging takes reloadable values from the new settings and all others from the running ones, without secrets."""
    running = Settings(server={"port": 1}, log={"level": "info"}, auth={"users": {"a": "one"}})
    wanted = Settings(server={"port": 2, "data_dir": "x"}, log={"level": "debug"}, auth={"users": {"a": "two"}})
    found = changes(running, wanted)
    assert [(change.row()["key"], change.needs_restart) for change in found] == [
        ("server.port", True),
        ("server.data_dir", True),
        ("auth.users", True),
        ("log.level", False),
    ]
    assert "one" not in str(found)
    assert "two" not in str(found)
    settings = merged(running, wanted, [change for change in found if not change.needs_restart])
    assert (settings.server.port, settings.log.level) == (1, "debug")
    assert settings.auth.users["a"].get_secret_value() == "one"
    assert running.log.level == "info"


def test_a_listener_for_tls_neither_comes_nor_goes_by_a_reload() -> None:
    """A reload may change certificate files if TLS stays on; every other key of [tls] needs a restart."""
    without, first, second = (Settings(tls={"certfile": file}) for file in ("", "one.pem", "two.pem"))
    assert [change.needs_restart for change in changes(first, second)] == [False]
    assert [change.needs_restart for change in changes(without, first)] == [True]
    assert [change.needs_restart for change in changes(first, without)] == [True]


@pytest.mark.parametrize(
    ("auth", "begins"),
    [
        ({}, True),
        ({"users": {"alice": "x"}}, False),
        ({"users": {"alice": "x"}, "default_user": "bob", "default_pass": "y"}, True),
        ({"users": {"alice": "x"}, "default_pass": "y"}, True),
        ({"default_user": ""}, False),
    ],
)
def test_a_first_user_is_made_when_it_is_asked_for_or_there_is_no_other(auth: dict[str, Any], begins: bool) -> None:
    """A first user is created if the settings ask for it or name no user, so guest does not join named users."""
    assert Auth(**auth).begins_with_default_user is begins


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"auth": {"default_user": "alice"}}, "default_pass is not"),
        ({"auth": {"default_pass": ""}}, "default_pass is empty"),
        ({"auth": {"mechanisms": []}}, "at least 1 item"),
        ({"auth": {"mechanisms": ["CRAM-MD5"]}}, "'PLAIN', 'AMQPLAIN' or 'EXTERNAL'"),
        ({"tls": {"keyfile": "key.pem"}}, "certfile is missing"),
        ({"tls": {"verify": "peer"}}, "certfile is missing"),
        ({"tls": {"port": 5671}}, "certfile is missing"),
        ({"tls": {"port": 5690, "certfile": ""}}, "certfile is missing"),
        ({"tls": {"min_version": "1.3"}}, "certfile is missing"),
        ({"overlay": {"exchanges": ["x"]}}, "exchanges is set and there is no"),
        ({"tls": {"certfile": "cert.pem", "verify": "peer"}}, "needs cafile"),
        ({"server": {"port": 7}, "tls": {"certfile": "cert.pem", "port": 7}}, "tls.port and server.port are both 7"),
        ({"tls": {"certfile": "cert.pem", "min_version": "1.1"}}, "'1.2' or '1.3'"),
    ],
)
def test_what_would_be_less_than_was_asked_for_is_refused(sections: dict[str, Any], reason: str) -> None:
    """Settings that would silently weaken security, such as an unchecked certificate, are refused."""
    with pytest.raises(ValidationError, match=reason):
        Settings(**sections)
