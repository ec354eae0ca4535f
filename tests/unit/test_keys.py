"""The master's key file: made once, rotated by a line, and never replaced without a word."""

from __future__ import annotations

import base64
import secrets
import stat
from pathlib import Path

import pytest

from spothop_master import program
from spothop_master.app import create_app
from spothop_master.keys import KeyFileError, Keys, key_id
from spothop_master.settings import MasterSettings

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


def write(path: Path, *masters: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(b"\n".join(base64.b64encode(master) for master in masters))
    path.chmod(mode)
    return path


def opened(path: Path) -> Keys:
    keys = Keys(path)
    keys.open()
    return keys


def test_the_first_start_makes_a_file_that_only_its_user_reads(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    first, second = opened(path), opened(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.ids == second.ids
    assert first.at_rest() == second.at_rest()
    assert opened(tmp_path / "other.key").ids != first.ids


def test_two_masters_that_make_the_file_at_once_have_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, token = Keys(tmp_path / "keys"), Keys(tmp_path / "keys"), secrets.token_bytes

    def while_the_other_is_faster(size: int) -> bytes:
        monkeypatch.setattr(secrets, "token_bytes", token)
        other.open()
        return token(size)

    monkeypatch.setattr(secrets, "token_bytes", while_the_other_is_faster)
    one.open()
    assert one.ids == other.ids
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_the_first_line_makes_and_all_of_them_open(tmp_path: Path) -> None:
    old = opened(write(tmp_path / "old", TWO))
    both = opened(write(tmp_path / "both", ONE, TWO))
    assert both.ids == [key_id(ONE), key_id(TWO)]
    assert list(both.at_rest()) == both.ids
    assert both.at_rest()[key_id(TWO)] == old.at_rest()[key_id(TWO)]
    assert both.join_token("vm-1") != old.join_token("vm-1")
    assert both.join_token("vm-1") == opened(write(tmp_path / "new", ONE)).join_token("vm-1")


def test_what_is_derived_differs_by_purpose_and_is_no_master_key() -> None:
    keys = Keys.of(ONE)
    (at_rest,) = keys.at_rest().values()
    token = base64.urlsafe_b64decode(keys.join_token("vm-1") + "=")
    assert len({ONE, at_rest, token}) == 3
    assert len(at_rest) == len(token) == 32
    assert not at_rest.hex().startswith(key_id(ONE))


def test_a_join_token_is_of_one_vm_and_always_the_same() -> None:
    keys = Keys.of(ONE)
    assert keys.join_token("vm-1") == Keys.of(ONE).join_token("vm-1")
    assert keys.join_token("vm-1") != keys.join_token("vm-2")


def test_what_is_derived_stays_the_same_for_every_release() -> None:
    """Databases hold values that only these keys open."""
    keys = Keys.of(ONE)
    assert keys.ids == ["2f13b741"]
    assert keys.at_rest()["2f13b741"].hex() == (
        "e1a2e2c93910fb8a6f8ee28cd11ea7204cef04d730f851afd9463fd96608e352"
    )
    assert keys.join_token("vm-1") == "Mvj0dFxU1EPx-McW9LsP2dZ_JkrSCkJbrZ70Xc12SpI"


def test_a_new_key_comes_first_and_the_old_ones_go_when_told(tmp_path: Path) -> None:
    keys = opened(write(tmp_path / "key", ONE))
    new = keys.add()
    assert keys.ids == opened(keys.path).ids == [new, key_id(ONE)]
    keys.keep_newest()
    assert keys.ids == opened(keys.path).ids == [new]
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600


def test_a_lost_file_is_not_made_anew_where_something_was_encrypted(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "key")
    with pytest.raises(KeyFileError, match=f"{key_id(ONE)}, and this file is not there; put the"):
        keys.open([key_id(ONE)])
    assert not keys.path.exists()


def test_a_wrong_file_is_told_with_the_ids_of_both_keys(tmp_path: Path) -> None:
    keys = Keys(write(tmp_path / "key", TWO))
    with pytest.raises(KeyFileError, match=f"{key_id(ONE)}, and this file has only {key_id(TWO)}"):
        keys.open([key_id(ONE), key_id(TWO)])
    with pytest.raises(KeyFileError, match="not read yet"):
        keys.join_token("vm-1")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no key"),
        ("# only a comment\n", "holds no key"),
        ("c2VjcmV0\n", "line 1 is no key"),
        ("# one\n\nno base64: !\n", "line 3 is no key"),
    ],
)
def test_what_is_no_key_is_refused_and_not_quoted(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=told) as caught:
        Keys(path).open()
    assert "c2VjcmV0" not in str(caught.value)


def test_a_file_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "key", ONE, mode=0o644)
    with pytest.raises(KeyFileError, match=f"`chmod 600 {path}`"):
        Keys(path).open()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="cannot be"):
        Keys(tmp_path / "file" / "key").open()


def test_both_alphabets_of_base64_are_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"# by hand\n" + base64.urlsafe_b64encode(b"\xff" * 32) + b"\n")
    path.chmod(0o600)
    assert opened(path).ids == [key_id(b"\xff" * 32)]


def test_a_master_does_not_start_with_a_key_file_that_it_cannot_use(tmp_path: Path) -> None:
    settings = MasterSettings(home=tmp_path / "home", key_file=write(tmp_path / "key", ONE[:5]))
    services = create_app(settings, {}).state.services
    with pytest.raises(program.CannotStart, match=f"key_file = {tmp_path}/key: line 1 is no key"):
        program.open_database(settings, services)
    write(settings.key_file, TWO)
    program.open_database(settings, services)
    assert services.keys.ids == [key_id(TWO)]
    services.db.close()


def start(settings: MasterSettings) -> None:
    """As far as its keys, and to its end."""
    services = create_app(settings, {}).state.services
    program.open_database(settings, services)
    services.db.close()


def test_a_rotation_that_was_interrupted_is_finished_by_the_next_start(tmp_path: Path) -> None:
    settings = MasterSettings(home=tmp_path)
    start(settings)
    keys = opened(settings.key_file)
    [before] = keys.ids
    new = keys.add()  # and then the program was killed
    assert opened(settings.key_file).ids == [new, before]
    start(settings)
    assert opened(settings.key_file).ids == [new]


def test_lines_that_people_add_stay_until_they_delete_them(tmp_path: Path) -> None:
    settings = MasterSettings(home=tmp_path)
    write(settings.key_file, ONE, TWO)
    start(settings)
    assert opened(settings.key_file).ids == [key_id(ONE), key_id(TWO)]
