"""Step, moment and request belong to the save: also when it is handed over much later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

from fakes.training_vm import Vm, run_steps


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Vm]:
    vm = Vm(tmp_path)
    yield vm
    vm.close()


def in_a_thread(call: Callable[[], object]) -> Exception | None:
    """What it raised."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_an_old_save_does_not_answer_what_was_asked_while_it_ran(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 100)
    with session.saving() as save:
        began = vm.clock.now
    run_steps(vm, session, 400)
    vm.want("notice", "emergency")
    vm.clock.move(0.1)
    assert in_a_thread(lambda: save.backup(vm.save("old.pt"))) is None
    (meta,) = vm.published()
    assert (meta["step"], meta["kind"], meta["request"]) == (100, "periodic", None)
    assert meta["began"] == began
    assert session.check_save() is True  # the request still waits for a save of its own
    session.backup(vm.save("new.pt"))
    assert [(m["step"], m["request"]) for m in vm.published()] == [(100, None), (500, "notice")]


def test_a_save_that_names_an_older_step_answers_nothing(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 5)
    vm.want("r1")
    vm.clock.move(0.1)
    session.backup(vm.save(), step=3)
    (meta,) = vm.published()
    assert (meta["step"], meta["request"], meta["began"]) == (3, None, 0.0)
    assert session.check_save() is True


def test_a_save_in_a_thread_answers_the_request_that_it_was_begun_for(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 5)
    vm.want("r1")
    vm.clock.move(0.1)
    assert session.check_save() is True
    with session.saving() as save:
        pass
    run_steps(vm, session, 3)
    vm.want("r2")
    vm.clock.move(0.1)
    assert in_a_thread(lambda: save.backup(vm.save("a"))) is None
    assert session.check_save() is True
    session.backup(vm.save("b"))
    assert [(m["step"], m["request"]) for m in vm.published()] == [(5, "r1"), (8, "r2")]


def test_a_thread_that_does_not_say_which_step_it_saved_is_refused(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 5)
    path = vm.save()
    error = in_a_thread(lambda: session.backup(path))
    assert isinstance(error, ValueError)
    assert "with sp.saving() as save" in str(error)
    assert path.exists()
    assert in_a_thread(lambda: session.backup(path, step=4)) is None
    assert [m["step"] for m in vm.published()] == [4]


def test_a_save_that_raises_is_asked_for_again(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 5)
    vm.want("r1")
    vm.clock.move(0.1)
    assert session.check_save() is True
    with pytest.raises(OSError, match="disk"), session.saving():
        raise OSError("the disk is full")
    run_steps(vm, session, 1)
    assert session.check_save() is True
    session.backup(vm.save())
    assert [(m["step"], m["request"]) for m in vm.published()] == [(6, "r1")]


def test_whole_numbers_of_numpy_are_steps_and_others_are_refused(vm: Vm) -> None:
    session = vm.session()
    with session.step_context(numpy.int64(41)):
        pass
    session.backup(vm.save("a"))
    session.backup(vm.save("b"), step=numpy.int32(7))
    assert [m["step"] for m in vm.published()] == [42, 7]
    with pytest.raises(TypeError, match=r"step_context\(step=1.5\)"):
        session.step_context(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"backup\(step='7'\)"):
        session.backup(vm.save("c"), step="7")  # type: ignore[arg-type]
