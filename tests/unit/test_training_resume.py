"""A process that is started again inside its attempt goes on from the newest save handed over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.training_vm import Vm, run_steps
from spothop.training import resume


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Vm]:
    vm = Vm(tmp_path)
    yield vm
    vm.close()


def write(vm: Vm, **note: Any) -> None:
    (vm.run / "restored.json").write_text(json.dumps(note))


def no_wait(_: float) -> None:
    pytest.fail("it asks although the save lies in its place")


def answering(vm: Vm, answer: Callable[[str], object]) -> Callable[[float], None]:
    """An agent that answers each question as it is asked."""

    def pause(_: float) -> None:
        vm.clock.move(1.0)
        for question in vm.received("resume"):
            answer(question["token"])

    return pause


def test_what_the_agent_put_in_place_is_taken_without_a_question(vm: Vm) -> None:
    path = vm.save()
    write(vm, path="ckpt.pt", step=7, id=None, stamp=resume.stamp(path))
    session = vm.session()
    assert session.latest_checkpoint(pause=no_wait) == str(path)
    assert session.step == 7


def test_a_file_that_a_dead_process_has_half_overwritten_is_put_back_first(vm: Vm) -> None:
    path = vm.save()
    write(vm, path="ckpt.pt", step=7, id=None, stamp=resume.stamp(path))
    path.write_text("wei")
    session = vm.session()

    def answer(token: str) -> None:
        vm.save(text="whole")
        write(vm, path="ckpt.pt", step=9, stamp="s", answered=[token])

    assert session.latest_checkpoint(pause=answering(vm, answer)) == str(path)
    assert path.read_text() == "whole"
    assert session.step == 9


def test_a_save_that_the_agent_has_not_even_seen_is_asked_for(vm: Vm) -> None:
    """Handed over at once before the restart."""
    before = vm.session()
    run_steps(vm, before, 3)
    before.backup(vm.save())
    again = vm.session()
    found = again.latest_checkpoint(
        pause=answering(vm, lambda token: write(vm, path="ckpt.pt", step=3, answered=[token]))
    )
    assert found == str(vm.work / "ckpt.pt")
    assert again.step == 3


def test_a_save_that_is_committed_while_we_look_is_not_missed(
    vm: Vm, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = vm.session()
    run_steps(vm, before, 3)
    before.backup(vm.save())
    real = resume.read

    def read(run_dir: str) -> dict[str, Any] | None:
        found = real(run_dir)
        for folder in vm.outbox.iterdir():  # the agent is as quick as that
            folder.rename(vm.run / "kept")
            write(vm, path="ckpt.pt", step=3, id=folder.name, stamp=None)
        return found

    monkeypatch.setattr(resume, "read", read)
    again = vm.session()
    found = again.latest_checkpoint(
        pause=answering(vm, lambda token: write(vm, path="ckpt.pt", step=3, answered=[token]))
    )
    assert found == str(vm.work / "ckpt.pt")


def test_an_error_and_an_agent_that_never_answers_are_told(vm: Vm) -> None:
    write(vm, path="ckpt.pt", step=7, id="1", stamp=None)
    session = vm.session()
    with pytest.raises(RuntimeError, match="disk full; end the process"):
        session.latest_checkpoint(
            pause=answering(
                vm,
                lambda token: write(vm, path="c", stamp=None, answered=[token], error="disk full"),
            )
        )
    asked: list[str] = []
    with pytest.raises(RuntimeError, match="has not put the newest save back for 3600 s"):
        session.latest_checkpoint(pause=answering(vm, asked.append))
    assert len(asked) > 100  # it may have been an agent that died with the question
    assert len(set(asked)) == 1


def test_what_a_training_process_may_be_writing_is_left_alone(vm: Vm) -> None:
    path = vm.save()
    write(vm, path="ckpt.pt", step=7, id=None, stamp=resume.stamp(path))
    session = vm.session()
    session.latest_checkpoint()
    run_steps(vm, session, 1)
    path.write_text("half of the next")
    assert session.latest_checkpoint(pause=no_wait) == str(path)
    worker = vm.session(quiet=True, beside_trainer=True)
    path.unlink()
    assert worker.latest_checkpoint(pause=no_wait) == str(path)


def test_the_stamp_sees_any_write_below_a_directory(vm: Vm) -> None:
    vm.save("ckpt/a")
    deep = vm.save("ckpt/deep/b")
    top = vm.work / "ckpt"
    before = resume.stamp(top)
    assert before == resume.stamp(top)
    deep.write_text("other weights")
    assert resume.stamp(top) != before
    assert resume.stamp(vm.work / "nothing") is None
    os.rename(deep, deep.with_name("c"))
    assert resume.stamp(top) != before
