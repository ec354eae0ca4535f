"""Step, moment and request belong to the save: also when it is handed over much later."""

from __future__ import annotations

import os
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
        except Exception as error:  # given to the test, which says what it should be
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_what_the_script_did_before_an_unmarked_save_is_no_save_time(vm: Vm) -> None:
    """An evaluation of 8 s before a tiny file: only a mark, or a check, tells the two apart."""
    session = vm.session()

    def save(*, marked: bool) -> None:
        run_steps(vm, session, 100)
        vm.clock.move(8.0)
        if marked:
            with session.saving() as begun:
                vm.clock.move(0.25)
                begun.backup(vm.save())
        else:
            vm.clock.move(0.25)
            session.backup(vm.save())

    save(marked=False)
    save(marked=True)
    vm.want("r1")
    assert session.check_save()
    vm.clock.move(0.5)
    session.backup(vm.save())
    vm.want("r2")  # answered by a save that the script makes anyway
    save(marked=False)
    assert [(m["delta_s"], m["exact"]) for m in vm.published()] == [
        (8.25, False),
        (0.25, True),
        (0.5, True),
        (8.25, False),
    ]


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


def test_a_save_in_a_thread_is_not_that_of_the_loop(vm: Vm) -> None:
    """Both are in progress at once: each backup is of its own step."""
    session = vm.session()
    run_steps(vm, session, 1)
    entered, go_on = threading.Event(), threading.Event()

    def background() -> None:
        with session.saving(step=1):
            entered.set()
            go_on.wait()
            session.backup(vm.save("old"))

    thread = threading.Thread(target=background)
    thread.start()
    entered.wait()
    run_steps(vm, session, 4)
    session.backup(vm.save("new"))
    go_on.set()
    thread.join()
    assert {meta["name"]: meta["step"] for meta in vm.published()} == {"new": 5, "old": 1}


def test_a_backup_that_is_refused_leaves_its_request_to_the_next_save(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 1)
    vm.want("r1", "emergency")
    with pytest.raises(FileNotFoundError), session.saving() as save:
        save.backup(vm.work / "nothing")
    assert session.check_save()
    session.backup(vm.save())
    assert [meta["request"] for meta in vm.published()] == ["r1"]


def test_a_name_that_is_not_utf_8_is_refused_while_the_file_is_there(vm: Vm) -> None:
    session = vm.session()
    path = vm.save(os.fsdecode(b"c\xff"))
    with pytest.raises(ValueError, match="not UTF-8"):
        session.backup(path)
    assert path.exists()


def test_a_link_by_the_way_of_a_place_outside_stays_whole(vm: Vm) -> None:
    session = vm.session()
    vm.save("ckpt/weights")
    (vm.work / "ckpt" / "last").symlink_to("../../work/ckpt/weights")
    session.backup(vm.work / "ckpt")
    (folder,) = vm.outbox.iterdir()
    assert (folder / "payload" / "ckpt" / "last").read_text() == "weights"


def test_a_forked_child_that_only_saves_does_not_take_its_parents_requests(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 1)
    vm.want("r1", "emergency")
    vm.received()
    child = vm.session(quiet=True)
    child.backup(vm.save())
    assert len(vm.published()) == 1
    assert vm.received() == []  # under rank 0 the agent still knows the parent
    assert session.check_save()
