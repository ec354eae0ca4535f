"""The training API against the agent's end of pipes and outbox; time is an argument."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import spothop
from fakes.training_vm import Vm, run_steps
from spothop.training import api, pipes


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Vm]:
    vm = Vm(tmp_path)
    yield vm
    vm.close()


# --- hello, steps, phases -------------------------------------------------------------------------


def test_hello_comes_first_and_carries_version_rank_and_process(vm: Vm) -> None:
    vm.session(rank=3)
    line = pipes.LineDecoder().feed(os.read(vm.up, 4096))
    stamp = {"rank": 3, "pid": os.getpid() + 3}
    assert line == [{"t": "hello", "v": 2, "world": 1, "at": vm.clock.now, **stamp}]


def test_starting_ends_at_the_first_step_and_counts_from_the_start_of_the_process(vm: Vm) -> None:
    session = vm.session(age_s=1.5)
    vm.clock.move(0.5)
    run_steps(vm, session, 2)
    assert vm.received("phase") == [{"t": "phase", "phase": "starting", "s": 2.0}]


def test_step_timings_are_means_and_leave_saves_out_of_data_loading(vm: Vm) -> None:
    session = vm.session(report_every_s=10)
    run_steps(vm, session, 1)  # reported at once, and then not for ten seconds
    assert vm.received("steps") == [
        {"t": "steps", "step": 1, "count": 1, "step_s": 0.2, "load_s": 0}
    ]
    vm.clock.move(1.0)  # saving
    session.backup(vm.save())
    vm.clock.move(0.06)  # loading data
    run_steps(vm, session, 3, seconds=0.4)
    assert vm.received("steps") == []
    vm.clock.move(10)
    run_steps(vm, session, 1, seconds=0.4)
    (steps,) = vm.received("steps")
    assert (steps["step"], steps["count"]) == (5, 4)
    assert steps["step_s"] == pytest.approx(0.4)
    assert steps["load_s"] == pytest.approx((0.06 + 10) / 4)


def test_a_step_that_raises_is_not_counted(vm: Vm) -> None:
    session = vm.session()
    with pytest.raises(ZeroDivisionError), session.step_context():
        raise ZeroDivisionError
    assert session.step == 0
    run_steps(vm, session, 1)
    assert session.step == 1


def test_the_step_may_be_given_and_the_context_is_the_same_object(vm: Vm) -> None:
    session = vm.session()
    context = session.step_context(step=41)
    with context:
        pass
    assert session.step == 42
    assert session.step_context() is context


def test_exit_without_enter_says_what_to_do(vm: Vm) -> None:
    session = vm.session()
    with pytest.raises(RuntimeError, match="with step_context"):
        session.exit_step()


# --- a full pipe ----------------------------------------------------------------------------------


def test_with_a_full_pipe_timings_coalesce_and_control_messages_wait_in_order(vm: Vm) -> None:
    session = vm.session()
    vm.fill()
    run_steps(vm, session, 50)
    session.backup(vm.save())
    session.log({"loss": 1.0})
    session.log({"loss": 0.5, "lr": 1e-3})
    session.done()
    vm.received()  # the agent is back and reads what was there
    session.close(pause=lambda _: None)
    after = vm.received()
    assert [msg["t"] for msg in after] == ["phase", "backup", "done", "steps", "metrics"]
    assert (after[3]["step"], after[3]["count"]) == (50, 50)
    assert after[4] == {"t": "metrics", "step": 50, "values": {"loss": 0.5, "lr": 0.001}}


def test_waiting_control_messages_go_with_the_next_check(vm: Vm) -> None:
    session = vm.session()
    vm.fill()
    session.backup(vm.save())
    vm.received()
    vm.clock.move(0.01)
    assert session.check_save() is False
    assert [msg["t"] for msg in vm.received()] == ["backup", "trains"]


def test_the_first_check_is_told_also_after_steps(vm: Vm) -> None:
    """The agent knows from it that the script can be asked for saves."""
    session = vm.session()
    run_steps(vm, session, 3)
    vm.received()
    for _ in range(3):
        vm.clock.move(0.01)
        session.check_save()
    assert [msg["t"] for msg in vm.received()] == ["trains"]


def test_the_queue_is_bounded_and_closing_gives_up_after_its_tries(vm: Vm) -> None:
    session = vm.session()
    vm.fill()
    for _ in range(1000):
        session.done()
    pauses: list[float] = []
    session.close(tries=5, pause=pauses.append)
    assert pauses == [0.01] * 5
    vm.received()
    session.close(pause=pauses.append)
    assert len(vm.received("done")) == 256


# --- save requests --------------------------------------------------------------------------------


def test_a_request_is_answered_once_with_its_own_id_kind_and_delta(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 7)
    vm.want("r1", "emergency")
    began = vm.clock.now
    assert session.check_save() is True
    vm.clock.move(0.4)
    assert session.check_save() is False
    session.backup(vm.save("out/ckpt.pt"))
    assert session.check_save() is False
    assert vm.received("saving") == [{"t": "saving", "request": "r1", "step": 7}]
    (meta,) = vm.published()
    assert meta == {
        "v": 1,
        "id": f"{int(vm.clock.now * 1e9):020d}-{os.getpid()}",
        "name": "ckpt.pt",
        "path": "out/ckpt.pt",
        "is_dir": False,
        "step": 7,
        "kind": "emergency",
        "request": "r1",
        "delta_s": 0.4,
        "exact": True,
        "began": began,
        "mono": vm.clock.now,
    }


def test_a_periodic_save_answers_a_request_it_has_not_yet_seen(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 10)
    vm.clock.move(0.25)
    vm.want("r1")  # moves the clock by 0.01
    session.backup(vm.save())
    assert session.check_save() is False
    (meta,) = vm.published()
    assert (meta["kind"], meta["request"], meta["step"]) == ("insurance", "r1", 10)
    assert meta["delta_s"] == pytest.approx(0.26)
    (bell,) = vm.received("backup")
    assert bell == {
        "t": "backup",
        "id": meta["id"],
        "step": 10,
        "kind": "insurance",
        "request": "r1",
    }


def test_a_periodic_save_before_the_wanted_step_answers_nothing(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 10)
    vm.want("r1", at_step=12)
    session.backup(vm.save())
    assert [(meta["kind"], meta["request"]) for meta in vm.published()] == [("periodic", None)]
    run_steps(vm, session, 2)
    assert session.check_save() is True


def test_a_request_that_comes_during_a_save_is_answered_by_it(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 3)
    vm.want("r1", "insurance")
    assert session.check_save() is True
    vm.want("r2", "emergency")
    session.backup(vm.save())
    assert [meta["request"] for meta in vm.published()] == ["r2"]
    assert session.check_save() is False


def test_a_save_finished_steps_later_is_of_the_step_that_was_asked_for(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 3)
    vm.want("r1", "insurance")
    assert session.check_save() is True
    run_steps(vm, session, 2)  # saving in the background
    vm.want("r2", "emergency")
    session.backup(vm.save())
    assert [(meta["request"], meta["step"]) for meta in vm.published()] == [("r1", 3)]
    assert session.check_save() is True  # the emergency is still open


def test_the_newer_request_wins_but_never_over_an_emergency(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 1)
    vm.want("r1", "insurance")
    vm.want("r2", "emergency")
    vm.want("r3", "insurance")
    assert session.check_save() is True
    session.backup(vm.save())
    assert [meta["request"] for meta in vm.published()] == ["r2"]
    assert session.check_save() is False


def test_a_repeated_request_is_no_new_one(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 1)
    vm.want("r1")
    assert session.check_save() is True
    vm.want("r1")
    assert session.check_save() is False
    session.backup(vm.save())
    vm.want("r1")
    assert session.check_save() is False


def test_requests_for_another_process_and_nonsense_are_dropped(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 1)
    vm.say(t="save", request="r1", kind="insurance", at_step=None, pid=os.getpid() + 1)
    vm.say(t="save", request=7, kind="insurance")
    vm.say(t="save", request="r2")
    vm.say(t="dance")
    os.write(vm._down[0], b"{torn\n\xff\n")
    vm.clock.move(0.01)
    assert session.check_save() is False


def test_what_lay_in_the_pipe_at_the_start_was_for_somebody_else(vm: Vm) -> None:
    vm.session()
    vm.want("old")
    session = vm.session()
    vm.clock.move(0.01)
    assert session.check_save() is False


def test_polling_is_rate_limited(vm: Vm) -> None:
    session = vm.session()
    assert session.check_save() is False
    vm.want("r1")
    vm.clock.now -= 0.009  # one millisecond after the last look
    assert session.check_save() is False
    vm.clock.move(0.005)
    assert session.check_save() is True


# --- several ranks --------------------------------------------------------------------------------


def test_ranks_save_the_same_step_even_if_they_hear_of_it_at_different_ones(vm: Vm) -> None:
    ranks = [vm.session(rank) for rank in range(3)]
    saved_at: dict[int, int] = {}
    for step in range(1, 8):
        for rank, session in enumerate(ranks):
            if step == 2 + rank:  # the agent reaches rank 2 last
                vm.want("r1", at_step=5, rank=rank)
            run_steps(vm, session, 1, seconds=0.02)
            if session.check_save():
                saved_at[rank] = step
    assert saved_at == {0: 5, 1: 5, 2: 5}


def test_a_rank_past_the_step_answers_missed_and_does_not_save(vm: Vm) -> None:
    session = vm.session(rank=1)
    run_steps(vm, session, 6)
    assert session.check_save() is False
    vm.want("r1", at_step=5, rank=1)
    assert session.check_save() is False
    assert vm.received("missed") == [{"t": "missed", "request": "r1", "step": 6, "missing": []}]
    vm.want("r2", at_step=8, rank=1)
    assert session.check_save() is False
    run_steps(vm, session, 2)
    assert session.check_save() is True


def test_ranks_that_check_rarely_save_at_the_same_check(vm: Vm) -> None:
    early, late = vm.session(0), vm.session(1)
    for session in (early, late):
        run_steps(vm, session, 10)
    vm.want("r1", at_step=15, rank=0)
    assert early.check_save() is False
    assert late.check_save() is False
    vm.want("r1", at_step=15, rank=1)  # heard of at step 20, and not late all the same
    for session in (early, late):
        run_steps(vm, session, 10, seconds=0.002)  # too quick for enter_step() to look
        assert session.check_save() is True
    assert vm.received("missed") == []


def test_a_rank_that_has_just_saved_by_itself_is_late_too(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 5)
    session.backup(vm.save())  # a periodic one, as on every rank
    vm.want("r1", at_step=5)
    assert session.check_save() is False
    assert len(vm.received("missed")) == 1


def test_the_wait_of_a_rank_for_another_ones_save_is_no_data_loading(vm: Vm) -> None:
    session = vm.session(rank=1, report_every_s=10)
    run_steps(vm, session, 1)
    vm.received()
    vm.want("r1", rank=1)
    assert session.check_save() is True
    vm.clock.move(5)  # a barrier: rank 0 saves
    run_steps(vm, session, 1)
    vm.clock.move(10)
    with session.step_context():
        pass
    (steps,) = vm.received("steps")[-1:]
    assert steps["load_s"] == pytest.approx((0.01 + 10) / 2)


# --- stop -----------------------------------------------------------------------------------------


def test_a_stop_ends_the_process_at_the_next_step(
    vm: Vm, capsys: pytest.CaptureFixture[str]
) -> None:
    session = vm.session()
    run_steps(vm, session, 4)
    vm.say(t="stop", reason="cancelled")
    assert session.check_save() is False
    with pytest.raises(SystemExit) as exit_, session.step_context():
        pytest.fail("the step must not run")
    assert exit_.value.code == 0
    assert capsys.readouterr().err == "spothop: stopping at step 4: cancelled\n"


def test_a_script_that_never_checks_is_stopped_too(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 1)
    vm.say(t="stop", reason="cancelled")
    vm.clock.move(0.2)
    with pytest.raises(SystemExit):
        session.enter_step()


def test_a_save_asked_for_before_the_stop_comes_first_but_not_forever(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 1)
    vm.want("r1")
    vm.say(t="stop", reason="paused")
    vm.clock.move(0.2)
    run_steps(vm, session, 1)
    assert session.check_save() is True
    session.backup(vm.save())
    with pytest.raises(SystemExit):
        session.enter_step()

    other = vm.session()
    vm.want("r2", at_step=1000)
    vm.say(t="stop", reason="paused")
    vm.clock.move(0.2)
    run_steps(vm, other, 1)
    vm.clock.move(10)
    with pytest.raises(SystemExit):
        other.enter_step()


@pytest.mark.parametrize(("every", "step_s", "waits"), [(10, 3.0, True), (60, 30.0, False)])
def test_a_script_that_checks_every_n_steps_makes_its_last_save(
    vm: Vm, capsys: pytest.CaptureFixture[str], every: int, step_s: float, waits: bool
) -> None:
    """The time follows the interval between its checks; 10 minutes are the most."""
    session = vm.session()

    def steps(count: int) -> None:
        for _ in range(count):
            session.enter_step()
            vm.clock.move(step_s)
            session.exit_step()

    for _ in range(2):
        steps(every)
        assert session.check_save() is False
    vm.want("r1")
    vm.say(t="stop", reason="paused")
    if waits:
        steps(every)
        assert session.check_save() is True
        session.backup(vm.save())
        with pytest.raises(SystemExit):
            session.enter_step()
        assert "without" not in capsys.readouterr().err
    else:
        with pytest.raises(SystemExit):
            steps(every)
        assert "stopping without the save that was asked for" in capsys.readouterr().err
    (told,) = vm.received("stopping")
    assert told["wait_s"] == pytest.approx(min(600.0, 2 * every * step_s))


def test_processes_with_slow_steps_come_to_the_step_that_they_save_together(vm: Vm) -> None:
    """What the replacement of a noticed VM waits for: two steps ahead, 15 s each."""
    ranks = [vm.session(rank, world=2) for rank in (0, 1)]
    for rank in (0, 1):
        vm.want("r1", "emergency", at_step=2, rank=rank, ranks=(0, 1))
        vm.say(rank, t="stop", reason="its replacement is ready")
    for session in ranks:
        session.check_save()
    saved = []
    for _ in range(2):
        for session in ranks:
            session.enter_step()
        vm.clock.move(15.0)
        for session in ranks:
            session.exit_step()
            saved.append(session.check_save())
    assert saved == [False, False, True, True]
    ranks[0].backup(vm.save())
    for session in ranks:
        with pytest.raises(SystemExit):
            session.enter_step()


# --- backups --------------------------------------------------------------------------------------


def test_the_name_may_be_written_again_at_once(vm: Vm) -> None:
    session = vm.session()
    for text in ("one", "two"):
        path = vm.save(text=text)
        vm.clock.move(0.5)
        session.backup(path)
        assert not path.exists()
    assert [meta["delta_s"] for meta in vm.published()] == [0.5, 0.5]
    folders = sorted(vm.outbox.iterdir())
    assert [(folder / "payload/ckpt.pt").read_text() for folder in folders] == ["one", "two"]
    assert [meta["id"] for meta in vm.published()] == [folder.name for folder in folders]


def test_a_directory_is_taken_whole(vm: Vm) -> None:
    session = vm.session()
    vm.save("ckpt/a")
    vm.save("ckpt/deep/b")
    session.backup(str(vm.work / "ckpt") + "/")
    (meta,) = vm.published()
    assert (meta["name"], meta["path"], meta["is_dir"]) == ("ckpt", "ckpt", True)
    payload = vm.outbox / meta["id"] / "payload"
    assert sorted(str(p.relative_to(payload)) for p in payload.rglob("*") if p.is_file()) == [
        "ckpt/a",
        "ckpt/deep/b",
    ]


def test_what_cannot_be_restored_is_refused_before_it_is_moved(vm: Vm, tmp_path: Path) -> None:
    session = vm.session()
    outside = tmp_path / "elsewhere.pt"
    outside.write_text("weights")
    with pytest.raises(ValueError, match=r"not below the job directory"):
        session.backup(outside)
    assert vm.published() == []
    assert outside.exists()


# --- resume, log, done ----------------------------------------------------------------------------


def test_the_restored_checkpoint_seeds_the_counter_once(vm: Vm) -> None:
    session = vm.session()
    assert session.latest_checkpoint() is None
    (vm.run / "restored.json").write_text('{"path": "out/ckpt.pt", "step": 120}')
    assert session.latest_checkpoint() == str(vm.work / "out/ckpt.pt")
    run_steps(vm, session, 1)
    session.latest_checkpoint()
    assert session.step == 121


def test_a_checkpoint_of_unknown_step_leaves_the_counter(vm: Vm) -> None:
    session = vm.session()
    (vm.run / "restored.json").write_text('{"path": "ckpt.pt", "step": null}')
    assert session.latest_checkpoint() is not None
    assert session.step == 0


def test_metrics_are_sent_at_most_every_100_ms_and_the_newest_value_counts(vm: Vm) -> None:
    session = vm.session()
    vm.received()
    for value in range(5):
        session.log({"loss": value})
        vm.clock.move(0.03)
    sent = [msg["values"]["loss"] for msg in vm.received("metrics")]
    assert sent == [0.0, 4.0]


def test_many_metrics_take_several_messages(vm: Vm) -> None:
    session = vm.session()
    values = {f"metric number {n:04d}": n / 3 for n in range(1000)}
    session.log(values)
    messages = vm.received("metrics")
    assert len(messages) > 1
    assert {k: v for msg in messages for k, v in msg["values"].items()} == values


def test_log_takes_numbers_only_and_leaves_out_what_is_not_finite(
    vm: Vm, capsys: pytest.CaptureFixture[str]
) -> None:
    session = vm.session()
    with pytest.raises(ValueError, match=r"log\(note='hi'\): not a number"):
        session.log({"note": "hi"})
    for _ in range(3):
        vm.clock.move(1)
        session.log({"loss": float("nan"), "lr": 0.1})
    heard = vm.received()
    assert [msg["values"] for msg in heard if msg["t"] == "metrics"] == [{"lr": 0.1}] * 3
    assert capsys.readouterr().err.count("log(loss=nan): not finite") == 1
    told = [msg for msg in heard if msg["t"] == "diverged"]
    assert told == [{"t": "diverged", "step": 0, "name": "loss", "value": "nan"}]


@pytest.mark.parametrize("step", [-1, 2**63])
def test_a_step_that_no_database_counts_to_is_refused_at_the_call(vm: Vm, step: int) -> None:
    with pytest.raises(ValueError, match=r"step_context\(step=.*from 0 to 2\*\*63 - 1"):
        vm.session().step_context(step)


def test_done_leaves_a_file_and_a_message(vm: Vm) -> None:
    session = vm.session()
    run_steps(vm, session, 2)
    session.done()
    assert (vm.run / "done").exists()
    assert vm.received("done") == [{"t": "done", "step": 2}]


# --- forks, the module's functions ---------------------------------------------------------------


def test_a_fork_is_not_the_process_that_trains(vm: Vm) -> None:
    session = vm.session()
    vm.received()
    session.after_fork()
    with session.step_context():
        pass
    vm.want("r1", "emergency")
    assert session.check_save() is False
    path = vm.save()
    session.backup(path)
    session.done()
    session.close(pause=lambda _: pytest.fail("nothing to wait for"))
    assert vm.received() == []
    assert path.exists()
    assert not (vm.run / "done").exists()


def test_the_module_functions_are_the_session_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, vm: Vm
) -> None:
    monkeypatch.setattr(api, "_default", vm.session())
    (vm.run / "restored.json").write_text('{"path": "ckpt.pt", "step": 1}')
    assert spothop.latest_checkpoint() == vm.work / "ckpt.pt"
    spothop.enter_step()
    spothop.exit_step()
    vm.want("r1")
    assert spothop.check_save() is True
    spothop.backup(vm.save())
    assert [meta["request"] for meta in vm.published()] == ["r1"]
