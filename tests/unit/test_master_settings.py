"""Reading the master's settings, and what it refuses before it starts."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from spothop_master import home, serving
from spothop_master import program as main
from spothop_master.settings import MasterSettings, Retention, SettingsError, read_settings


def test_defaults_follow_from_the_home(tmp_path: Path) -> None:
    settings = read_settings({"SPOTHOP_MASTER_HOME": str(tmp_path)}, {"port": 8901})
    assert settings.database_url == f"sqlite:///{tmp_path}/master.db"
    assert settings.storage_url == f"file://{tmp_path}/storage"
    assert settings.public_url == "http://127.0.0.1:8901"
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:8900"),
        ({"agents_port": 8901}, "http://127.0.0.1:8901"),
        ({"public_url": "https://m.example/", "agents_port": 8901}, "https://m.example:8901"),
        ({"public_url": "http://[::1]:1", "agents_port": 8901}, "http://[::1]:8901"),
        ({"agents_port": 8901, "agents_url": "https://agents.example/"}, "https://agents.example"),
    ],
)
def test_where_vms_reach_the_master(tmp_path: Path, given: dict[str, object], url: str) -> None:
    assert MasterSettings.model_validate({"home": tmp_path, **given}).agents_url == url


def test_options_win_over_the_environment(tmp_path: Path) -> None:
    environ = {"SPOTHOP_MASTER_PORT": "1", "SPOTHOP_MASTER_SYNC_EVERY_S": "2.5", "HOME": "/x"}
    settings = read_settings(environ, {"port": 2, "home": tmp_path, "host": None})
    assert (settings.port, settings.sync_every_s) == (2, 2.5)


def test_settings_are_frozen(tmp_path: Path) -> None:
    settings = read_settings({}, {"home": tmp_path})
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "99999"), ("PORT", "x"), ("SYNC_EVERY_S", "0"), ("SILENT_AFTER_S", "-1")],
)
def test_a_bad_value_is_told_with_field_value_and_hint(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({f"SPOTHOP_MASTER_{name}": value}, {})
    assert caught.value.field == name.lower()
    assert str(caught.value).startswith(f"{name.lower()} = {value}: ")
    assert f"SPOTHOP_MASTER_{name}" in caught.value.hint


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"did you mean SPOTHOP_MASTER_SYNC_EVERY_S\?"):
        read_settings({"SPOTHOP_MASTER_SYNC_EVERY": "3"}, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "spothop.example"])
def test_a_public_address_is_refused_without_insisting(tmp_path: Path, host: str) -> None:
    with pytest.raises(serving.PublicRefused, match="--insecure-public") as refused:
        serving.refuse_public(MasterSettings(home=tmp_path, host=host))
    assert "--tls auto" in str(refused.value)
    assert "--public-url https://" in str(refused.value)
    serving.refuse_public(MasterSettings(home=tmp_path, host=host, insecure_public=True))
    serving.refuse_public(MasterSettings(home=tmp_path, host=host, tls="auto"))
    behind = MasterSettings(home=tmp_path, host=host, public_url="https://spothop.example")
    serving.refuse_public(behind)


def test_a_url_that_contradicts_the_tls_is_refused(tmp_path: Path) -> None:
    settings = MasterSettings(home=tmp_path, tls="auto", public_url="http://spothop.example")
    with pytest.raises(serving.PublicRefused, match="write https://"):
        serving.refuse_public(settings)
    assert MasterSettings(home=tmp_path, tls="auto", port=7).public_url == "https://127.0.0.1:7"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_fine(tmp_path: Path, host: str) -> None:
    serving.refuse_public(MasterSettings(home=tmp_path, host=host))


def test_a_port_in_use_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(main.CannotStart, match=f"port = {port}: .*--port"):
            main.listen("127.0.0.1", port)


def test_one_master_per_home(tmp_path: Path) -> None:
    with (
        home.prepare(tmp_path / "home"),
        pytest.raises(home.HomeError, match=f"another master .process {os.getpid()}. runs"),
    ):
        home.prepare(tmp_path / "home")
    home.prepare(tmp_path / "home").close()


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(home.HomeError, match=r"not writable.*--home"):
        home.prepare(tmp_path / "file" / "home")


def test_a_home_remembers_the_installation_that_it_is_of(tmp_path: Path) -> None:
    assert home.known_owner(tmp_path) is None
    home.keep_owner(tmp_path, home.new_owner())
    assert str(home.known_owner(tmp_path)).startswith("spothop-")
    (tmp_path / "owner").write_text("Not A Name\n")
    with pytest.raises(home.HomeError, match="Not A Name"):
        home.known_owner(tmp_path)


def test_published_files_have_their_mode_and_leave_nothing_aside(tmp_path: Path) -> None:
    home.publish(tmp_path / "secret", "x", mode=0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_nothing_is_made_when_the_start_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = MasterSettings(home=tmp_path / "home", port=taken.getsockname()[1])
        with pytest.raises(main.CannotStart):
            main.run(settings)
    assert not (tmp_path / "home").exists()


def test_a_database_that_is_away_is_told_without_its_password(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/missing/folder/master.db"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = MasterSettings(home=tmp_path / "home", port=port, database_url=url)
    with pytest.raises(main.CannotStart, match="database_url = "):
        main.run(settings)


def test_the_clouds_are_named_with_commas(tmp_path: Path) -> None:
    assert read_settings({}, {"home": tmp_path}).clouds == ("local",)
    environ = {"SPOTHOP_MASTER_CLOUDS": "local, aws,local"}
    assert read_settings(environ, {"home": tmp_path}).clouds == ("local", "aws")
    with pytest.raises(SettingsError, match="clouds"):
        read_settings({"SPOTHOP_MASTER_CLOUDS": ","}, {"home": tmp_path})


def test_the_calls_at_once_are_set_cloud_by_cloud(tmp_path: Path) -> None:
    environ = {"SPOTHOP_MASTER_CLOUD_CALLS": "local=32, other=1"}
    settings = read_settings(environ, {"home": tmp_path})
    names = ("local", "other", "a-third")
    assert [settings.calls_at_once(name, 16) for name in names] == [32, 1, 16]
    for bad in ("local", "local=0", "=3"):
        with pytest.raises(SettingsError, match="cloud_calls"):
            read_settings({"SPOTHOP_MASTER_CLOUD_CALLS": bad}, {"home": tmp_path})


def test_the_section_on_retention_comes_from_one_variable(tmp_path: Path) -> None:
    environ = {"SPOTHOP_MASTER_RETENTION": "logs_s=864000, logs_bytes=5e9"}
    found = read_settings(environ, {"home": tmp_path}).retention
    assert (found.logs_s, found.logs_bytes) == (864_000, 5e9)
    assert found.bundles_s == Retention().bundles_s


@pytest.mark.parametrize("text", ["logs=3", "logs_s=soon", "logs_s=-1", "logs_s"])
def test_a_wrong_section_on_retention_names_what_is_wrong(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="retention"):
        read_settings({"SPOTHOP_MASTER_RETENTION": text}, {"home": tmp_path})


def test_every_setting_of_retention_stands_in_its_document() -> None:
    told = (Path(__file__).resolve().parents[2] / "docs" / "retention.md").read_text("utf-8")
    assert [name for name in Retention.model_fields if f"`{name}`" not in told] == []


@pytest.mark.parametrize("owner", ["*", "team?", "a b", "x" * 64, "a/b", "a\n"])
def test_the_name_of_an_installation_is_no_pattern(tmp_path: Path, owner: str) -> None:
    with pytest.raises(ValidationError, match="owner"):
        MasterSettings(home=tmp_path, owner=owner)
    assert MasterSettings(home=tmp_path, owner="team-a_1.b").owner == "team-a_1.b"


def test_files_are_in_a_folder_or_in_a_bucket(tmp_path: Path) -> None:
    def of(value: str) -> tuple[Path, str]:
        settings = read_settings({"SPOTHOP_MASTER_FILES": value}, {"home": tmp_path})
        return settings.files, settings.files_url

    assert of("") == (tmp_path, "")
    assert of("/mnt/spothop") == of("file:///mnt/spothop") == (Path("/mnt/spothop"), "")
    assert of("s3://bucket/masters") == (tmp_path, "s3://bucket/masters")
    with pytest.raises(SettingsError, match="use a folder, s3://"):
        of("ftp://host/files")
